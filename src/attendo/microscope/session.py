"""A model under the microscope: it answers the page's requests one at a time, and caches its latest results."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attendo.custom_modules import is_custom
from attendo.errors import AttendoError
from attendo.inference import Generator, Translator
from attendo.inspecting.recording import view
from attendo.microscope.answers import (
    film_answer,
    lens_answer,
    look_answer,
    matrices_answer,
    next_answer,
    positions_answer,
    rollout_answer,
    tensor_answer,
)
from attendo.microscope.effects import effects_answer, tokens_answer
from attendo.microscope.protocol import LookAnswer, LookRequest, ModelAnswer, request_of
from attendo.microscope.run_model import (
    LookResult,
    User,
    attention_layers,
    attention_paths,
    effect_paths,
    look,
    usual_beam,
    usual_search,
)
from attendo.microscope.search_answers import tree_answer, why_answer
from attendo.models import parameter_count
from attendo.training.acceleration import fastest_products, use_onednn
from attendo.training.checkpoints import checkpoints

LONGEST_SWEEP = 160
"""Tokens of a text up to which a page in a file holds the effect of every head; beyond, that takes minutes."""

REMEMBERED = 500_000_000
"""Bytes of recorded looks that are kept, and two looks at least; an older one is looked at anew when it is needed."""

Answer = Mapping[str, Any] | bytes
ANSWER_OF: dict[str, Callable[..., Answer]] = {
    "tensor": tensor_answer,
    "matrices": matrices_answer,
    "effects": effects_answer,
    "film": film_answer,
    "lens": lens_answer,
    "rollout": rollout_answer,
    "next": next_answer,
    "tree": tree_answer,
    "why": why_answer,
    "positions": positions_answer,
    "tokens": tokens_answer,
}
"""What answers a question about a look: its arguments are the fields of the request."""


class Session:
    """Answers the page's requests about one model, one thread at a time.

    Args:
        user: The model.
        folder: The run folder, for the replay of the training.
    """

    def __init__(self, user: User, folder: Path | None = None) -> None:
        self.user, self.folder = user, folder
        self._turn = threading.Lock()
        self._results: OrderedDict[str, LookResult] = OrderedDict()
        self._requests: dict[str, LookRequest] = {}

    @classmethod
    def prepared(cls, user: User, folder: Path | None = None) -> Session:
        """Return a session for many requests, with a compiled search and the faster matrix library (about 100 ms).

        Args:
            user: The model.
            folder: The run folder.
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
            name: The name of the request.
            body: Its fields.

        Raises:
            AttendoError: The name, a field or a value is invalid.
        """
        with self._turn:
            return self._answer(name, body)

    def _answer(self, name: str, body: Mapping[str, Any]) -> Answer:
        request = request_of(name, body)
        if name == "model":
            return self.model_answer()
        if name == "look":
            return self._look(request)
        given = {field: value for field, value in vars(request).items() if field != "key"}
        if "path" in given:
            known = (
                effect_paths(self.user.model) if name == "effects" else [*attention_layers(self.user.model)]
            )
            if given["path"] not in known:
                raise AttendoError(f"{name}: path {given['path']!r} is not one of {', '.join(known)}")
        return ANSWER_OF[name](self._result_of(request.key), **given)

    def model_answer(self) -> ModelAnswer:
        """Return the facts about the model that the page shows before the first text."""
        user, model = self.user, self.user.model
        config, family = model.config, user.task
        layers = f"{config.n_encoder_layers} + {config.n_decoder_layers}"
        facts = [
            ["family", family],
            ["parameters", f"{parameter_count(model):,}"],
            ["layers (encoder + decoder)", layers],
            ["heads", str(config.n_heads)],
            ["d_model", str(config.d_model)],
            ["vocabulary", f"{config.vocab_size:,}"],
            ["positions", config.positions],
        ]
        folder = self.folder or user.folder
        return {
            "name": "a model in memory" if folder is None else folder.absolute().name,
            "own_parts": any(map(is_custom, model.modules())),  # no command can load those
            "family": family,
            "facts": facts,
            "search": usual_search(user),
            "beam": usual_beam(user),
            "vocab_size": config.vocab_size,
            "stacks": [
                {"name": name, "paths": paths, "heads": config.n_heads}
                for name, paths in attention_paths(model).items()
            ],
            "checkpoints": [int(path.name.removeprefix("step-")) for path in self._checkpoints()],
            "effects": effect_paths(model),
        }

    def usual_answers(
        self, request: LookRequest, head: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, dict[str, Any], Answer]]:
        """Yield the requests that a page makes without any edit, with their answers, for a self-contained file.

        Args:
            request: The text and the settings.
            head: Path and number of the head to open first (default: the sharpest).
        """
        body = request.body
        yield "model", {}, self.answer("model", {})
        found = self.answer("look", body)
        assert isinstance(found, dict)
        yield "look", body, found
        for name, more in self._usual_questions(found, head or _opened(found)):
            question = {"key": found["key"], **more}
            try:
                yield name, question, self.answer(name, question)
            except AttendoError as error:  # a family has no such thing: the page says so, too
                yield name, question, {"error": str(error)}

    def _usual_questions(
        self, found: Mapping[str, Any], head: Mapping[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        family = found["family"]
        for stack in found["stacks"]:
            for layer in stack["layers"]:
                yield "tensor", {"path": layer["path"]}
                yield "matrices", {"path": layer["path"]}
            for name in ("lens", "rollout"):
                yield name, {"stack": stack["name"]}
        if max(len(found["source"]), len(found["target"])) <= LONGEST_SWEEP:
            for path in effect_paths(self.user.model):
                yield "effects", {"path": path}
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

    def _look(self, request: LookRequest) -> LookAnswer:
        began = time.perf_counter()
        baseline = self._remembered(request.without_edits()) if request.edits else None
        result = self._remembered(request, baseline)
        return look_answer(result, baseline, began)

    def _remembered(self, request: LookRequest, baseline: LookResult | None = None) -> LookResult:
        if request.key in self._results:
            self._results.move_to_end(request.key)
            return self._results[request.key]
        return self.remember(look(self.user, request, self.folder, baseline))

    def remember(self, result: LookResult) -> LookResult:
        """Keep a result for further requests about it, and return it.

        Args:
            result: The result.
        """
        self._results[result.request.key], self._requests[result.request.key] = result, result.request
        while (
            len(self._results) > 2 and sum(result.n_bytes for result in self._results.values()) > REMEMBERED
        ):
            self._results.popitem(last=False)
        return result

    def _result_of(self, key: str) -> LookResult:
        if key not in self._requests:
            raise AttendoError(
                "this result is no longer available, because the program was restarted. Look again"
            )
        return self._remembered(self._requests[key])

    def _checkpoints(self) -> list[Path]:
        return [] if self.folder is None else checkpoints(self.folder / "checkpoints")


def _opened(found: Mapping[str, Any]) -> dict[str, Any]:
    """The head that a page opens first (app.js): the sharpest of the sharpest layer, across if there is a cross."""
    stacks = {stack["name"]: stack["layers"] for stack in found["stacks"]}
    layers = stacks.get("cross", found["stacks"][-1]["layers"])
    layer = min(layers, key=lambda layer: sum(layer["measures"]["entropy"]) / layer["heads"])
    entropies = layer["measures"]["entropy"]
    return {"path": layer["path"], "head": entropies.index(min(entropies))}
