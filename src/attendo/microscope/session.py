"""The session of a model, which answers the requests of the microscope page and caches recent results."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from attendo.bundle import examples_of
from attendo.config import build
from attendo.custom_modules import is_custom
from attendo.errors import AttendoError
from attendo.inference import Generator, Translator
from attendo.inference.generator import in_float32
from attendo.inspecting.probing import linear_probes
from attendo.inspecting.recording import view
from attendo.inspecting.residual_stream import Stack
from attendo.microscope import answers, effects, influence, search_answers
from attendo.microscope.protocol import (
    MOST_CHARACTERS,
    EditRequest,
    LookAnswer,
    LookRequest,
    ModelAnswer,
    Probes,
)
from attendo.microscope.run_model import (
    LookResult,
    User,
    attention_layers,
    attention_paths,
    effect_paths,
    look,
    read,
    require_shown,
    usual_beam,
    usual_search,
)
from attendo.models import parameter_count
from attendo.training.acceleration import fastest_products, use_onednn
from attendo.training.checkpoints import checkpoints

LONGEST_SWEEP = 160
"""The maximum number of tokens for which a saved page contains the effect of every head. More would take minutes."""
REMEMBERED = 500_000_000
"""The maximum bytes of cached results. At least two results are cached, and older results are computed again."""

Answer = Mapping[str, Any] | bytes
ANSWER_OF: dict[str, Callable[..., Answer]] = {
    "tensor": answers.tensor_answer,
    "matrices": answers.matrices_answer,
    "effects": effects.effects_answer,
    "film": answers.film_answer,
    "lens": answers.lens_answer,
    "influence": influence.influence_answer,
    "attribution": influence.attribution_answer,
    "next": answers.next_answer,
    "tree": search_answers.tree_answer,
    "why": search_answers.why_answer,
    "positions": answers.positions_answer,
    "tokens": effects.tokens_answer,
}
"""The function that answers each request about a result. Its parameters are the fields of the request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """A request for facts about the model, such as its size and its attention layers."""


def _request_type(name: str, answer: Callable[..., Answer]) -> type:
    """Return the type of the requests for an answer: the key of a result, and the parameters of the function."""
    hints = get_type_hints(answer, include_extras=True)
    fields: list[Any] = [("key", str)]
    for parameter in [*signature(answer).parameters.values()][1:]:
        is_required = parameter.default is parameter.empty
        default = dataclasses.MISSING if is_required else parameter.default
        fields.append((parameter.name, hints[parameter.name], dataclasses.field(default=default)))
    first, _, _ = " ".join(str(answer.__doc__).split()).partition(". ")
    about = {"__doc__": f"Request: {first.removesuffix('.')}."}
    return dataclasses.make_dataclass(f"{name.title()}Request", fields, namespace=about, kw_only=True, frozen=True)


REQUESTS: dict[str, type] = {
    "model": ModelRequest,
    "look": LookRequest,
    **{name: _request_type(name, answer) for name, answer in ANSWER_OF.items()},
}
"""The type of each request, by name."""


def request_of(name: str, body: Mapping[str, Any]) -> Any:
    """Return the request for a name and a JSON body. Raise AttendoError for an unknown name or an invalid field.

    >>> request_of("look", {"text": "rain", "edits": [{"kind": "beta", "path": "*", "beta": "inf"}]}).edits[0].beta
    'inf'
    """
    if name not in REQUESTS:
        raise AttendoError(f"unknown question {name!r}: page and program have different versions. Reload the page")
    if name == "look":
        edits = body.get("edits", [])
        if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
            raise AttendoError("edits must be a list of tables; [] is none")
        for edit in edits:
            build(EditRequest, edit, "edit")  # names an unknown key
    return build(REQUESTS[name], body, name, others=name != "look")


def answer_types() -> dict[str, Any]:
    """Return the type of the answer to each request, by name."""
    own = {name: get_type_hints(answer)["return"] for name, answer in ANSWER_OF.items()}
    return {"model": ModelAnswer, "look": LookAnswer} | own


def json_schema() -> dict[str, Any]:
    """Return the JSON schemas of each request and its answer, by name."""
    of_answers = {name: TypeAdapter(answer).json_schema() for name, answer in answer_types().items()}
    of_requests = {name: TypeAdapter(request).json_schema() for name, request in REQUESTS.items()}
    return {name: {"request": of_requests[name], "answer": of_answers[name]} for name in of_requests}


class Session:
    """A session that answers the microscope page's requests about one model, one at a time, from any thread.

    Args:
        user: The loaded Translator, Classifier, Generator or Embedder.
        folder: The run folder, whose checkpoints show the attention during training.
        examples: Texts to try (default: the example texts of the run folder).
    """

    def __init__(self, user: User, folder: Path | None = None, examples: Sequence[str] | None = None) -> None:
        require_shown(user)
        if isinstance(user, Generator):
            user = dataclasses.replace(user, model=in_float32(user.model))
        self.user, self.folder = user, folder
        self.examples = examples_of(folder or user.folder) if examples is None else list(examples)
        self.probes: Probes | None = None  # of texts with labels, if there are any
        self._turn = threading.Lock()
        self._results: OrderedDict[str, LookResult] = OrderedDict()
        self._requests: dict[str, LookRequest] = {}

    @classmethod
    def prepared(cls, user: User, folder: Path | None = None) -> Session:
        """Return a session for many requests, with the compiled search and the fastest matrix library.

        The preparation takes about 100 ms.

        Args:
            user: The loaded model of any task.
            folder: The run folder, whose checkpoints show the attention during training.
        """
        if isinstance(user, Translator | Generator):
            user.prepare()
        if fastest_products(user.device) == "onednn":
            model = view(user.model)
            use_onednn(model)
            user = dataclasses.replace(user, model=model)
        return cls(user, folder)

    def answer(self, name: str, body: Mapping[str, Any]) -> Answer:
        """Return the answer to a request.

        Args:
            name: The name of the request, for example "look".
            body: The fields of the request.

        Raises:
            AttendoError: The name or a field of the request is invalid.
        """
        with self._turn:
            return self._answer(name, body)

    def _answer(self, name: str, body: Mapping[str, Any]) -> Answer:
        request = request_of(name, body)
        if name == "model":
            return self.model_answer()
        if name == "look":
            began = time.perf_counter()
            baseline = self._remembered(request.without_edits()) if request.edits else None
            return look_answer(self._remembered(request, baseline), baseline, began)
        given = {field: value for field, value in vars(request).items() if field != "key"}
        if "path" in given:
            model = self.user.model
            known = effect_paths(model) if name == "effects" else [*attention_layers(model)]
            if given["path"] not in known:
                raise AttendoError(f"{name}: path {given['path']!r} is not one of {', '.join(known)}")
        if request.key not in self._requests:
            message = "this result is no longer available, because the program was restarted. Look again"
            raise AttendoError(message)
        return ANSWER_OF[name](self._remembered(self._requests[request.key]), **given)

    def model_answer(self) -> ModelAnswer:
        """Return the facts about the model that the page shows before the first request."""
        user, model = self.user, self.user.model
        config, family = model.config, user.task
        facts = [
            ["family", family],
            ["parameters", f"{parameter_count(model):,}"],
            ["layers (encoder + decoder)", f"{config.n_encoder_layers} + {config.n_decoder_layers}"],
            ["heads", str(config.n_heads)],
            ["d_model", str(config.d_model)],
            ["vocabulary", f"{config.vocab_size:,}"],
            ["positions", config.positions],
        ]
        folder = self.folder or user.folder
        kept = [] if self.folder is None else checkpoints(self.folder / "checkpoints")
        return {
            "name": "a model in memory" if folder is None else folder.absolute().name,
            "own_parts": any(map(is_custom, model.modules())),  # commands cannot load custom modules
            "family": family,
            "facts": facts,
            "search": usual_search(user),
            "beam": usual_beam(user),
            "vocab_size": config.vocab_size,
            "stacks": [
                {"name": name, "paths": paths, "heads": config.n_heads}
                for name, paths in attention_paths(model).items()
            ],
            "checkpoints": [int(path.name.removeprefix("step-")) for path in kept],
            "effects": effect_paths(model),
            "examples": self.examples,
            "probes": self.probes,
        }

    def usual_answers(
        self, request: LookRequest, head: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, dict[str, Any], Answer]]:
        """Yield all requests of a page without edits, with their answers, for a self-contained page.

        Args:
            request: The request with the text and the search settings.
            head: The path and the number of the head to open first (default: `opens` of the answer).
        """
        body = request.body
        # a saved page cannot run the model, and its readers may not be allowed to see the examples
        yield "model", {}, {**self.model_answer(), "examples": []}
        found = self.answer("look", body)
        assert isinstance(found, dict)
        yield "look", body, found
        opens = {"path": found["opens"]["layer"], "head": found["opens"]["head"]}
        for name, more in self._usual_questions(found, head or opens):
            question = {"key": found["key"], **more}
            try:
                yield name, question, self.answer(name, question)
            except AttendoError as error:  # the page shows the message of an unsupported request
                yield name, question, {"error": str(error)}

    def _usual_questions(
        self, found: Mapping[str, Any], head: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        family = found["family"]
        for stack in found["stacks"]:
            for layer in stack["layers"]:
                yield "tensor", {"path": layer["path"]}
                yield "matrices", {"path": layer["path"]}
            yield "lens", {"stack": stack["name"]}
            yield "influence", {"stack": stack["name"], "way": "rollout"}
        is_short = max(len(found["source"]), len(found["target"])) <= LONGEST_SWEEP
        for path in effect_paths(self.user.model) if is_short else ():
            yield "effects", {"path": path}
        for position in range(len(found["target"])) if is_short else ():
            yield "attribution", {"position": position}
        for side in ("source", "target"):
            if found[side]:
                yield "positions", {"side": side}
        positions = found["source"] if family == "masked-language-model" else found["target"]
        for position in range(len(positions)):
            yield "next", {"position": position, "n": 10}
        if family == "classification":
            yield "tokens", {}
        if family in ("translation", "language-model"):
            yield "tree", {"beam": usual_beam(self.user)}
        yield "film", dict(head)

    def _remembered(self, request: LookRequest, baseline: LookResult | None = None) -> LookResult:
        if request.key in self._results:
            self._results.move_to_end(request.key)
            return self._results[request.key]
        return self.remember(look(self.user, request, self.folder, baseline))

    def remember(self, result: LookResult) -> LookResult:
        """Cache a result for further requests, and return the result.

        Args:
            result: The result to cache.
        """
        self._results[result.request.key], self._requests[result.request.key] = result, result.request
        while len(self._results) > 2 and sum(r.n_bytes for r in self._results.values()) > REMEMBERED:
            self._results.popitem(last=False)
        return result


def probes_of(user: User, rows: Sequence[tuple[str, str]]) -> Probes:
    """Fit linear probes to rows (text, label), and return their accuracy on held-out texts (see `linear_probes`).

    A probe reads the mean of the states of a text, in the encoder if the model has an encoder. A text is truncated to
    the context length. Raise AttendoError if there are fewer than 2 labels.
    """
    stack: Stack = "encoder" if hasattr(user.model, "encoder") else "decoder"
    asked = [LookRequest(text=text[:MOST_CHARACTERS], search="forced", target="") for text, _ in rows]
    inputs = [read(user, request).as_inputs(user.task, user.device) for request in asked]
    probes = linear_probes(user.model, inputs, [label for _, label in rows], stack=stack)
    return {
        "stack": stack,
        "accuracy": [probe.accuracy for probe in probes],
        "control": [probe.control for probe in probes],
        "majority": probes[0].majority,
        "n_train": probes[0].n_train,
        "n_test": probes[0].n_test,
    }


def look_answer(result: LookResult, baseline: LookResult | None, began: float) -> LookAnswer:
    """Return the data that the page shows about a result and its unedited `baseline`.

    The computation started at `began`, a value of `time.perf_counter`.
    """
    stacks = answers.stacks_of(result)
    return {
        "ask": result.request.body,
        "key": result.request.key,
        "family": result.family,
        "source": answers.tokens_of(result, result.source, of_source=True),
        "target": answers.tokens_of(result, result.target, of_source=False),
        "prompt_tokens": result.prompt_tokens,
        "stacks": stacks,
        "outcome": answers.outcome(result),
        "baseline": None if baseline is None else answers.compared(result, baseline),
        "note": result.note.en if result.note else "",
        "note_ja": result.note.ja if result.note else "",
        "opens": effects.opened_head(result, stacks),
        "quick": effects.is_quick(result, stacks),
        "seconds": round(time.perf_counter() - began, 3),
    }
