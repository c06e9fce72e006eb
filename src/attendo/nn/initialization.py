"""How weights start: one pure function a scheme, named in the configuration."""

from __future__ import annotations

from typing import Literal

from torch import nn

from attendo.nn.embeddings import TokenEmbedding
from attendo.nn.positions import LearnedPositions, RelativeBias

Initialization = Literal["xavier", "normal"]


def xavier(model: nn.Module) -> None:
    """Matrices uniform with variance 2 / (inputs + outputs), embeddings N(0, 1/d_model), biases 0.

    Glorot & Bengio 2010; embeddings scaled by √d_model then have entries of variance 1.

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
    """N(0, std²) for every matrix and embedding, 0 for biases (Radford et al. 2018).

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
    """Fills the parameters of `model` in place by the named scheme.

    "xavier": `xavier` (Glorot & Bengio 2010); "normal": `normal` (Radford et al. 2018). Norms are left as they are.

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
    """Biases, and the embedding of padding."""
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, TokenEmbedding) and module.pad_id is not None:
        module.weight.data[module.pad_id] = 0.0
