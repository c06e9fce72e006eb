"""Where sentences end, as a small network that Argos Translate reads: rules on characters, nothing that is learned.

Argos Translate cuts a paragraph into sentences by a network that it would fetch from the web (MiniSBD); a package that
brings its own works without. The rules are those of `data.segments` that a window of six characters can tell.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

from attendo.interop.packages import required

_STOP = ".!?…"
_FULL_STOP = "。｡．！？︒‼⁇⁈⁉।॥។؟۔"
_CLOSING = "」』）)]}］｝】〉》〕〗｣\"'”’»"
_CLASSES = ("space", "period", "stop", "full", "closing", "hiragana", "lower", "upper")
_LAST = 0xFFFF


@cache
def sentence_splitter() -> bytes:
    """An ONNX network from characters [batch, len] to labels [batch, len, 3], of which 2 ends a sentence.

    A stop ends one where a space follows it (or its closing mark) and no small letter after that, unless it is the
    period of a word of one or two letters that begins with a capital, as in "Dr." or "J."; a full-width stop always,
    unless a closing mark follows, or Hiragana behind that: 「雨だ。」と言った. Raises AttendoError without the package.

    >>> from onnxruntime import InferenceSession
    >>> network = InferenceSession(sentence_splitter())
    >>> ids = json.loads(network.get_modelmeta().custom_metadata_map["vocab"])["_unit2id"]
    >>> text = "Dr. Li came. It rained."
    >>> units = np.array([[ids.get(c, 1) for c in text]])
    >>> labels = network.run(None, {"units": units, "features": np.zeros((1, len(text), 0), np.float32)})[0].argmax(-1)
    >>> text[: labels[0].tolist().index(2) + 1]
    'Dr. Li came.'
    """
    onnx = required("onnx")
    units, table = _alphabet()
    graph = _Graph(onnx, table)
    graph.build()
    made, types = onnx.helper, onnx.TensorProto
    inputs = [
        made.make_tensor_value_info("units", types.INT64, ["batch", "len"]),
        made.make_tensor_value_info("features", types.FLOAT, ["batch", "len", "n_features"]),
    ]
    outputs = [made.make_tensor_value_info("labels", types.FLOAT, ["batch", "len", 3])]
    whole = made.make_graph(graph.nodes, "sentences", inputs, outputs, graph.constants)
    model = made.make_model(whole, opset_imports=[made.make_opsetid("", 13)], ir_version=8)
    config = {"skip_newline": False, "max_seqlen": 1000, "no_ssplit": False, "batch_size": 32}
    config |= {"feat_funcs": [], "use_dictionary": False, "num_dict_feat": 0}
    vocab = {"_id2unit": units, "_unit2id": {unit: number for number, unit in enumerate(units)}}
    facts = {"lang_code": "any", "config": json.dumps(config), "vocab": json.dumps(vocab), "lexicon": "null"}
    made.set_model_props(model, facts)
    return model.SerializeToString(deterministic=True)


def _alphabet() -> tuple[list[str], np.ndarray]:
    """The characters that matter, behind padding and all others, and the classes of each [units, classes]."""
    members = {
        "space": lambda c: c == " ",
        "period": lambda c: c == ".",
        "stop": lambda c: c in _STOP,
        "full": lambda c: c in _FULL_STOP,
        "closing": lambda c: c in _CLOSING,
        "hiragana": lambda c: "\u3041" <= c <= "\u309f" or c in "、，",
        "lower": str.islower,
        "upper": str.isupper,
    }
    rows = [(c, [members[name](c) for name in _CLASSES]) for c in map(chr, range(1, _LAST))]
    rows = [(c, row) for c, row in rows if any(row)]
    none = [False] * len(_CLASSES)
    table = np.array([none, none, *(row for _, row in rows)], np.float32)
    return ["<PAD>", "<UNK>", *(c for c, _ in rows)], table


class _Graph:
    """Nodes over truth values kept as numbers, 0 or 1, of shape [batch, len, 1]."""

    def __init__(self, onnx: Any, table: np.ndarray):
        self.helper, self.numpy_helper = onnx.helper, onnx.numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.classes = self._node("Gather", self._constant(table), "units", axis=0)
        self.one = self._constant(np.ones((1, 1, 1), np.float32))

    def build(self) -> None:
        """The rules; `labels` is their outcome."""
        spaced = self.all(self.at("space", 1), self.no(self.at("lower", 2)))
        letter = [self.any(self.at("upper", -n), self.at("lower", -n)) for n in range(4)]
        initial = self.all(letter[1], self.no(letter[2]))
        title = self.all(self.at("lower", -1), self.at("upper", -2), self.no(letter[3]))
        short = self.all(self.at("period", 0), self.any(initial, title))
        follows = self.any(self.at("full", 1), self.at("closing", 1), self.at("stop", 1))
        spoken = self.any(self.at("closing", 1), self.at("hiragana", 1))
        ends = self.any(
            self.all(self.at("stop", 0), spaced, self.no(short)),
            self.all(self.at("closing", 0), self.at("stop", -1), spaced),
            self.all(self.at("full", 0), self.no(follows)),
            self.all(self.at("closing", 0), self.at("full", -1), self.no(spoken)),
        )
        half = self._constant(np.full((1, 1, 1), 0.5, np.float32))
        undecided = self._node("Mul", self._node("Add", ends, self.no(ends)), half)  # 0.5 of the right shape
        nothing = self._node("Sub", ends, ends)
        self._node("Concat", undecided, nothing, ends, axis=2, name="labels")

    def at(self, name: str, offset: int) -> str:
        """Whether the character so far to the right is of this class; outside the text none is."""
        number = _CLASSES.index(name)
        column = self._slice(self.classes, number, number + 1, axis=2)
        if not offset:
            return column
        pads = [0, max(0, -offset), 0, 0, max(0, offset), 0]
        padded = self._node("Pad", column, self._constant(np.array(pads, np.int64)))
        return self._slice(padded, *((offset, 1 << 30) if offset > 0 else (0, offset)), axis=1)

    def no(self, value: str) -> str:
        """Not."""
        return self._node("Sub", self.one, value)

    def all(self, *values: str) -> str:
        """And."""
        first, *others = values
        for value in others:
            first = self._node("Mul", first, value)
        return first

    def any(self, *values: str) -> str:
        """Or."""
        return self._node("Max", *values)

    def _slice(self, value: str, start: int, end: int, axis: int) -> str:
        bounds = [self._constant(np.array([number], np.int64)) for number in (start, end, axis)]
        return self._node("Slice", value, *bounds)

    def _constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.numpy_helper.from_array(array, name))
        return name

    def _node(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        output = name or f"n{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, inputs, [output], **attributes))
        return output
