"""How a model tells where a token stands: its positional encoding as a matrix, and the products of its rows."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from attendo.errors import AttendoError
from attendo.microscope.layers import encoded
from attendo.microscope.seen import Seen
from attendo.model_config import ModelConfig
from attendo.nn.attention import Attention
from attendo.nn.embeddings import InputEmbedding
from attendo.nn.positions import Alibi, DistanceBias, RelativeBias, Rotary

_OWN = (
    "The model was given a part of its own, by which each head adds to its scores something for the distance: shown is,"
    " of the open layer, what each head (column) adds for keys at each distance (row) before the query, and the open"
    " head's whole matrix.",
    "このモデルには利用者の部品が入っており、各ヘッドが距離に応じた値をスコアに足します。図は開いている層のもので、"
    "クエリより前のキーまでの距離（行）ごと、ヘッド（列）ごとの値と、開いているヘッドの行列全体です。",
)
_BIASES = {"alibi": Alibi, "relative": RelativeBias}
AT_LEAST = 64
"""Positions that are shown, where the model has so many: a short text shows no pattern."""


def positions_answer(seen: Seen, side: Literal["source", "target"]) -> dict[str, Any]:
    """The encoding of the first n positions `[n, d]`, and the products of its rows `[n, n]`, as base64 float32.

    Rotary positions: cos and sin of each pair's angle in turn, and the product of a unit vector turned to two places.
    ALiBi and relative, and a bias that its user put in, add to scores: the layers of a look have what (`layer_of`), so
    there is no matrix here, and n is the length of the text. name: of the class that was put in. trained: the most
    tokens that the model was made for. Raises AttendoError for a side that the model has not.
    """
    embedding, tokens = _side(seen, side)
    config, within = seen.model.config, _within(seen, side)
    biased = isinstance(within, DistanceBias)
    n = len(tokens) if biased else max(len(tokens), min(AT_LEAST, config.max_len))
    rows, dots = _matrices(config, embedding, within, n)
    own = biased and type(within) is not _BIASES.get(config.positions)
    notes = _OWN if own else _notes(config)
    return {
        "kind": "own" if own else config.positions,
        "name": type(within).__name__ if own else "",
        "n": n,
        "d": config.n_heads if biased else rows.shape[1],
        "trained": config.max_len,
        "data": encoded(rows),
        "dots": encoded(dots),
        "note_en": notes[0],
        "note_ja": notes[1],
    }


def _side(seen: Seen, side: Literal["source", "target"]) -> tuple[InputEmbedding, tuple[int, ...]]:
    names = {"source": seen.source, "target": seen.target}
    if side not in names or not names[side]:
        there = " and ".join(name for name, ids in names.items() if ids)
        raise AttendoError(f"side={side!r}: this model has the {there} only")
    name = f"{side}_embedding" if seen.family == "translation" else "embedding"
    embedding = seen.model.get_submodule(name)
    assert isinstance(embedding, InputEmbedding)
    return embedding, names[side]


def _matrices(
    config: ModelConfig, embedding: InputEmbedding, within: Any, n: int
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n n"]]:
    places = torch.arange(n)
    if isinstance(within, DistanceBias):
        return torch.zeros(0, 0), torch.zeros(0, 0)
    match config.positions:
        case "rotary":
            assert isinstance(within, Rotary)
            half = config.head_width // 2
            units = torch.tensor([1.0, 0.0]).repeat(n, half)[None, None]
            rows = within(units, places[None])[0, 0]
            return rows, rows @ rows.mT / half
        case "none":
            return torch.zeros(n, 0), torch.zeros(n, n)
        case _:
            assert embedding.positions is not None
            rows = embedding.positions(places.to(embedding.tokens.weight.device), n).detach().float().cpu()
            return rows, rows @ rows.mT


def _within(seen: Seen, side: Literal["source", "target"]) -> Any:
    """The positions that are part of the first layer of self-attention that reads this side, if any has some."""
    layers = (
        module
        for path, module in seen.model.named_modules()
        if isinstance(module, Attention) and seen.sides(path) == (side, side)
    )
    return next((layer.positions for layer in layers if layer.positions is not None), None)


def _notes(config: ModelConfig) -> tuple[str, str]:
    match config.positions:
        case "sinusoidal":
            in_pairs = config.d_model % 2 == 0 and config.position_order != "cossin"
            return (
                "Each position has its own row of sines and cosines, added to the embedding; a product of two rows"
                f" depends on their distance {'alone' if in_pairs else 'mainly: one phase lacks its partner'}.",
                "各位置に正弦と余弦からなるベクトルがあり、それを埋め込みに足します。二つの位置のベクトルの内積は"
                f"{'距離だけで決まります' if in_pairs else 'ほぼ距離で決まります（対のない位相が一つあります）'}。",
            )
        case "learned":
            return (
                f"Each position has a trained vector, added to the embedding; there are {config.max_len} of them,"
                " and no text can be longer.",
                f"各位置に学習したベクトルがあり、それを埋め込みに足します。全部で {config.max_len} 個あり、"
                "それより長い文は読めません。",
            )
        case "ramp" | "inverse":
            formula = "p / max_len" if config.positions == "ramp" else "1 / p"
            return (
                f"One number, {formula}, is added to every entry of the embedding.",
                f"一つの数 {formula} を、埋め込みのすべての成分に足します。",
            )
        case "rotary":
            return (
                "Queries and keys are turned, pair by pair, by an angle that grows with the position: shown are cos"
                " and sin, and the product of a unit vector turned to two positions, which depends on their distance"
                " alone.",
                "クエリとキーの成分を二つずつ、位置に比例した角度だけ回します。図は cos と sin、および二つの位置に"
                "回した単位ベクトルの内積で、内積は距離だけで決まります。",
            )
        case "alibi":
            return (
                "Nothing is added to the embedding; each head lowers its scores with the distance, by a slope of its"
                " own: shown is what is added at each distance (row) in each head (column), and the open head's"
                " whole matrix.",
                "埋め込みには何も足しません。各ヘッドが固有の傾きで、距離に応じてスコアを下げます。"
                "図は距離（行）ごと、ヘッド（列）ごとの値と、開いているヘッドの行列全体です。",
            )
        case "relative":
            return (
                "Nothing is added to the embedding; each head adds to its scores a trained number for the distance, far"
                " distances sharing one: shown is what each head (column) adds for keys at each distance (row) before"
                " the query, and the open head's whole matrix.",
                "埋め込みには何も足しません。各ヘッドが、距離ごとに学習した数をスコアに足します（遠い距離どうしは一つの数を"
                "共有します）。図は、クエリより前のキーまでの距離（行）ごと、ヘッド（列）ごとの値と、"
                "開いているヘッドの行列全体です。",
            )
        case "none":
            return (
                "The model is told no positions; only a causal mask can tell it an order.",
                "このモデルに位置は与えられません。順序を伝えうるのは因果マスクだけです。",
            )
