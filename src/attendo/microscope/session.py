"""A model under the microscope: it answers the page's questions one at a time, and remembers its latest looks."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from attendo.errors import AttendoError
from attendo.inference import Generator, Translator
from attendo.inspecting.contributions import contribution_norms, head_ranks, head_singular_values
from attendo.inspecting.measures import head_measures
from attendo.inspecting.recording import recording, view
from attendo.microscope.ask import Ask, ask_of
from attendo.microscope.beam_tree import tree_answer
from attendo.microscope.class_tokens import rollout_answer, tokens_answer
from attendo.microscope.effects import effects_answer
from attendo.microscope.layers import (
    attention_layers,
    attention_paths,
    effect_paths,
    encoded,
    lens_answer,
    tensor_answer,
)
from attendo.microscope.looking import look, look_answer
from attendo.microscope.position_view import positions_answer
from attendo.microscope.reading import usual_beam, usual_search
from attendo.microscope.seen import Seen, User
from attendo.microscope.why import why_answer
from attendo.models import Model, parameter_count
from attendo.nn.attention import Attention
from attendo.own_parts import is_own
from attendo.runs.adapters import kept_weights
from attendo.training.checkpoints import checkpoints, sound_checkpoints
from attendo.training.precision import fastest_products
from attendo.training.products import use_onednn
from attendo.training.state import load_weights

MOST_FRAMES = 24
"""Of a long run, so many checkpoints are shown, evenly chosen, the first and the last among them."""
HOW_TO_KEEP_MORE = "--set checkpoint.keep_last=20 --set checkpoint.every_steps=200"


def film_answer(seen: Seen, path: str, head: int) -> dict[str, Any]:
    """A head's weights over the same tokens (teacher-forced) by checkpoint, the trained model last.

    A frame: step, weights `[q_len, k_len]` as base64 float32, the head's measures, and final, True for the trained
    model, which may be an average or the best of all. A damaged checkpoint is passed over and named in `note`, which
    also says how to keep more. The edits hold in every frame. Raises AttendoError for a head that the model has
    not, and for a model that came from no run folder.
    """
    layer = dict(seen.model.named_modules()).get(path)
    if not isinstance(layer, Attention) or not 0 <= head < layer.n_heads:
        raise AttendoError(f"{path} with head {head} is no attention head of this model")
    if seen.folder is None:
        raise AttendoError(
            "the model is in memory alone; a film needs the run folder that keeps its checkpoints"
        )
    newest, notes = sound_checkpoints(seen.folder / "checkpoints", most=1_000_000)
    chosen = _evenly(newest[::-1], MOST_FRAMES - 1)
    if len(chosen) < len(newest):
        notes.append(f"{len(chosen)} of {len(newest)} checkpoints are shown")
    if not newest:
        notes.append(f"this run has kept no checkpoints; train with {HOW_TO_KEEP_MORE} to keep more")
    frames = [
        _frame(seen, path, weights) | {"step": step, "final": final}
        for step, final, weights in _weights(seen, path, head, chosen)
    ]
    q_len, k_len = seen.record[path].weights.shape[2:]
    return {"frames": frames, "q_len": q_len, "k_len": k_len, "note": "; ".join(notes)}


def _evenly(paths: list[Path], most: int) -> list[Path]:
    """At most so many of them, the first and the last among them.

    >>> [path.name for path in _evenly([Path(name) for name in "abcde"], 3)]
    ['a', 'c', 'e']
    """
    if len(paths) <= most:
        return paths
    return [paths[round(i * (len(paths) - 1) / (most - 1))] for i in range(most)]


def _weights(
    seen: Seen, path: str, head: int, checkpoints: list[Path]
) -> Iterator[tuple[int, bool, Float[Tensor, "q_len k_len"]]]:
    assert seen.folder is not None
    model = copy.deepcopy(seen.model) if checkpoints else seen.model
    for folder in checkpoints:
        load_weights(model, kept_weights(seen.folder, folder), str(folder))
        yield int(folder.name.removeprefix("step-")), False, _seen_by(model, seen, path, head)
    yield _trained_steps(seen.folder), True, seen.record[path].weights[0, head]


@torch.inference_mode()
def _seen_by(model: Model, seen: Seen, path: str, head: int) -> Float[Tensor, "q_len k_len"]:
    with recording(model, keep=f"{path}.weights", edits=seen.edits) as record:
        record.model.hidden(**seen.inputs)
    return record[path].weights[0, head]


def _trained_steps(folder: Path) -> int:
    """The step that the trained weights name."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return int((file.metadata() or {}).get("step", 0))


def _frame(seen: Seen, path: str, weights: Float[Tensor, "q_len k_len"]) -> dict[str, Any]:
    queries, keys = seen.sides(path)
    measures = head_measures(weights[None], seen.ids(queries), seen.ids(keys), cross=queries != keys)
    return {"weights": encoded(weights), "measures": {name: values[0] for name, values in measures.items()}}


def matrices_answer(seen: Seen, path: str) -> dict[str, Any]:
    """The rank and Frobenius norm of W^(h) = W_hᵒ W_hᵛ, and ‖contribution‖ of each head at each query, with the edits.

    The contributions of all heads, plus the bias, are the layer's output (Vaswani et al. 2017, section 3.2.2; Bishop &
    Bishop 2024, exercise 12.5). Raises AttendoError for a path that is no attention layer.
    """
    layer = dict(seen.model.named_modules()).get(path)
    if not isinstance(layer, Attention):
        raise AttendoError(f"{path} is no attention layer of this model")
    with torch.inference_mode(), recording(seen.model, keep=f"{path}.mixed", edits=seen.edits) as record:
        record.model.hidden(**seen.inputs)
        added = contribution_norms(layer, record[path].mixed)[0]
    return {
        "path": path,
        "rank": head_ranks(layer).tolist(),
        "norms": head_singular_values(layer).norm(dim=-1).tolist(),
        "contribution": added.tolist(),
    }


def next_answer(seen: Seen, position: int, n: int = 10) -> dict[str, Any]:
    """The n most probable tokens at a position, with the mass of all up to each, and the entropy in nats.

    position: of the target, whose next token is told; of a masked language model, of the source, whose own token is.
    actual: the token that stands there, with its rank (1 is the most probable); None where nothing follows. All of the
    model with the edits, before a search forbids any token. Raises AttendoError for a classifier, which predicts no
    token, and for a position or n out of range.
    """
    if seen.family == "classification":
        raise AttendoError("a classifier predicts a label, not a token; look at its classes instead")
    if not 0 <= position < len(seen.logits):
        raise AttendoError(f"position {position} is not one of 0 to {len(seen.logits) - 1}")
    if n < 1:
        raise AttendoError(f"n={n} must be 1 or more")
    log_probs = seen.logits[position].double().log_softmax(-1)
    probabilities = log_probs.exp()
    best, ids = probabilities.topk(min(n, len(probabilities)))
    rows = zip(ids.tolist(), best.tolist(), best.cumsum(0).tolist(), strict=True)
    wanted, actual = seen.wanted[position], None
    if wanted is not None:
        rank = 1 + int((log_probs > log_probs[wanted]).sum())
        actual = seen.token(wanted) | {"p": float(probabilities[wanted]), "rank": rank}
    return {
        "tokens": [seen.token(token) | {"p": p, "cumulative": mass} for token, p, mass in rows],
        "entropy": float(-(probabilities * log_probs).nan_to_num().sum()),
        "actual": actual,
    }


LONGEST_SWEEP = 160
"""Tokens of a text up to which a page in a file holds the effect of every head; beyond, that takes minutes."""
REMEMBERED = 500_000_000
"""Bytes of recorded looks that are kept, and two looks at least; an older one is looked at anew when it is needed."""
Answer = dict[str, Any] | bytes


class Session:
    """Answers the page's questions about one model; threads take turns. folder: the run's, for the film."""

    def __init__(self, user: User, folder: Path | None = None) -> None:
        self.user, self.folder = user, folder
        self._turn = threading.Lock()
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._asks: dict[str, Ask] = {}

    @classmethod
    def prepared(cls, user: User, folder: Path | None = None) -> Session:
        """One for many looks: its search in the fastest form, its products by the faster library (some 100 ms)."""
        if isinstance(user, Translator | Generator):
            user.prepare()
        if fastest_products(user.device) == "onednn":
            model = view(user.model)
            use_onednn(model)
            user = dataclasses.replace(user, model=model)
        return cls(user, folder)

    def answer(self, name: str, body: Mapping[str, Any]) -> Answer:
        """The answer to one question. Raises AttendoError naming a question, field or value that isn't right."""
        with self._turn:
            return self._answer(name, body)

    def _answer(self, name: str, body: Mapping[str, Any]) -> Answer:
        if name == "model":
            return self.model_answer()
        if name == "look":
            return self._look(ask_of(body))
        given = _Fields(name, body)

        def seen() -> Seen:
            return self._seen_of(given.text("key"))

        match name:
            case "tensor":
                head = None if body.get("head") is None else given.number("head", 0)
                return tensor_answer(seen(), self._layer(given), head)
            case "matrices":
                return matrices_answer(seen(), self._layer(given))
            case "effects":
                return effects_answer(seen(), given.one_of("path", effect_paths(self.user.model)))
            case "film":
                return film_answer(seen(), self._layer(given), given.number("head", 0))
            case "lens":
                return lens_answer(seen(), given.text("stack"))
            case "rollout":
                return rollout_answer(seen(), given.text("stack"))
            case "next":
                return next_answer(seen(), given.number("position", 0), given.number("n", 1))
            case "tree":
                return tree_answer(seen(), given.number("beam", 1))
            case "why":
                return why_answer(seen(), given.text("target"), given.number("beam", 1))
            case "positions":
                side = given.one_of("side", ["source", "target"])
                return positions_answer(seen(), "source" if side == "source" else "target")
            case "tokens":
                return tokens_answer(seen())
            case _:
                raise AttendoError(
                    f"there is no question {name!r}; the page and this program are of two versions: reload it"
                )

    def model_answer(self) -> dict[str, Any]:
        """What the page is told of the model before anything is looked at."""
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
            "own_parts": any(map(is_own, model.modules())),  # no command can load those
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
        self, ask: Ask, head: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, dict[str, Any], Answer]]:
        """The questions that a page asks of a look without any change, with their answers: what a file holds.

        head: path and number of the one that the page opens first, if not the sharpest.
        """
        body = question_of(ask)
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

    def _look(self, ask: Ask) -> dict[str, Any]:
        began = time.perf_counter()
        baseline = self._remembered(ask.without_edits()) if ask.edits else None
        seen = self._remembered(ask, baseline)
        return {"ask": question_of(ask), **look_answer(seen, baseline, began)}

    def _remembered(self, ask: Ask, baseline: Seen | None = None) -> Seen:
        if ask.key in self._seen:
            self._seen.move_to_end(ask.key)
            return self._seen[ask.key]
        return self.remember(look(self.user, ask, self.folder, baseline))

    def remember(self, seen: Seen) -> Seen:
        """Keeps a look, so that questions about it need not look again; gives it back."""
        self._seen[seen.ask.key], self._asks[seen.ask.key] = seen, seen.ask
        while len(self._seen) > 2 and sum(seen.n_bytes for seen in self._seen.values()) > REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def _seen_of(self, key: str) -> Seen:
        if key not in self._asks:
            raise AttendoError(
                "this look is not known any more, since the program was started anew; look again"
            )
        return self._remembered(self._asks[key])

    def _layer(self, given: _Fields) -> str:
        return given.one_of("path", list(attention_layers(self.user.model)))

    def _checkpoints(self) -> list[Path]:
        return [] if self.folder is None else checkpoints(self.folder / "checkpoints")


@dataclasses.dataclass(frozen=True)
class _Fields:
    """The fields of a request, each checked when it is taken."""

    name: str
    body: Mapping[str, Any]

    def text(self, field: str) -> str:
        value = self.body.get(field)
        if not isinstance(value, str):
            raise AttendoError(f"{self.name} wants {field!r} as a text, and it is {value!r}")
        return value

    def one_of(self, field: str, known: list[str]) -> str:
        value = self.text(field)
        if value not in known:
            raise AttendoError(f"{self.name}: {field} {value!r} is not one of {', '.join(known)}")
        return value

    def number(self, field: str, least: int) -> int:
        value = self.body.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise AttendoError(f"{self.name} wants {field!r} as a number from {least}, and it is {value!r}")
        return value


def _opened(found: Mapping[str, Any]) -> dict[str, Any]:
    """The head that a page opens first (app.js): the sharpest of the sharpest layer, across if there is a cross."""
    stacks = {stack["name"]: stack["layers"] for stack in found["stacks"]}
    layers = stacks.get("cross", found["stacks"][-1]["layers"])
    layer = min(layers, key=lambda layer: sum(layer["measures"]["entropy"]) / layer["heads"])
    entropies = layer["measures"]["entropy"]
    return {"path": layer["path"], "head": entropies.index(min(entropies))}


def question_of(ask: Ask) -> dict[str, Any]:
    """An ask as the body of the question `look` has it, every field told."""
    return dataclasses.asdict(ask) | {
        "prefix_ids": list(ask.prefix_ids),
        "edits": [dataclasses.asdict(edit) for edit in ask.edits],
    }
