"""One query of one head, step by step: q·k, score, mask, exp, weight, and the sum of the weighted values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from attendo.errors import AttendoError
from attendo.microscope.attention_map import pieces_of
from attendo.microscope.layers import layer_of
from attendo.microscope.seen import Seen
from attendo.nn.attention import share_heads


@dataclass(frozen=True)
class KeyStep:
    """What one key comes to.

    k, v: its key and value. product: q·k. score: scaled, plus a bias if the layer has one. power: exp(β · score - the
    row's largest), 0 where masked. weight: power over the sum of all powers.
    """

    piece: str
    k: tuple[float, ...]
    v: tuple[float, ...]
    product: float
    score: float
    masked: bool
    power: float
    weight: float


@dataclass(frozen=True)
class Steps:
    """One query's way through a head, as the page's view "Steps" shows it; head and query count from 0.

    piece: what the query reads. written: what it writes, in cross-attention alone. q: the query. beta: the inverse
    temperature. output: Σ weight · v, as it is before a head that is switched off is replaced.
    """

    path: str
    head: int
    query: int
    piece: str
    written: str | None
    q: tuple[float, ...]
    head_dim: int
    scale: float
    biased: bool
    beta: float
    off: bool
    keys: tuple[KeyStep, ...]
    output: tuple[float, ...]

    @property
    def largest(self) -> float:
        """The largest score that is not masked; -inf where all are."""
        return max((key.score for key in self.keys if not key.masked), default=-math.inf)

    @property
    def sum(self) -> float:
        """Of the powers."""
        return math.fsum(key.power for key in self.keys)

    @property
    def scale_is_root(self) -> bool:
        """Whether the scale is 1/√head_dim."""
        return math.isclose(self.scale, self.head_dim**-0.5)

    def as_json(self) -> dict[str, Any]:
        """The steps as JSON's own types; null is -∞, and β = "inf" is hard attention."""
        facts = dataclasses.asdict(self)
        for key in facts["keys"]:
            key["score"] = key["score"] if math.isfinite(key["score"]) else None
        return facts | {"beta": self.beta if math.isfinite(self.beta) else "inf", "sum": self.sum}


def steps_of(seen: Seen, path: str, head: int, query: int) -> Steps:
    """The steps of a query of a head, from what was recorded. Raises AttendoError for a query that isn't there."""
    layer, record = layer_of(seen, path), seen.record[path]
    if not 0 <= query < layer["q_len"]:
        raise AttendoError(f"there is no query {query + 1}; the map has the rows 1 to {layer['q_len']}")
    q = record.query[0, head, query]
    key, value = (share_heads(part, layer["heads"])[0, head] for part in (record.key, record.value))
    products, scores = (key @ q).tolist(), record.scores[0, head, query].tolist()
    weights, beta = record.weights[0, head, query], float(layer["beta"][head])
    reach = query + layer["k_len"] - layer["q_len"] if layer["causal"] else layer["k_len"]
    masked = [j > reach or score == -math.inf for j, score in enumerate(scores)]
    top = max((score for score, out in zip(scores, masked, strict=True) if not out), default=0.0)
    pieces = pieces_of(seen, seen.ids(layer["keys"]))
    cross = layer["queries"] != layer["keys"]
    return Steps(
        path=path,
        head=head,
        query=query,
        piece=pieces_of(seen, seen.ids(layer["queries"]))[query],
        written=pieces_of(seen, seen.wanted)[query] if cross else None,
        q=tuple(q.tolist()),
        head_dim=layer["head_dim"],
        scale=layer["scale"],
        biased=bool(layer["slopes"] or layer["biases"]),
        beta=beta,
        off=head in layer["off"],
        keys=tuple(
            KeyStep(
                piece, tuple(k), tuple(v), product, score, out, _power(score, top, beta, weight, out), weight
            )
            for piece, k, v, product, score, out, weight in zip(
                pieces, key.tolist(), value.tolist(), products, scores, masked, weights.tolist(), strict=True
            )
        ),
        output=tuple((weights @ value).tolist()),
    )


def _power(score: float, top: float, beta: float, weight: float, masked: bool) -> float:
    """Hard attention has no exp: 1 at the key that it takes."""
    if masked:
        return 0.0
    return weight if math.isinf(beta) else math.exp(beta * (score - top))
