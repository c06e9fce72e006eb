"""Batched beam search; greedy search is the same code with `beam=1`."""

import math
from dataclasses import dataclass
from typing import Generic, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.step import CacheT, Hypothesis, SpecialIds, Step, advance_rows
from attendo.errors import AttendoError


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """How to search.

    A text has at most `source length * max_length_ratio + max_length_extra` tokens, the end token
    included, and never more than the model has positions. `batch_tokens` bounds the source tokens of one
    batch, padding counted, times the beam.
    """

    beam: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    max_length_ratio: float = 2.0
    max_length_extra: int = 50
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam is {self.beam}; it must be at least 1 (1 is greedy search)")
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"n_best is {self.n_best} with beam {self.beam}; choose it between 1 and beam")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty is {self.length_penalty}; it must be a finite number")
        if not (math.isfinite(self.max_length_ratio) and self.max_length_ratio >= 0):
            raise ValueError(f"max_length_ratio is {self.max_length_ratio}; it must be 0 or more")
        if self.max_length_extra < 1:
            raise ValueError(f"max_length_extra is {self.max_length_extra}; it must be at least 1")
        if self.batch_tokens < 1:
            raise ValueError(f"batch_tokens is {self.batch_tokens}; it must be at least 1")

    def max_length(self, source_length: int, capacity: int) -> int:
        """The most tokens, end token included, that the text for a source of this length may have.

        >>> DecodingConfig().max_length(10, capacity=512)
        70
        """
        return min(capacity, int(source_length * self.max_length_ratio) + self.max_length_extra)


@overload
def length_norm(length: int, alpha: float) -> float: ...
@overload
def length_norm(length: np.ndarray, alpha: float) -> np.ndarray: ...
def length_norm(length: int | np.ndarray, alpha: float) -> float | np.ndarray:
    """((5 + length) / 6) ** alpha, the length normalization of Wu et al. 2016 (GNMT), eq. 14.

    `length` counts target tokens with the end token.

    >>> length_norm(1, 0.6), length_norm(7, 1.0), length_norm(7, 0.0)
    (1.0, 2.0, 1.0)
    """
    return ((5 + length) / 6) ** alpha


def best_possible_score(
    log_prob: Float[np.ndarray, " sources"],
    lengths: Int[np.ndarray, " sources"],
    limits: Int[np.ndarray, " sources"],
    alpha: float,
) -> Float[np.ndarray, " sources"]:
    """The best score that any continuation of a text of this log-probability can still reach.

    Log-probabilities only fall and the norm is monotone in length, so the bound lies at the next length
    (alpha < 0) or at the limit (alpha > 0), with nothing more lost on the way.
    """
    return np.maximum(log_prob / length_norm(lengths + 1, alpha), log_prob / length_norm(limits, alpha))


def best_tokens(
    logits: Float[Tensor, "rows vocab"], k: int, never: tuple[int, ...] = ()
) -> tuple[Int[np.ndarray, "rows k"], Float[np.ndarray, "rows k"]]:
    """The `k` most probable next tokens of each row, in order, and their log-probabilities.

    Equal values are ordered by token id, also where the cut between the k-th and the next falls among
    them. `never` lists ids that get log-probability -inf after normalization: a hypothesis has the
    probability the model gives it, whether or not some ids are banned. Fewer columns if the vocabulary is
    smaller than `k`. Raises AttendoError on NaN.

    >>> best_tokens(torch.zeros(1, 4), 2, never=(0,))[0]
    array([[1, 2]])
    """
    # On CPU one vectorized log_softmax is faster than logsumexp, and topk as fast as argmax.
    log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    if never:
        log_probs[:, list(never)] = -torch.inf
    vocab = log_probs.shape[1]
    k = min(k, vocab)
    values, ids = log_probs.topk(min(k + 1, vocab), dim=1)
    found, tokens = values.double().cpu().numpy(), ids.cpu().numpy()
    if np.isnan(found[:, 0]).any():
        found = _without_impossible_rows(found, logits)
    found, tokens = _take(np.lexsort((tokens, -found)), found, tokens)
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
    """A row whose logits are all -inf allows nothing; any other NaN is an error."""
    impossible = (logits == -torch.inf).all(1).cpu().numpy()
    if (np.isnan(found[:, 0]) & ~impossible).any():
        raise AttendoError(
            "the model gave logits that are not numbers (NaN); its weights are damaged or diverged"
        )
    return np.where(impossible[:, None], -np.inf, found)


def _take(order: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.take_along_axis(array, order, 1) for array in arrays)


class BeamSearch(Generic[CacheT]):
    """A batch of sources being searched; `advance` takes one step and returns the sources that are done.

    At every step the candidates of a source (its rows times the vocabulary) are ranked by log-probability,
    then by lower token id, then by lower beam. A source has `beam` places: a finished hypothesis keeps one, the
    best candidates take the others. Those that end the text are finished, the others go on, so a likely text
    is never crowded out by unlikely ones that happen to end sooner. A source is done when all its places are
    finished, when it reaches its limit, when no token can follow, or before that when no row can still beat the
    `n_best`-th finished one (`best_possible_score`), so that stopping then changes nothing. Finished hypotheses
    are returned by falling score, and at the limit unfinished ones after them where fewer than `n_best` have
    finished.
    """

    def __init__(
        self,
        step: Step[CacheT],
        cache: CacheT,
        limits: list[int],
        config: DecodingConfig,
        special: SpecialIds,
        device: torch.device,
    ) -> None:
        if min(limits, default=1) < 1:
            raise AttendoError(
                f"a length limit of {min(limits)} tokens leaves no room for a text; give at least 1"
            )
        n_sources, beam = len(limits), config.beam
        self.step, self.cache, self.config, self.special, self.device = step, cache, config, special, device
        self.sources = np.arange(n_sources)
        self.limits = np.asarray(limits)
        self.lengths = np.zeros(n_sources, dtype=np.int64)
        # All rows of a source start alike: only the first may be continued until they differ.
        self.log_probs = np.full((n_sources, beam), -np.inf)
        self.log_probs[:, 0] = 0.0
        self.tokens = np.full((n_sources, beam, max(limits, default=0) + 1), special.bos_id, dtype=np.int64)
        self.token_log_probs = np.zeros(self.tokens.shape)
        self.finished: list[list[Hypothesis]] = [[] for _ in limits]
        self.to_beat = np.full(n_sources, -np.inf)

    def advance(self) -> list[tuple[int, list[Hypothesis]]]:
        """Take one step on all rows; return (source number, its hypotheses) for the sources now done."""
        beam = self.config.beam
        n_sources = len(self.sources)
        last = np.take_along_axis(self.tokens, self.lengths[:, None, None], 2).reshape(-1, 1)
        logits = self.step(torch.from_numpy(last).to(self.device), self.cache)
        row_tokens, row_log_probs = best_tokens(logits, beam, self.special.never)
        tokens = row_tokens.reshape(n_sources, -1)
        token_log_probs = row_log_probs.reshape(n_sources, -1)
        parents = np.repeat(np.arange(beam), row_tokens.shape[1])[None].repeat(n_sources, 0)
        log_probs = np.repeat(self.log_probs, row_tokens.shape[1], axis=1) + token_log_probs
        order = np.lexsort((parents, tokens, -log_probs))
        tokens, token_log_probs, parents, log_probs = _take(
            order, tokens, token_log_probs, parents, log_probs
        )
        ends = tokens == self.special.eos_id
        places = beam - np.array([len(finished) for finished in self.finished])
        placed = (np.arange(tokens.shape[1]) < places[:, None]) & (log_probs > -np.inf)
        for source, rank in np.argwhere(ends & placed).tolist():
            self._finish(source, int(parents[source, rank]), float(token_log_probs[source, rank]))
        log_probs = np.where(ends | ~placed, -np.inf, log_probs)
        going_on = np.argsort(log_probs == -np.inf, axis=1, kind="stable")[:, :beam]
        tokens, token_log_probs, parents, log_probs = _take(
            going_on, tokens, token_log_probs, parents, log_probs
        )
        stuck = ~(log_probs > -np.inf).any(1)
        done = {n: self._result(n, not self.finished[n]) for n in np.flatnonzero(stuck).tolist()}
        # Rows that lead nowhere stay as they are, to spare a reordering.
        parents = np.where(log_probs > -np.inf, parents, np.arange(beam))
        self._extend(tokens, token_log_probs, parents, log_probs)
        for n in np.flatnonzero(~stuck & self._nothing_to_gain()).tolist():
            done[n] = self._result(n, bool(self.lengths[n] == self.limits[n]))
        results = [(int(self.sources[n]), done[n]) for n in sorted(done)]
        self._drop(done, parents)
        return results

    def _finish(self, source: int, beam: int, end_log_prob: float) -> None:
        """Keep the text of this row, ended by the end token, as a hypothesis."""
        finished = self.finished[source]
        finished.append(self._hypothesis(source, beam, (end_log_prob,)))
        finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equals the earlier stays first
        if len(finished) >= self.config.n_best:
            self.to_beat[source] = finished[self.config.n_best - 1].score

    def _hypothesis(self, source: int, beam: int, end: tuple[float, ...]) -> Hypothesis:
        length = int(self.lengths[source])
        token_log_probs = (*self.token_log_probs[source, beam, 1 : length + 1].tolist(), *end)
        log_prob = math.fsum(token_log_probs)
        return Hypothesis(
            token_ids=tuple(self.tokens[source, beam, 1 : length + 1].tolist()),
            log_prob=log_prob,
            score=log_prob / length_norm(max(1, len(token_log_probs)), self.config.length_penalty),
            token_log_probs=token_log_probs,
            finished=bool(end),
        )

    def _result(self, source: int, with_unfinished: bool) -> list[Hypothesis]:
        """The n best: finished ones by falling score, then, if asked, what has not come to an end."""
        found = self.finished[source][: self.config.n_best]
        if with_unfinished and len(found) < self.config.n_best:
            live = [beam for beam in range(self.config.beam) if self.log_probs[source, beam] > -np.inf]
            unfinished = [self._hypothesis(source, beam, ()) for beam in live]
            found = found + sorted(unfinished, key=lambda hypothesis: -hypothesis.score)
        return found[: self.config.n_best]

    def _extend(
        self, tokens: np.ndarray, token_log_probs: np.ndarray, parents: np.ndarray, log_probs: np.ndarray
    ) -> None:
        """Let every row continue its parent by its token."""
        used = int(self.lengths.max()) + 1
        if (parents != np.arange(self.config.beam)).any():
            for history in (self.tokens, self.token_log_probs):
                history[:, :, :used] = np.take_along_axis(history[:, :, :used], parents[:, :, None], 1)
        self.lengths += 1
        at = self.lengths[:, None, None]
        np.put_along_axis(self.tokens, at, tokens[:, :, None], 2)
        np.put_along_axis(self.token_log_probs, at, token_log_probs[:, :, None], 2)
        self.log_probs = log_probs

    def _nothing_to_gain(self) -> np.ndarray:
        """Which sources have `beam` finished hypotheses, are at their limit, or cannot get better."""
        full = np.array([len(finished) >= self.config.beam for finished in self.finished])
        bound = best_possible_score(
            self.log_probs.max(1), self.lengths, self.limits, self.config.length_penalty
        )
        return full | (self.lengths >= self.limits) | (bound < self.to_beat)

    def _drop(self, done: dict[int, list[Hypothesis]], parents: np.ndarray) -> None:
        """Move the cache on with the rows, without the sources that are done."""
        kept = np.array([source for source in range(len(self.sources)) if source not in done], dtype=np.int64)
        if len(kept):
            advance_rows(self.cache, kept, parents, self.device)
        if done:
            self.sources, self.limits = self.sources[kept], self.limits[kept]
            self.lengths, self.to_beat = self.lengths[kept], self.to_beat[kept]
            self.log_probs = self.log_probs[kept]
            self.tokens, self.token_log_probs = self.tokens[kept], self.token_log_probs[kept]
            self.finished = [self.finished[source] for source in kept]


@torch.inference_mode()
def beam_search(
    step: Step[CacheT],
    cache: CacheT,
    limits: list[int],
    config: DecodingConfig,
    special: SpecialIds,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each source of a batch, best first; how they are found: `BeamSearch`.

    `cache` holds `len(limits) * config.beam` fresh rows; `limits` the largest number of tokens of each
    source's text, the end token included. A list is shorter than `n_best` only where fewer texts exist.
    """
    search = BeamSearch(step, cache, limits, config, special, torch.device(device))
    results: list[list[Hypothesis]] = [[] for _ in limits]
    while len(search.sources):
        for source, hypotheses in search.advance():
            results[source] = hypotheses
    return results
