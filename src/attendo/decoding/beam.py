"""Batched beam search; greedy search is the same code with `beam=1`."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.constraints import Constraints
from attendo.decoding.options import DecodingConfig, LengthNorm, SpecialIds
from attendo.decoding.protocols import AttendingStep, Cache, Hypothesis, Step, TokenRows, join_rows
from attendo.decoding.trace import TraceRecorder
from attendo.errors import NOT_NUMBERS, AttendoError

TopKFn = Callable[..., tuple[np.ndarray, np.ndarray]]
"""`best_tokens`, or another way to the same."""


def log_prob_type(logits: Tensor) -> torch.dtype:
    """Log-probabilities have at least single precision.

    >>> log_prob_type(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.promote_types(logits.dtype, torch.float32)


def log_probs_of(
    logits: Float[Tensor, "*batch vocab"], wanted: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """log softmax(logits) of the wanted token of each row, in `log_prob_type`.

    >>> log_probs_of(torch.zeros(1, 4), torch.tensor([2])).exp()
    tensor([0.2500])
    """
    log_probs = logits.log_softmax(-1, dtype=log_prob_type(logits))
    return log_probs.gather(-1, wanted[..., None]).squeeze(-1)


def best_tokens(
    logits: Float[Tensor, "rows vocab"],
    k: int,
    banned_ids: tuple[int, ...] = (),
    constrain: Callable[[Tensor], None] | None = None,
    out: Float[Tensor, "rows vocab"] | None = None,
) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
    """Return the `k` most probable next tokens of each row in order, and their log-probabilities.

    Ties are broken by token id. `banned_ids` and `constrain` set log-probabilities to -inf after normalization. `out`,
    of `log_prob_type`, is a reused buffer for all log-probabilities. Raises AttendoError on NaN.

    >>> best_tokens(torch.zeros(1, 4), 2, banned_ids=(0,))[0]
    array([[1, 2]])
    """
    # On CPU one vectorized log_softmax is faster than logsumexp, and topk as fast as argmax.
    log_probs = torch.log_softmax(logits, -1, dtype=log_prob_type(logits), out=out)
    if banned_ids:
        log_probs[:, list(banned_ids)] = -torch.inf
    if constrain is not None:
        constrain(log_probs)
    vocab = log_probs.shape[1]
    k = min(k, vocab)
    values, ids = log_probs.topk(min(k + 1, vocab), dim=1)
    found = values.double().cpu().numpy()
    tokens = ids.cpu().numpy()
    if np.isnan(found[:, 0]).any():
        found = _without_impossible_rows(found, logits)
    found, tokens = reordered(np.lexsort((tokens, -found)), found, tokens)
    if k < vocab:
        # topk picks any of equals; where the first value left out equals the last one taken, choose by id
        tied = np.flatnonzero((found[:, k - 1] == found[:, k]) & (found[:, k] > -np.inf))
        if len(tied):
            edge = values[tied, -1:]
            countdown = torch.arange(vocab, 0, -1, device=values.device)
            lowest = torch.where(log_probs[tied] == edge, countdown, 0).topk(k, dim=1).values.cpu().numpy()
            above = (found[tied, :k] > found[tied, k:]).sum(1)
            for row, n_above, ranks in zip(tied, above, lowest, strict=True):
                tokens[row, n_above:k] = vocab - ranks[: k - n_above]
    return tokens[:, :k], found[:, :k]


def _without_impossible_rows(
    found: Float[np.ndarray, "rows k"], logits: Tensor
) -> Float[np.ndarray, "rows k"]:
    """Accept rows whose logits are all -inf, which allow no token; any other NaN is an error."""
    impossible = (logits == -torch.inf).all(1).cpu().numpy()
    if (np.isnan(found[:, 0]) & ~impossible).any():
        raise AttendoError(NOT_NUMBERS)
    return np.where(impossible[:, None], -np.inf, found)


def reordered(order: Int[np.ndarray, "sources chosen"], *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each array `[sources, candidates]` in this order, source by source.

    >>> reordered(np.array([[1, 0]]), np.array([[5, 6, 7]]))[0]
    array([[6, 5]])
    """
    rows = np.arange(len(order))[:, None]  # as np.take_along_axis, which makes this index for each array
    return tuple(array[rows, order] for array in arrays)


_LEAST = float(np.finfo(np.float64).tiny)


def coverage_penalty(
    attended: Float[np.ndarray, "*texts src_len"], beta: float
) -> Float[np.ndarray, "*texts"]:
    """cp(X; Y) = β Σᵢ log(min(Σⱼ pᵢⱼ, 1)), added to the score of a text (Wu et al. 2016, GNMT, eq. 14).

    `attended` is Σⱼ pᵢⱼ over all target tokens j including the end. A position without attention counts as the smallest
    normal number, which avoids log 0.

    >>> coverage_penalty(np.array([[1.0, 2.0], [0.5, 2.5]]), beta=2.0).round(4).tolist()
    [0.0, -1.3863]
    """
    return beta * np.log(np.clip(attended, _LEAST, 1.0)).sum(-1)


@overload
def length_norm(length: int, alpha: float, kind: LengthNorm = "gnmt") -> float: ...
@overload
def length_norm(length: np.ndarray, alpha: float, kind: LengthNorm = "gnmt") -> np.ndarray: ...
def length_norm(length: int | np.ndarray, alpha: float, kind: LengthNorm = "gnmt") -> float | np.ndarray:
    """((5 + length) / 6) ** alpha, the length normalization of Wu et al. 2016 (GNMT), eq. 14; plain: length ** alpha.

    `length` counts target tokens with the end token. Plain with alpha 1 makes the score a mean over the tokens.

    >>> length_norm(1, 0.6), length_norm(7, 1.0), length_norm(7, 0.0), length_norm(7, 1.0, "plain")
    (1.0, 2.0, 1.0, 7.0)
    """
    if kind == "gnmt":
        return ((5 + length) / 6) ** alpha
    return length**alpha


def best_possible_score(
    log_prob: Float[np.ndarray, " sources"],
    lengths: Int[np.ndarray, " sources"],
    limits: Int[np.ndarray, " sources"],
    alpha: float,
    kind: LengthNorm = "gnmt",
) -> Float[np.ndarray, " sources"]:
    """The best score that any continuation of a text with this log-probability can reach.

    Log-probabilities only fall and the norm is monotone in length, so the bound is reached at the next length (alpha <
    0) or at the limit (alpha > 0). No other option raises a score. A margin of 1e-12 covers rounding.
    """
    at_once = length_norm(lengths + 1, alpha, kind)
    at_the_limit = length_norm(limits, alpha, kind)
    return np.maximum(log_prob / at_once, log_prob / at_the_limit) * (1 - 1e-12)


_PER_SOURCE = (
    "sources", "limits", "lengths", "log_probs", "n_finished", "to_beat", "tokens", "token_log_probs",
)  # fmt: skip


class BeamSearch:
    """A batch of sources in a beam search; `advance` takes one step and returns the finished sources.

    In every step the candidates of a source (its rows times the vocabulary) are ranked by log-probability, then token
    id, then beam. A source has `beam` slots. A finished hypothesis keeps its slot, so it cannot crowd out likely longer
    texts. A source is done when all slots are finished, at its length limit, when no token can follow, or when no row
    can still beat the `n_best`-th finished one (`best_possible_score`). Finished hypotheses are returned by score,
    followed at the limit by unfinished ones if fewer than `n_best` have finished.

    refill: a finished hypothesis frees its slot, `beam` finished ones end the search, and unfinished ones compete at
    the limit. Groups have rows and slots of their own, and rank one after another; duplicates are returned once.
    """

    def __init__(
        self,
        step: Step,
        cache: Cache,
        limits: list[int],
        config: DecodingConfig,
        special_ids: SpecialIds,
        device: torch.device,
        *,
        prefixes: TokenRows | None = None,
        attending: AttendingStep | None = None,
        recorder: TraceRecorder | None = None,
        top_k_fn: TopKFn = best_tokens,
    ) -> None:
        _check(limits, config, attending is not None)
        self.step = step
        self.cache = cache
        self.config = config
        self.special_ids = special_ids
        self.device = device
        self.attending = attending if config.coverage_penalty else None
        self.recorder = recorder
        self.top_k_fn = top_k_fn
        self.n_known = len(limits)
        self._begin(limits)
        self.buffer: Tensor | None = None
        # What each source position got from the tokens of a row, and what it gets in this step.
        self.attended = self.attention = np.zeros((len(limits), config.beam, 0))
        self.constraints: Constraints | None = None
        if config.min_length or config.no_repeat_ngram or prefixes is not None:
            self.constraints = self._constraints(limits, prefixes)

    def _begin(self, limits: Sequence[int]) -> None:
        """The state of sources of which nothing is found yet."""
        n_sources = len(limits)
        beam = self.config.beam
        groups = self.config.beam_groups
        self.sources = np.arange(n_sources) + self.n_known - n_sources
        self.limits = np.asarray(limits, dtype=np.int64)
        self.lengths = np.zeros(n_sources, dtype=np.int64)
        # All rows of a group start alike: only the first may be continued until they differ.
        self.log_probs = np.full((n_sources, beam), -np.inf)
        self.log_probs[:, :: beam // groups] = 0.0
        self.tokens = np.full(
            (n_sources, beam, max(limits, default=0) + 1), self.special_ids.bos_id, dtype=np.int64
        )
        self.token_log_probs = np.zeros(self.tokens.shape)
        self.finished: list[list[Hypothesis]] = [[] for _ in limits]
        self.n_finished = np.zeros((n_sources, groups), dtype=np.int64)
        self.to_beat = np.full(n_sources, -np.inf)
        self._count_rows()

    def _constraints(self, limits: Sequence[int], prefixes: TokenRows | None) -> Constraints:
        config = self.config
        return Constraints(
            list(limits), self.special_ids, config.min_length, config.no_repeat_ngram, prefixes
        )

    def join(self, cache: Cache, limits: list[int], prefixes: TokenRows | None = None) -> list[int]:
        """Add sources, with a cache of fresh rows, during the search; return their numbers.

        Results do not depend on the other sources. Not available with traces or a coverage penalty. Raises AttendoError
        as the constructor.
        """
        _check(limits, self.config, self.attending is not None)
        assert self.recorder is None and self.attending is None
        if self.constraints is not None or prefixes is not None:
            if self.constraints is None:
                self.constraints = self._constraints(self.limits.tolist(), None)
            self.constraints.join(self._constraints(limits, prefixes))
        if not len(self.sources):  # of the rows that are done nothing is needed any more
            self.cache.keep(torch.zeros(0, dtype=torch.int64, device=self.device))
        join_rows(self.cache, cache)
        self.n_known += len(limits)
        before = {name: getattr(self, name) for name in _PER_SOURCE}
        finished = self.finished
        self._begin(limits)
        numbers = self.sources.tolist()
        width = max(before["tokens"].shape[2], self.tokens.shape[2])
        for name, old in before.items():
            parts = (old, getattr(self, name))
            if old.ndim == 3:
                parts = [np.pad(part, ((0, 0), (0, 0), (0, width - part.shape[2]))) for part in parts]
            setattr(self, name, np.concatenate(parts))
        self.finished = finished + self.finished
        self.attended = self.attention = np.zeros((len(self.sources), self.config.beam, 0))
        self._count_rows()
        return numbers

    def advance(self) -> list[tuple[int, list[Hypothesis]]]:
        """Take one step on all rows; return (source number, its hypotheses) for the sources now done."""
        row_tokens, row_log_probs = self._next_tokens()
        taken = np.zeros((len(self.sources), 0), dtype=np.int64)
        groups = []
        for group in range(self.config.beam_groups):
            kept, taken = self._choose(group, row_tokens, row_log_probs, taken)
            groups.append(kept)
        tokens, token_log_probs, parents, log_probs = (
            groups[0]
            if len(groups) == 1
            else (np.concatenate(arrays, 1) for arrays in zip(*groups, strict=True))
        )
        live = log_probs > -np.inf
        if self.recorder is not None:
            self.recorder.go_on(self.sources, tokens, token_log_probs, parents, live)
        stuck = None
        done: dict[int, list[Hypothesis]] = {}
        if not live.all():
            stuck = ~live.any(1)
            done = {n: self._result(n, not self.finished[n]) for n in np.flatnonzero(stuck).tolist()}
            # Rows that lead nowhere stay as they are, to spare a reordering.
            parents = np.where(live, parents, self._beams)
        self._extend(tokens, token_log_probs, parents, log_probs)
        if self._some_finished or self._steps_left == 0:
            over = self._nothing_to_gain() if stuck is None else self._nothing_to_gain() & ~stuck
            for n in np.flatnonzero(over).tolist():
                done[n] = self._result(n, bool(self.lengths[n] == self.limits[n]))
        results = [(int(self.sources[n]), done[n]) for n in sorted(done)]
        self._drop(done, parents)
        return results

    def to_end(self) -> list[list[Hypothesis]]:
        """Search all sources to their end; the hypotheses of each, in the order of the sources."""
        results: list[list[Hypothesis]] = [[] for _ in range(self.n_known)]
        while len(self.sources):
            for source, hypotheses in self.advance():
                results[source] = hypotheses
        return results

    def leave(self, numbers: Collection[int]) -> None:
        """Drop these sources; results of the others do not change."""
        given_up = {place: [] for place, number in enumerate(self.sources.tolist()) if number in numbers}
        self._drop(given_up, np.tile(self._beams, (len(self.sources), 1)))

    def _next_tokens(self) -> tuple[Int[np.ndarray, "sources beam k"], Float[np.ndarray, "sources beam k"]]:
        """Step all rows and return enough candidates for every group, given that earlier groups take some."""
        last = self.tokens[self._numbers, :, self.lengths].reshape(-1, 1)
        fed = torch.from_numpy(last).to(self.device)
        if self.attending is None:
            logits = self.step(fed, self.cache)
        else:
            logits, weights = self.attending(fed, self.cache)
            self.attention = weights.double().cpu().numpy().reshape(*self.log_probs.shape, -1)
            if not self.attended.size:
                self.attended = np.zeros(self.attention.shape)
        if self.buffer is None or len(self.buffer) < len(logits):
            self.buffer = torch.empty_like(logits, dtype=log_prob_type(logits))
        out = self.buffer[: len(logits)]
        constrain = None if self.constraints is None else self._constrain
        # one row can continue at most `beam` hypotheses, and with `refill` also end
        k = self.config.beam + self.config.refill
        tokens, log_probs = self.top_k_fn(logits, k, self.special_ids.banned_ids, constrain, out)
        shape = (*self.log_probs.shape, -1)
        return tokens.reshape(shape), log_probs.reshape(shape)

    def _constrain(self, log_probs: Tensor) -> None:
        assert self.constraints is not None
        history = self.tokens[:, :, 1 : int(self.lengths.max()) + 1]
        self.constraints.apply(log_probs, history.reshape(len(log_probs), -1), self.lengths)

    def _choose(
        self, group: int, row_tokens: np.ndarray, row_log_probs: np.ndarray, taken: np.ndarray
    ) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """Fill the slots of a group with its best candidates, and finish those that end.

        Returns tokens, log-probabilities, parents and the log-probabilities of the continued texts, and the tokens
        `taken` by groups so far (-1: none).
        """
        size = self.config.beam // self.config.beam_groups
        rows = slice(group * size, (group + 1) * size)
        n_sources = len(self.sources)
        each = row_tokens.shape[2]
        tokens = row_tokens[:, rows].reshape(n_sources, -1)
        token_log_probs = row_log_probs[:, rows].reshape(n_sources, -1)
        log_probs = (self.log_probs[:, rows, None] + row_log_probs[:, rows]).reshape(n_sources, -1)
        parents = np.empty(tokens.shape, dtype=np.int64)
        parents[:] = self._beams[rows].repeat(each)
        if size * each > 1:
            # the diversity penalty changes the order only, never the score (Vijayakumar et al. 2016)
            rank = log_probs
            if group:
                times = (tokens[:, :, None] == taken[:, None]).sum(2)
                rank = log_probs - self.config.diversity_penalty * times
            # ties: the lower token id, then the lower beam, which makes results independent of the batch
            order = np.lexsort((parents, tokens, -rank))
            tokens, token_log_probs, parents, log_probs = reordered(
                order, tokens, token_log_probs, parents, log_probs
            )
        ends = tokens == self.special_ids.eos_id
        possible = log_probs > -np.inf
        # a finished hypothesis keeps its slot, unless `refill` frees it for the next best candidate
        places = size if self.config.refill else size - self.n_finished[:, group, None]
        placed = (np.arange(tokens.shape[1]) < places) & possible
        ended = ends & placed
        if self.config.refill:
            placed = ended | (~ends & (np.cumsum(~ends, 1) <= size) & possible)
        if self.recorder is not None:
            self.recorder.pass_over(self.sources, tokens, token_log_probs, parents, ~placed & possible)
        some_ended = bool(ended.any())
        if some_ended:
            for source, place in np.argwhere(ended).tolist():
                self._finish(
                    source, group, int(parents[source, place]), float(token_log_probs[source, place])
                )
        if group + 1 < self.config.beam_groups:
            taken = np.concatenate((taken, np.where(placed, tokens, -1)[:, :size]), 1)
        log_probs = np.where(placed & ~ends, log_probs, -np.inf)
        if not some_ended:  # candidates with a slot come first already
            return tuple(array[:, :size] for array in (tokens, token_log_probs, parents, log_probs)), taken
        # move the ended ones (-inf) to the back; a stable sort keeps the rank of the others
        going_on = np.argsort(log_probs == -np.inf, axis=1, kind="stable")[:, :size]
        return reordered(going_on, tokens, token_log_probs, parents, log_probs), taken

    def _finish(self, source: int, group: int, beam: int, end_log_prob: float) -> None:
        """Keep the text of this row, ended by the end token, as a hypothesis."""
        if self.recorder is not None:
            self.recorder.end(int(self.sources[source]), self.special_ids.eos_id, end_log_prob, beam)
        self.n_finished[source, group] += 1
        self._some_finished = True
        finished = self.finished[source]
        hypothesis = self._hypothesis(source, beam, (end_log_prob,))
        # another group may have found the same text
        if group and hypothesis.token_ids in [found.token_ids for found in finished]:
            return
        finished.append(hypothesis)
        finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equals the earlier stays first
        if len(finished) >= self.config.n_best:
            self.to_beat[source] = finished[self.config.n_best - 1].score

    def _hypothesis(self, source: int, beam: int, end: tuple[float, ...]) -> Hypothesis:
        config = self.config
        length = int(self.lengths[source])
        token_log_probs = (*self.token_log_probs[source, beam, 1 : length + 1].tolist(), *end)
        log_prob = math.fsum(token_log_probs)
        n_tokens = max(1, len(token_log_probs))
        return Hypothesis(
            token_ids=tuple(self.tokens[source, beam, 1 : length + 1].tolist()),
            log_prob=log_prob,
            score=log_prob / length_norm(n_tokens, config.length_penalty, config.length_norm)
            + self._coverage(source, beam, bool(end)),
            token_log_probs=token_log_probs,
            finished=bool(end),
        )

    def _coverage(self, source: int, beam: int, ends: bool) -> float:
        """The coverage penalty of the text of a row, or of that text with the token of this step, its end."""
        if self.attending is None:
            return 0.0
        attended = self.attended[source, beam] + self.attention[source, beam] * ends
        return float(coverage_penalty(attended, self.config.coverage_penalty))

    def _result(self, source: int, with_unfinished: bool) -> list[Hypothesis]:
        """The n best: finished ones by falling score, then on request unfinished ones (with `refill` among them)."""
        n_best = self.config.n_best
        found = self.finished[source][:n_best]
        if with_unfinished and (len(found) < n_best or self.config.refill):
            texts: dict[tuple[int, ...], Hypothesis] = {}
            for beam in np.flatnonzero(self.log_probs[source] > -np.inf).tolist():
                hypothesis = self._hypothesis(source, beam, ())
                texts.setdefault(hypothesis.token_ids, hypothesis)
            found = found + list(texts.values())
            found.sort(key=lambda text: (not (text.finished or self.config.refill), -text.score))
        return found[:n_best]

    def _extend(
        self, tokens: np.ndarray, token_log_probs: np.ndarray, parents: np.ndarray, log_probs: np.ndarray
    ) -> None:
        """Let every row continue its parent by its token."""
        if self.attending is not None:
            self.attended = np.take_along_axis(self.attended + self.attention, parents[:, :, None], 1)
        if (parents != self._beams).any():
            used = int(self.lengths.max()) + 1
            sources = self._numbers[:, None]
            for history in (self.tokens, self.token_log_probs):
                history[:, :, :used] = history[sources, parents, :used]
        self.lengths += 1
        self._steps_left -= 1
        self.tokens[self._numbers, :, self.lengths] = tokens
        self.token_log_probs[self._numbers, :, self.lengths] = token_log_probs
        self.log_probs = log_probs

    def _nothing_to_gain(self) -> np.ndarray:
        """The sources that have `beam` finished hypotheses, are at their limit, or cannot improve."""
        config = self.config
        bound = best_possible_score(
            self.log_probs.max(1), self.lengths, self.limits, config.length_penalty, config.length_norm
        )
        full = self.n_finished.sum(1) >= config.beam
        return full | (self.lengths >= self.limits) | (bound < self.to_beat)

    def _drop(self, done: dict[int, list[Hypothesis]], parents: np.ndarray) -> None:
        """Move the cache on with the rows, without the sources that are done."""
        kept = self._numbers
        if done:
            kept = np.array([source for source in kept.tolist() if source not in done], dtype=np.int64)
        if len(kept):
            advance_rows(self.cache, kept, parents, self.device)
        if done:
            for name in _PER_SOURCE:
                setattr(self, name, getattr(self, name)[kept])
            self.finished = [self.finished[source] for source in kept]
            self.attended = self.attended[kept]
            if self.constraints is not None:
                self.constraints.keep(kept)
            self._count_rows()

    def _count_rows(self) -> None:
        """Precompute what each step needs and only a change of sources affects."""
        self._numbers = np.arange(len(self.sources))
        self._beams = np.arange(self.config.beam)
        self._steps_left = min((self.limits - self.lengths).tolist(), default=0)
        self._some_finished = bool(self.n_finished.any())


def advance_rows(
    cache: Cache,
    kept: Int[np.ndarray, " kept_sources"],
    parents: Int[np.ndarray, "sources beam"],
    device: torch.device,
) -> None:
    """Let beam `b` of source `s` continue beam `parents[s, b]`, and drop the sources not in `kept`.

    The cache is called at most once, because copying it costs more than a step of a small model.
    """
    n_sources, beam = parents.shape
    rows = torch.from_numpy((kept[:, None] * beam + parents[kept]).reshape(-1)).to(device)
    if len(kept) < n_sources:
        cache.keep(rows)
    elif (parents != np.arange(beam)).any():
        cache.reorder(rows)


def _check(limits: list[int], config: DecodingConfig, gives_attention: bool) -> None:
    if min(limits, default=1) < 1:
        raise AttendoError(f"a length limit of {min(limits)} tokens is too small (expected at least 1)")
    if config.coverage_penalty and not gives_attention:
        raise AttendoError(
            f"coverage_penalty={config.coverage_penalty} requires attention weights, which this model does "
            "not return during search. Set it to 0"
        )


@torch.inference_mode()
def beam_search(
    step: Step,
    cache: Cache,
    limits: list[int],
    config: DecodingConfig,
    special_ids: SpecialIds,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each source, best first, by `BeamSearch` with its `options`.

    `cache` has `len(limits) * config.beam` fresh rows; `limits` are maximum lengths including the end token.
    """
    return BeamSearch(step, cache, limits, config, special_ids, torch.device(device), **options).to_end()
