"""Token embeddings: from ids to vectors, and the input of a stack: embedding plus position."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.nn.dropout import Dropout
from attendo.nn.positions import FixedPositions, LearnedPositions


class TokenEmbedding(nn.Module):
    """A row of the weight for each id; times √d_model if scaled (Vaswani et al. 2017, section 3.4).

    pad_id: an id whose row is 0 and stays so, since it gets no gradient.

    >>> tokens = TokenEmbedding(3, 4)
    >>> _ = nn.init.ones_(tokens.weight)
    >>> tokens(torch.tensor([2]))  # 1 · √4
    tensor([[2., 2., 2., 2.]], grad_fn=<MulBackward0>)
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = True, pad_id: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocab_size, d_model))
        self.scale = d_model**0.5 if scaled else 1.0
        self.pad_id = pad_id

    def forward(self, token_ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        """One vector an id; the same as the weight times a one-hot column."""
        return F.embedding(token_ids, self.weight, self.pad_id) * self.scale


class InputEmbedding(nn.Module):
    """Token embedding + positional encoding, a norm if there is one, dropout: what enters a stack.

    positions: None where the order is told by other means (rotary, ALiBi) or not at all.

    E[ids]·√d + PE, or LN of that sum where there is a norm. Vaswani et al. 2017, sections 3.4 and 3.5.

    >>> tokens, positions = TokenEmbedding(3, 2), LearnedPositions(2, max_len=4)
    >>> positions.weight.data = torch.arange(8.0).view(4, 2)
    >>> embed = InputEmbedding(tokens, positions)  # the embeddings are still 0
    >>> embed(torch.tensor([[1, 1]])).tolist()
    [[[0.0, 1.0], [2.0, 3.0]]]
    >>> embed(torch.tensor([[1]]), start=torch.tensor([3]), end=4).tolist()  # behind a cache of 3 tokens
    [[[6.0, 7.0]]]
    """

    def __init__(
        self,
        tokens: TokenEmbedding,
        positions: FixedPositions | LearnedPositions | None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.norm = nn.Identity() if norm is None else norm
        self.dropout = Dropout(dropout)

    def forward(
        self,
        token_ids: Int[Tensor, "batch len"],
        start: Int[Tensor, " batch"] | None = None,
        end: int | None = None,
    ) -> Float[Tensor, "batch len d_model"]:
        """The tokens stand at positions 0, 1, ... or, behind a cache, at `start[row]`, `start[row] + 1`, ...

        end: with `start`, a number above every position (so that no value need be read back from a device).
        """
        x, n = self.tokens(token_ids), token_ids.shape[1]
        if self.positions is not None:
            positions = torch.arange(n, device=token_ids.device)
            if start is not None:
                positions = start[:, None] + positions
            x = x + self.positions(positions, n if end is None else end)
        return self.dropout(self.norm(x))
