"""The embedded corpus: the pairs in its files are those of the grammar, and what remembering them is worth."""

import forecast_pairs
import pytest

from attendo.data.forecasts import SIZES, nearest_neighbor_baseline, pairs
from attendo.errors import AttendoError
from attendo_course.lessons import forecast_grammar


@pytest.mark.parametrize("split", SIZES)
def test_the_files_begin_with_the_pairs_of_the_grammar(split):
    assert pairs(200, split) == forecast_grammar.pairs(200, split)
    assert len(set(pairs(SIZES[split], split))) == SIZES[split]
    with pytest.raises(AttendoError, match=f"has {SIZES[split]:,} {split} pairs, not 60,000"):
        pairs(60_000, split)


@pytest.mark.full
@pytest.mark.parametrize("split", SIZES)
def test_the_tool_writes_the_files(split):
    assert forecast_pairs.packed(split) == (forecast_pairs.FOLDER / f"{split}.tsv.gz").read_bytes()


def test_remembering_the_training_set_is_worth_next_to_nothing():
    assert nearest_neighbor_baseline(pairs(20_000, "train"), pairs(300, "test")) < 0.2


def test_the_baseline_finds_what_is_there():
    train_pairs = pairs(400, "train")
    assert nearest_neighbor_baseline(train_pairs, train_pairs[:50]) == 1.0
    wrong = [(source, "違う") for source, _ in train_pairs[:50]]
    assert nearest_neighbor_baseline(train_pairs, [*train_pairs[:50], *wrong]) == 0.5
    with pytest.raises(ValueError, match="at least one"):
        nearest_neighbor_baseline([], train_pairs)
