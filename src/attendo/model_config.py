"""The shape of a model, as a table of a configuration file; `models.py` builds the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attendo.nn.layers import Activation, Initialization, NormKind, Pooling
from attendo.nn.positions import PhaseOrder
from attendo.shape_checks import require_shape

Architecture = Literal["encoder-decoder", "classifier", "decoder", "masked"]
Positions = Literal["sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative", "none"]
Tie = Literal["all", "output", "input", "none"]


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
        attention_softcap: Limit c of the attention scores before the softmax, c · tanh(score / c), as in Gemma 2
            (default: no limit).
        attention_windows: Windows of self-attention, repeated over the blocks (`[4096, 0]` in Gemma 2). With n, a token
            attends to tokens less than n positions away, and with 0 to all tokens (default: no windows).
        attention_bias: Whether the four projections of each attention layer have a bias.
        attention_out_bias: Whether the output projection of attention has a bias (default: `attention_bias`).
        attention_norm: Whether an RMSNorm is applied to each head of queries and keys (Dehghani et al. 2023).
        norm: Normalization layer. `layer` is LayerNorm and `rms` is RMSNorm.
        norm_first: Whether each sub-layer normalizes its input (pre-norm), with one more norm after the last block.
        norm_output: Whether the output of each sub-layer is normalized before it is added, as in Gemma 2.
        norm_first_block: Whether the first block of an encoder normalizes the input of self-attention.
        norm_eps: Constant that keeps a normalization layer from dividing by 0.
        activation: Activation function of the feed-forward networks. `gelu_tanh` approximates GELU with tanh.
        feed_forward_gated: Whether feed-forward networks have a gate, as SwiGLU does with `activation="silu"`.
        feed_forward_bias: Whether the linear layers of the feed-forward networks have a bias.
        positions: Positional encoding. `rotary` is RoPE, `relative` is the position bias of T5, and `none` adds no
            positions.
        position_base: Base of the wavelengths of sinusoidal and rotary positions. `length` means `max_len`.
        position_frequencies: Frequencies of rotary positions, one for two entries of a head (default:
            `position_base^(-2i / head_dim)`). Models with scaled positions have such a list.
        local_position_base: Base of rotary positions in blocks with a window (default: as in all other blocks).
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
        output_softcap: Limit c of the logits over the vocabulary, c · tanh(logit / c) (default: no limit).
        d_output: Width of the hidden layer before the output (default: `d_model`, none in classifiers).
        output_activation: Activation function after the hidden layer that `d_output` adds to a classifier.
        output_norm: Whether a normalization layer follows the hidden layer that `d_output` adds to a classifier.
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
    attention_softcap: float | None = None
    attention_windows: tuple[int, ...] = ()
    attention_bias: bool = True
    attention_out_bias: bool | None = None
    attention_norm: bool = False
    norm: NormKind = "layer"
    norm_first: bool = False
    norm_output: bool = False
    norm_first_block: bool = True
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    feed_forward_gated: bool = False
    feed_forward_bias: bool = True
    positions: Positions = "sinusoidal"
    position_base: float | Literal["length"] = 10000.0
    position_frequencies: tuple[float, ...] | None = None
    local_position_base: float | None = None
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
    output_softcap: float | None = None
    d_output: int | None = None
    output_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    output_norm: bool = False
    n_classes: int = 0
    pooling: Pooling = "mean"
    initialization: Initialization = "xavier"

    def __post_init__(self):
        require_shape(self)

    @property
    def head_width(self) -> int:
        """The width of a query or key head: `head_dim`, by default `d_model / n_heads`."""
        return self.head_dim or self.d_model // self.n_heads

    @property
    def wavelength_base(self) -> float:
        """The value of `position_base` as a number, with "length" replaced by `max_len`."""
        return float(self.max_len) if self.position_base == "length" else self.position_base
