"""Low-rank adapters (LoRA): small trainable matrix products that are added to the linear layers of a frozen model."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attendo.errors import AttendoError, nearest
from attendo.nn.layers import Dropout
from attendo.training.distributed import gathered
from attendo.training.optimizer import LoraConfig


def parameters_of(model: nn.Module, parts: Sequence[str], setting: str) -> list[nn.Parameter]:
    """Return the parameters of the parts of a model with these paths. A shared matrix belongs to all parts that use it.

    Raises AttendoError for an unknown part. The message suggests the most similar known part.

    >>> model = nn.ModuleDict({"encoder": nn.Linear(2, 3), "output": nn.Linear(3, 2)})
    >>> [tuple(p.shape) for p in parameters_of(model, ["encoder", "output.bias"], "training.frozen")]
    [(3, 2), (3,), (2,)]
    >>> parameters_of(model, ["encodr"], "training.frozen")
    Traceback (most recent call last):
    attendo.errors.AttendoError: training.frozen: the model has no part 'encodr'; did you mean encoder?
    """
    named = list(model.named_parameters(remove_duplicate=False))
    found: list[nn.Parameter] = []
    for part in parts:
        own = [parameter for path, parameter in named if f"{path}.".startswith(f"{part}.")]
        if not own:
            raise AttendoError(f"{setting}: the model has no part {part!r}; {nearest(part, _places(model))}")
        found += own
    return found


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Freeze parts of a model. Raises AttendoError for an unknown part, and if no parameter is left to train."""
    for parameter in parameters_of(model, parts, "training.frozen"):
        parameter.requires_grad_(False)
    if parts and not any(parameter.requires_grad for parameter in model.parameters()):
        raise AttendoError(f"training.frozen={list(parts)} leaves nothing to train. Remove an entry")


def _places(model: nn.Module) -> list[str]:
    """Return the paths of all modules that have parameters, and the paths of the parameters."""
    paths = [path.split(".") for path, _ in model.named_parameters(remove_duplicate=False)]
    places = (".".join(steps[: depth + 1]) for steps in paths for depth in range(len(steps)))
    return list(dict.fromkeys(places))


ModelT = TypeVar("ModelT", bound=nn.Module)
OUTPUT = "output_proj"
"""Path of the last layer of every model. Its matrix may be shared with the embedding, so it has no adapter."""
DOWN, UP = "lora.down.weight", "lora.up.weight"
"""Names of the matrices A and B after the path of their layer."""


class Adapter(nn.Module):
    """Low-rank update (α / r) B A x, which is added to the output W x of a linear layer (Hu et al. 2021, eq. 3).

    The matrix A `[r, d_in]` is `down`. The matrix B `[d_out, r]` is `up` and starts at 0.

    >>> plain = nn.Linear(4, 3)
    >>> adapter = Adapter(plain, rank=2, alpha=16.0)
    >>> adapter(torch.ones(1, 4))
    tensor([[0., 0., 0.]], grad_fn=<MulBackward0>)
    >>> bool((adapter.merged(plain.weight) == plain.weight).all())
    True
    """

    def __init__(self, plain: nn.Linear, rank: int, alpha: float, dropout: float = 0.0):
        super().__init__()
        device, dtype = plain.weight.device, plain.weight.dtype
        self.down = nn.Linear(plain.in_features, rank, bias=False, device=device, dtype=dtype)
        self.up = nn.Linear(rank, plain.out_features, bias=False, device=device, dtype=dtype)
        nn.init.zeros_(self.up.weight)
        self.dropout = Dropout(dropout)
        self.scale = alpha / rank

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Return the vectors that are added to the output of the linear layer."""
        return self.up(self.down(self.dropout(x))) * self.scale

    def merged(self, weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """Return the new matrix W + (α / r) B A. Shards of A and B are gathered first."""
        return merged(weight, gathered(self.down.weight), gathered(self.up.weight), self.scale)


def merged(
    weight: Float[Tensor, "d_out d_in"],
    down: Float[Tensor, "r d_in"],
    up: Float[Tensor, "d_out r"],
    scale: float,
) -> Float[Tensor, "d_out d_in"]:
    """Return W + scale · B A, summed in float64. Results on different devices differ at most in the last bit.

    >>> merged(torch.zeros(2, 2), torch.ones(1, 2), torch.tensor([[1.0], [2.0]]), 0.5)
    tensor([[0.5000, 0.5000],
            [1.0000, 1.0000]])
    """
    return weight.double().addmm(up.double(), down.double(), alpha=scale).to(weight.dtype)


@cache
def adapted(kind: type[nn.Linear]) -> type[nn.Linear]:
    """Return a subclass of a linear layer class that adds the output of its child module `lora`.

    >>> issubclass(adapted(nn.Linear), nn.Linear), adapted(nn.Linear) is adapted(nn.Linear)
    (True, True)
    """

    class Adapted(kind):
        lora: Adapter

        def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
            return super().forward(input) + self.lora(input)

    Adapted.__name__ = Adapted.__qualname__ = f"Adapted{kind.__name__}"
    return Adapted


def with_adapters(model: ModelT, config: LoraConfig) -> ModelT:
    """Return a copy of the model that shares its parameters and has an adapter at each target layer.

    In addition to the adapters, only the parameters of `config.trained` are trainable. Frozen layers have no adapter.
    With rank 0, the model itself is returned. Raises AttendoError for an unknown target or part, and if no target is
    left.
    """
    if not config.rank:
        return model
    whole = {id(p) for p in parameters_of(model, config.trained, "lora.trained") if p.requires_grad}
    paths = target_paths(model, config, whole)
    result = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    for parameter in result.parameters():
        parameter.requires_grad_(id(parameter) in whole)
    for path in paths:
        layer = cast(nn.Linear, result.get_submodule(path))
        adapter = Adapter(layer, config.rank, config.alpha, config.dropout)
        layer.__class__ = adapted(type(layer))
        layer.add_module("lora", adapter)
    return result


def target_paths(model: nn.Module, config: LoraConfig, whole: set[int]) -> list[str]:
    """Return the paths of the layers that receive an adapter.

    Raises AttendoError for an unknown target, and if no layer is left.
    """
    layers = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    layers.pop(OUTPUT, None)
    if config.targets == "all":
        chosen = list(layers)
    else:
        named = {target: [p for p in layers if f".{p}".endswith(f".{target}")] for target in config.targets}
        for target, paths in named.items():
            if target == OUTPUT:
                raise AttendoError(
                    f"lora.targets: {OUTPUT} cannot be a target, since it may share the matrix of the "
                    f'embedding. Train it whole: lora.trained=["{OUTPUT}"]'
                )
            if not paths:
                known = list(dict.fromkeys(tail for path in layers for tail in _tails(path)))
                raise AttendoError(f"lora.targets: no linear layer is named {target!r}; {nearest(target, known)}")
        chosen = [path for path in layers if any(path in paths for paths in named.values())]
    left = [p for p in chosen if layers[p].weight.requires_grad and id(layers[p].weight) not in whole]
    if not left:
        raise AttendoError(
            f"lora.targets={config.targets}: every such layer is frozen, or new and trained whole. Remove lora.rank"
        )
    return left


def _tails(path: str) -> list[str]:
    """Return the endings of a path without a block number, for example "q_proj" and "self_attention.q_proj"."""
    steps = path.split(".")
    return [".".join(steps[-depth:]) for depth in (1, 2) if not any(s.isdigit() for s in steps[-depth:])]


def adapters(model: nn.Module) -> Iterator[tuple[str, Adapter]]:
    """Yield each adapter of a model, after the path of its layer."""
    for path, module in model.named_modules():
        if isinstance(module, Adapter):
            yield path.removesuffix(".lora"), module


@torch.no_grad()
def merge(model: nn.Module, adapted_model: nn.Module) -> dict[str, Tensor]:
    """Replace W by W + (α / r) B A in the layers with adapters. Return the unmerged matrices W by layer path."""
    before: dict[str, Tensor] = {}
    for path, adapter in adapters(adapted_model):
        parameter = cast(nn.Linear, model.get_submodule(path)).weight
        before[path] = parameter.data
        parameter.data = adapter.merged(parameter.data)
    return before


def unmerge(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Undo `merge`: restore the matrices that `merge` returned."""
    for path, weight in before.items():
        cast(nn.Linear, model.get_submodule(path)).weight.data = weight


def merged_tensors(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the weights by name, with each pair of LoRA matrices A and B merged into its weight W.

    >>> rank_1 = {"q.lora.down.weight": torch.ones(1, 2), "q.lora.up.weight": torch.ones(2, 1)}
    >>> merged_tensors({"q.weight": torch.zeros(2, 2), **rank_1}, 3.0)
    {'q.weight': tensor([[3., 3.],
            [3., 3.]])}
    """
    result = {name: tensors[name] for name in tensors if not name.endswith((DOWN, UP))}
    for name, weight in result.items():
        layer = name.removesuffix("weight")
        if name.endswith("weight") and f"{layer}{DOWN}" in tensors:
            result[name] = merged(weight, tensors[f"{layer}{DOWN}"], tensors[f"{layer}{UP}"], scale)
    return result
