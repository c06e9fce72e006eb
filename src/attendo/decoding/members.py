"""A model as a search takes it, in the fastest form that this machine and this model allow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.decoding.beginning import begun
from attendo.decoding.candidates import BestTokens, best_tokens, log_probs_of
from attendo.decoding.native.compiled import Change, CompiledModel, best_of_floats, log_probs_of_floats
from attendo.decoding.native.library import NoLibrary
from attendo.decoding.native.narrowed import NarrowedModel
from attendo.decoding.native.slots import SlotCache
from attendo.decoding.prepare import ModelT, prepared
from attendo.decoding.shortlist import Shortlist, masked
from attendo.decoding.step import Start, Step
from attendo.models import DecoderLM, EncoderDecoder
from attendo.nn.cache import DecoderCache


@dataclass(frozen=True)
class Member:
    """What a search asks of a model: `start`, `step` and `best`.

    forced: from sources and target ids `[sources, n]`, the first the begin id, to the logits `[sources, n, vocab]` of
    what follows each. chosen: the log-probability of given tokens after logits. Both are what a search finds, to the
    last bit where the model is compiled. why: in a line, why it is not; None where it is. changed: gives the same
    with other layers, if it is compiled and has no shortlist.
    """

    start: Start[Any]
    step: Step[Any]
    forced: Callable[[Sequence[Sequence[int]], Tensor], Tensor]
    best: BestTokens = best_tokens
    chosen: Callable[[Tensor, Tensor], Tensor] = log_probs_of
    why: str | None = None
    changed: Callable[[Mapping[str, Change]], Member] | None = None

    def begun(self, begin: Sequence[int], device: torch.device) -> Member:
        """The same for texts that begin with these ids, of which a search knows but the last."""
        return self if len(begin) == 1 else replace(self, start=begun(self.start, self.step, begin, device))


@dataclass(frozen=True)
class Reader:
    """What is asked of a decoder that stands alone: `start` of so many rows and so much capacity, and `step`.

    step: from the next ids `[rows, n]` of every row to the logits `[rows, vocab]` after the last of them. max_len: the
    most tokens that it reads. why, changed: as in `Member`.
    """

    start: Callable[[int, int], Any]
    step: Callable[[Tensor, Any], Tensor]
    max_len: int
    device: torch.device
    why: str | None = None
    changed: Callable[[Mapping[str, Change]], Reader] | None = None


def reader(model: DecoderLM, why: str | None = None) -> Reader:
    """The model's own modules, on its own device."""

    def step(token_ids: Tensor, cache: DecoderCache) -> Tensor:
        x = model.embedding(token_ids, cache.lengths, cache.longest + token_ids.shape[1])
        return model.output(model.decoder.step(x, cache)[:, -1])

    weight = model.embedding.tokens.weight
    return Reader(model.start, step, model.config.max_len, weight.device, why)


def in_bfloat16(model: ModelT) -> ModelT:
    """A copy in bfloat16: half of the bytes that a GPU reads for each token."""
    return copy.deepcopy(model).bfloat16().eval()


def laid_out(model: ModelT, *, int8: bool) -> ModelT:
    """The modules as they search fastest: in bfloat16 on a GPU, else `prepared`."""
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    return in_bfloat16(model) if on_gpu else prepared(model, int8=int8)


def fastest_reader(model: DecoderLM, *, int8: bool = False) -> Reader:
    """As `fastest`, for a decoder that stands alone."""
    try:
        compiled = CompiledModel(model, int8=int8)
    except NoLibrary as reason:
        return reader(laid_out(model, int8=int8), str(reason))
    return _compiled_reader(compiled, model.config.max_len)


def _compiled_reader(model: CompiledModel, max_len: int) -> Reader:
    def start(rows: int, capacity: int) -> SlotCache:
        return model.start([[]] * rows, 1, capacity)

    def changed(changes: Mapping[str, Change]) -> Reader:
        return _compiled_reader(model.changed(changes), max_len)

    return Reader(start, model.step, max_len, torch.device("cpu"), changed=changed)


def as_it_is(model: EncoderDecoder, pad_id: int, why: str | None = None) -> Member:
    """The model's own modules, on its own device. pad_id: fills the shorter sources of a batch."""
    device = model.target_embedding.tokens.weight.device

    def start(sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int, /) -> DecoderCache:
        src, lengths = pad_rows(sources, pad_id, device)
        return model.start(src, lengths, rows_per_source, capacity)

    def step(token_ids: Tensor, cache: DecoderCache, /) -> Tensor:
        return model.step(token_ids, cache)[:, -1]

    def forced(sources: Sequence[Sequence[int]], tgt: Tensor) -> Tensor:
        src, lengths = pad_rows(sources, pad_id, device)
        return model(src, tgt, lengths)

    return Member(start, step, forced, why=why)


def fastest(
    model: EncoderDecoder, pad_id: int, *, int8: bool = False, shortlist: Shortlist | None = None
) -> Member:
    """Compiled for this processor (`native`), or else with its matrices laid out anew (`prepared`).

    What a search finds stays the same but for rounding; in compiled form it does not depend on the batch, to the bit.
    int8: matrices in 8 bits. A copy: what is trained further must be prepared again. shortlist: the only tokens that
    `start` and `step` hold possible for a source; `forced` has all.
    """
    try:
        compiled = CompiledModel(model, int8=int8)
    except NoLibrary as reason:
        member = as_it_is(laid_out(model, int8=int8), pad_id, str(reason))
        if shortlist is None:
            return member
        start, step = masked(member.start, member.step, shortlist)
        return replace(member, start=start, step=step)

    member = _compiled_member(compiled)
    if shortlist is None:
        return member
    narrowed = NarrowedModel(compiled, model.output_proj, shortlist, int8=int8)
    return replace(member, start=narrowed.start, step=narrowed.step, changed=None)


def _compiled_member(model: CompiledModel) -> Member:
    def forced(sources: Sequence[Sequence[int]], tgt: Tensor) -> Tensor:
        return model.logits(model.states(tgt, model.start(sources, 1, tgt.shape[1])))

    def changed(changes: Mapping[str, Change]) -> Member:
        return _compiled_member(model.changed(changes))

    return Member(model.start, model.step, forced, best_of_floats, log_probs_of_floats, changed=changed)
