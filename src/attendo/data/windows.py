"""Training windows of a language model: a stream of documents, cut into rows of `context` positions.

Each document is bos + ids on the side of the inputs and ids + eos on that of the targets; documents stand one
after the other, and no token sees one of another document. In each epoch the stream is cut at other places and
the windows come in another order, both drawn from (seed, epoch), so a run is resumed by its position in the
list of batches and nothing else.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attendo.data.batches import Batch, EpochBatches, Rows
from attendo.data.token_stream import TokenStream
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError


def window_edges(n_positions: int, context: int, seed: int, epoch: int) -> Rows:
    """Where the windows of an epoch begin, and where the last one ends: ascending, from 0 to `n_positions`.

    Each position lies in one window. The first window is 1 to `context` long, its length drawn from (seed, epoch);
    those behind it are full, but for the last, which takes what is left.

    >>> window_edges(20, 6, seed=1, epoch=0), window_edges(20, 6, seed=1, epoch=1)
    (array([ 0,  3,  9, 15, 20]), array([ 0,  4, 10, 16, 20]))
    """
    first = int(np.random.default_rng((seed, epoch)).integers(1, context + 1))
    return np.unique(np.concatenate([[0], np.arange(first, n_positions, context), [n_positions]]))


def window_batches(
    stream: TokenStream, context: int, batch_tokens: int, seed: int, epoch: int
) -> EpochBatches:
    """All batches of an epoch: a pure function of the arguments. See `require_window` for a stream too short.

    A batch has as many windows as `batch_tokens` positions hold, one at least, or one fewer, so that all batches are
    about equally large. `ids` of a batch are the numbers of its windows, counted along the stream.
    """
    edges = window_edges(stream.n_positions, context, seed, epoch)
    # the second number keeps the order apart from the place of the first cut
    order = np.random.default_rng((seed, epoch, 1)).permutation(len(edges) - 1)
    n_batches = -(-len(order) // max(1, batch_tokens // context))
    return EpochBatches(
        np.array_split(order, n_batches),
        lambda rows: window_batch(stream, edges[rows], edges[rows + 1], rows),
    )


def require_window(stream: TokenStream, context: int, name: str) -> None:
    """Raises AttendoError, naming the text, if it doesn't fill one window."""
    if stream.n_positions < context:
        raise AttendoError(
            f"{name} has {stream.n_positions:,} tokens (the ends of documents included), less than one window of "
            f"{context:,}; give more text, or set the context to {stream.n_positions:,} or less (model.max_len)"
        )


def window_batch(stream: TokenStream, starts: Rows, ends: Rows, ids: Rows) -> Batch:
    """The windows from position `starts[i]` to `ends[i]` of a stream as a batch; shorter ones are padded behind.

    Inputs: token_ids [windows context] and, only where some window holds more than one document, segments in the
    same shape, the number of the document counted from the window's first. As a position sees none behind it,
    padding needs no mask.
    """
    positions = starts[:, None] + np.arange(int((ends - starts).max()))
    real = positions < ends[:, None]
    positions = np.minimum(positions, ends[:, None] - 1)
    begins = stream.begins
    documents = np.searchsorted(begins, positions, side="right") - 1
    places = positions - documents  # of the target among the ids; there is none for eos
    opens, closes = positions == begins[documents], positions == begins[documents + 1] - 1
    token_ids = np.where(opens, Tokenizer.bos_id, _taken(stream, places - 1))
    targets = np.where(closes, Tokenizer.eos_id, _taken(stream, places))
    inputs = {"token_ids": _padded(token_ids, real)}
    if (documents != documents[:, :1]).any():
        inputs["segments"] = torch.from_numpy(documents - documents[:, :1])
    return Batch(inputs, _padded(targets, real), int(real.sum()), np.asarray(ids), Tokenizer.pad_id)


def _taken(stream: TokenStream, places: Rows) -> Rows:
    """The ids at these places; whatever is near where there is none."""
    if not stream.n_tokens:
        return np.zeros_like(places)
    return stream.ids.take(places, mode="clip").astype(np.int64)


def _padded(ids: Rows, real: NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(np.where(real, ids, Tokenizer.pad_id))
