"""Constraints on decoded texts: a prefix, no repeated n-grams, and a minimum length."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.decoding.options import SpecialIds
from attendo.decoding.protocols import TokenRows
from attendo.errors import AttendoError


def repeating_tokens(
    tokens: Int[np.ndarray, "rows capacity"], lengths: Int[np.ndarray, " rows"], n: int
) -> tuple[Int[np.ndarray, " bans"], Int[np.ndarray, " bans"]]:
    """Return the next tokens that would repeat an n-gram of their row, as row numbers and token ids.

    The text of row r consists of the first `lengths[r]` tokens of the row.

    >>> rows, banned = repeating_tokens(np.array([[5, 6, 5, 6, 7], [5, 6, 7, 5, 6]]), np.array([3, 5]), n=2)
    >>> rows.tolist(), banned.tolist()  # 5 6 5: not 6 again; 5 6 7 5 6: not 7
    ([0, 1], [6, 7])
    """
    longest = int(lengths.max(initial=0))
    if longest < n:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    n_grams = np.lib.stride_tricks.sliding_window_view(tokens[:, :longest], n, axis=1)
    # the last n - 1 tokens of each row; the values of shorter rows are unused, because these rows have no n-gram
    last = np.take_along_axis(tokens, np.maximum(lengths[:, None] - np.arange(n - 1, 0, -1), 0), 1)
    inside = np.arange(n_grams.shape[1]) + n <= lengths[:, None]
    rows, places = np.nonzero(inside & (n_grams[:, :, :-1] == last[:, None]).all(2))
    return rows, n_grams[rows, places, -1]


class Constraints:
    """The constraints on the texts of a batch: a prefix, a minimum length, and no repeated n-grams.

    The n-grams of a prefix must not occur again after the prefix, but a prefix itself can repeat n-grams. If a length
    limit is below the minimum length, the length limit applies. The log-probabilities of forbidden tokens are set to
    -inf after normalization. Raises AttendoError if a prefix reaches its length limit or contains a special token id.
    """

    def __init__(
        self,
        limits: list[int],
        special_ids: SpecialIds,
        min_length: int = 0,
        no_repeat: int = 0,
        prefixes: TokenRows | None = None,
    ) -> None:
        prefixes = [()] * len(limits) if prefixes is None else prefixes
        _check_prefixes(prefixes, limits, special_ids)
        self.eos_id = special_ids.eos_id
        self.no_repeat = no_repeat
        self.min_lengths = np.minimum(min_length, np.asarray(limits, dtype=np.int64))
        self.prefix_lengths = np.array([len(prefix) for prefix in prefixes], dtype=np.int64)
        self.prefixes = np.zeros((len(limits), int(self.prefix_lengths.max(initial=0))), dtype=np.int64)
        for row, prefix in zip(self.prefixes, prefixes, strict=True):
            row[: len(prefix)] = prefix

    def apply(
        self,
        log_probs: Float[Tensor, "rows vocab"],
        tokens: Int[np.ndarray, "rows capacity"],
        lengths: Int[np.ndarray, " sources"],
    ) -> None:
        """Set the log-probabilities of forbidden next tokens to -inf, in place.

        The text of a row consists of its first `lengths[s]` tokens, where s is the number of the row's source.
        """
        per_source = len(tokens) // len(lengths)
        forced = np.flatnonzero((lengths < self.prefix_lengths).repeat(per_source))
        sources = forced // per_source
        wanted = self.prefixes[sources, lengths[sources]]
        if len(wanted) and wanted.max() >= log_probs.shape[1]:
            raise AttendoError(
                f"a prefix contains token id {wanted.max()}, but the vocabulary has {log_probs.shape[1]} "
                "entries. Encode the prefix with the tokenizer of the model"
            )
        at = torch.from_numpy(forced).to(log_probs.device), torch.from_numpy(wanted).to(log_probs.device)
        kept = log_probs[at]
        if self.no_repeat:
            _forbid(log_probs, *repeating_tokens(tokens, lengths.repeat(per_source), self.no_repeat))
        too_short = np.flatnonzero((lengths + 1 < self.min_lengths).repeat(per_source))
        _forbid(log_probs, too_short, np.full(len(too_short), self.eos_id))
        log_probs[at[0]] = -torch.inf
        log_probs[at] = kept

    def join(self, other: "Constraints") -> None:
        """Append the constraints of other sources."""
        width = max(self.prefixes.shape[1], other.prefixes.shape[1])
        both = [np.pad(one.prefixes, ((0, 0), (0, width - one.prefixes.shape[1]))) for one in (self, other)]
        self.prefixes = np.concatenate(both)
        self.min_lengths = np.concatenate((self.min_lengths, other.min_lengths))
        self.prefix_lengths = np.concatenate((self.prefix_lengths, other.prefix_lengths))

    def keep(self, kept: Int[np.ndarray, " kept_sources"]) -> None:
        """Drop the constraints of all sources except `kept`."""
        self.min_lengths = self.min_lengths[kept]
        self.prefix_lengths = self.prefix_lengths[kept]
        self.prefixes = self.prefixes[kept]


def _forbid(log_probs: Tensor, rows: np.ndarray, tokens: np.ndarray) -> None:
    if len(rows):
        device = log_probs.device
        log_probs[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)] = -torch.inf


def _check_prefixes(prefixes: TokenRows, limits: list[int], special_ids: SpecialIds) -> None:
    if len(prefixes) != len(limits):
        raise AttendoError(f"{len(prefixes)} prefixes for {len(limits)} sources (expected one each; empty for none)")
    for number, (prefix, limit) in enumerate(zip(prefixes, limits, strict=True)):
        if len(prefix) >= limit:
            raise AttendoError(
                f"the prefix of source {number} has {len(prefix)} tokens, but its translation may have "
                f"{limit}, end token included. Shorten the prefix, or raise max_length_extra"
            )
        wrong = [token for token in prefix if token < 0 or token in (special_ids.eos_id, *special_ids.banned_ids)]
        if wrong:
            raise AttendoError(
                f"the prefix of source {number} contains token id {wrong[0]}, which no text contains. Remove it"
            )
