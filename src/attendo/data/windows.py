"""Training windows of a language model: a stream of documents, cut into rows of `context` positions.

Each document is bos + ids on the side of the inputs and ids + eos on that of the targets; documents stand one
after the other, and no token sees one of another document. In each epoch the stream is cut at other places and
the windows come in another order, both drawn from (seed, epoch), so a run is resumed by its position in the
list of batches and nothing else.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendo.data.batches import Batch, EpochBatches
from attendo.data.epoch_rows import GROUPING, EpochRows, Grouping, Rows
from attendo.data.special_tokens import OWN, SpecialTokens
from attendo.data.token_stream import TokenStream
from attendo.errors import AttendoError


@dataclass(frozen=True)
class WindowEdges:
    """Where the windows of an epoch begin, and where the last one ends: ascending, from 0 to `n_positions`.

    Each position lies in one window. The first window is 1 to `context` long, `first`; those behind it are full, but
    for the last, which takes what is left. None of it is held.

    >>> WindowEdges(20, 6, 3)(np.arange(5)), WindowEdges(20, 6, 4)(np.arange(5))
    (array([ 0,  3,  9, 15, 20]), array([ 0,  4, 10, 16, 20]))
    """

    n_positions: int
    context: int
    first: int

    @classmethod
    def drawn(cls, n_positions: int, context: int, seed: int, epoch: int) -> "WindowEdges":
        """Those of an epoch, the length of whose first window is drawn from (seed, epoch)."""
        return cls(n_positions, context, int(np.random.default_rng((seed, epoch)).integers(1, context + 1)))

    @property
    def n_windows(self) -> int:
        """Windows; there are one more edges."""
        return min(1, self.n_positions) + -(-max(0, self.n_positions - self.first) // self.context)

    def __call__(self, numbers: Rows) -> Rows:
        """The edges of these numbers, counted from 0."""
        places = self.first + (numbers - 1) * self.context
        return np.where(numbers == 0, 0, np.minimum(places, self.n_positions))


def window_batches(
    stream: TokenStream,
    context: int,
    batch_tokens: int,
    seed: int,
    epoch: int,
    grouping: Grouping = GROUPING,
    specials: SpecialTokens = OWN,
) -> EpochBatches:
    """All batches of an epoch: a pure function of the arguments. See `require_window` for a stream too short.

    A batch has as many windows as `batch_tokens` positions hold, one at least, or one fewer, so that all batches are
    about equally large. `ids` of a batch are the numbers of its windows, counted along the stream. Up to
    `grouping.at_once` windows are shuffled all together; for more, memory is bounded: see `EpochRows`.
    """
    edges = WindowEdges.drawn(stream.n_positions, context, seed, epoch)
    most = max(1, batch_tokens // context)
    seeds = (seed, epoch, 1)  # the third number keeps the order apart from the place of the first cut

    def cut(windows: Rows, random: np.random.Generator) -> list[Rows]:
        return np.array_split(random.permutation(windows), -(-len(windows) // most))

    if edges.n_windows <= grouping.at_once:
        rows = cut(np.arange(edges.n_windows), np.random.default_rng(seeds))
    else:
        rows = EpochRows.of(edges.n_windows, seeds, cut, grouping)
    return EpochBatches(rows, lambda rows: window_batch(stream, edges(rows), edges(rows + 1), rows, specials))


def require_window(stream: TokenStream, context: int, name: str) -> None:
    """Raises AttendoError, naming the text, if it doesn't fill one window."""
    if stream.n_positions < context:
        raise AttendoError(
            f"{name} has {stream.n_positions:,} tokens (the ends of documents included), less than one window of "
            f"{context:,}; give more text, or set the context to {stream.n_positions:,} or less (model.max_len)"
        )


def window_batch(
    stream: TokenStream, starts: Rows, ends: Rows, ids: Rows, specials: SpecialTokens = OWN
) -> Batch:
    """The windows from position `starts[i]` to `ends[i]` of a stream as a batch; shorter ones are padded behind.

    Inputs: token_ids [windows context] and, only where some window holds more than one document, segments in the
    same shape, the number of the document counted from the window's first. As a position sees none behind it,
    padding needs no mask.
    """
    positions = starts[:, None] + np.arange(int((ends - starts).max()))
    real = positions < ends[:, None]
    positions = np.minimum(positions, ends[:, None] - 1)
    documents = stream.documents_at(positions)
    places = positions - documents  # of the target among the ids; there is none for eos
    opens, closes = positions == stream.begins(documents), positions == stream.begins(documents + 1) - 1
    token_ids = np.where(opens, specials.opening, _taken(stream, places - 1))
    targets = np.where(closes, specials.eos_id, _taken(stream, places))
    inputs = {"token_ids": _padded(token_ids, real, specials.pad_id)}
    if (documents != documents[:, :1]).any():
        inputs["segments"] = torch.from_numpy(documents - documents[:, :1])
    nothing = specials.no_target
    return Batch(inputs, _padded(targets, real, nothing), int(real.sum()), np.asarray(ids), nothing)


def _taken(stream: TokenStream, places: Rows) -> Rows:
    """The ids at these places; whatever is near where there is none."""
    if not stream.n_tokens:
        return np.zeros_like(places)
    return stream.ids.take(places, mode="clip").astype(np.int64)


def _padded(ids: Rows, real: NDArray[np.bool_], nothing: int) -> Tensor:
    return torch.from_numpy(np.where(real, ids, nothing))
