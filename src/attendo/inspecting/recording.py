"""What attention layers compute, by module path, recorded on a view of the model.

    with recording(model) as record:
        record.model(src, tgt)
    record["decoder.blocks.0.cross_attention"].weights  # [batch, heads, q_len, k_len]

`view` copies the tree of modules and shares the parameters, so the model itself is never touched: it keeps
its modules, gets no hooks, and others may run or record it at the same time.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Generic, Literal, TypeVar, get_args

from jaxtyping import Float
from torch import Tensor, nn

from attendo.errors import AttendoError
from attendo.nn.attention import Attend, attention_scores, masked_softmax, share_heads
from attendo.nn.masks import Mask

ModelT = TypeVar("ModelT", bound=nn.Module)
Part = Literal["weights", "scores", "query", "key", "value"]
PARTS: tuple[Part, ...] = get_args(Part)


def view(model: ModelT) -> ModelT:
    """A copy of the tree of modules that shares every parameter and buffer with the model.

    Replacing a module, adding a hook or switching to `eval()` on the view leaves the model as it is; a
    change in a parameter's values shows in both. A module or tensor that stands at two places of the model
    is one on the view too.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> twin = view(model)
    >>> twin[0] is model[0], twin[0].weight is model[0].weight
    (False, True)
    """
    twins: dict[nn.Module, nn.Module] = {}

    def twin_of(module: nn.Module) -> nn.Module:
        if module not in twins:
            twin = twins[module] = copy.copy(module)
            # copy.copy shares the tables of parameters, modules and hooks; the twin needs its own
            for name, table in vars(module).items():
                if isinstance(table, dict | set | list):
                    vars(twin)[name] = copy.copy(table)
            for name, child in module._modules.items():
                twin._modules[name] = None if child is None else twin_of(child)
        return twins[module]

    twin = twin_of(model)
    assert isinstance(twin, type(model))
    return twin


class AttentionRecord:
    """What one attention layer computed in one call; only the parts asked for are there.

    `query`, `key`, `value`: `[batch, heads, len, head_dim]`, key and value heads as the layer has them.
    `scores`: `[batch, heads, q_len, k_len]`, scaled, with bias, before mask and softmax. `weights`: after
    both, rows sum to 1 over the keys allowed. Asking for a part that was not kept raises AttendoError.
    """

    def __init__(self, path: str, parts: dict[Part, Tensor]) -> None:
        self._path = path
        self._parts = parts

    def _part(self, part: Part) -> Tensor:
        if part not in self._parts:
            raise AttendoError(
                f"{self._path}.{part} was not recorded; add '{self._path}.{part}' or '*.{part}' to keep"
            )
        return self._parts[part]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The names of what was kept."""
        return tuple(self._parts)

    @property
    def weights(self) -> Float[Tensor, "batch heads q_len k_len"]:
        """How each query shares itself out over the keys."""
        return self._part("weights")

    @property
    def scores(self) -> Float[Tensor, "batch heads q_len k_len"]:
        """QKᵀ · scale + bias."""
        return self._part("scores")

    @property
    def query(self) -> Float[Tensor, "batch heads q_len head_dim"]:
        """The projected queries."""
        return self._part("query")

    @property
    def key(self) -> Float[Tensor, "batch kv_heads k_len head_dim"]:
        """The projected keys."""
        return self._part("key")

    @property
    def value(self) -> Float[Tensor, "batch kv_heads k_len head_dim"]:
        """The projected values."""
        return self._part("value")


class Recording(Generic[ModelT]):
    """Records by path of the attention layer; `record[path]` is its latest call, `calls(path)` all of them.

    `model` is the view to run. What was recorded can be read after the `with` has ended, too.
    """

    def __init__(self, model: ModelT, paths: Sequence[str]) -> None:
        self.model = model
        self.paths = tuple(paths)
        self._calls: dict[str, list[AttentionRecord]] = {path: [] for path in paths}

    def calls(self, path: str) -> tuple[AttentionRecord, ...]:
        """All calls of this layer, in order."""
        if path not in self._calls:
            raise AttendoError(f"{path} is not recorded; recorded are: {', '.join(self.paths)}")
        return tuple(self._calls[path])

    def __getitem__(self, path: str) -> AttentionRecord:
        """The latest call of this layer; AttendoError if it is not recorded or has not run."""
        calls = self.calls(path)
        if not calls:
            raise AttendoError(f"{path} has not run yet; call record.model(...) within the with block")
        return calls[-1]

    def __iter__(self) -> Iterator[str]:
        """The recorded paths, in the order of the model."""
        return iter(self.paths)

    def __len__(self) -> int:
        """How many layers are recorded."""
        return len(self.paths)

    def add(self, path: str, parts: dict[Part, Tensor]) -> None:
        """Note one call of the layer at this path."""
        self._calls[path].append(AttentionRecord(path, parts))


class RecordingAttend(nn.Module):
    """Stands at an `Attend` leaf of a view: the readable computation, with every step at hand."""

    def __init__(
        self, plain: Attend, keep: Sequence[Part], note: Callable[[dict[Part, Tensor]], None]
    ) -> None:
        super().__init__()
        self.scale, self.dropout = plain.scale, plain.dropout
        self.inverse_temperature = plain.inverse_temperature
        self.keep, self.note = keep, note
        self.train(plain.training)

    def forward(
        self,
        query: Float[Tensor, "batch heads q_len head_dim"],
        key: Float[Tensor, "batch kv_heads k_len head_dim"],
        value: Float[Tensor, "batch kv_heads k_len value_dim"],
        mask: Mask | None = None,
        bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """As `Attend`; equal to it up to rounding."""
        n_heads, q_len, k_len = query.shape[1], query.shape[2], key.shape[2]
        dense = None if mask is None else mask.dense(q_len, k_len, query.device)
        scores = attention_scores(query, share_heads(key, n_heads), self.scale, bias)
        weights = masked_softmax(scores, dense, self.inverse_temperature)
        found: dict[Part, Tensor] = {
            "weights": weights,
            "scores": scores,
            "query": query,
            "key": key,
            "value": value,
        }
        self.note({part: found[part] for part in self.keep})
        dropped = nn.functional.dropout(weights, self.dropout, self.training)
        return dropped @ share_heads(value, n_heads)


@contextmanager
def recording(model: ModelT, keep: str | Sequence[str] = "*.weights") -> Iterator[Recording[ModelT]]:
    """Record the attention layers whose names match, on a view; run `record.model` within the `with`.

    `keep`: one or more shell patterns over `<path of the layer>.<part>`, for instance
    `decoder.blocks.*.cross_attention.*`; the parts are weights, scores, query, key, value. A layer of which
    nothing is asked runs fused, as always. Raises AttendoError for a pattern that matches nothing.
    Tensors are kept as they are, on their device and with their graph: run under `torch.no_grad` to spare
    the graph.
    """
    twin = view(model)
    leaves = {path.removesuffix(".attend"): path for path, leaf in _attend_leaves(twin)}
    if not leaves:
        raise AttendoError(
            f"{type(model).__name__} has no attention layer of attendo; nothing can be recorded"
        )
    patterns = (keep,) if isinstance(keep, str) else tuple(keep)
    for pattern in patterns:
        if not any(fnmatchcase(f"{path}.{part}", pattern) for path in leaves for part in PARTS):
            raise AttendoError(
                f"keep {pattern!r} matches no layer and part; layers: {', '.join(leaves)}; "
                f"parts: {', '.join(PARTS)}"
            )
    wanted: dict[str, list[Part]] = {
        path: [part for part in PARTS if any(fnmatchcase(f"{path}.{part}", pattern) for pattern in patterns)]
        for path in leaves
    }
    record = Recording(twin, [path for path in leaves if wanted[path]])
    replaced: dict[str, Attend] = {}
    for path in record.paths:
        leaf = twin.get_submodule(leaves[path])
        assert isinstance(leaf, Attend)
        replaced[leaves[path]] = leaf
        twin.set_submodule(leaves[path], RecordingAttend(leaf, wanted[path], partial(record.add, path)))
    try:
        yield record
    finally:
        for path, leaf in replaced.items():
            twin.set_submodule(path, leaf)


def _attend_leaves(model: nn.Module) -> Iterator[tuple[str, Attend]]:
    for path, module in model.named_modules():
        if isinstance(module, Attend):
            yield path, module
