"""A compiled model whose output layer is computed for the tokens of shortlists only."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attendo.decoding.native.compiled import CompiledModel
from attendo.decoding.native.library import library
from attendo.decoding.native.slots import Matrix, SlotCache
from attendo.decoding.prepare import quantized
from attendo.decoding.shortlist import ListedCache, Shortlist

FULL = 0.75  # of the vocabulary in a batch's lists: from there on all of it is computed
FEWER = 0.25  # of the rows are left: what they need is packed anew


@dataclass(frozen=True)
class _Packed:
    """The outputs of some tokens as a product, and where each token of the vocabulary is among them."""

    matrix: Matrix
    kept: tuple[Tensor, ...]  # the memory of the matrix
    place: Int[np.ndarray, " vocab"]
    rows: int  # for which it was packed


@dataclass(frozen=True)
class _Layout:
    """From the flat outputs of a step to the flat logits of all tokens."""

    packed: _Packed
    taken: Int[np.ndarray, " listed"]
    put: Int[np.ndarray, " listed"]
    outputs: Float[Tensor, "rows packed"]
    logits: Float[Tensor, "rows vocab"]


class NarrowedModel:
    """`start` and `step` of a compiled model with logits of -inf for what is not in the list of a row's source.

    The outputs are computed for the union of the lists in a batch, and each row takes those of its own list: they
    are the bits of the whole product, so what else is in the batch changes none.
    """

    def __init__(self, compiled: CompiledModel, output: nn.Linear, shortlist: Shortlist, *, int8: bool):
        self._compiled, self._shortlist, self.vocab_size = compiled, shortlist, output.out_features
        self._weight, self._scale, self._sums = output.weight.detach(), None, None
        self._bits, self._n_in = 32, output.in_features
        if int8:
            numbers, scale = quantized(self._weight)
            self._bits, self._scale = 8, scale.flatten()
            self._weight = nn.functional.pad(numbers, (0, -self._n_in % 4)).view(torch.int32)
            self._sums = 128 * numbers.sum(1, dtype=torch.int32)
        self._bias = None if output.bias is None else output.bias.detach()

    def start(
        self, sources: Sequence[Sequence[int]], rows_per_source: int = 1, capacity: int = 256
    ) -> ListedCache[SlotCache]:
        """As the model's own, with each source's list."""
        lists = [self._shortlist.of(source) for source in sources]
        return ListedCache(self._compiled.start(sources, rows_per_source, capacity), lists, rows_per_source)

    def step(
        self, token_ids: Int[Tensor, "rows 1"], cache: ListedCache[SlotCache]
    ) -> Float[Tensor, "rows vocab"]:
        """The logits after the next token of every row. They stand until the cache's next step."""
        if not cache.settled:
            self._settle(cache)
        layout: _Layout = cache.made
        packed = layout.packed
        states = self._compiled.states(token_ids, cache.inner)[:, -1].contiguous()
        library().attendo_product(
            ctypes.byref(packed.matrix), states.data_ptr(), len(states), layout.outputs.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        layout.logits.view(-1).numpy()[layout.put] = layout.outputs.view(-1).numpy()[layout.taken]
        return layout.logits

    def _settle(self, cache: ListedCache[SlotCache]) -> None:
        """Packs what the lists ask for, or as they become fewer goes on with what was packed, and lays out the rest."""
        rows, old = len(cache.lists), cast("_Layout | None", cache.made)
        lengths, tokens = [len(own) for own in cache.lists], np.concatenate(cache.lists)
        if old is None or not old.packed.rows * FEWER < rows <= len(old.logits):
            packed = self._packed(tokens, rows)
            logits = torch.full((rows, self.vocab_size), -torch.inf)
            outputs = torch.empty(rows, packed.matrix.n_out)
        else:
            packed, outputs = old.packed, old.outputs[:rows]
            old.logits.view(-1).numpy()[old.put] = -np.inf
            logits = old.logits[:rows]
        row = np.arange(rows).repeat(lengths)
        taken = row * packed.matrix.n_out + packed.place[tokens]
        cache.made = _Layout(packed, taken, row * self.vocab_size + tokens, outputs, logits)
        cache.settled = True

    def _packed(self, tokens: Int[np.ndarray, " listed"], rows: int) -> _Packed:
        listed = np.zeros(self.vocab_size, dtype=bool)
        listed[tokens] = True
        union = np.flatnonzero(listed)
        if len(union) > FULL * self.vocab_size:
            return _Packed(self._compiled.output, (), np.arange(self.vocab_size), rows)
        place = np.full(self.vocab_size, -1)
        place[union] = np.arange(len(union))
        return _Packed(*self._part(torch.from_numpy(union)), place, rows)

    def _part(self, tokens: Int[Tensor, " n"]) -> tuple[Matrix, tuple[Tensor, ...]]:
        """The outputs of these tokens as a matrix of its own, as `Keeper.matrix` lays it out, and its memory."""
        n, panel = len(tokens), library().attendo_panel()
        columns = nn.functional.pad(tokens, (0, -n % panel))  # what fills the last panel is not looked at
        weight = self._weight[columns].view(-1, panel, self._weight.shape[1])
        packed = weight.new_empty(len(weight), weight.shape[2], panel)
        for turned, rows in zip(packed, weight, strict=True):
            turned.copy_(rows.t())  # one by one: torch is quick for two dimensions only
        kept = [packed]
        more: list[int | None] = [None, None, None]
        for i, numbers in enumerate((self._scale, self._sums, self._bias)):
            if numbers is not None:
                kept.append(numbers[columns])
                more[i] = kept[-1].data_ptr()
        return Matrix(self._n_in, n, self._bits, kept[0].data_ptr(), *more), tuple(kept)
