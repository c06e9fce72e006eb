"""Models that are built from the modules of `nn` according to a ModelConfig."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.model_config import Architecture, ModelConfig
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.cache import DecoderCache
from attendo.nn.layers import (
    ACTIVATIONS,
    CappedLinear,
    FeedForward,
    InputEmbedding,
    TokenEmbedding,
    build_norm,
    initialize,
    pool,
)
from attendo.nn.masks import Mask
from attendo.nn.positions import (
    Alibi,
    FixedPositions,
    LearnedPositions,
    RelativeBias,
    Rotary,
    inverse_encoding,
    ramp_encoding,
    sinusoidal_encoding,
)


class _Model(nn.Module):
    """The base class of all models, with the configuration and the output layer."""

    output_proj: nn.Linear

    def __init__(self, config: ModelConfig, architecture: Architecture):
        super().__init__()
        if config.architecture != architecture:
            raise ValueError(f"config.architecture={config.architecture!r} must be {architecture!r} for this class")
        self.config = config

    def output(self, hidden: Float[Tensor, "*batch d_hidden"]) -> Float[Tensor, "*batch vocab_or_classes"]:
        """Return the logits over the vocabulary or the classes: W_u h (+ b)."""
        return self.output_proj(hidden)

    def _begin(self, tokens: TokenEmbedding | None) -> None:
        """Draw the initial weights, and tie the output layer to the embedding matrix of `tokens` if configured."""
        initialize(self, self.config.initialization)
        if tokens is not None and self.config.tie in ("all", "output"):
            self.output_proj.weight = tokens.weight


class EncoderDecoder(_Model):
    """The Transformer of Vaswani et al. 2017, figure 1. The model maps source and target ids to logits.

    >>> import torch
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0)
    >>> model = EncoderDecoder(ModelConfig(vocab_size=11, **sizes))
    >>> src, tgt = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])
    >>> logits = model(src, tgt)
    >>> cache = model.start(src)
    >>> logits.shape, torch.allclose(model.step(tgt, cache), logits, atol=1e-5), cache.lengths.tolist()
    (torch.Size([1, 2, 11]), True, [2])
    """

    def __init__(self, config: ModelConfig):
        super().__init__(config, "encoder-decoder")
        target_tokens = _tokens(config)
        source_tokens = target_tokens if config.tie in ("all", "input") else _tokens(config)
        self.source_embedding = _embedding(config, source_tokens)
        self.target_embedding = _embedding(config, target_tokens)
        self.encoder = _encoder(config)
        self.decoder = _decoder(config)
        self.output_proj = _output(config)
        self._begin(target_tokens)

    def encode(
        self, src: Int[Tensor, "batch src_len"], src_lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch src_len d_model"]:
        """Return the memory, which contains one contextual vector per source token.

        `src_lengths` is the number of tokens in each row, not counting padding (default: no row is padded).
        """
        return self.encoder(self.source_embedding(src), _padding(src_lengths))

    def hidden(
        self,
        src: Int[Tensor, "batch src_len"],
        tgt: Int[Tensor, "batch tgt_len"],
        src_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """Return the decoder's hidden state at each target position, from which the next token is predicted.

        `tgt` starts with the begin id. Targets need no padding mask, because the causal mask hides all later positions.
        """
        memory = self.encode(src, src_lengths)
        return self.decoder(self.target_embedding(tgt), memory, Mask(causal=True), _padding(src_lengths))

    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        tgt: Int[Tensor, "batch tgt_len"],
        src_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Return the logits for the token after each target position."""
        return self.output(self.hidden(src, tgt, src_lengths))

    def start(
        self,
        src: Int[Tensor, "sources src_len"],
        src_lengths: Int[Tensor, " sources"] | None = None,
        rows_per_source: int = 1,
        capacity: int = 256,
    ) -> DecoderCache:
        """Encode the sources and return an empty decoder cache with `rows_per_source` rows for each source."""
        memory = self.encode(src, src_lengths)
        return self.decoder.start(memory, _padding(src_lengths), rows_per_source, capacity)

    def step(self, token_ids: Int[Tensor, "rows n"], cache: DecoderCache) -> Float[Tensor, "rows n vocab"]:
        """Append the next `n` tokens of every row to the cache, and return the logits after each of these tokens."""
        x = self.target_embedding(token_ids, cache.lengths, cache.longest + token_ids.shape[1])
        return self.output(self.decoder.step(x, cache))


class EncoderClassifier(_Model):
    """A text classifier: logits = W pool(Encoder(x)) + b.

    With max pooling, the classifier is that of NYU Deep Learning 2020, week 12, notebook 15.

    >>> import torch
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=0)
    >>> model = EncoderClassifier(ModelConfig(architecture="classifier", vocab_size=11, n_classes=3, **sizes))
    >>> model(torch.tensor([[3, 4, 5], [6, 0, 0]]), torch.tensor([3, 1])).shape
    torch.Size([2, 3])
    """

    def __init__(self, config: ModelConfig):
        super().__init__(config, "classifier")
        self.embedding = _embedding(config, _tokens(config))
        self.encoder = _encoder(config)
        width = config.d_output or config.d_model
        n_classes = config.n_classes
        self.output_hidden = nn.Linear(config.d_model, width) if config.d_output else nn.Identity()
        self.output_norm = build_norm(config.norm, width, config.norm_eps) if config.output_norm else None
        self.output_proj = nn.Linear(width, n_classes) if n_classes else cast(nn.Linear, nn.Identity())
        self._begin(None)

    def hidden(
        self, src: Int[Tensor, "batch src_len"], src_lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch *len d_model"]:
        """Return one vector per text, or one per token if the `pooling` of the config is "none".

        `src_lengths` is the number of tokens in each row, not counting padding.
        """
        states = self.encoder(self.embedding(src), _padding(src_lengths))
        pooled = self.output_hidden(pool(states, self.config.pooling, src_lengths))
        if not self.config.d_output:
            return pooled
        pooled = {"tanh": torch.tanh, **ACTIVATIONS}[self.config.output_activation](pooled)
        return pooled if self.output_norm is None else self.output_norm(pooled)

    def forward(
        self, src: Int[Tensor, "batch src_len"], src_lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch *len classes"]:
        """Return the logits of each text, or of each token."""
        return self.output(self.hidden(src, src_lengths))


class DecoderLM(_Model):
    """A decoder-only model, which predicts each token from the tokens before it (Phuong & Hutter 2022, algorithm 10).

    >>> import torch
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1, dropout=0.0)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", vocab_size=11, **sizes))
    >>> ids = torch.tensor([[1, 5, 7]])
    >>> logits = model(ids)
    >>> logits.shape, torch.allclose(model(ids[:, :2]), logits[:, :2], atol=1e-5)  # what follows changes nothing
    (torch.Size([1, 3, 11]), True)
    """

    def __init__(self, config: ModelConfig):
        super().__init__(config, "decoder")
        tokens = _tokens(config)
        self.embedding = _embedding(config, tokens)
        self.decoder = _decoder(config)
        self.output_proj = _output(config)
        self._begin(tokens)

    def hidden(
        self, token_ids: Int[Tensor, "batch len"], segments: Int[Tensor, "batch len"] | None = None
    ) -> Float[Tensor, "batch len d_model"]:
        """Return the hidden state at each position, from which the next token is predicted.

        `segments` is the document number of each token. Attention never crosses document boundaries. By default, a row
        is one document.
        """
        return self.decoder(self.embedding(token_ids), None, Mask(causal=True, segments=segments))

    def forward(
        self, token_ids: Int[Tensor, "batch len"], segments: Int[Tensor, "batch len"] | None = None
    ) -> Float[Tensor, "batch len vocab"]:
        """Return the logits for the token after each position."""
        return self.output(self.hidden(token_ids, segments))

    def start(self, rows: int = 1, capacity: int = 256) -> DecoderCache:
        """Return an empty decoder cache with `rows` rows."""
        nothing = self.embedding.tokens.weight.new_zeros(rows, 0, self.config.d_model)
        return self.decoder.start(nothing, None, 1, capacity)

    def step(self, token_ids: Int[Tensor, "rows n"], cache: DecoderCache) -> Float[Tensor, "rows n vocab"]:
        """Append the next `n` tokens of every row to the cache, and return the logits after each of these tokens."""
        x = self.embedding(token_ids, cache.lengths, cache.longest + token_ids.shape[1])
        return self.output(self.decoder.step(x, cache))


class MaskedLM(_Model):
    """An encoder that predicts each token from all other tokens, as BERT does (Phuong & Hutter 2022, algorithm 9).

    >>> import torch
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=0, d_output=4, tie="none")
    >>> model = MaskedLM(ModelConfig(architecture="masked", vocab_size=11, **sizes))
    >>> ids = torch.tensor([[1, 5, 7]])
    >>> model.hidden(ids).shape, model(ids).shape
    (torch.Size([1, 3, 4]), torch.Size([1, 3, 11]))
    """

    def __init__(self, config: ModelConfig):
        super().__init__(config, "masked")
        tokens = _tokens(config)
        self.embedding = _embedding(config, tokens)
        self.encoder = _encoder(config)
        d_output = config.d_output or config.d_model
        self.output_hidden = nn.Linear(config.d_model, d_output)
        self.output_norm = build_norm(config.norm, d_output, config.norm_eps)
        self.output_proj = nn.Linear(d_output, config.vocab_size, bias=config.output_bias)
        self._begin(tokens)

    def hidden(
        self, src: Int[Tensor, "batch src_len"], src_lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch src_len d_output"]:
        """Return norm(activation(W_f h + b_f)) for the encoder state h at each position.

        The token at a position is predicted from this vector.
        """
        states = self.encoder(self.embedding(src), _padding(src_lengths))
        return self.output_norm(ACTIVATIONS[self.config.activation](self.output_hidden(states)))

    def forward(
        self, src: Int[Tensor, "batch src_len"], src_lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch src_len vocab"]:
        """Return the logits for the token at each position."""
        return self.output(self.hidden(src, src_lengths))


Model = EncoderDecoder | EncoderClassifier | DecoderLM | MaskedLM


def build_model(config: ModelConfig) -> Model:
    """Return a model of the configured architecture with new random weights.

    Args:
        config: The architecture and sizes of the model.

    >>> config = ModelConfig(architecture="decoder", vocab_size=11, n_encoder_layers=0)
    >>> type(build_model(config)).__name__
    'DecoderLM'
    """
    match config.architecture:
        case "encoder-decoder":
            return EncoderDecoder(config)
        case "classifier":
            return EncoderClassifier(config)
        case "decoder":
            return DecoderLM(config)
        case "masked":
            return MaskedLM(config)


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters in a model. Shared parameters count once.

    >>> both = nn.ModuleList([nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)])
    >>> parameter_count(both)
    24
    >>> both[1].weight = both[0].weight
    >>> parameter_count(both)
    12
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _output(config: ModelConfig) -> nn.Linear:
    size = config.d_model, config.vocab_size
    if config.output_softcap is not None:
        return CappedLinear(*size, bias=config.output_bias, cap=config.output_softcap)
    return nn.Linear(*size, bias=config.output_bias)


def _padding(lengths: Tensor | None) -> Mask | None:
    return None if lengths is None else Mask(key_lengths=lengths)


def _tokens(config: ModelConfig) -> TokenEmbedding:
    return TokenEmbedding(config.vocab_size, config.d_model, scaled=config.embedding_scale, pad_id=config.pad_id)


def _embedding(config: ModelConfig, tokens: TokenEmbedding) -> InputEmbedding:
    eps = config.embedding_norm_eps
    norm = None if eps is None else build_norm(config.norm, config.d_model, eps)
    return InputEmbedding(tokens, _added_positions(config), norm, config.dropout)


def _added_positions(config: ModelConfig) -> FixedPositions | LearnedPositions | None:
    match config.positions:
        case "learned":
            return LearnedPositions(config.d_model, config.max_len)
        case "sinusoidal":
            encode = partial(
                sinusoidal_encoding,
                d_model=config.d_model,
                base=config.wavelength_base,
                first_index=config.position_first_index,
                order=config.position_order,
            )
        case "ramp":
            encode = partial(ramp_encoding, length=config.max_len)
        case "inverse":
            encode = inverse_encoding
        case "rotary" | "alibi" | "relative" | "none":
            return None
    return FixedPositions(encode, min(config.max_len, 256), config.position_start)


def _self_attention(config: ModelConfig, bias: RelativeBias | None, number: int) -> Attention:
    """Return the self-attention layer of a block: positions, window and norms. `number` counts blocks from 1."""
    windows = config.attention_windows or (0,)
    window = windows[(number - 1) % len(windows)]
    rotary = Rotary(config.wavelength_base, config.position_frequencies)
    if window and config.local_position_base is not None:
        rotary = Rotary(config.local_position_base)
    if config.no_rope_interval and number % config.no_rope_interval == 0:
        rotary = None
    turn = {"rotary": rotary, "alibi": Alibi(config.n_heads)}.get(config.positions, bias)
    attention = _attention(config, turn)
    attention.window = window or None
    if config.attention_norm:
        attention.q_norm = build_norm("rms", attention.head_dim, config.norm_eps)
        attention.k_norm = build_norm("rms", attention.head_dim, config.norm_eps)
    return attention


def _relative_bias(config: ModelConfig, *, causal: bool = False) -> RelativeBias | None:
    """Return one bias for all blocks of a stack, as in Raffel et al. 2020, section 2.1."""
    if config.positions != "relative":
        return None
    return RelativeBias(config.n_heads, config.position_buckets, config.position_reach, causal=causal)


def _attention(config: ModelConfig, positions: Rotary | Alibi | RelativeBias | None = None) -> Attention:
    value_dim = config.value_dim or config.head_width
    out_bias = config.attention_bias if config.attention_out_bias is None else config.attention_out_bias
    return Attention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_width,
        value_dim=value_dim,
        bias=config.attention_bias,
        out_proj=nn.Linear(config.n_heads * value_dim, config.d_model, bias=out_bias),
        attend=Attend(config.attention_scale, config.attention_dropout, softcap=config.attention_softcap),
        positions=positions,
    )


def _feed_forward(config: ModelConfig) -> FeedForward:
    return FeedForward(
        config.d_model,
        config.d_ff,
        activation=config.activation,
        gated=config.feed_forward_gated,
        bias=config.feed_forward_bias,
        dropout=config.activation_dropout,
    )


def _residual(config: ModelConfig) -> Residual:
    kind = config.norm, config.d_model, config.norm_eps
    norm, last = build_norm(*kind), build_norm(*kind) if config.norm_output else None
    return Residual(norm, norm_first=config.norm_first, dropout=config.dropout, output_norm=last)


def _last_norm(config: ModelConfig) -> nn.Module | None:
    return build_norm(config.norm, config.d_model, config.norm_eps) if config.norm_first else None


def _encoder(config: ModelConfig) -> Encoder:
    bias = _relative_bias(config)
    blocks = (
        EncoderBlock(_self_attention(config, bias, n), _feed_forward(config), lambda: _residual(config))
        for n in range(1, config.n_encoder_layers + 1)
    )
    encoder = Encoder(blocks, _last_norm(config))
    if not config.norm_first_block:
        encoder.blocks[0].self_attention_residual.norm = nn.Identity()
    return encoder


def _decoder(config: ModelConfig) -> Decoder:
    """Return the decoder, which has cross-attention if the model has an encoder."""
    bias = _relative_bias(config, causal=True)
    blocks = (
        DecoderBlock(
            _self_attention(config, bias, n),
            _attention(config) if config.n_encoder_layers else None,
            _feed_forward(config),
            lambda: _residual(config),
        )
        for n in range(1, config.n_decoder_layers + 1)
    )
    return Decoder(blocks, _last_norm(config))
