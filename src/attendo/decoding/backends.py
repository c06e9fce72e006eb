"""Backends: the functions that run a model during search or generation, optimized for the device and the model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.decoding.cpu_linear import ModelT, prepared
from attendo.decoding.native.compiled import (
    Change,
    CompiledModel,
    SlotKVCache,
    best_of_floats,
    log_probs_of_floats,
)
from attendo.decoding.native.library import NoLibrary
from attendo.decoding.options import Bits, CacheBits
from attendo.decoding.protocols import AttendingStep, Cache, TokenRows, join_rows
from attendo.decoding.searcher import SearchBackend
from attendo.decoding.shortlist import Shortlist, ShortlistedModel, masked
from attendo.errors import AttendoError
from attendo.models import DecoderLM, EncoderDecoder
from attendo.nn.cache import DecoderCache

BLOCK = 32
"""The number of prompt tokens that PyTorch reads together, if their keys and values are kept for later texts."""


def mean_log_probs(logits: Sequence[Float[Tensor, "*batch vocab"]]) -> Float[Tensor, "*batch vocab"]:
    """Compute log (1/n) Σ softmax(logits_i), the logarithm of the mean probabilities of n models, in float64.

    A token that only some of the models exclude remains possible. If all logits of a row are -inf, the row counts as
    probability 0 for every token. Raises ValueError if the vocabulary sizes differ.

    >>> sure, unsure = torch.tensor([0.9, 0.1]).log(), torch.tensor([0.5, 0.5]).log()
    >>> mean_log_probs([sure, unsure]).exp()
    tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    if len({row.shape[-1] for row in logits}) != 1:
        sizes = ", ".join(str(row.shape[-1]) for row in logits)
        raise ValueError(f"vocabularies of {sizes} entries (averaged models must share one vocabulary)")
    # float64: the mean of n equal models then equals one model, up to the rounding of that model
    rows = torch.stack([_log_probs(row.double()) for row in logits])
    return rows.logsumexp(0) - torch.tensor(float(len(logits)), dtype=rows.dtype).log().item()


def _log_probs(logits: Tensor) -> Tensor:
    nothing = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.log_softmax(-1).masked_fill(nothing, -torch.inf)


@dataclass
class EnsembleCache:
    """The KV caches of all models of an ensemble. Row i of each cache belongs to row i of the ensemble."""

    members: list[Cache]

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the cache rows of every model: new row i continues old row `rows[i]`."""
        for member in self.members:
            member.reorder(rows)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drop all cache rows except `rows`, for every model."""
        for member in self.members:
            member.keep(rows)

    def join(self, other: EnsembleCache) -> None:
        """Append the rows of another cache of the same ensemble, for every model."""
        for mine, theirs in zip(self.members, other.members, strict=True):
            join_rows(mine, theirs)


def ensemble(backends: Sequence[SearchBackend]) -> SearchBackend:
    """Return a backend that averages the probabilities of several models with the same vocabulary.

    Args:
        backends: The backend of each model. A single backend is returned unchanged.
    """
    if len(backends) == 1:
        return backends[0]

    def start(sources: TokenRows, rows_per_source: int, capacity: int, /) -> EnsembleCache:
        return EnsembleCache([backend.start(sources, rows_per_source, capacity) for backend in backends])

    def step(token_ids: Int[Tensor, "rows 1"], cache: EnsembleCache, /) -> Float[Tensor, "rows vocab"]:
        both = zip(backends, cache.members, strict=True)
        return mean_log_probs([backend.step(token_ids, member) for backend, member in both])

    steps = [backend.attending for backend in backends if backend.attending is not None]
    attending = mean_attending(steps) if len(steps) == len(backends) else None
    return SearchBackend(start, step, attending=attending, device=backends[0].device)


def mean_attending(steps: Sequence[AttendingStep]) -> AttendingStep:
    """Return the step function of an ensemble, which also returns mean attention weights for the coverage penalty."""

    def step(
        token_ids: Int[Tensor, "rows 1"], cache: EnsembleCache, /
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows src_len"]]:
        found = [step(token_ids, member) for step, member in zip(steps, cache.members, strict=True)]
        weights = torch.stack([weights.double() for _, weights in found]).mean(0)
        return mean_log_probs([logits for logits, _ in found]), weights

    return step


@dataclass(frozen=True)
class DecoderBackend:
    """The functions by which text generation runs a decoder-only model.

    Attributes:
        start: Function that creates an empty cache from a number of rows and a capacity in tokens per row.
        step: Function that feeds the next token ids `[rows, n]` and returns the logits `[rows, vocab]` after these ids.
        max_len: Context length of the model in tokens.
        device: Device of the token ids that are passed to `step`.
        why: The reason why the model is not compiled, in one line (default: None).
        changed: Function that returns a copy of the backend with changed layers (None: the model is not compiled).
        compiled: The compiled model (None: the model is not compiled).
        block: The number of tokens that are read together, if the rounding of a token's keys and values depends on it
            (None: it does not).
    """

    start: Callable[[int, int], Any]
    step: Callable[[Tensor, Any], Tensor]
    max_len: int
    device: torch.device
    why: str | None = None
    changed: Callable[[Mapping[str, Change]], DecoderBackend] | None = None
    compiled: CompiledModel | None = None
    block: int | None = None


def eager_decoder(model: DecoderLM, why: str | None = None) -> DecoderBackend:
    """Return a backend that runs the PyTorch modules of a decoder-only model on their device.

    Args:
        model: The decoder-only model.
        why: The reason why the model is not compiled, in one line (default: None).
    """

    def step(token_ids: Tensor, cache: DecoderCache) -> Tensor:
        x = model.embedding(token_ids, cache.lengths, cache.longest + token_ids.shape[1])
        return model.output(model.decoder.step(x, cache)[:, -1])

    weight = model.embedding.tokens.weight
    return DecoderBackend(model.start, step, model.config.max_len, weight.device, why, block=BLOCK)


def in_bfloat16(model: ModelT) -> ModelT:
    """Return a copy of the model in bfloat16, which halves the bytes that a GPU reads per token."""
    return copy.deepcopy(model).bfloat16().eval()


def laid_out(model: ModelT, bits: Bits) -> ModelT:
    """Return a copy of the model in its fastest form: bfloat16 on a GPU, `prepared` on a CPU."""
    if any(parameter.is_cuda for parameter in model.parameters()):
        return in_bfloat16(model)
    if any(parameter.dtype == torch.bfloat16 for parameter in model.parameters()):  # slow on many CPUs
        model = copy.deepcopy(model).float()
    return prepared(model, bits)


def best_decoder(model: DecoderLM, bits: Bits = 32, cache_bits: CacheBits | None = None) -> DecoderBackend:
    """Return the fastest available backend for a decoder-only model.

    The model is compiled for this CPU if possible. Otherwise, the backend runs its PyTorch modules.

    Args:
        model: The decoder-only model. After further training, create a new backend, because the weights are copied.
        bits: The bits of each weight on a CPU.
        cache_bits: The bits of each key and value in the cache: 32, 16 or 8. Fewer need less memory (default: 32 if
            `bits` is 32, otherwise 16).

    Raises:
        AttendoError: `cache_bits` has another value, or is given although the model is not compiled.
    """
    if cache_bits not in (None, 32, 16, 8):
        raise AttendoError(f"`cache_bits` {cache_bits} must be 32, 16 or 8")
    try:
        compiled = CompiledModel(model, bits, cache_bits)
    except NoLibrary as reason:
        if cache_bits is not None:
            raise AttendoError(f"`cache_bits` requires the compiled step: {reason}. Leave out `cache_bits`") from None
        return eager_decoder(laid_out(model, bits), str(reason))
    return _compiled_decoder(compiled, model.config.max_len)


def _compiled_decoder(model: CompiledModel, max_len: int) -> DecoderBackend:
    def start(rows: int, capacity: int) -> SlotKVCache:
        return model.start([[]] * rows, 1, capacity)

    def changed(changes: Mapping[str, Change]) -> DecoderBackend:
        return _compiled_decoder(model.changed(changes), max_len)

    return DecoderBackend(start, model.step, max_len, torch.device("cpu"), changed=changed, compiled=model)


def eager_backend(model: EncoderDecoder, pad_id: int, why: str | None = None) -> SearchBackend:
    """Return a backend that runs the PyTorch modules of an encoder-decoder model on their device.

    Args:
        model: The encoder-decoder model.
        pad_id: Token id that pads the shorter sources of a batch.
        why: The reason why the model is not compiled, in one line (default: None).
    """
    device = model.target_embedding.tokens.weight.device

    def start(sources: TokenRows, rows_per_source: int, capacity: int, /) -> DecoderCache:
        src, lengths = pad_rows(sources, pad_id, device)
        return model.start(src, lengths, rows_per_source, capacity)

    def step(token_ids: Tensor, cache: DecoderCache, /) -> Tensor:
        return model.step(token_ids, cache)[:, -1]

    def forced(sources: TokenRows, tgt: Tensor) -> Tensor:
        src, lengths = pad_rows(sources, pad_id, device)
        return model(src, tgt, lengths)

    return SearchBackend(start, step, forced, device=device, why=why)


def best_backend(
    model: EncoderDecoder, pad_id: int, *, bits: Bits = 32, shortlist: Shortlist | None = None
) -> SearchBackend:
    """Return the fastest available backend for an encoder-decoder model.

    The model is compiled for this CPU if possible (`native`). Otherwise, the matrices of the model are rearranged
    (`prepared`) or, on a GPU, converted to bfloat16. With 32 bits and without `shortlist`, all results equal those of
    `model` up to rounding. The results of a compiled model are bit-identical in any batch.

    Args:
        model: The encoder-decoder model. After further training, create a new backend, because the weights are copied.
        pad_id: Token id that pads the shorter sources of a batch.
        bits: The bits of each weight on a CPU.
        shortlist: The target tokens that a search considers for each source (default: the whole vocabulary). The
            function `forced` always uses the whole vocabulary.
    """
    try:
        compiled = CompiledModel(model, bits)
    except NoLibrary as reason:
        member = eager_backend(laid_out(model, bits), pad_id, str(reason))
        if shortlist is None:
            return member
        start, step = masked(member.start, member.step, shortlist)
        return replace(member, start=start, step=step)

    member = _compiled_backend(compiled)
    if shortlist is None:
        return member
    narrowed = ShortlistedModel(compiled, model.output_proj, shortlist)
    return replace(member, start=narrowed.start, step=narrowed.step, changed=None)


def _compiled_backend(model: CompiledModel) -> SearchBackend:
    def forced(sources: TokenRows, tgt: Tensor) -> Tensor:
        return model.logits(model.states(tgt, model.start(sources, 1, tgt.shape[1])))

    def changed(changes: Mapping[str, Change]) -> SearchBackend:
        return _compiled_backend(model.changed(changes))

    return SearchBackend(model.start, model.step, forced, best_of_floats, log_probs_of_floats, changed=changed)
