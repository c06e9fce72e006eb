"""The attention of one stack of a look, as a plain value that every view draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Float

from attendo.display.i18n import Language, Localized
from attendo.display.width import shown
from attendo.errors import AttendoError
from attendo.inspecting.measures import entropy
from attendo.microscope.layers import attention_paths
from attendo.microscope.looking import outcome
from attendo.microscope.seen import Seen
from attendo.microscope.shades import darkest

Stack = Literal["encoder", "decoder", "cross"]
NAMES: dict[Stack, Localized] = {
    "encoder": Localized("Self-attention of the encoder", "エンコーダのセルフアテンション"),
    "decoder": Localized("Self-attention of the decoder", "デコーダのセルフアテンション"),
    "cross": Localized("Cross-attention", "クロスアテンション"),
}
TIE = 1e-5
"""Nats by which mean entropies that are alike may differ."""
MARKS = {" ": "␠", "\n": "⏎", "\t": "⇥"}
"""How white space is seen in a piece."""


@dataclass(frozen=True)
class AttentionMap:
    """At which key piece each query piece looked, in every head of a stack.

    weights: `[layers, heads, queries, keys]`, each row sums to 1, or is 0 where a head may look at nothing. The rows of
    cross-attention are the pieces that were written there, the last of which is the end, or … of an answer cut off;
    those of self-attention, and all columns, are pieces read. text: what was read; answer: what the model said.
    """

    stack: Stack
    query_pieces: tuple[str, ...]
    key_pieces: tuple[str, ...]
    weights: Float[np.ndarray, "layers heads queries keys"]
    text: str = ""
    answer: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.query_pieces), len(self.key_pieces))
        if self.weights.ndim != 4 or self.weights.shape[2:] != shape or 0 in self.weights.shape:
            raise AttendoError(
                f"weights of shape {self.weights.shape} do not fit {shape[0]} query and {shape[1]} key pieces; "
                f"they are [layers, heads, queries, keys]"
            )

    @cached_property
    def sharpest_layer(self) -> int:
        """The layer whose mean over heads is least spread out: the smallest mean entropy of its rows."""
        return int(np.argmin(self._spreads))

    @cached_property
    def _spreads(self) -> list[float]:
        """The mean entropy of each layer's rows."""
        return [float(entropy(torch.from_numpy(self.shown(layer)))) for layer in range(len(self.weights))]

    @property
    def _one_is_sharpest(self) -> bool:
        """Whether one layer is sharper than all others, by more than rounding: at β = 0 all are alike."""
        first, *others = sorted(self._spreads)
        return bool(others) and others[0] - first > TIE

    def shown(self, layer: int | None = None, head: int | None = None) -> Float[np.ndarray, "queries keys"]:
        """The weights of a head, or the mean over the heads of a layer; counted from 0, None: the sharpest layer.

        Raises AttendoError for a layer or head that isn't there.
        """
        layer = self.sharpest_layer if layer is None else layer
        n_layers, n_heads = self.weights.shape[:2]
        for what, number, n in (("layer", layer, n_layers), ("head", head or 0, n_heads)):
            if not 0 <= number < n:
                raise AttendoError(f"there is no {what} {number + 1}; {self.stack} has 1 to {n}")
        return self.weights[layer].mean(0) if head is None else self.weights[layer, head]

    def darkest(self, layer: int | None = None, head: int | None = None) -> float:
        """The weight that a picture of `shown` draws darkest."""
        return darkest(self.shown(layer, head), causal=self.stack == "decoder")

    def caption(self, layer: int | None = None, head: int | None = None, language: Language = "en") -> str:
        """What `shown` is a picture of, and why this layer if it is the one shown by default; numbers from 1."""
        layer = self.sharpest_layer if layer is None else layer
        n_layers, n_heads = self.weights.shape[:2]
        sharpest = head is None and layer == self.sharpest_layer and self._one_is_sharpest
        why = Localized(" (the sharpest)", "のうち最も鋭い層") if sharpest else Localized("", "")
        if head is not None:
            heads = Localized(f"head {head + 1} of {n_heads}", f"ヘッド {head + 1}（全 {n_heads}）")
        elif n_heads > 1:
            heads = Localized(f"mean of {n_heads} heads", f"{n_heads} ヘッドの平均")
        else:
            heads = Localized("its one head", "ただ 1 つのヘッド")
        name = NAMES[self.stack]
        return Localized(
            f"{name.en}, layer {layer + 1} of {n_layers}{why.en}, {heads.en}",
            f"{name.ja}、第 {layer + 1} 層（全 {n_layers} 層{why.ja}）、{heads.ja}",
        ).text(language)


def map_of(seen: Seen, stack: Stack | None = None) -> AttentionMap:
    """The attention of a stack of a look: of the last the model has if None, which is the cross-attention if any.

    Raises AttendoError for a stack that the model doesn't have.
    """
    paths = attention_paths(seen.model)
    stack = cast(Stack, [*paths][-1]) if stack is None else stack
    if stack not in paths:
        raise AttendoError(f"this model has no {stack} attention; choose from: {', '.join(paths)}")
    queries = {"encoder": seen.source, "decoder": seen.target, "cross": seen.wanted}[stack]
    keys = seen.target if stack == "decoder" else seen.source
    return AttentionMap(
        stack=stack,
        query_pieces=pieces_of(seen, queries),
        key_pieces=pieces_of(seen, keys),
        weights=np.stack([weights_of(seen, path) for path in paths[stack]]),
        text=seen.ask.text,
        answer=answer_text(seen),
    )


def pieces_of(seen: Seen, ids: tuple[int | None, ...]) -> tuple[str, ...]:
    """The pieces of token ids, as the tokenizer has them; … stands where an answer was cut off."""
    return tuple("…" if token is None else seen.piece(token) for token in ids)


def weights_of(seen: Seen, path: str) -> Float[np.ndarray, "heads queries keys"]:
    """What was recorded of an attention layer, in float32 or float64."""
    weights = seen.record[path].weights[0]
    return (weights if weights.element_size() == 8 else weights.float()).cpu().numpy()


def answer_text(seen: Seen) -> str:
    """What the model answered, as one text: a translation, what follows a prompt, or a label with its probability.

    Of a masked language model it is the text with its hidden tokens found; if none is, the likeliest token at each
    place.
    """
    found = outcome(seen)
    if "labels" in found:
        best = found["labels"][0]
        return f"{best['label']} ({best['probability']:.1%})"
    return found["text"]


def visible(piece: str) -> str:
    """A piece as a person can see it: white space and characters that command a screen have marks of their own.

    What joins characters into one stays; an empty piece is ∅.

    >>> visible("a b"), visible("\\x1b[31m"), visible("")
    ('a␠b', '\\\\u{1b}[31m', '∅')
    """
    return "".join(map(_visible, piece)) or "∅"


def _visible(c: str) -> str:
    return MARKS.get(c) or (shown(c) if shown(c) != c else "␠" if c.isspace() else c)
