"""The cross-attention of one translation, as a plain value that every view draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from attendo.errors import AttendoError
from attendo.tasks.translator import Translator


@dataclass(frozen=True)
class AttentionMap:
    """Which source piece each target piece looked at while it was predicted.

    weights: `[layers, heads, targets, sources]`, each row sums to 1; row t belongs to the step that gave
    `target_pieces[t]`, the last of which is the end.
    """

    source: str
    target: str
    source_pieces: tuple[str, ...]
    target_pieces: tuple[str, ...]
    weights: Float[np.ndarray, "layers heads targets sources"]

    def __post_init__(self) -> None:
        shape = (len(self.target_pieces), len(self.source_pieces))
        if self.weights.ndim != 4 or self.weights.shape[2:] != shape or 0 in self.weights.shape:
            raise AttendoError(
                f"weights of shape {self.weights.shape} do not fit {shape[0]} target and {shape[1]} source pieces; "
                f"they are [layers, heads, targets, sources]"
            )

    @cached_property
    def sharpest_layer(self) -> int:
        """The layer whose mean over heads is least spread out: the smallest mean entropy of its rows."""
        return int(np.argmin([entropy(self.mean(layer)).mean() for layer in range(len(self.weights))]))

    def mean(self, layer: int) -> Float[np.ndarray, "targets sources"]:
        """The mean over the heads of a layer, counted from 0. Raises AttendoError for a layer that isn't there."""
        if not 0 <= layer < len(self.weights):
            raise AttendoError(f"layer {layer} is not one of 0 to {len(self.weights) - 1}")
        return self.weights[layer].mean(0)

    def caption(self, layer: int) -> str:
        """What `mean(layer)` is a picture of, and why this layer if it is the one shown by default."""
        n_layers, n_heads = self.weights.shape[:2]
        why = " (the sharpest)" if layer == self.sharpest_layer and n_layers > 1 else ""
        heads = f"mean of {n_heads} heads" if n_heads > 1 else "its one head"
        return f"Cross-attention, layer {layer + 1} of {n_layers}{why}, {heads}"


def entropy(weights: Float[np.ndarray, "*rows keys"]) -> Float[np.ndarray, "*rows"]:
    """-Σ w ln w of each row, in nats: 0 for one key, ln n for all n alike.

    >>> entropy(np.array([[1.0, 0.0], [0.5, 0.5]])).round(4)
    array([0.    , 0.6931])
    """
    return -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1) + 0.0


def attention_map(translator: Translator, text: str, beam: int | None = None) -> AttentionMap:
    """Translates a text by one search, then records one pass over it and what was found.

    The weights are those of the decoder's cross-attention. Raises AttendoError for a text without any token.
    """
    if not text.strip():
        raise AttendoError("there is nothing to look at in an empty text; give a sentence")
    tokenizer = translator.tokenizer
    with translator.recording() as record:
        found = translator.translate([text], beam=beam)[0]
    layers = [record[path].weights[0] for path in record if path.endswith(".cross_attention")]
    source_ids = [*tokenizer.encode(text), tokenizer.eos_id]
    target_ids = [*found.candidates[0].token_ids, tokenizer.eos_id]
    return AttentionMap(
        source=text,
        target=found.text,
        source_pieces=tuple(tokenizer.pieces(source_ids)),
        target_pieces=tuple(tokenizer.pieces(target_ids)),
        weights=np.stack([weights.float().cpu().numpy() for weights in layers]),
    )
