"""The shape of a model, as a table of a configuration file; `models.py` builds the model."""

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
"""Upper limit of every size: larger than in any model, and small enough that a product of two sizes cannot overflow."""
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
    "position_frequencies": ("positions", ("rotary",)),
    "position_start": ("positions", ("sinusoidal", "ramp", "inverse")),
    "position_first_index": ("positions", ("sinusoidal",)),
    "no_rope_interval": ("positions", ("rotary",)),
    "position_order": ("positions", ("sinusoidal",)),
    "position_buckets": ("positions", ("relative",)),
    "position_reach": ("positions", ("relative",)),
}
"""Options that have an effect only with certain values of another option. With other values they are rejected."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model. The names of the sizes follow Vaswani et al. 2017, table 3.

    Attributes:
        architecture: Kind of network, selected by the task.
        vocab_size: Number of vocabulary entries, taken from the tokenizer.
        d_model: Width of the vectors between the layers.
        d_ff: Width of the hidden layer in each feed-forward network.
        n_heads: Number of query heads in each attention layer.
        n_kv_heads: Number of key and value heads, for grouped-query attention (default: `n_heads`).
        head_dim: Width of one query or key head (default: `d_model / n_heads`).
        value_dim: Width of one value head (default: `head_dim`).
        n_encoder_layers: Number of encoder blocks. Language models have no encoder blocks.
        n_decoder_layers: Number of decoder blocks. Classifiers and masked language models have no decoder blocks.
        max_len: Context length in tokens. Learned positions cannot represent longer texts.
        dropout: Dropout probability of the embeddings and of the output of each sub-layer.
        attention_dropout: Dropout probability of the attention weights.
        activation_dropout: Dropout probability of the hidden layer in each feed-forward network.
        attention_scale: Factor on the attention scores before the softmax (default: `1 / √head_dim`).
        attention_bias: Whether the four projections of each attention layer have a bias.
        attention_out_bias: Whether the output projection of attention has a bias (default: `attention_bias`).
        attention_norm: Whether an RMSNorm is applied to each head of queries and keys (Dehghani et al. 2023).
        norm: Normalization layer. `layer` is LayerNorm and `rms` is RMSNorm.
        norm_first: Whether each sub-layer normalizes its input (pre-norm), with one more norm after the last block.
        norm_eps: Constant that keeps a normalization layer from dividing by 0.
        activation: Activation function of the feed-forward networks. `gelu_tanh` approximates GELU with tanh.
        feed_forward_gated: Whether feed-forward networks have a gate, as SwiGLU does with `activation="silu"`.
        feed_forward_bias: Whether the linear layers of the feed-forward networks have a bias.
        positions: Positional encoding. `rotary` is RoPE, `relative` is the position bias of T5, and `none` adds no
            positions.
        position_base: Base of the wavelengths of sinusoidal and rotary positions. `length` means `max_len`.
        position_frequencies: Frequencies of rotary positions, one for two entries of a head (default:
            `position_base^(-2i / head_dim)`). Models with scaled positions have such a list.
        no_rope_interval: Number n such that every n-th block has no rotary positions, as in SmolLM3 (0: all blocks
            have rotary positions).
        position_start: Number of the first position, for sinusoidal, ramp and inverse positions.
        position_first_index: First index i in `base^(-2i / d_model)`, for sinusoidal positions.
        position_order: Order of the sinusoids. `sincos` and `cossin` alternate sines and cosines; `halves` puts all
            sines first.
        position_buckets: Number of distance buckets of relative positions.
        position_reach: Distance from which relative positions use the last bucket.
        embedding_scale: Whether embeddings are multiplied by `√d_model`.
        embedding_norm_eps: `norm_eps` of a normalization layer after the embeddings (default: no such layer).
        pad_id: Id of a token whose embedding stays 0 (default: no such token).
        tie: Shared matrices of source embedding, target embedding and output layer. `output` shares target embedding
            and output layer; `input` shares both embeddings.
        output_bias: Whether the output layer over the vocabulary has a bias.
        d_output: Width of the hidden layer before the output (default: `d_model`, none in classifiers).
        output_activation: Activation function after the hidden layer that `d_output` adds to a classifier.
        n_classes: Number of labels, taken from the data. A classifier with 0 labels outputs text embeddings.
        pooling: Summary of all token vectors in a classifier: their maximum, their mean, or the first vector. With
            `none`, each token has its own logits, as for tags.
        initialization: Scheme of the initial weights: Xavier (Glorot & Bengio 2010) or normal (Radford et al. 2018).

    Raises:
        ValueError: A value is not an allowed choice, or does not fit the other values. The message names the field.

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
    position_frequencies: tuple[float, ...] | None = None
    no_rope_interval: int = 0
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
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}={value!r} must be one of {', '.join(map(str, choices))}")
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
                    f"{name}={value!r} has no effect with {other}={getattr(self, other)!r}. Remove it, or set "
                    f"{other} to {' or '.join(values)}"
                )
        self._check_layers()
        self._check_heads()
        self._check_positions()
        if self.pad_id is not None and not 0 <= self.pad_id < self.vocab_size:
            raise ValueError(f"pad_id={self.pad_id} must be at least 0 and below {self.vocab_size}")
        if self.tie != "none" and self.d_output not in (None, self.d_model):
            raise ValueError(
                f"d_output={self.d_output} differs from d_model={self.d_model}, so the output cannot share "
                "the embedding matrix. Set tie='none'"
            )

    @property
    def head_width(self) -> int:
        """The width of a query or key head: `head_dim`, by default `d_model / n_heads`."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def wavelength_base(self) -> float:
        """The value of `position_base` as a number, with "length" replaced by `max_len`."""
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
            raise ValueError(f"n_classes={self.n_classes} must be at least 2, or 0 for text embeddings")

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
            raise ValueError(f"positions='rotary' requires an even head_dim, not {self.head_width}")
        if self.position_frequencies is not None and 2 * len(self.position_frequencies) != self.head_width:
            raise ValueError(f"position_frequencies must have {self.head_width // 2} numbers (head_dim / 2)")
        if self.position_base != "length" and not 0.0 < self.position_base < math.inf:
            raise ValueError(f"position_base={self.position_base} must be a number above 0, or 'length'")
        if self.positions == "relative" and not 4 <= self.position_buckets < 2 * self.position_reach:
            raise ValueError(
                f"position_buckets={self.position_buckets} must be at least 4 and less than 2 * "
                f"position_reach={2 * self.position_reach}"
            )
        if self.positions == "inverse" and self.position_start == 0:
            raise ValueError("position_start=0 divides by 0 with positions='inverse'. Set position_start=1")


@cache
def _choices(config: type) -> dict[str, tuple[Any, ...]]:
    """Return the allowed values of each option that is a Literal."""
    return {
        name: get_args(hint) for name, hint in get_type_hints(config).items() if get_origin(hint) is Literal
    }
