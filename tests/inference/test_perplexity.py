"""Perplexity over a sliding window: every target once, each with the context that is promised; and the task."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoder import tiny_decoder

from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.inference.perplexity import TextLoss, document_windows, text_loss
from attendo.models import DecoderLM

BOS, EOS = Tokenizer.bos_id, Tokenizer.eos_id


@cache
def model() -> DecoderLM:
    return tiny_decoder().double().eval()


def document(ids: list[int], ended: bool = True) -> Document:
    return Document(np.array(ids, "<u2"), len(ids), 2 * len(ids), ended)


def sequences(one: Document) -> tuple[list[int], list[int]]:
    ids = one.ids.tolist()
    return ([BOS, *ids], [*ids, EOS]) if one.ended else ([BOS, *ids[:-1]], ids)


def by_position(one: Document, context: int, stride: int) -> float:
    """Target by target: the first `context` see all before them, those behind what the definition gives them."""
    inputs, targets = sequences(one)
    nats = 0.0
    for t, target in enumerate(targets):
        start = 0 if t < context else math.ceil((t - context + 1) / stride) * stride
        seen = inputs[start : t + 1]
        assert len(seen) == t + 1 if t < context else context - stride < len(seen) <= context
        with torch.inference_mode():
            nats -= float(model()(torch.tensor([seen]))[0, -1].log_softmax(-1)[target])
    return nats


ids = st.lists(st.integers(1, 19).filter(lambda i: i not in (BOS, EOS)), max_size=14)
documents = st.lists(st.builds(document, ids), min_size=1, max_size=4).filter(
    lambda chosen: any(len(one.ids) for one in chosen)
)
windows = st.integers(1, 12).flatmap(lambda context: st.tuples(st.just(context), st.integers(1, context)))


@settings(max_examples=40, deadline=None)
@given(documents, windows, st.integers(1, 40))
def test_it_is_the_sum_over_positions_of_the_definition(
    chosen: list[Document], window: tuple[int, int], batch_tokens: int
) -> None:
    context, stride = window
    found = text_loss(model(), iter(chosen), context, stride, batch_tokens)
    assert found.nats == pytest.approx(sum(by_position(one, context, stride) for one in chosen), rel=1e-10)
    assert found.n_targets == sum(len(one.ids) + 1 for one in chosen)
    assert found.n_unknown == sum(one.ids.tolist().count(Tokenizer.unk_id) for one in chosen)
    assert found.n_characters == sum(one.n_characters for one in chosen)
    assert found.n_bytes == sum(one.n_bytes for one in chosen)


@settings(max_examples=200)
@given(st.integers(0, 60), windows, st.booleans())
def test_every_target_is_scored_once_with_the_context_promised(n: int, window: tuple[int, int], ended: bool) -> None:
    context, stride = window
    n += not ended and n == 0
    one = document(list(range(4, 4 + n)), ended)
    inputs, targets = sequences(one)
    scored: list[int] = []
    for number, (token_ids, wanted, n_scored) in enumerate(document_windows(one, context, stride)):
        start = number * stride
        assert token_ids.tolist() == inputs[start : start + context]
        assert wanted.tolist() == targets[start : start + context]
        assert 1 <= n_scored <= (context if number == 0 else stride)
        assert number == 0 or len(token_ids) - n_scored == context - stride
        scored += wanted[-n_scored:].tolist()
    assert scored == targets


def test_the_beginning_of_a_document_has_no_end_to_predict() -> None:
    one = document([5, 6, 7], ended=False)
    found = text_loss(model(), [one], 10)
    assert found.n_targets == 3
    assert found.nats == pytest.approx(by_position(one, 10, 10), rel=1e-12)


def test_measures_are_what_they_say() -> None:
    found = TextLoss(12 * math.log(2), 4, 1, 6, 8, context=64, stride=32)
    assert found.nats_per_token == pytest.approx(3 * math.log(2))
    assert found.perplexity == pytest.approx(8)
    assert found.nats_per_character == pytest.approx(2 * math.log(2))
    assert found.bits_per_byte == pytest.approx(1.5)


def test_dropout_is_off_and_the_model_is_left_as_it_was() -> None:
    net = tiny_decoder(dropout=0.5).train()
    losses = {text_loss(net, [document([5, 6, 7])], 2).nats for _ in range(3)}
    assert len(losses) == 1
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize(("context", "stride"), [(4, 0), (4, 5), (0, None)])
def test_a_window_that_would_skip_or_repeat_tokens_is_refused(context: int, stride: int | None) -> None:
    with pytest.raises(AttendoError, match=r"must be 1 to .*, the context length"):
        text_loss(model(), [document([5])], context, stride)


def test_a_context_beyond_the_learned_positions_is_refused() -> None:
    with pytest.raises(AttendoError, match="context 65 exceeds the 64 learned positions"):
        text_loss(model(), [document([5])], 65)


@pytest.mark.parametrize("nothing", [[], [document([])]])
def test_nothing_to_score_is_refused(nothing: list[Document]) -> None:
    with pytest.raises(AttendoError, match="no text to score"):
        text_loss(model(), nothing, 4)


def test_documents_are_read_as_they_are_scored() -> None:
    read, most_waiting = 0, 0
    stream = TokenStream(np.full(4000, 5, "<u2"), np.arange(0, 4001, 4), np.full(1000, 4), np.full(1000, 4))
    scored = 0

    def counted():
        nonlocal read
        for one in stream.documents():
            read += 1
            yield one

    net = tiny_decoder()
    hidden = net.hidden

    def watched(token_ids, segments=None):
        nonlocal scored, most_waiting
        most_waiting = max(most_waiting, read - scored)
        scored += len(token_ids)
        return hidden(token_ids, segments)

    net.hidden = watched
    assert text_loss(net, counted(), 8, batch_tokens=256).n_targets == 5000
    assert scored == 1000
    assert most_waiting <= 520
