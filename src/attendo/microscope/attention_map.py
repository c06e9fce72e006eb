"""The cross-attention of one translation, as a plain value that every view draws."""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def sharpest_layer(self) -> int:
        """The layer whose mean over heads is least spread out: the smallest mean entropy."""
        return int(np.argmin([entropy(self.mean(layer)).mean() for layer in range(len(self.weights))]))

    def mean(self, layer: int) -> Float[np.ndarray, "targets sources"]:
        """The mean over the heads of a layer."""
        return self.weights[layer].mean(0)


def entropy(weights: Float[np.ndarray, "*rows keys"]) -> Float[np.ndarray, "*rows"]:
    """-Σ w ln w of each row, in nats: 0 for one key, ln n for all n alike.

    >>> entropy(np.array([[1.0, 0.0], [0.5, 0.5]])).round(4)
    array([0.    , 0.6931])
    """
    return -(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1) + 0.0


def attention_map(translator: Translator, text: str, beam: int | None = None) -> AttentionMap:
    """Translates a text and records what the decoder's cross-attention looked at.

    Raises AttendoError for a text without any token.
    """
    tokenizer = translator.tokenizer
    with translator.recording() as record:
        found = translator.translate([text], beam=beam)[0]
    paths = [path for path in record if path.endswith(".cross_attention")]
    if not text.strip():
        raise AttendoError("there is nothing to look at in an empty text; give a sentence")
    weights = np.stack([record[path].weights[0].float().cpu().numpy() for path in paths])
    source_ids = [*tokenizer.encode(text), tokenizer.eos_id]
    target_ids = [*found.candidates[0].token_ids, tokenizer.eos_id]
    return AttentionMap(
        text, found.text, tuple(tokenizer.pieces(source_ids)), tuple(tokenizer.pieces(target_ids)), weights
    )
