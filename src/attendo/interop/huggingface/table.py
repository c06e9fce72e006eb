"""The classes that describe a Hugging Face model family as a table of options and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attendo.errors import AttendoError
from attendo.interop.huggingface.options import Option, Same, Theirs
from attendo.interop.huggingface.rotary_scaling import rotation
from attendo.model_config import Architecture

Get = Callable[[str], Tensor]


@dataclass(frozen=True)
class Row:
    """The correspondence between a Hugging Face tensor (foreign tensor) and one or more tensors of attendo.

    Attributes:
        theirs: The name of the foreign tensor, with `{n}` for the number of a block.
        ours: The names of attendo's tensors, which are concatenated in the foreign tensor.
        transposed: Whether the foreign tensor is stored as [in, out].
        turned: The number of tensors (the first of `ours`) in which RoPE pairs row i of the rotated rows of a head with
            row i + n / 2 in the foreign tensor. attendo pairs adjacent rows.
        behind: The number of unused first rows in the foreign tensor. -1 means that the padding id determines the
            number.
        plus: The name of a tensor whose first row is added (the token type embedding of BERT).
        aliases: The names of copies of the foreign tensor.
        flat: Whether the foreign tensor has the shape [1, n].
        scaled: The function that computes a factor for the foreign tensor from config.json.
        minus: A number that the foreign tensor does not contain. Norms of Gemma store w - 1.
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    turned: int = 0
    behind: int = 0
    plus: str | None = None
    aliases: tuple[str, ...] = ()
    flat: bool = False
    scaled: Callable[[Theirs], float] | None = None
    minus: float = 0.0

    def of_block(self, n: int) -> Row:
        """Return the `Row` for block number n."""
        number = str(n)
        return replace(
            self,
            theirs=self.theirs.replace("{n}", number),
            ours=tuple(name.replace("{n}", number) for name in self.ours),
        )

    @property
    def of_a_block(self) -> bool:
        """Whether the `Row` describes one tensor per block."""
        return "{n}" in self.theirs

    def read(self, get: Get, shapes: Sequence[torch.Size], theirs: Theirs, head_dim: int) -> list[Tensor]:
        """Convert the foreign tensor to attendo's tensors. Raise AttendoError if it has an unexpected shape."""
        found = get(self.theirs)
        rows = sum(shape[0] for shape in shapes) + self._before(theirs)
        wanted = (rows, *shapes[0][1:])
        there = (1, *wanted) if self.flat else wanted[::-1] if self.transposed else wanted
        if tuple(found.shape) != there:
            raise AttendoError(
                f"{self.theirs} has shape {list(found.shape)}, but config.json defines {list(there)}. Take "
                "both files from one model"
            )
        found = found.flatten() if self.flat else found.mT if self.transposed and found.ndim == 2 else found
        found = found[self._before(theirs) :]
        if self.plus is not None:
            found = found + get(self.plus)[0]
        if self.scaled is not None and (factor := self.scaled(theirs)) != 1.0:
            found = found * factor
        found = found + self.minus if self.minus else found
        parts = found.split([shape[0] for shape in shapes])
        return [_adjacent(part, theirs, head_dim) if n < self.turned else part for n, part in enumerate(parts)]

    def write(self, ours: Sequence[Tensor], theirs: Theirs, head_dim: int) -> Tensor:
        """Convert attendo's tensors to the foreign tensor."""
        parts = [  # all heads are rotated completely
            part.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2) if n < self.turned else part
            for n, part in enumerate(ours)
        ]
        found = torch.cat(parts) if len(parts) > 1 else parts[0]
        found = found - self.minus if self.minus else found
        if before := self._before(theirs):
            found = torch.cat([found.new_zeros(before, *found.shape[1:]), found])
        found = found[None] if self.flat else found.mT if self.transposed and found.ndim == 2 else found
        return found.contiguous()

    def _before(self, theirs: Theirs) -> int:
        return theirs.get("pad_token_id", 1) + 1 if self.behind < 0 else self.behind


def _adjacent(found: Tensor, theirs: Theirs, head_dim: int) -> Tensor:
    """Return the rows of each head with the pairs of RoPE side by side, then the rows that are not rotated."""
    _, n, _, factor = rotation(theirs, head_dim)
    heads = found.unflatten(0, (-1, head_dim))
    pairs = heads[:, :n].unflatten(1, (2, n // 2)).transpose(1, 2).flatten(1, 2)
    if n == head_dim:
        return pairs.flatten(0, 1)
    # attention_scale multiplies whole heads, but the factor is for rotated rows only
    return torch.cat([pairs, heads[:, n:] / factor], 1).flatten(0, 1)


def dense(theirs: str, *ours: str, transposed: bool = False, turned: int = 0) -> tuple[Row, Row]:
    """Return one `Row` for the weight and one for the bias of a Hugging Face layer, which can join layers of attendo.

    >>> [(row.theirs, *row.ours) for row in dense("kv", "k_proj", "v_proj")]
    [('kv.weight', 'k_proj.weight', 'v_proj.weight'), ('kv.bias', 'k_proj.bias', 'v_proj.bias')]
    """
    return tuple(  # pyright: ignore[reportReturnType]  (two)
        Row(f"{theirs}.{part}", tuple(f"{name}.{part}" for name in ours), transposed=transposed, turned=turned)
        for part in ("weight", "bias")
    )


def attention_layers(theirs: str, ours: str, *names: str) -> dict[str, str]:
    """Return our names of the query, key, value and output projections, by the foreign names.

    >>> attention_layers("attn", "own", *"qkvo")["attn.o"]
    'own.out_proj'
    """
    projections = ("q_proj", "k_proj", "v_proj", "out_proj")
    return {f"{theirs}.{name}": f"{ours}.{own}" for name, own in zip(names, projections, strict=True)}


def blocks(
    theirs: str,
    ours: str,
    layers: Mapping[str, str | tuple[str, ...]],
    turned: Sequence[str] = (),
    *,
    transposed: bool = False,
) -> tuple[Row, ...]:
    """Return a `Row` for each tensor in a stack of blocks. `layers` maps Hugging Face's layer names to attendo's, or to
    several layers that one layer joins. `turned` contains the layers with RoPE. `transposed` is that of the `Row`.

    >>> blocks("h", "decoder", {"ln_1": "self_attention_residual.norm"})[0].ours
    ('decoder.blocks.{n}.self_attention_residual.norm.weight',)
    """
    return tuple(
        row
        for name, own in layers.items()
        for joined in [(own,) if isinstance(own, str) else own]
        for row in dense(
            f"{theirs}.{{n}}.{name}",
            *(f"{ours}.blocks.{{n}}.{layer}" for layer in joined),
            transposed=transposed,
            turned=sum(layer in turned for layer in joined),
        )
    )


def expanded(rows: Sequence[Row], ours: Mapping[str, object]) -> Iterator[tuple[Row, bool]]:
    """Yield each `Row`, once per block of the model, and whether the model has the tensors of the `Row`.

    >>> rows = blocks("h", "decoder", {"ln_1": "norm"})
    >>> [(row.theirs, there) for row, there in expanded(rows, {"decoder.blocks.0.norm.weight": None})]
    [('h.0.ln_1.weight', True), ('h.0.ln_1.bias', False)]
    """
    for row in rows:
        if not row.of_a_block:
            yield row, row.ours[0] in ours
            continue
        n = 0
        prefix = row.ours[0].split(".{n}.")[0]
        while any(name.startswith(f"{prefix}.{n}.") for name in ours):
            one = row.of_block(n)
            yield one, one.ours[0] in ours
            n += 1


@dataclass(frozen=True)
class Head:
    """A model class of a family: attendo's architecture, the options that the class sets, and the head's tensors."""

    architecture: Architecture
    ours: Mapping[str, object] = field(default_factory=dict)
    weights: tuple[Row, ...] = ()


def always(theirs: Theirs) -> bool:
    """Return True for every config.json.

    >>> always({})
    True
    """
    return True


@dataclass(frozen=True)
class Table:
    """The description of a model family.

    Attributes:
        options: The options of config.json.
        weights: One `Row` per tensor, except for the tensors of the heads.
        heads: The model classes by name.
        prefix: The prefix of tensor names in models with a head.
        passed_over: The patterns of tensor names that are ignored.
        biased: Whether every linear layer of the family has a bias.
        optional: The ends of the names of tensors that zeros replace if they are missing.
        sinusoids: The names of position tensors that are written but not read.
        written: Whether models can be exported as this family.
        when: The function that returns whether a config.json matches this table.
        defaults: The values of missing keys that several options read, unless a `Same` contains them.
    """

    options: tuple[Option, ...]
    weights: tuple[Row, ...]
    heads: Mapping[str, Head]
    prefix: str = ""
    passed_over: tuple[str, ...] = ()
    biased: bool = False
    optional: tuple[str, ...] = ()
    sinusoids: tuple[str, ...] = ()
    written: bool = True
    when: Callable[[Theirs], bool] = always
    defaults: Theirs = field(default_factory=dict)

    def filled(self, theirs: Theirs) -> Theirs:
        """Return a config.json with the family's defaults for missing keys.

        >>> Table((), (), {}, defaults={"head_dim": 256}).filled({"hidden_size": 8})
        {'head_dim': 256, 'hidden_size': 8}
        """
        own = {one.theirs: one.default for one in self.options if isinstance(one, Same) and one.other is None}
        return own | {**self.defaults, **theirs}
