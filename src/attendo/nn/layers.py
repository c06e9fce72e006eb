"""The layers other than attention: normalization, dropout, feed-forward network, embedding, pooling, initialization."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.nn.masks import within_lengths
from attendo.nn.positions import FixedPositions, LearnedPositions, RelativeBias

NormKind = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Pooling = Literal["max", "mean", "first", "none"]
Initialization = Literal["xavier", "normal"]
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def layer_norm(
    x: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"] | None = None,
    bias: Float[Tensor, " d"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d"]:
    """Compute LayerNorm, (x - mean) / √(var + ε) ⊙ γ + β, over the last axis, where var is the biased variance.

    With eps = 0, the LayerNorm of equal entries is NaN. Source: Ba et al. 2016; Phuong & Hutter 2022, algorithm 6.

    >>> import torch
    >>> layer_norm(torch.tensor([1.0, 3.0]), eps=0.0)
    tensor([-1.,  1.])
    """
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(
    x: Float[Tensor, "*batch d"], weight: Float[Tensor, " d"] | None = None, eps: float = 1e-5
) -> Float[Tensor, "*batch d"]:
    """Compute RMSNorm, x / √(mean(x²) + ε) ⊙ γ, over the last axis (Zhang & Sennrich 2019).

    RMSNorm is algorithm 6 of Phuong & Hutter 2022 with m = β = 0.

    >>> import torch
    >>> rms_norm(torch.tensor([1.0, 7.0]), eps=0.0)
    tensor([0.2000, 1.4000])
    """
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def build_norm(kind: NormKind, d_model: int, eps: float) -> nn.LayerNorm | nn.RMSNorm:
    """Return a normalization layer with trainable parameters.

    Args:
        kind: Kind of normalization: "layer" (Ba et al. 2016) or "rms" (Zhang & Sennrich 2019).
        d_model: Width of the normalized vectors.
        eps: Constant ε that is added to the variance or to the mean square.

    >>> build_norm("layer", 8, 1e-5).bias.shape, build_norm("rms", 8, 1e-5).weight.shape
    (torch.Size([8]), torch.Size([8]))
    """
    return nn.LayerNorm(d_model, eps=eps) if kind == "layer" else nn.RMSNorm(d_model, eps=eps)


def soft_cap(x: Float[Tensor, "*shape"], cap: float) -> Float[Tensor, "*shape"]:
    """Compute c · tanh(x / c), which is near x for small x and stays between -c and c (Bello et al. 2016, section 5.1).

    >>> soft_cap(torch.tensor([0.1, 100.0]), 2.0)
    tensor([0.0999, 2.0000])
    """
    return cap * torch.tanh(x / cap)


class CappedLinear(nn.Linear):
    """An output layer whose logits have a soft limit, c · tanh((Wx + b) / c) (Gemma Team 2024, section 2).

    Args:
        in_features: Width of the input.
        out_features: Number of logits.
        bias: Whether the layer has a bias.
        cap: The limit c.

    >>> layer = CappedLinear(1, 1, bias=False, cap=30.0)
    >>> _ = nn.init.ones_(layer.weight)
    >>> layer(torch.tensor([1000.0]))
    tensor([30.], grad_fn=<MulBackward0>)
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True, cap: float):
        super().__init__(in_features, out_features, bias=bias)
        self.cap = cap

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Return the logits."""
        return soft_cap(super().forward(input), self.cap)


def keep_mask(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """Return a random dropout mask like `x`, with entries 0 (probability `p`) or 1/(1 - p) (Srivastava et al. 2014).

    The probability is rounded to a multiple of 1/65536.

    >>> keep_mask(torch.zeros(2, 3), 0.0)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    dropped = round(p * 65536)
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    # compare in place, in int16: a comparison with a boolean result takes ten times as long
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape).ge_(dropped - 32768)
    return kept.to(x.dtype).mul_(65536 / max(65536 - dropped, 1))


class Dropout(nn.Module):
    """Dropout, which in training sets values to zero with probability `p` and scales other values by 1/(1 - p).

    The expected value of each entry is unchanged (Srivastava et al. 2014).

    Args:
        p: Dropout probability, with 0 ≤ p < 1.

    Raises:
        ValueError: The probability `p` is out of range.

    >>> dropout, x = Dropout(0.5), torch.ones(10_000)
    >>> dropout(x).unique()
    tensor([0., 2.])
    >>> dropout.eval()(x) is x
    True
    """

    def __init__(self, p: float = 0.0):
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout={p} must be at least 0 and below 1. Common values are 0 to 0.5")
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return `x` with dropout in training mode, and `x` unchanged in evaluation mode.

        Args:
            x: Tensor of any shape.
        """
        if not self.training or self.p == 0.0:
            return x
        # on a GPU, the fused kernel is fast and needs no mask in memory
        return F.dropout(x, self.p) if x.is_cuda else x * keep_mask(x, self.p)


class FeedForward(nn.Module):
    """The feed-forward network W₂ · activation(W₁x + b₁) + b₂ of each position (Vaswani et al. 2017, eq. 2).

    Args:
        d_model: Width of the input and the output.
        d_ff: Width of the inner layer.
        activation: Activation: "relu", exact "gelu" x·Φ(x), "gelu_tanh" (GPT-2's approximation) or "silu" x·σ(x).
        gated: Whether the inner layer has a gate, W₂(activation(W_g x) ⊙ W₁x) (Shazeer 2020; with "silu": SwiGLU).
        bias: Whether the projections have a bias.
        dropout: Dropout probability of the inner activations.

    >>> import torch
    >>> net = FeedForward(2, 3, bias=False)
    >>> _ = nn.init.ones_(net.in_proj.weight), nn.init.ones_(net.out_proj.weight)
    >>> net(torch.tensor([[1.0, 1.0], [-1.0, -1.0]])).detach()  # three inner units of 2, or of -2, which ReLU cuts
    tensor([[6., 6.],
            [0., 0.]])
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.in_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.out_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Return the output for each position, in the shape of `x`.

        Args:
            x: Hidden states of all positions.
        """
        inner = self.in_proj(x)
        if self.gate_proj is None:
            inner = self.activation(inner)
        else:
            inner = self.activation(self.gate_proj(x)) * inner
        return self.out_proj(self.dropout(inner))


class TokenEmbedding(nn.Module):
    """The token embedding: a trainable vector for each token id (Vaswani et al. 2017, section 3.4).

    Args:
        vocab_size: Number of token ids.
        d_model: Width of the vectors.
        scaled: Whether the vectors are multiplied by √d_model.
        pad_id: Token id of padding, whose vector is 0 and is not trained (default: none).

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
        """Return the vector of each token id, which equals the weight matrix times a one-hot vector.

        Args:
            token_ids: Token ids of any shape.
        """
        return F.embedding(token_ids, self.weight, self.pad_id) * self.scale


class InputEmbedding(nn.Module):
    """The input embedding: the sum of token embedding and positional encoding, with optional normalization and dropout.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5.

    Args:
        tokens: The token embedding.
        positions: The positional encoding (None: rotary positions, ALiBi or no positions).
        norm: Normalization layer after the sum (default: none).
        dropout: Dropout probability of the result.

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
        """Return the embedded tokens.

        Args:
            token_ids: Token ids of each row.
            start: Position of the first token in each row, for tokens that follow a cache (default: 0).
            end: A number above all positions, required with `start`, which avoids reading positions from a GPU.
        """
        x = self.tokens(token_ids)
        n = token_ids.shape[1]
        if self.positions is not None:
            positions = torch.arange(n, device=token_ids.device)
            if start is not None:
                positions = start[:, None] + positions
            x = x + self.positions(positions, n if end is None else end)
        return self.dropout(self.norm(x))


def pool(
    x: Float[Tensor, "batch len d_model"], kind: Pooling, lengths: Int[Tensor, " batch"] | None = None
) -> Float[Tensor, "batch *len d_model"]:
    """Pool the vectors of each text into one vector, or return the vectors unchanged ("none").

    Args:
        x: Hidden states of all tokens.
        kind: Kind of pooling: "max" for the maximum of each feature (NYU Deep Learning 2020, week 12, notebook 15),
            "mean", or "first" for the vector of the first token (the [CLS] token of Devlin et al. 2019). "none" keeps
            the vectors of all tokens.
        lengths: Number of tokens in each row, without padding (default: no padding). Padding is ignored.

    Returns:
        One vector per text, or with "none" one vector per token.

    >>> x = torch.tensor([[[1.0], [5.0], [9.0]]])
    >>> [pool(x, kind, torch.tensor([2])).item() for kind in ("max", "mean", "first")]
    [5.0, 3.0, 1.0]
    """
    if kind in ("first", "none"):
        return x[:, 0] if kind == "first" else x
    if lengths is None:
        return x.amax(1) if kind == "max" else x.mean(1)
    real = within_lengths(lengths, x.shape[1])[..., None]
    if kind == "max":
        return x.masked_fill(~real, torch.finfo(x.dtype).min).amax(1)
    return (x * real).sum(1) / lengths[:, None]


def xavier(model: nn.Module) -> None:
    """Initialize matrices uniformly with variance 2 / (inputs + outputs), and biases with 0 (Glorot & Bengio 2010).

    Embeddings are drawn from N(0, 1/d_model). After scaling by √d_model, the entries of embeddings have variance 1.

    >>> layer = nn.Linear(2, 4)
    >>> xavier(layer)
    >>> bool(layer.weight.abs().max() <= 1.0), layer.bias.tolist()  # uniform in ±√(6 / (2 + 4))
    (True, [0.0, 0.0, 0.0, 0.0])
    >>> tokens = TokenEmbedding(1000, 100, pad_id=0)
    >>> xavier(tokens)
    >>> round(tokens.weight[1:].std().item(), 2), tokens.weight[0].abs().max().item()  # 1/√100, and padding
    (0.1, 0.0)
    """
    for module in model.modules():
        match module:
            case nn.Linear():
                nn.init.xavier_uniform_(module.weight)
            case TokenEmbedding() | LearnedPositions() | RelativeBias():
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
        _zero_rest(module)


def normal(model: nn.Module, std: float = 0.02) -> None:
    """Initialize matrices and embeddings from N(0, std²), and biases with 0 (Radford et al. 2018).

    >>> layer = nn.Linear(200, 200)
    >>> normal(layer)
    >>> round(layer.weight.std().item(), 2), layer.bias.abs().max().item()
    (0.02, 0.0)
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | TokenEmbedding | LearnedPositions | RelativeBias):
            nn.init.normal_(module.weight, std=std)
        _zero_rest(module)


def initialize(model: nn.Module, scheme: Initialization) -> None:
    """Initialize the parameters of a model in place, except those of normalization layers.

    Args:
        model: The model whose parameters are initialized.
        scheme: Initialization scheme: "xavier" (Glorot & Bengio 2010) or "normal" (Radford et al. 2018).

    >>> layer = nn.Linear(200, 200)
    >>> initialize(layer, "normal")
    >>> round(layer.weight.std().item(), 2)
    0.02
    """
    match scheme:
        case "xavier":
            xavier(model)
        case "normal":
            normal(model)


def _zero_rest(module: nn.Module) -> None:
    """Set biases and the embedding of padding to 0."""
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, TokenEmbedding) and module.pad_id is not None:
        module.weight.data[module.pad_id] = 0.0
