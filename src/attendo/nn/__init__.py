"""The modules of a Transformer: attention, layers, blocks, masks, positions and caches.

Blocks receive their modules as arguments, as in this GPT of ten lines:

>>> import torch
>>> from torch import nn
>>> from attendo.nn import Attention, Decoder, DecoderBlock, FeedForward, InputEmbedding, LearnedPositions
>>> from attendo.nn import Mask, Residual, TokenEmbedding
>>> class GPT(nn.Module):
...     def __init__(self, vocab_size, d=64, n_heads=4, n_layers=2, max_len=128):
...         super().__init__()
...         self.embedding = InputEmbedding(TokenEmbedding(vocab_size, d), LearnedPositions(d, max_len))
...         pre_norm = lambda: Residual(nn.LayerNorm(d), norm_first=True)
...         block = lambda: DecoderBlock(Attention(d, n_heads), None, FeedForward(d, 4 * d), pre_norm)
...         self.decoder = Decoder([block() for _ in range(n_layers)], norm=nn.LayerNorm(d))
...         self.output_proj = nn.Linear(d, vocab_size)
...     def forward(self, ids):
...         return self.output_proj(self.decoder(self.embedding(ids), None, Mask(causal=True)))
>>> GPT(vocab_size=50)(torch.tensor([[3, 1, 4, 1]])).shape  # the logits of each next token
torch.Size([1, 4, 50])

`attendo.models` builds models of these modules from a `ModelConfig`. Your own attention, position or normalization
module can replace one of these modules in a built model (docs/en/change-a-block.md).
"""

from attendo.nn.attention import Attend, Attention, attention_scores, attention_weights, masked_softmax
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.cache import DecoderCache
from attendo.nn.layers import (
    Dropout,
    FeedForward,
    InputEmbedding,
    TokenEmbedding,
    build_norm,
    initialize,
    pool,
)
from attendo.nn.masks import Mask
from attendo.nn.positions import Alibi, DistanceBias, FixedPositions, LearnedPositions, RelativeBias, Rotary

__all__ = [
    "Alibi",
    "Attend",
    "Attention",
    "Decoder",
    "DecoderBlock",
    "DecoderCache",
    "DistanceBias",
    "Dropout",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "FixedPositions",
    "InputEmbedding",
    "LearnedPositions",
    "Mask",
    "RelativeBias",
    "Residual",
    "Rotary",
    "TokenEmbedding",
    "attention_scores",
    "attention_weights",
    "build_norm",
    "initialize",
    "masked_softmax",
    "pool",
]
