"""The validation split: by a hash of the source, the same in every process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.held_out import held_out
from attendo.errors import AttendoError


@pytest.mark.parametrize(
    ("rows", "wanted"), [(20, 4), (100, 20), (500, 100), (5_000, 100), (30_000, 300), (250_000, 2_000)]
)
def test_the_split_has_the_size_it_should(rows, wanted):
    held = held_out(str(i) for i in range(rows))
    assert (held.n_rows, held.n_held_out) == (rows, wanted)


@pytest.mark.parametrize(("rows", "wanted"), [(100, 20), (900, 100), (3_133, 313), (30_000, 2_000)])
def test_a_larger_share_has_the_same_bounds_and_holds_the_smaller(rows, wanted):
    small, large = (held_out(map(str, range(rows)), share=share) for share in (0.01, 0.1))
    assert large.n_held_out == wanted
    assert small.hashes <= large.hashes


@given(st.lists(st.integers(0, 60), min_size=20, max_size=400))
def test_equal_sources_fall_on_one_side_whatever_their_order(numbers):
    sources = [f"source {n}" for n in numbers]
    try:
        held = held_out(sources)
    except AttendoError:
        assert len(set(numbers)) == 1
        return
    inside = [source for source in sources if source in held]
    assert len(inside) == held.n_held_out
    assert 0 < len(inside) <= len(sources) / 2  # a fifth, unless sources are few
    assert held_out(reversed(sources)) == held


def test_the_split_is_the_same_in_every_process():
    assert sorted(held_out(map(str, range(20))).hashes)[0] == 1742185772413642127


def test_too_little_to_split():
    with pytest.raises(AttendoError, match=r"f.tsv: 3 usable rows .* `valid`"):
        held_out(["a", "b", "c"], "f.tsv")
    with pytest.raises(AttendoError, match=r"have the same source.* `valid`"):
        held_out(["a"] * 100)
