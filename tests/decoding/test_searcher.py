"""Decoding in batches: mates, order and budget change nothing, on tables and on the model."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from search_table import EOS, SPECIAL, Table, search

from attendo.decoding.beam import DecodingConfig, beam_search
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import SearchBackend, Searcher, source_batches
from attendo.models import EncoderDecoder, ModelConfig


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 4), lengths=st.lists(st.integers(1, 6), max_size=9))
def test_batch_mates_order_and_budget_change_nothing(seed, beam, lengths):
    table = Table(seed=seed, vocab=6)
    rng = np.random.default_rng(seed)
    sources = [tuple(rng.integers(2, 9, length).tolist()) for length in lengths]

    def found(rows, batch_tokens):
        config = DecodingConfig(
            beam=beam, n_best=beam, max_length_ratio=1.0, max_length_extra=2, batch_tokens=batch_tokens
        )
        return Searcher(SearchBackend(table.start, table.step), SPECIAL, 7).search(rows, config)

    together = found(sources, 1000)
    assert together == [found([source], 1000)[0] for source in sources]
    assert together == found(sources, 12)
    assert together[::-1] == found(sources[::-1], 1000)
    assert len(together) == len(sources)


def test_finished_sources_leave_the_batch_and_identity_moves_nothing():
    table = Table(vocab=4)
    for source, length in (((1,), 1), ((2,), 3)):
        for step in range(4):
            logits = np.full(4, -np.inf)
            logits[EOS if step == length else 2] = 0.0
            table.entries[source, (2,) * step] = logits
    cache = table.start([(1,), (2,)], 1, 9)
    found = beam_search(table.step, cache, [9, 9], DecodingConfig(beam=1), SPECIAL)
    assert [h[0].token_ids for h in found] == [(2,), (2, 2, 2)]
    assert cache.calls == ["keep"]
    assert table.n_rows == [2, 2, 1, 1]


def test_search_stops_when_nothing_can_beat_what_is_finished():
    sure = np.log(np.array([1e-9, 1 - 1e-6, 5e-7, 5e-7]))
    table = Table(vocab=4)
    table.entries = {((1,), ids): sure for n in range(3) for ids in itertools.product((2, 3), repeat=n)}
    search(table, [(1,)], [50], DecodingConfig(beam=4, n_best=1))
    assert len(table.n_rows) == 1


@pytest.mark.parametrize(
    ("alpha", "end", "first", "likely", "best"),
    [(2.0, 0.6, 0.25, 2, (2, 2, 2, 2)), (-1.0, math.exp(-1), math.exp(-0.8), EOS, (2,))],
)
def test_search_goes_on_while_a_later_text_can_still_win(alpha, end, first, likely, best):
    """A longer text wins at last by its length (alpha 2), or a less likely start ends at once (alpha -1)."""
    table = Table(vocab=4)
    with np.errstate(divide="ignore"):
        table.entries[(1,), ()] = np.log([0, end, first, 1 - end - first])
        for ids in itertools.chain(*(itertools.product((2, 3), repeat=n) for n in range(1, 5))):
            sure = EOS if len(ids) == 4 else likely
            table.entries[(1,), ids] = np.log(np.eye(4)[sure if ids[0] == 2 else 3])
    # beam 3: the text that ends at once is finished first, and two rows live on
    found = search(table, [(1,)], [5], DecodingConfig(beam=3, length_penalty=alpha))[0]
    assert found[0].token_ids == best


def test_source_batches_hold_every_source_once_within_the_budget():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 50, 200).tolist()
    batches = source_batches(lengths, DecodingConfig(beam=4, batch_tokens=800))
    assert sorted(itertools.chain(*batches)) == list(range(200))
    for batch in batches:
        assert len(batch) == 1 or 4 * len(batch) * max(lengths[i] for i in batch) <= 800
    assert [lengths[i] for i in itertools.chain(*batches)] == sorted(lengths, reverse=True)
    assert source_batches([], DecodingConfig()) == []
    assert source_batches([10, 10], DecodingConfig(beam=1, batch_tokens=1)) == [[0], [1]]


def test_results_come_as_they_are_found():
    table, config = Table(vocab=5), DecodingConfig(beam=1, batch_tokens=3)
    arriving = Searcher(SearchBackend(table.start, table.step), SPECIAL, 5).search_as_found([(1,), (2, 2, 2)], config)
    number, hypotheses = next(arriving)
    assert (number, len(hypotheses)) == (1, 1)
    assert not torch.is_inference_mode_enabled()
    assert [number for number, _ in arriving] == [0]
    assert table.n_starts_without_gradients == 2


def small_model():
    torch.manual_seed(2)
    config = ModelConfig(vocab_size=13, d_model=16, d_ff=24, n_heads=2, n_encoder_layers=1, n_decoder_layers=2)
    model = EncoderDecoder(config).double().eval()
    torch.nn.init.normal_(model.output_proj.weight, std=0.3)
    return model


def test_the_models_score_is_the_forced_score_and_padding_changes_nothing():
    model = small_model()
    special = SpecialIds(bos_id=2, eos_id=3, banned_ids=(0, 1, 2))

    def start(sources, rows_per_source, capacity):
        lengths = torch.tensor([len(source) for source in sources])
        src = torch.nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
        return model.start(src, lengths, rows_per_source, capacity)

    def step(token_ids, cache):
        return model.step(token_ids, cache)[:, -1]

    rng = np.random.default_rng(1)
    sources = [rng.integers(4, 13, length).tolist() for length in (3, 9, 1, 5, 5)]
    config = DecodingConfig(beam=3, n_best=3, max_length_ratio=1.0, max_length_extra=6)
    searcher = Searcher(SearchBackend(start, step), special, 64)
    found = searcher.search(sources, config)
    for source, hypotheses in zip(sources, found, strict=True):
        alone = searcher.search([source], config)[0]
        assert [h.token_ids for h in alone] == [h.token_ids for h in hypotheses]
        for hypothesis in hypotheses:
            generated = [*hypothesis.token_ids, *[3] * hypothesis.finished]
            fed = torch.tensor([[2, *generated[:-1]]])
            with torch.no_grad():
                log_probs = model(torch.tensor([source]), fed).log_softmax(-1)[0]
            forced = log_probs[torch.arange(len(generated)), torch.tensor(generated)]
            assert hypothesis.log_prob == pytest.approx(forced.sum().item(), abs=1e-10)
            assert hypothesis.token_log_probs == pytest.approx(forced.tolist(), abs=1e-10)
    assert {h.finished for hypotheses in found for h in hypotheses} == {True, False}


# ---- a search that is begun with given ids


class Read(list):
    """A cache that is the ids which each row has been fed."""


def start(sources, rows_per_source, capacity):
    cache = Read([] for _ in range(len(sources) * rows_per_source))
    cache.capacity = capacity
    return cache


def step(token_ids, cache):
    for row, token in zip(cache, token_ids[:, 0].tolist(), strict=True):
        row.append(token)


def test_rows_have_read_all_but_the_last_and_keep_their_capacity():
    cache = SearchBackend(start, step).with_decoder_prefix([2, 7, 5]).start([[1], [3, 4]], 2, 10)
    assert cache == [[2, 7]] * 4
    assert cache.capacity == 10 + 2


def test_one_id_needs_nothing_before_it():
    assert SearchBackend(start, step).with_decoder_prefix([2]).start is start
