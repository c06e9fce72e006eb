"""The names of all figures with a short description, in a module that loads fast because it has few imports."""

from __future__ import annotations

from difflib import get_close_matches

from attendo.errors import AttendoError
from attendo_course.book import translated

FIGURES = {
    "position-heatmap": translated("sinusoidal positional encoding as a heat map, 64 positions by 128 dimensions"),
    "position-curves": translated("five encoding dimensions as curves: the formula and what a plot of it drew"),
    "position-products": translated("dot products of position vectors by distance, and where they first rise"),
    "temperature": translated("attention weights against inverse temperature, from soft to hard"),
    "entropy": translated("entropy of attention by dimension, with and without 1/√d"),
    "noam": translated("learning rate by step: linear warm-up, then inverse square root"),
    "attention-flow": translated("attention for one query, number by number: q, k, v, scores, weights, sum"),
    "heads": translated("attention maps of the heads of a layer, their concatenation and W_o"),
    "autoencoder": translated("autoencoder: two affine maps, or any modules, around a bottleneck"),
    "translation": translated("keys and values kept in a translation: the encoder's once, the decoder's per step"),
    "model": translated("block diagram of a model, with shapes and parameter counts"),
    "gpt": translated("a trained GPT on one page, number by number, from text to next word"),
}
"""The figures that `draw` can draw, in the order of a lesson."""


def require_known(name: str) -> None:
    """Raise AttendoError for an unknown figure name. The message contains the most similar names.

    >>> require_known("noam")
    """
    if name in FIGURES:
        return
    near = get_close_matches(name, FIGURES, n=3, cutoff=0.4)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(FIGURES)}"
    raise AttendoError(f"no figure is called {name!r}; {remedy}")
