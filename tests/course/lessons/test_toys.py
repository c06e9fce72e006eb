"""Copy, reverse, sort, add: the data, the exact limits against enumeration, and decoding by the search."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.model_config import Positions
from attendo.models import EncoderDecoder
from attendo_course.lessons import toys
from attendo_course.lessons.arrays import NO_TARGET, ArrayTask, seeded
from attendo_course.lessons.lesson import Conclusion, Options, Table

ROWS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6), min_size=1, max_size=5)


@given(ROWS, st.sampled_from([list, toys.reverse, sorted, toys.shift, toys.add]))
def test_sources_and_targets_are_the_symbols_between_marks(rows, rule):
    examples = toys.pairs(rows, rule)
    lengths = examples.inputs.get("src_lengths", torch.tensor([len(row) + 1 for row in rows])).tolist()
    for i, row in enumerate(rows):
        wanted = [toys.FIRST + symbol for symbol in rule(row)]
        assert examples.inputs["src"][i, : lengths[i]].tolist() == [*(toys.FIRST + z for z in row), toys.EOS]
        assert examples.inputs["tgt"][i, : len(wanted) + 1].tolist() == [toys.BOS, *wanted]
        assert examples.targets[i, : len(wanted) + 1].tolist() == [*wanted, toys.EOS]
        assert (examples.inputs["src"][i, lengths[i] :] == toys.PAD).all()
        assert (examples.targets[i, len(wanted) + 1 :] == NO_TARGET).all()


@given(st.lists(st.integers(0, 11), min_size=1))
def test_rules(row):
    assert toys.reverse(toys.reverse(row)) == row
    assert [(z - 5) % 12 for z in toys.shift(row)] == row
    assert toys.add(row) == [sum(row) % 12] == toys.add(toys.reverse(row))


def test_rows_have_every_length_and_symbol():
    rows = toys.random_rows(np.random.default_rng(0), 500, 4, range(2, 6))
    assert {len(row) for row in rows} == {2, 3, 4, 5}
    assert {symbol for row in rows for symbol in row} == {0, 1, 2, 3}


def test_the_limit_without_order_agrees_with_enumeration():
    nats, exact = [], []
    for length in (1, 2, 3, 4):
        ways = [len(set(permutations(row))) for row in product(range(3), repeat=length)]
        nats.append(np.mean(np.log(ways)))
        exact.append(np.mean(1 / np.array(ways)))
    assert toys.unordered_limit(3, range(1, 5)) == pytest.approx((sum(nats) / (2 + 3 + 4 + 5), np.mean(exact)))


def random_model(positions: Positions = "sinusoidal") -> EncoderDecoder:
    return seeded(lambda: EncoderDecoder(toys.toy_config(10, 16, positions)), 3).eval()


@torch.no_grad()
def test_decoding_takes_the_likeliest_symbol_at_each_step():
    model, rows = random_model(), toys.random_rows(np.random.default_rng(1), 12, 10, range(1, 7))
    for row, found in zip(rows, toys.decoded(model, rows), strict=True):
        logits = model(**toys.pairs([row], lambda _, found=found: found).inputs)[0]
        logits[:, : toys.BOS + 1] = -torch.inf
        ids = logits.argmax(-1).tolist()
        assert ids[: len(found)] == [toys.FIRST + symbol for symbol in found]
        assert len(found) <= len(row) + 3
        assert ids[len(found)] == toys.EOS or len(found) == len(row) + 3


@torch.no_grad()
def test_without_positions_the_source_is_a_bag():
    tgt = torch.tensor([[toys.BOS, 4, 5]])
    sources = [torch.tensor([[4, 5, 6, toys.EOS]]), torch.tensor([[6, 4, 5, toys.EOS]])]
    cases: tuple[tuple[Positions, bool], ...] = (("none", True), ("rotary", False), ("sinusoidal", False))
    for positions, alike in cases:
        model = random_model(positions)
        first, second = (model(src, tgt) for src in sources)
        assert torch.allclose(first, second, atol=1e-5) is alike


def test_cross_attention_has_a_row_for_each_wanted_symbol_and_the_end():
    weights = toys.cross_weights(random_model(), [1, 2, 3], toys.add)
    assert weights.shape == (2, 4)
    assert weights.sum(1) == pytest.approx(1.0)


@pytest.mark.full
def test_copying_is_learned_and_measured_by_decoding():
    lengths = range(1, 3)
    test = [list(row) for n in lengths for row in product(range(3), repeat=n)]
    task = ArrayTask(toys.drawn_pairs(list, 3, lengths), toys.pairs(test, list), 64)
    run = toys.learned(toys.toy_config(3, 32, "sinusoidal"), task, 150, 1)
    assert isinstance(run.model, EncoderDecoder)
    assert toys.exact_share(run.model, test, list) == 1.0
    assert toys.exact_share(run.model, test, lambda row: [*row, 0]) == 0.0


@pytest.mark.some(1)
@pytest.mark.parametrize(("lesson", "n_rows"), [(toys.COPY, 4), (toys.SORT, 3), (toys.ADD, 4)])
def test_lessons_show_a_table_and_say_what_it_means(monkeypatch, lesson, n_rows):
    monkeypatch.setattr(toys, "TEST_ROWS", 30)
    pieces = list(lesson.teach(Options(seeds=1, effort=0.001)))
    (table,) = (piece for piece in pieces if isinstance(piece, Table))
    assert table.name == lesson.name
    assert len(table.rows) == n_rows
    assert lesson.question not in pieces  # the command prints it
    assert isinstance(pieces[-1], Conclusion)
    assert "nan" not in pieces[-1].words.en + pieces[-1].words.ja
