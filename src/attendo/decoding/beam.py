"""Batched beam search. Greedy search is beam search with `beam=1`."""

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
from attendo.errors import NOT_NUMBERS, AttendoError, diverged

TopKFn = Callable[..., tuple[np.ndarray, np.ndarray]]
"""The type of `best_tokens` and of equivalent functions."""


def log_prob_type(logits: Tensor) -> torch.dtype:
    """Return the dtype of log-probabilities: the dtype of the logits, but at least float32.

    >>> log_prob_type(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    return torch.promote_types(logits.dtype, torch.float32)


def log_probs_of(logits: Float[Tensor, "*batch vocab"], wanted: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Compute the log-probability of the wanted token of each row, in the dtype `log_prob_type(logits)`.

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

    In a tie, the lower token id comes first. `banned_ids` and `constrain` set log-probabilities to -inf after
    normalization. The optional buffer `out` receives all log-probabilities in the dtype `log_prob_type(logits)`. Raises
    AttendoError if the logits contain NaN.

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
        # in a tie, topk picks any token; if the values at k and k + 1 are equal, choose the lower ids
        tied = np.flatnonzero((found[:, k - 1] == found[:, k]) & (found[:, k] > -np.inf))
        if len(tied):
            edge = values[tied, -1:]
            countdown = torch.arange(vocab, 0, -1, device=values.device)
            lowest = torch.where(log_probs[tied] == edge, countdown, 0).topk(k, dim=1).values.cpu().numpy()
            above = (found[tied, :k] > found[tied, k:]).sum(1)
            for row, n_above, ranks in zip(tied, above, lowest, strict=True):
                tokens[row, n_above:k] = vocab - ranks[: k - n_above]
    return tokens[:, :k], found[:, :k]


def _without_impossible_rows(found: Float[np.ndarray, "rows k"], logits: Tensor) -> Float[np.ndarray, "rows k"]:
    """Set NaN to -inf in rows whose logits are all -inf. Raise AttendoError for NaN in any other row."""
    impossible = (logits == -torch.inf).all(1).cpu().numpy()
    if (np.isnan(found[:, 0]) & ~impossible).any():
        raise diverged(NOT_NUMBERS)
    return np.where(impossible[:, None], -np.inf, found)


def reordered(order: Int[np.ndarray, "sources chosen"], *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return each array `[sources, candidates]` with the candidates of each source in the given order.

    >>> reordered(np.array([[1, 0]]), np.array([[5, 6, 7]]))[0]
    array([[6, 5]])
    """
    rows = np.arange(len(order))[:, None]  # take_along_axis would build this index for each array
    return tuple(array[rows, order] for array in arrays)


_LEAST = float(np.finfo(np.float64).tiny)


def coverage_penalty(attended: Float[np.ndarray, "*texts src_len"], beta: float) -> Float[np.ndarray, "*texts"]:
    """Compute the coverage penalty β Σᵢ log(min(Σⱼ pᵢⱼ, 1)) of each text (Wu et al. 2016, GNMT, eq. 14).

    The penalty is added to the score of a text. `attended` is the attention Σⱼ pᵢⱼ that source position i receives from
    all target tokens j, including the end token. A sum of 0 counts as the smallest normal float64, which avoids log 0.

    >>> coverage_penalty(np.array([[1.0, 2.0], [0.5, 2.5]]), beta=2.0).round(4).tolist()
    [0.0, -1.3863]
    """
    return beta * np.log(np.clip(attended, _LEAST, 1.0)).sum(-1)


@overload
def length_norm(length: int, alpha: float, kind: LengthNorm = "gnmt") -> float: ...
@overload
def length_norm(length: np.ndarray, alpha: float, kind: LengthNorm = "gnmt") -> np.ndarray: ...
def length_norm(length: int | np.ndarray, alpha: float, kind: LengthNorm = "gnmt") -> float | np.ndarray:
    """Return the divisor of the length normalization: ((5 + length) / 6) ** alpha, or length ** alpha for `plain`.

    ((5 + length) / 6) ** alpha is eq. 14 of Wu et al. 2016 (GNMT). `length` is the number of target tokens, including
    the end token. With `plain` and alpha 1, the score is the mean log-probability per token.

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
    """Return an upper bound of the scores of all continuations of each text.

    A further token never raises the log-probability, and the length normalization is monotone in the length. The upper
    bound is therefore reached at the next length (alpha < 0) or at the length limit (alpha > 0). No other search option
    raises a score. A margin of 1e-12 covers rounding errors.
    """
    at_once = length_norm(lengths + 1, alpha, kind)
    at_the_limit = length_norm(limits, alpha, kind)
    return np.maximum(log_prob / at_once, log_prob / at_the_limit) * (1 - 1e-12)


_PER_SOURCE = (
    "sources", "limits", "lengths", "log_probs", "n_finished", "to_beat", "tokens", "token_log_probs",
)  # fmt: skip


class BeamSearch:
    """A beam search over a batch of sources. `advance` decodes one token per row and returns the finished sources.

    In every step, the candidates of a source are its hypotheses, each extended by each token of the vocabulary. The
    candidates are ranked by log-probability, then token id, then beam. Each source has `beam` slots for hypotheses. A
    finished hypothesis keeps its slot, so a less likely candidate cannot replace it.

    A source is finished when all its slots are finished, when it reaches its length limit, or when no token can follow.
    A source is also finished when no unfinished hypothesis can still beat the `n_best`-th finished hypothesis
    (`best_possible_score`). The finished hypotheses of a source are returned by descending score. If a source reaches
    its length limit with fewer than `n_best` finished hypotheses, the best unfinished hypotheses follow.

    With `refill`, a finished hypothesis frees its slot, and the search of a source ends after `beam` finished
    hypotheses. At the length limit, `refill` ranks finished and unfinished hypotheses together.

    With `beam_groups`, each group has its own slots, and the groups rank their candidates one after another. A text
    that several groups find is returned once.
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
        # attention that each source position received from the tokens of a row: in total, and in this step
        self.attended = self.attention = np.zeros((len(limits), config.beam, 0))
        self.constraints: Constraints | None = None
        if config.min_length or config.no_repeat_ngram or prefixes is not None:
            self.constraints = self._constraints(limits, prefixes)

    def _begin(self, limits: Sequence[int]) -> None:
        """Initialize the state of new sources."""
        n_sources = len(limits)
        beam = self.config.beam
        groups = self.config.beam_groups
        self.sources = np.arange(n_sources) + self.n_known - n_sources
        self.limits = np.asarray(limits, dtype=np.int64)
        self.lengths = np.zeros(n_sources, dtype=np.int64)
        # All rows of a group are equal at first, so only the first row is continued in the first step.
        self.log_probs = np.full((n_sources, beam), -np.inf)
        self.log_probs[:, :: beam // groups] = 0.0
        self.tokens = np.full((n_sources, beam, max(limits, default=0) + 1), self.special_ids.bos_id, dtype=np.int64)
        self.token_log_probs = np.zeros(self.tokens.shape)
        self.finished: list[list[Hypothesis]] = [[] for _ in limits]
        self.n_finished = np.zeros((n_sources, groups), dtype=np.int64)
        self.to_beat = np.full(n_sources, -np.inf)
        self._count_rows()

    def _constraints(self, limits: Sequence[int], prefixes: TokenRows | None) -> Constraints:
        config = self.config
        return Constraints(list(limits), self.special_ids, config.min_length, config.no_repeat_ngram, prefixes)

    def join(self, cache: Cache, limits: list[int], prefixes: TokenRows | None = None) -> list[int]:
        """Add sources and the cache of their rows to a running search, and return the numbers of these sources.

        The result of a source does not depend on the other sources. Sources cannot join a search with traces or a
        coverage penalty. Raises AttendoError if a length limit or a prefix is invalid.
        """
        _check(limits, self.config, self.attending is not None)
        assert self.recorder is None and self.attending is None
        if self.constraints is not None or prefixes is not None:
            if self.constraints is None:
                self.constraints = self._constraints(self.limits.tolist(), None)
            self.constraints.join(self._constraints(limits, prefixes))
        if not len(self.sources):  # no earlier source is unfinished, so all old rows can be dropped
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
        """Decode one token of every row, and return the number and the hypotheses of each finished source."""
        row_tokens, row_log_probs = self._next_tokens()
        taken = np.zeros((len(self.sources), 0), dtype=np.int64)
        groups = []
        for group in range(self.config.beam_groups):
            kept, taken = self._choose(group, row_tokens, row_log_probs, taken)
            groups.append(kept)
        tokens, token_log_probs, parents, log_probs = (
            groups[0] if len(groups) == 1 else (np.concatenate(arrays, 1) for arrays in zip(*groups, strict=True))
        )
        live = log_probs > -np.inf
        if self.recorder is not None:
            self.recorder.go_on(self.sources, tokens, token_log_probs, parents, live)
        stuck = None
        done: dict[int, list[Hypothesis]] = {}
        if not live.all():
            stuck = ~live.any(1)
            done = {n: self._result(n, not self.finished[n]) for n in np.flatnonzero(stuck).tolist()}
            # Rows without a continuation keep their place, which avoids reordering the cache.
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
        """Search until all sources are finished, and return the hypotheses of each source, in order."""
        results: list[list[Hypothesis]] = [[] for _ in range(self.n_known)]
        while len(self.sources):
            for source, hypotheses in self.advance():
                results[source] = hypotheses
        return results

    def leave(self, numbers: Collection[int]) -> None:
        """Drop the sources with the given numbers. The results of the other sources do not change."""
        given_up = {place: [] for place, number in enumerate(self.sources.tolist()) if number in numbers}
        self._drop(given_up, np.tile(self._beams, (len(self.sources), 1)))

    def _next_tokens(self) -> tuple[Int[np.ndarray, "sources beam k"], Float[np.ndarray, "sources beam k"]]:
        """Feed the last token of all rows, and return each row's best candidates, enough for all groups."""
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
        """Fill the slots of a group with its best candidates, and finish the candidates that end.

        Returns the tokens, their log-probabilities, the parents and the log-probabilities of the continued texts. The
        last result is the tokens `taken` by all groups so far (-1: none).
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
            tokens, token_log_probs, parents, log_probs = reordered(order, tokens, token_log_probs, parents, log_probs)
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
                self._finish(source, group, int(parents[source, place]), float(token_log_probs[source, place]))
        if group + 1 < self.config.beam_groups:
            taken = np.concatenate((taken, np.where(placed, tokens, -1)[:, :size]), 1)
        log_probs = np.where(placed & ~ends, log_probs, -np.inf)
        if not some_ended:  # candidates with a slot are first already
            return tuple(array[:, :size] for array in (tokens, token_log_probs, parents, log_probs)), taken
        # move ended candidates (-inf) to the end; a stable sort keeps the order of the others
        going_on = np.argsort(log_probs == -np.inf, axis=1, kind="stable")[:, :size]
        return reordered(going_on, tokens, token_log_probs, parents, log_probs), taken

    def _finish(self, source: int, group: int, beam: int, end_log_prob: float) -> None:
        """Record the text of a row, completed by the end token, as a finished hypothesis."""
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
        finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: ties keep their order
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
        """Return the coverage penalty of the text of a row, including the attention of this step if the text `ends`."""
        if self.attending is None:
            return 0.0
        attended = self.attended[source, beam] + self.attention[source, beam] * ends
        return float(coverage_penalty(attended, self.config.coverage_penalty))

    def _result(self, source: int, with_unfinished: bool) -> list[Hypothesis]:
        """Return the `n_best` finished hypotheses by descending score, followed by unfinished hypotheses if requested.

        With `refill`, finished and unfinished hypotheses are ranked together.
        """
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
        """Append one token to the text of each row's parent."""
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
        """Return which sources have `beam` finished hypotheses, are at their length limit, or cannot improve."""
        config = self.config
        bound = best_possible_score(
            self.log_probs.max(1), self.lengths, self.limits, config.length_penalty, config.length_norm
        )
        full = self.n_finished.sum(1) >= config.beam
        return full | (self.lengths >= self.limits) | (bound < self.to_beat)

    def _drop(self, done: dict[int, list[Hypothesis]], parents: np.ndarray) -> None:
        """Reorder the rows of the cache, and drop the sources that are done."""
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
        """Precompute the values of a step that change only with the set of sources."""
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
    """Reorder a cache: beam `b` of source `s` continues beam `parents[s, b]`. Drop the sources that are not in `kept`.

    The cache is copied at most once, because a copy takes longer than a decoding step of a small model.
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
    """Return the `n_best` hypotheses of each source, best first.

    `cache` contains `config.beam` rows per source, each at the start of its text. `limits` contains the largest output
    length of each source in tokens, including the end token. Other `options` are passed to `BeamSearch`.
    """
    return BeamSearch(step, cache, limits, config, special_ids, torch.device(device), **options).to_end()
