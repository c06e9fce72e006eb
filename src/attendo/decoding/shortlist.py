"""Shortlists: for each source, the few target tokens that a search considers, learned from sentence pairs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from attendo.data.tokenizers import Tokenizer
from attendo.decoding.native.compiled import CompiledModel
from attendo.decoding.native.library import Matrix, TensorArena, library
from attendo.decoding.protocols import Start, Step, TokenRows, join_rows
from attendo.errors import AttendoError
from attendo.files import with_facts, write_atomic
from attendo.quantized import QuantizedLinear

FORMAT = "attendo shortlist 1"
MOST_PAIRS = 100_000
_NONE = "it is not a shortlist file of attendo. Create one with attendo shortlist"


def shortlist_of_pairs(
    tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]], *, per_token: int = 50, frequent: int = 100
) -> Shortlist:
    """Learn a shortlist from the first `MOST_PAIRS` sentence pairs. Raises AttendoError if `pairs` is empty."""
    if not 1 <= per_token <= tokenizer.vocab_size or not 0 <= frequent <= tokenizer.vocab_size:
        raise AttendoError(
            f"per_token={per_token} must be at least 1, and frequent={frequent} between 0 and "
            f"{tokenizer.vocab_size}, the vocabulary size"
        )
    ids = [(tokenizer.encode(source), tokenizer.target.encode(target)) for source, target in islice(pairs, MOST_PAIRS)]
    return learned_shortlist(ids, tokenizer.vocab_size, tokenizer.eos_id, per_token=per_token, frequent=frequent)


def save_shortlist(path: Path, shortlist: Shortlist, tokenizer: Tokenizer) -> None:
    """Write a shortlist to a safetensors file atomically, with a hash of the tokenizer."""
    arrays = {"likely": shortlist.likely.astype(np.int32), "frequent": shortlist.frequent.astype(np.int32)}
    facts = {"format": FORMAT, "tokenizer_sha256": tokenizer.sha256}
    write_atomic(path, with_facts(save(arrays, facts)))


def load_shortlist(path: Path, tokenizer: Tokenizer) -> Shortlist:
    """Load a shortlist file.

    Raises AttendoError if the file is missing, invalid or damaged, or if it belongs to another tokenizer.
    """
    if not path.is_file():
        raise AttendoError(f"{path}: no such file. Create it with attendo shortlist")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise AttendoError(f"{path}: {_NONE}")
            if header.get("tokenizer_sha256") != tokenizer.sha256:
                raise AttendoError(
                    f"{path} belongs to another tokenizer. Create it for this run with attendo shortlist"
                )
            likely, frequent = (file.get_tensor(name).astype(np.int64) for name in ("likely", "frequent"))
    except SafetensorError as error:
        raise AttendoError(f"{path} is damaged ({error}). Create it again with attendo shortlist") from None
    return Shortlist(likely, frequent)


FULL = 0.75  # share of the vocabulary: if a batch's lists have more, the whole vocabulary is computed
FEWER = 0.25  # share of the rows: if fewer are left, the outputs that they need are packed again


@dataclass(frozen=True)
class _Packed:
    """The packed output matrix of some tokens, and the row of each vocabulary token in the matrix."""

    matrix: Matrix
    arena: TensorArena | None  # owns the memory of the matrix; None if the model owns it
    place: Int[np.ndarray, " vocab"]
    rows: int  # number of rows for which the matrix was packed


@dataclass(frozen=True)
class _Layout:
    """A mapping from the flat outputs of a step to the flat logits of all tokens."""

    packed: _Packed
    taken: Int[np.ndarray, " listed"]
    put: Int[np.ndarray, " listed"]
    outputs: Float[Tensor, "rows packed"]
    logits: Float[Tensor, "rows vocab"]


class ShortlistedModel:
    """A compiled model that sets the logits of all tokens outside a source's shortlist to -inf.

    Logits are computed only for tokens on a shortlist of the batch, and are bit-identical to those of the full model.
    """

    def __init__(self, compiled: CompiledModel, output: nn.Linear, shortlist: Shortlist):
        self._compiled = compiled
        self._shortlist = shortlist
        self.vocab_size = output.out_features
        self._output = output
        self._bias = None if output.bias is None else output.bias.detach()

    def start(self, sources: TokenRows, rows_per_source: int = 1, capacity: int = 256) -> ListedCache:
        """Return a cache for the sources, with the shortlist of each source."""
        lists = [self._shortlist.of(source) for source in sources]
        return ListedCache(self._compiled.start(sources, rows_per_source, capacity), lists, rows_per_source)

    def step(self, token_ids: Int[Tensor, "rows 1"], cache: ListedCache) -> Float[Tensor, "rows vocab"]:
        """Feed one token per row, and return the next logits, which are valid until the next step of the cache."""
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

    def _settle(self, cache: ListedCache) -> None:
        """Map outputs to logits. The packed matrix of earlier rows is reused if it is not much too large."""
        rows = len(cache.lists)
        old = cast("_Layout | None", cache.made)
        lengths = [len(own) for own in cache.lists]
        tokens = np.concatenate(cache.lists)
        if old is None or not old.packed.rows * FEWER < rows <= len(old.logits):
            packed = self._packed(tokens, rows)
            logits = torch.full((rows, self.vocab_size), -torch.inf)
            outputs = torch.empty(rows, packed.matrix.n_out)
        else:
            packed = old.packed
            outputs = old.outputs[:rows]
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
            return _Packed(self._compiled.output, None, np.arange(self.vocab_size), rows)
        place = np.full(self.vocab_size, -1)
        place[union] = np.arange(len(union))
        kept = torch.from_numpy(union)
        arena = TensorArena(self._compiled.output.bits)
        bias = None if self._bias is None else self._bias[kept]
        output = self._output
        if isinstance(output, QuantizedLinear):
            return _Packed(
                arena.matrix(QuantizedLinear(output.numbers[kept], output.scale[kept], bias)),
                arena,
                place,
                rows,
            )
        return _Packed(arena.product(output.weight.detach()[kept], bias), arena, place, rows)


MOST_LINKS = 30_000_000  # pairs of a source token and a target token; each takes about 40 bytes
ROUNDS = 5


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that a search can use, depending on the source.

    Attributes:
        likely: Ids of the k most likely target tokens of each source token. Rows are padded with an id of `frequent`.
        frequent: Ids of the target tokens that are allowed for every source, including the end token.

    >>> shortlist = Shortlist(likely=np.array([[0, 0], [2, 4], [0, 0], [4, 0], [0, 0]]), frequent=np.array([0]))
    >>> shortlist.of([3, 1]).tolist()
    [0, 1, 2, 3, 4]
    """

    likely: Int[np.ndarray, "vocab k"]
    frequent: Int[np.ndarray, " n"]

    def of(self, source: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        """Return the token ids that are allowed for a source, in ascending order.

        Args:
            source: Token ids of the source, which are always allowed.
        """
        own = np.asarray(source, dtype=np.int64)
        listed = np.zeros(len(self.likely), dtype=bool)
        for tokens in (self.frequent, own, self.likely[own]):
            listed[tokens] = True
        return np.flatnonzero(listed)


def learned_shortlist(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    vocab_size: int,
    eos_id: int,
    *,
    per_token: int = 50,
    frequent: int = 100,
) -> Shortlist:
    """Learn a shortlist from sentence pairs, given as source and target token ids.

    The shortlist contains the `per_token` most probable target tokens of each source token, and the `frequent` most
    frequent target tokens. The probabilities t(target | source) are from IBM model 1 (Brown et al. 1993) after `ROUNDS`
    iterations. The end token of the source is the null word. In a tie, the lower id is selected. Sentence pairs beyond
    a total of `MOST_LINKS` token pairs are ignored. Raises AttendoError if there are no sentence pairs.

    >>> pairs = [([4, 5], [8, 9]), ([4], [8]), ([6, 5], [7, 9])]
    >>> learned_shortlist(pairs, 10, 2, per_token=1, frequent=0).likely[[4, 5, 6]].tolist()
    [[8], [9], [7]]
    """
    kept = [(source, target) for source, target in pairs if source and target]
    links = np.cumsum([(len(source) + 1) * len(target) for source, target in kept])
    kept = kept[: max(1, int(np.searchsorted(links, MOST_LINKS, "right")))]
    if not kept:
        raise AttendoError("a shortlist requires sentence pairs, but there are none. Give a file of pairs")
    counts = np.bincount(np.concatenate([np.asarray(target) for _, target in kept]), minlength=vocab_size)
    anywhere = np.argsort(-counts, kind="stable")[:frequent]
    anywhere = np.union1d(anywhere[counts[anywhere] > 0], [eos_id]).astype(np.int64)
    sources, targets, probabilities = _word_table(kept, vocab_size, eos_id)
    order = np.lexsort((targets, -probabilities, sources))
    sources = sources[order]
    targets = targets[order]
    ranks = np.arange(len(sources)) - np.searchsorted(sources, sources)
    best = ranks < per_token
    likely = np.full((vocab_size, per_token), eos_id, dtype=np.int64)
    likely[sources[best], ranks[best]] = targets[best]
    return Shortlist(likely, anywhere)


def _word_table(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]], vocab_size: int, eos_id: int
) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return source tokens, target tokens and t(target | source) of all token pairs that share a sentence pair."""
    keys = []  # of each token pair: its two ids as one number; `places`: the place of its target token
    places = []
    n_places = 0
    for source, target in pairs:
        ends = np.asarray([*source, eos_id], dtype=np.int64)
        keys.append((ends[:, None] * vocab_size + np.asarray(target)).reshape(-1))
        places.append(np.tile(np.arange(n_places, n_places + len(target), dtype=np.int32), len(ends)))
        n_places += len(target)
    known, link = np.unique(np.concatenate(keys), return_inverse=True)
    place = np.concatenate(places)
    sources = known // vocab_size
    table = np.ones(len(known))
    for _ in range(ROUNDS):
        of_link = table[link]
        share = of_link / np.bincount(place, of_link, n_places)[place]
        expected = np.bincount(link, share, len(known))
        table = expected / np.bincount(sources, expected)[sources]
    return sources, known % vocab_size, table


class ListedCache:
    """The cache of a model, with the shortlist (the allowed token ids) of each row's source."""

    def __init__(self, inner: Any, lists: Sequence[Int[np.ndarray, " tokens"]], rows_per_source: int):
        self.inner = inner
        self.lists = [tokens for tokens in lists for _ in range(rows_per_source)]
        self.made: Any = None  # the data that a step prepared from the lists
        self.settled = False  # whether `made` belongs to the present lists

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Reorder the rows: new row i continues old row `rows[i]` of the same source. The shortlists do not change."""
        self.inner.reorder(rows)

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Select rows: new row i continues old row `rows[i]`, and all other rows are dropped."""
        self.inner.keep(rows)
        self.lists = [self.lists[row] for row in rows.tolist()]
        self.settled = False

    def join(self, other: ListedCache) -> None:
        """Append the rows of another cache, with their shortlists."""
        join_rows(self.inner, other.inner)
        self.lists = self.lists + other.lists
        self.made = None
        self.settled = False


def masked(start: Start, step: Step, shortlist: Shortlist) -> tuple[Start, Step]:
    """Return start and step functions that set the logits of all tokens outside a row's shortlist to -inf.

    The model still computes all logits, so a shortlist does not make the search faster.
    """

    def listed_start(sources: TokenRows, rows_per_source: int, capacity: int, /) -> ListedCache:
        lists = [shortlist.of(source) for source in sources]
        return ListedCache(start(sources, rows_per_source, capacity), lists, rows_per_source)

    def listed_step(token_ids: Int[Tensor, "rows 1"], cache: ListedCache, /) -> Tensor:
        logits = step(token_ids, cache.inner)
        if not cache.settled:
            banned = np.ones(logits.shape, dtype=bool)
            for row, tokens in zip(banned, cache.lists, strict=True):
                row[tokens] = False
            cache.made = torch.from_numpy(banned).to(logits.device)
            cache.settled = True
        return logits.masked_fill(cache.made, -torch.inf)

    return listed_start, listed_step
