"""Models built from the parts in `nn`; the only reader of ModelConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.nn.attention import Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.cache import DecoderCache
from attendo.nn.embeddings import InputEmbedding, TokenEmbedding
from attendo.nn.feedforward import Activation, FeedForward
from attendo.nn.initialization import Initialization, initialize
from attendo.nn.masks import Mask
from attendo.nn.positions import LearnedPositions, SinusoidalPositions

Positions = Literal["sinusoidal", "learned"]
Tie = Literal["all", "output", "none"]
_CHOICES = {
    "activation": get_args(Activation),
    "positions": get_args(Positions),
    "tie": get_args(Tie),
    "initialization": get_args(Initialization),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model; the sizes of Vaswani et al. 2017, table 3, under the field's names.

    n_kv_heads: fewer than n_heads for grouped queries. max_len: longest text in tokens; learned positions
    end there. tie: which of source embedding, target embedding and output matrix are one ("all", "output" =
    the last two, "none"). embedding_scale: times √d_model. attention_bias: of the four projections of each
    attention.
    """

    vocab_size: int
    d_model: int = 256
    d_ff: int = 1024
    n_heads: int = 4
    n_kv_heads: int | None = None
    n_encoder_layers: int = 3
    n_decoder_layers: int = 3
    max_len: int = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm_first: bool = False
    norm_eps: float = 1e-5
    activation: Activation = "relu"
    positions: Positions = "sinusoidal"
    embedding_scale: bool = True
    attention_bias: bool = True
    tie: Tie = "all"
    initialization: Initialization = "xavier"

    def __post_init__(self):
        for name in (
            "vocab_size",
            "d_model",
            "d_ff",
            "n_heads",
            "n_encoder_layers",
            "n_decoder_layers",
            "max_len",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        for whole, part in (("d_model", "n_heads"), ("n_heads", "n_kv_heads")):
            number, wanted = getattr(self, whole), getattr(self, part)
            if wanted is not None and (wanted < 1 or number % wanted):
                best = min(_divisors(number), key=lambda n: abs(n - wanted))
                raise ValueError(f"{whole}={number} is not divisible by {part}={wanted}; try {part}={best}")
        if not self.norm_eps >= 0.0:
            raise ValueError(f"norm_eps={self.norm_eps} must not be negative")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(choices)}")


class EncoderDecoder(nn.Module):
    """The Transformer of Vaswani et al. 2017, figure 1: from source and target ids to logits."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        target_tokens = TokenEmbedding(config.vocab_size, config.d_model, scaled=config.embedding_scale)
        source_tokens = (
            target_tokens
            if config.tie == "all"
            else TokenEmbedding(config.vocab_size, config.d_model, scaled=config.embedding_scale)
        )
        self.source_embedding = InputEmbedding(source_tokens, _positions(config), config.dropout)
        self.target_embedding = InputEmbedding(target_tokens, _positions(config), config.dropout)
        self.encoder = Encoder(
            (_encoder_block(config) for _ in range(config.n_encoder_layers)), _last_norm(config)
        )
        self.decoder = Decoder(
            (_decoder_block(config) for _ in range(config.n_decoder_layers)), _last_norm(config)
        )
        self.output_proj = nn.Linear(config.d_model, config.vocab_size, bias=False)
        initialize(self, config.initialization)
        if config.tie != "none":
            self.output_proj.weight = target_tokens.weight

    def encode(
        self, src: Int[Tensor, "batch src_len"], src_lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch src_len d_model"]:
        """The memory: each source token in the light of the others.

        src_lengths: how many tokens of each row are real; None when no row is padded.
        """
        return self.encoder(self.source_embedding(src), _padding(src_lengths))

    def hidden(
        self,
        src: Int[Tensor, "batch src_len"],
        tgt: Int[Tensor, "batch tgt_len"],
        src_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """The decoder's state at each target position, from which the next token is predicted.

        tgt starts with the begin id. Padding behind a target needs no mask: no position sees what follows it.
        """
        memory = self.encode(src, src_lengths)
        return self.decoder(self.target_embedding(tgt), memory, Mask(causal=True), _padding(src_lengths))

    def output(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Logits over the vocabulary: W_u h."""
        return self.output_proj(hidden)

    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        tgt: Int[Tensor, "batch tgt_len"],
        src_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"]:
        """Logits for the token after each target position."""
        return self.output(self.hidden(src, tgt, src_lengths))

    def start(
        self,
        src: Int[Tensor, "sources src_len"],
        src_lengths: Int[Tensor, " sources"] | None = None,
        rows_per_source: int = 1,
        capacity: int = 256,
    ) -> DecoderCache:
        """Encodes the sources once and gives an empty cache for `rows_per_source` rows of each."""
        memory = self.encode(src, src_lengths)
        return self.decoder.start(memory, _padding(src_lengths), rows_per_source, capacity)

    def step(self, token_ids: Int[Tensor, "rows n"], cache: DecoderCache) -> Float[Tensor, "rows n vocab"]:
        """Logits after each of the next `n` tokens of every row; the cache is advanced by `n`."""
        x = self.target_embedding(token_ids, cache.lengths, cache.longest + token_ids.shape[1])
        return self.output(self.decoder.step(x, cache))


def parameter_count(model: nn.Module) -> int:
    """Trained numbers in the model, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _padding(lengths: Tensor | None) -> Mask | None:
    return None if lengths is None else Mask(key_lengths=lengths)


def _positions(config: ModelConfig) -> SinusoidalPositions | LearnedPositions:
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_len)
    return SinusoidalPositions(config.d_model, min(config.max_len, 256))


def _attention(config: ModelConfig) -> Attention:
    return Attention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
    )


def _feed_forward(config: ModelConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, activation=config.activation, dropout=config.activation_dropout
    )


def _residual(config: ModelConfig) -> Residual:
    norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
    return Residual(norm, norm_first=config.norm_first, dropout=config.dropout)


def _last_norm(config: ModelConfig) -> nn.Module | None:
    return nn.LayerNorm(config.d_model, eps=config.norm_eps) if config.norm_first else None


def _encoder_block(config: ModelConfig) -> EncoderBlock:
    return EncoderBlock(_attention(config), _feed_forward(config), lambda: _residual(config))


def _decoder_block(config: ModelConfig) -> DecoderBlock:
    return DecoderBlock(
        _attention(config), _attention(config), _feed_forward(config), lambda: _residual(config)
    )
