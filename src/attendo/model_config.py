"""The shape of a model as a table of a configuration file has it; `models.py` alone builds from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from attendo.nn.layers import Activation, Initialization, NormKind, Pooling
from attendo.nn.positions import PhaseOrder

Architecture = Literal["encoder-decoder", "classifier", "decoder", "masked"]
Positions = Literal["sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative", "none"]
Tie = Literal["all", "output", "input", "none"]
_BELOW = 1 << 24
"""Of every size: above all that models have, and small enough that no product of two overflows."""
_AT_LEAST = {
    1: ("vocab_size", "d_model", "d_ff", "n_heads", "head_dim", "value_dim", "max_len", "d_output"),
    0: ("norm_eps", "embedding_norm_eps", "dropout", "attention_dropout", "activation_dropout", "n_classes"),
    -_BELOW: ("n_kv_heads", "n_encoder_layers", "n_decoder_layers", "position_buckets", "position_reach"),
}
_USED_WITH = {
    "n_classes": ("architecture", ("classifier",)),
    "pooling": ("architecture", ("classifier",)),
    "d_output": ("architecture", ("masked", "classifier")),
    "output_activation": ("architecture", ("classifier",)),
    "position_base": ("positions", ("sinusoidal", "rotary")),
    "position_start": ("positions", ("sinusoidal", "ramp", "inverse")),
    "position_first_index": ("positions", ("sinusoidal",)),
    "position_order": ("positions", ("sinusoidal",)),
    "position_buckets": ("positions", ("relative",)),
    "position_reach": ("positions", ("relative",)),
}
"""Options that mean something only with some values of another; elsewhere they are refused, not ignored."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model; the sizes of Vaswani et al. 2017, table 3, under the field's names.

    architecture: which of the models in `models.py`; what it lacks has 0 layers. n_kv_heads: fewer than n_heads for
    grouped queries. head_dim, value_dim: width of a query and key head and of a value head, d_model / n_heads unless
    given.
    max_len: longest text in tokens; learned positions end there. attention_scale: 1/√head_dim unless given.
    attention_bias: of the projections of each attention; attention_out_bias: of the last, if it differs.
    attention_norm: an RMSNorm on each head of the queries and keys of self-attention (Dehghani et al. 2023).
    norm_first: pre-norm, and a last norm. norm: "layer" or "rms". activation: "relu", "gelu", "gelu_tanh", "silu".
    positions: "sinusoidal", "learned", "ramp" and "inverse" are added to the embeddings; "rotary", "alibi" and
    "relative" (T5) are part of self-attention; or "none". position_base: of the wavelengths, a number or "length"
    (max_len); position_start: the first position's number; position_first_index, position_order: as in
    `sinusoidal_encoding`; position_buckets, position_reach: as in `RelativeBias`. embedding_scale: times √d_model.
    embedding_norm_eps: a norm after embedding + position, none unless given. pad_id: an embedding that stays 0. tie:
    which of source embedding, target embedding and output matrix are one ("all", "output" = the last two, "input" =
    the first two, "none"); a classifier has none to tie. d_output: width of the hidden layer before the output, which
    a masked model always has, and a classifier only if it is given (output_activation follows it there).
    n_classes: 0 makes a classifier give the pooled vectors themselves: embeddings of texts.

    Raises ValueError naming the field for a value that is none of its choices, or that fits no other.

    >>> ModelConfig(vocab_size=11).d_ff
    1024
    >>> ModelConfig(vocab_size=11, d_model=10, n_heads=4)
    Traceback (most recent call last):
    ValueError: d_model=10 is not divisible by n_heads=4; try n_heads=5
    """

    architecture: Architecture = "encoder-decoder"
    vocab_size: int
    d_model: int = 256
    d_ff: int = 1024
    n_heads: int = 4
    n_kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    n_encoder_layers: int = 3
    n_decoder_layers: int = 3
    max_len: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    attention_scale: float | None = None
    attention_bias: bool = True
    attention_out_bias: bool | None = None
    attention_norm: bool = False
    norm: NormKind = "layer"
    norm_first: bool = False
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    feed_forward_gated: bool = False
    feed_forward_bias: bool = True
    positions: Positions = "sinusoidal"
    position_base: float | Literal["length"] = 10000.0
    position_start: Literal[0, 1] = 0
    position_first_index: Literal[0, 1] = 0
    position_order: PhaseOrder = "sincos"
    position_buckets: int = 32
    position_reach: int = 128
    embedding_scale: bool = True
    embedding_norm_eps: float | None = None
    pad_id: int | None = None
    tie: Tie = "all"
    output_bias: bool = False
    d_output: int | None = None
    output_activation: Literal["tanh", "relu"] = "tanh"
    n_classes: int = 0
    pooling: Pooling = "mean"
    initialization: Initialization = "xavier"

    def __post_init__(self):
        for name, choices in _choices(type(self)).items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(map(str, choices))}")
        for least, names in _AT_LEAST.items():
            for name in names:
                value = getattr(self, name)
                below = 1 if name.endswith("dropout") else _BELOW
                if value is not None and not least <= value < below:
                    raise ValueError(f"{name}={str(value)[:40]} must be at least {least} and below {below:,}")
        for name, (other, values) in _USED_WITH.items():
            value = getattr(self, name)
            used = getattr(self, other) in values
            if not used and value != type(self).__dataclass_fields__[name].default:
                raise ValueError(
                    f"{name}={value!r} means nothing with {other}={getattr(self, other)!r}; leave it out, or set"
                    f" {other} to {' or '.join(values)}"
                )
        self._check_layers()
        self._check_heads()
        self._check_positions()
        if self.pad_id is not None and not 0 <= self.pad_id < self.vocab_size:
            raise ValueError(f"pad_id={self.pad_id} is no id of a vocabulary of {self.vocab_size}")
        if self.tie != "none" and self.d_output not in (None, self.d_model):
            raise ValueError(
                f"d_output={self.d_output} differs from d_model={self.d_model}, so the output can't share the"
                " embedding's matrix; set tie='none'"
            )

    @property
    def head_width(self) -> int:
        """Width of a query and key head: head_dim, or what it is unless given."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def wavelength_base(self) -> float:
        """position_base as a number."""
        return float(self.max_len) if self.position_base == "length" else self.position_base

    def _check_layers(self):
        has = {"n_encoder_layers": self.architecture != "decoder"}
        has["n_decoder_layers"] = self.architecture in ("encoder-decoder", "decoder")
        for name, there in has.items():
            value = getattr(self, name)
            if (value < 1) if there else value:
                wanted = "at least 1" if there else "0"
                raise ValueError(f"{name}={value} must be {wanted} with architecture={self.architecture!r}")
        if self.n_classes == 1 or self.n_classes < 0:
            raise ValueError(f"n_classes={self.n_classes} must be at least 2, or 0 for embeddings of texts")

    def _check_heads(self):
        divided = [] if self.head_dim is not None else [("d_model", "n_heads")]
        for whole, part in (*divided, ("n_heads", "n_kv_heads")):
            number = getattr(self, whole)
            wanted = getattr(self, part)
            if wanted is not None and (wanted < 1 or number % wanted):
                divisors = [n for n in range(1, number + 1) if number % n == 0]
                best = min(divisors, key=lambda n: abs(n - wanted))
                raise ValueError(f"{whole}={number} is not divisible by {part}={wanted}; try {part}={best}")

    def _check_positions(self):
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"positions='rotary' turns pairs, but a head has {self.head_width}; set an even head_dim"
            )
        if self.position_base != "length" and not 0.0 < self.position_base < math.inf:
            raise ValueError(f"position_base={self.position_base} must be a number above 0, or 'length'")
        if self.positions == "relative" and not 4 <= self.position_buckets < 2 * self.position_reach:
            raise ValueError(
                f"position_buckets={self.position_buckets} must be at least 4 and less than twice"
                f" position_reach={self.position_reach}"
            )
        if self.positions == "inverse" and self.position_start == 0:
            raise ValueError("position_start=0 gives 1/0 with positions='inverse'; set position_start=1")


@cache
def _choices(config: type) -> dict[str, tuple[Any, ...]]:
    """What each option that is one of several may be."""
    return {
        name: get_args(hint) for name, hint in get_type_hints(config).items() if get_origin(hint) is Literal
    }
