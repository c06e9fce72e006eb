"""Training windows: every position once an epoch, other cuts in another order each epoch, no document's end crossed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data.batches import Batch
from attendo.data.token_stream import TokenStream, require_window, window_batches
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.models import DecoderLM, ModelConfig
from attendo.training.losses import token_losses


def stream_of(lengths: list[int]) -> TokenStream:
    """Documents of so many ids, all different: 4, 5, 6, ..."""
    offsets = np.cumsum([0, *lengths])
    sizes = np.array(lengths, np.int64)
    return TokenStream(np.arange(4, 4 + offsets[-1], dtype="<u2"), offsets, sizes, sizes)


def laid_out(stream: TokenStream) -> tuple[list[int], list[int], list[int]]:
    """Inputs, targets and document numbers of the whole stream, the plain way."""
    inputs, targets, numbers = [], [], []
    for number, document in enumerate(stream.documents()):
        inputs += [Tokenizer.bos_id, *document.ids.tolist()]
        targets += [*document.ids.tolist(), Tokenizer.eos_id]
        numbers += [number] * document.n_targets
    return inputs, targets, numbers


def rows_of(batch: Batch) -> list[tuple[int, list[int], list[int], list[int]]]:
    """(window number, inputs, targets, segments) of each row without its padding."""
    token_ids = batch.inputs["token_ids"]
    segments = batch.inputs.get("segments", torch.zeros_like(token_ids))
    found = []
    for row, number in enumerate(batch.ids.tolist()):
        n = int((batch.targets[row] != batch.pad_id).sum())
        assert not token_ids[row, n:].any()
        parts = (tensor[row, :n].tolist() for tensor in (token_ids, batch.targets, segments))
        found.append((number, *parts))
    return found


lengths = st.lists(st.integers(0, 12), min_size=1, max_size=12)


@settings(max_examples=150)
@given(lengths, st.integers(1, 9), st.integers(1, 40), st.integers(0, 3), st.integers(0, 3))
def test_every_position_is_in_one_window_of_an_epoch(lengths, context, batch_tokens, seed, epoch) -> None:
    stream = stream_of(lengths)
    inputs, targets, numbers = laid_out(stream)
    batches = window_batches(stream, context, batch_tokens, seed, epoch)
    found = sorted(row for batch in batches for row in rows_of(batch))
    assert [number for number, *_ in found] == list(range(len(found)))
    assert [i for _, ids, _, _ in found for i in ids] == inputs
    assert [i for _, _, ids, _ in found for i in ids] == targets
    sizes = [len(ids) for _, ids, _, _ in found]
    assert all(size == context for size in sizes[1:-1])
    assert all(1 <= size <= context for size in sizes)
    start = 0
    for _, ids, _, segments in found:  # equal numbers within a window mean one document, and only they do
        own = numbers[start : start + len(ids)]
        assert segments == [number - own[0] for number in own]
        start += len(ids)
    assert sum(batch.n_targets for batch in batches) == stream.n_positions
    rows = [len(batch.ids) for batch in batches]
    assert max(rows) - min(rows) <= 1
    assert max(rows) <= max(1, batch_tokens // context)


def test_segments_are_there_only_where_a_window_holds_several_documents() -> None:
    batches = window_batches(stream_of([40, 40]), 5, 5, seed=1, epoch=0)
    crossing = [Tokenizer.bos_id in batch.inputs["token_ids"][:, 1:] for batch in batches]
    assert 0 < sum(crossing) < len(batches)
    assert ["segments" in batch.inputs for batch in batches] == crossing


def test_cuts_and_order_are_drawn_from_seed_and_epoch_alone() -> None:
    stream = stream_of([500, 300])

    def drawn(seed: int, epoch: int) -> tuple[list[int], list[list[int]]]:
        batches = window_batches(stream, 16, 64, seed, epoch)
        sizes = {window[0]: len(window[1]) for batch in batches for window in rows_of(batch)}
        return [sizes[i] for i in range(len(sizes))], [rows.tolist() for rows in batches.rows]

    assert drawn(1, 2) == drawn(1, 2)
    seen = [drawn(seed, epoch) for seed in range(4) for epoch in range(4)]
    assert len({str(order) for _, order in seen}) == 16
    assert len({sizes[0] for sizes, _ in seen}) > 6
    small = stream_of([20])
    first = [rows_of(batch)[0] for epoch in range(800) for batch in window_batches(small, 8, 8, 0, epoch)]
    counts = np.bincount([len(ids) for number, ids, *_ in first if number == 0], minlength=9)[1:]
    assert counts.min() > 60  # of 100 wanted


def test_a_run_goes_on_where_it_was() -> None:
    batches = window_batches(stream_of([100, 200]), 7, 21, seed=1, epoch=1)
    later = batches[3:]
    assert len(later) == len(batches) - 3
    for one, other in zip(later, list(batches)[3:], strict=True):
        assert torch.equal(one.targets, other.targets)
        assert one.ids.tolist() == other.ids.tolist()
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_a_text_shorter_than_a_window_is_refused() -> None:
    require_window(stream_of([3, 4]), 9, "short.txt")
    with pytest.raises(
        AttendoError, match=r"short\.txt has 9 tokens .* one window of 10\. .* model.max_len to 9 or less"
    ):
        require_window(stream_of([3, 4]), 10, "short.txt")


def test_no_token_sees_another_document() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "d_model": 16, "d_ff": 32, "n_heads": 2}
    layers = {"n_encoder_layers": 0, "n_decoder_layers": 2}
    # rotary positions know distances alone, so that a document may begin anywhere
    config = ModelConfig(architecture="decoder", positions="rotary", dropout=0.0, **sizes, **layers)
    model = DecoderLM(config).double().eval()
    stream = stream_of([5, 3, 0, 7])
    (batch,) = window_batches(stream, 100, 100, seed=1, epoch=0)[:1]
    assert batch.n_targets == stream.n_positions
    together = token_losses(model(**batch.inputs)[0], batch.targets[0])
    alone = []
    for document in stream.documents():
        ids = torch.from_numpy(document.ids.astype(np.int64))
        inputs, targets = (
            torch.cat([torch.tensor([Tokenizer.bos_id]), ids]),
            torch.cat([ids, torch.tensor([Tokenizer.eos_id])]),
        )
        alone.append(token_losses(model(inputs[None])[0], targets))
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)
