"""A model under the microscope: it answers the page's questions one at a time, and remembers its latest looks."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attendo.errors import AttendoError
from attendo.inference import Generator, Translator
from attendo.inspecting.recording import view
from attendo.microscope.ask import Ask, ask_of
from attendo.microscope.beam_tree import tree_answer
from attendo.microscope.class_tokens import tokens_answer
from attendo.microscope.distribution import next_answer
from attendo.microscope.effects import effects_answer
from attendo.microscope.film import film_answer
from attendo.microscope.flow_of_attention import rollout_answer
from attendo.microscope.head_matrices import matrices_answer
from attendo.microscope.layers import attention_layers, attention_paths, effect_paths, tensor_answer
from attendo.microscope.lens import lens_answer
from attendo.microscope.looking import look, look_answer
from attendo.microscope.position_view import positions_answer
from attendo.microscope.reading import usual_beam, usual_search
from attendo.microscope.seen import Seen, User
from attendo.microscope.why import why_answer
from attendo.models import parameter_count
from attendo.own_parts import is_own
from attendo.training.checkpoints import checkpoints
from attendo.training.precision import fastest_products
from attendo.training.products import use_onednn

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
