"""Recordings of a model's computation by module path: the attention of each layer, and the output of each block.

    with recording(model, keep=["*.weights", "*.output"]) as record:
        record.model(src, tgt)
    record["decoder.blocks.0.cross_attention"].weights  # [batch, heads, q_len, k_len]
    record["encoder.blocks.0"].output  # [batch, len, d_model]

`view` copies the tree of modules and shares the parameters. The model itself is not changed: no module is replaced, no
hook is added, and other code can run or record it at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Generic, Literal, TypeVar, get_args

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attendo.errors import AttendoError
from attendo.inspecting.edits import Edit, LayerEdits, resolve
from attendo.nn.attention import Attend, Attention, attention_scores, masked_softmax, share_heads
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock
from attendo.nn.layers import FeedForward, InputEmbedding
from attendo.nn.masks import Mask

ModelT = TypeVar("ModelT", bound=nn.Module)
Part = Literal["weights", "scores", "query", "key", "value", "mixed", "output"]
PARTS: tuple[Part, ...] = get_args(Part)
OF_ONE = dict, set, list
"""The types of attribute values that a copied module must not share with the original."""


def view(model: ModelT) -> ModelT:
    """Return a copy of the module tree that shares every parameter and buffer with the model.

    Replaced modules, added hooks and `eval()` on the view do not affect the model. Parameter values are shared. A
    module that occurs twice in the model is also a single module in the view.

    Args:
        model: The model to copy.

    >>> model = nn.Sequential(nn.Linear(2, 2))
    >>> twin = view(model)
    >>> twin[0] is model[0], twin[0].weight is model[0].weight
    (False, True)
    """
    twins: dict[nn.Module, nn.Module] = {}

    def twin_of(module: nn.Module) -> nn.Module:
        if module not in twins:
            twin = twins[module] = object.__new__(type(module))  # copy.copy takes five times as long
            # the copy needs separate tables of parameters, modules and hooks
            for name, value in vars(module).items():
                vars(twin)[name] = value.copy() if isinstance(value, OF_ONE) else value
            for name, child in module._modules.items():
                twin._modules[name] = None if child is None else twin_of(child)
        return twins[module]

    twin = twin_of(model)
    assert isinstance(twin, type(model))
    return twin


class LayerRecord:
    """The recorded tensors of one call of one module, after all edits.

    The parts of an attention layer are:

    - `query`, `key`, `value`: `[batch, heads, len, head_dim]`. Key and value can have fewer heads.
    - `scores`: `[batch, heads, q_len, k_len]`, scaled and with bias, before the factor β, the mask and the softmax.
    - `weights`: `[batch, heads, q_len, k_len]`. Each row sums to 1 over the allowed keys.
    - `mixed`: `[batch, heads, q_len, value_dim]`, the weighted values of each head.

    All modules have the part `output` `[batch, len, d]`.

    Args:
        path: The module path.
        parts: The recorded tensors by name. Access to a part that was not recorded raises AttendoError.
    """

    def __init__(self, path: str, parts: dict[Part, Tensor]) -> None:
        self._path = path
        self._parts = parts

    def _part(self, part: Part) -> Tensor:
        if part not in self._parts:
            raise AttendoError(f"{self._path}.{part} was not recorded. Use recording(model, '*.{part}')")
        return self._parts[part]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The names of the recorded parts."""
        return tuple(self._parts)

    @property
    def weights(self) -> Float[Tensor, "batch heads q_len k_len"]:
        """The attention weights of each query over the keys."""
        return self._part("weights")

    @property
    def scores(self) -> Float[Tensor, "batch heads q_len k_len"]:
        """The attention scores QKᵀ · scale + bias."""
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
    def value(self) -> Float[Tensor, "batch kv_heads k_len value_dim"]:
        """The projected values."""
        return self._part("value")

    @property
    def mixed(self) -> Float[Tensor, "batch heads q_len value_dim"]:
        """The weighted sums of the values of each head, which are the input of the output projection."""
        return self._part("mixed")

    @property
    def output(self) -> Float[Tensor, "batch len d_out"]:
        """The output of the module: before the residual connection in a sub-layer, after the last norm in a stack."""
        return self._part("output")


class Recording(Generic[ModelT]):
    """The recorded calls of modules: `record[path]` is the latest call of a module, and `calls(path)` are all calls.

    Records can still be read after the `with` block has ended.

    Args:
        model: The view of the model, which must be run instead of the model.
        paths: The paths of the recorded modules.
    """

    def __init__(self, model: ModelT, paths: Sequence[str]) -> None:
        self.model = model
        self.paths = tuple(paths)
        self._calls: dict[str, list[dict[Part, Tensor]]] = {path: [] for path in paths}

    def calls(self, path: str) -> tuple[LayerRecord, ...]:
        """Return the records of all calls of a module, in order.

        Args:
            path: The module path.

        Raises:
            AttendoError: The module at this path is not recorded.
        """
        if path not in self._calls:
            raise AttendoError(f"{path} was not recorded (recorded: {', '.join(self.paths)})")
        return tuple(LayerRecord(path, parts) for parts in self._calls[path])

    def __getitem__(self, path: str) -> LayerRecord:
        """Return the latest call of a module. Raises AttendoError if the module is not recorded or has not run."""
        calls = self.calls(path)
        if not calls:
            raise AttendoError(f"{path} has not run yet. Call record.model(...) inside the with block")
        return calls[-1]

    def __iter__(self) -> Iterator[str]:
        """Return the recorded paths, in the order of the model."""
        return iter(self.paths)

    def __len__(self) -> int:
        """Return the number of recorded modules."""
        return len(self.paths)

    def add(self, path: str, parts: dict[Part, Tensor]) -> None:
        """Add the record of a call, or add further parts to the record of the latest call.

        Args:
            path: The module path.
            parts: The recorded tensors by name.
        """
        calls = self._calls[path]
        if calls and not parts.keys() & calls[-1].keys():
            calls[-1].update(parts)
        else:
            calls.append(parts)


class RecordingAttend(nn.Module):
    """A replacement for an `Attend` module in a view, which computes the attention weights explicitly.

    If no weights or scores are recorded and no edit changes the weights, it calls the original module.
    """

    def __init__(
        self,
        plain: Attend,
        keep: Sequence[Part],
        note: Callable[[dict[Part, Tensor]], None],
        edits: LayerEdits | None = None,
    ) -> None:
        super().__init__()
        self.plain = plain
        self.scale, self.dropout = plain.scale, plain.dropout
        self.inverse_temperature = plain.inverse_temperature
        self.keep, self.note = keep, note
        self.edits = LayerEdits("", ()) if edits is None else edits
        seen = bool({"weights", "scores"} & set(keep))
        self.readable = seen or self.edits.tempers(plain.inverse_temperature)
        self.train(plain.training)

    def forward(
        self,
        query: Float[Tensor, "batch heads q_len head_dim"],
        key: Float[Tensor, "batch kv_heads k_len head_dim"],
        value: Float[Tensor, "batch kv_heads k_len value_dim"],
        mask: Mask | None = None,
        bias: Float[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "batch heads q_len value_dim"]:
        """Compute the result of `Attend` with the edits. Without edits, the result is equal up to rounding."""
        found: dict[Part, Tensor] = {"query": query, "key": key, "value": value}
        if self.readable:
            n_heads, q_len, k_len = query.shape[1], query.shape[2], key.shape[2]
            dense = None if mask is None else mask.dense(q_len, k_len, query.device)
            scores = attention_scores(query, share_heads(key, n_heads), self.scale, bias, self.plain.softcap)
            weights = masked_softmax(scores, dense, self.inverse_temperature)
            weights = self.edits.weights(weights, scores, dense)
            found |= {"weights": weights, "scores": scores}
            dropped = nn.functional.dropout(weights, self.dropout, self.training)
            mixed = dropped @ share_heads(value, n_heads)
        else:
            mixed = self.plain(query, key, value, mask, bias)
        found["mixed"] = self.edits.mixed(mixed)
        if self.keep:
            self.note({part: found[part] for part in self.keep})
        return found["mixed"]


@contextmanager
def recording(
    model: ModelT, keep: str | Sequence[str] = "*.weights", edits: Sequence[Edit] = ()
) -> Iterator[Recording[ModelT]]:
    """Record and edit the intermediate results of a model. In the `with` block, run `record.model` instead of `model`.

    `record.model` is a view: a copy of the modules that shares the parameters. Tensors are recorded on their device and
    with their autograd graph. To avoid the graph, use `torch.no_grad`. Attention layers whose weights and scores are
    neither recorded nor edited still use fused attention.

    Args:
        model: The model, which is not changed.
        keep: Shell patterns for `<path>.<part>`, for example `decoder.blocks.*.cross_attention.*`. The parts of an
            attention layer are weights, scores, query, key, value, mixed and output. All other modules only have
            output. `()` records nothing.
        edits: Edits of the computation, which also apply to decoding; see `attendo.inspecting.edits` (default: none).

    Yields:
        The recording. Each call of `record.model` adds records.

    Raises:
        AttendoError: A pattern or an edit matches no module.

    >>> import torch
    >>> layer = nn.ModuleDict({"self": Attention(4, 2)})
    >>> with recording(layer, "self.weights") as record:
    ...     output = record.model["self"](torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    >>> record["self"].weights[0, 1].detach()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    twin = view(model)
    places = _places(twin)
    wanted = _wanted(keep, places, type(model).__name__)
    edited = resolve(
        edits,
        {path: place.n_heads for path, place in places.items() if place.editable},
        [path for path, place in places.items() if not place.editable and place.leaf is None],
    )
    record = Recording(twin, [path for path in places if wanted[path]])
    leaves: dict[str, nn.Module] = {}
    handles: list[RemovableHandle] = []
    for path, place in places.items():
        own, note = edited.get(path, LayerEdits(path, ())), partial(record.add, path)
        inner: list[Part] = [part for part in wanted[path] if part != "output"]
        if isinstance(place.leaf, Attend) and (inner or own.edits):
            leaves[place.leaf_path] = place.leaf
            twin.set_submodule(place.leaf_path, RecordingAttend(place.leaf, inner, note, own))
        if "output" in wanted[path] or own.on_output:
            kept = note if "output" in wanted[path] else None
            handles.append(place.source.register_forward_hook(partial(_seen_output, own, kept)))
    try:
        yield record
    finally:
        for where, leaf in leaves.items():
            twin.set_submodule(where, leaf)
        for handle in handles:
            handle.remove()


@contextmanager
def edited(model: nn.Module, edits: Sequence[Edit]) -> Iterator[Any]:
    """Yield a copy of a model with edits, in evaluation mode. The copy shares the parameters. Nothing is recorded."""
    with recording(model, keep=(), edits=edits) as record:
        yield record.model.eval()


class Given(nn.Module):
    """A replacement of a module whose output is already known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, *given: object) -> Tensor:
        """Return the known output for any input."""
        return self.output


@contextmanager
def known_before(twin: nn.Module, record: Recording[Any], path: str, n_rows: int) -> Iterator[None]:
    """Skip the computation of all modules before the block of a path, because an edit does not change their outputs.

    `record` contains the outputs of the blocks and of the encoder, in a run of one row. The `n_rows` rows of the inputs
    of the view `twin` all equal this row.
    """
    stack, _, number = path.split(".")[:3]
    known = {f"{stack}.blocks.{n}": f"{stack}.blocks.{int(number) - 1}" for n in range(int(number))}
    if stack == "decoder" and "encoder" in record.paths:
        known["encoder"] = "encoder"
    own = {place: twin.get_submodule(place) for place in known}
    try:
        for place, last in known.items():
            twin.set_submodule(place, Given(record[last].output.expand(n_rows, -1, -1)))
        yield
    finally:
        for place, module in own.items():
            twin.set_submodule(place, module)


@dataclass(frozen=True)
class _Place:
    """A module that can be recorded. `source` is the module whose output is recorded, in passes and in cached steps."""

    source: nn.Module
    leaf: Attend | None = None
    leaf_path: str = ""
    n_heads: int | None = None
    editable: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        return ("output",) if self.leaf is None else PARTS


def _places(model: nn.Module) -> dict[str, _Place]:
    """Return the modules that can be recorded, by path in the order of the model."""
    found: dict[str, _Place] = {}
    for path, module in model.named_modules():
        leaf_path = f"{path}.attend".removeprefix(".")
        match module:
            case Attention():
                if type(module.attend) is Attend:  # the computation of other classes is unknown
                    place = _Place(module.out_proj, module.attend, leaf_path, module.n_heads, editable=True)
                    found[path or leaf_path] = place
            case EncoderBlock() | DecoderBlock():
                found[path] = _Place(module.feed_forward_residual)  # `step` calls it, as `forward` does
            case Encoder() | Decoder():
                found[path] = _Place(module.norm)
            case FeedForward():
                found[path] = _Place(module, editable=True)
            case InputEmbedding():
                found[path] = _Place(module)
            case _:
                leaf = module._modules.get("attend")
                if isinstance(leaf, Attend):
                    found[path or leaf_path] = _Place(module, leaf, leaf_path)
    return found


def _wanted(keep: str | Sequence[str], places: dict[str, _Place], name: str) -> dict[str, list[Part]]:
    """Return the requested parts of each module, by path."""
    if not places:
        raise AttendoError(f"{name} has no attention layer of attendo, so nothing can be recorded")
    patterns = (keep,) if isinstance(keep, str) else tuple(keep)
    wanted: dict[str, list[Part]] = {path: [] for path in places}
    matched: set[str] = set()
    for path, place in places.items():
        for part in place.parts:
            fitting = [pattern for pattern in patterns if fnmatchcase(f"{path}.{part}", pattern)]
            matched.update(fitting)
            if fitting:
                wanted[path].append(part)
    for pattern in patterns:
        if pattern not in matched:
            raise AttendoError(
                f"keep {pattern!r} matches no layer and part. Layers: {', '.join(places)}. Parts: "
                f"{', '.join(PARTS)} (of attention layers; other layers have only output)"
            )
    return wanted


def _seen_output(
    edits: LayerEdits,
    note: Callable[[dict[Part, Tensor]], None] | None,
    module: nn.Module,
    given: Any,
    output: Tensor,
) -> Tensor:
    """Record or replace the output of a module, as a forward hook."""
    output = edits.output(output)
    if note is not None:
        note({"output": output})
    return output
