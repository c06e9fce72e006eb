"""Lengths and stretches computed from where rows begin: what holding them in arrays would give."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attendo.data import store as module
from attendo.data.store import RowLengths, Stretches
from attendo.data.token_stream import TokenStream

lengths = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@given(lengths, st.one_of(st.none(), st.integers(1, 40)), st.data())
def test_row_lengths_are_those_of_an_array(lengths, most, data) -> None:
    offsets = np.cumsum([0, *lengths])
    wanted = np.array(lengths if most is None else [min(n, most) for n in lengths])
    found = RowLengths(offsets) if most is None else RowLengths(offsets).capped(most)
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1)))
    part = slice(*data.draw(st.tuples(st.integers(-9, 70), st.integers(-9, 70))))
    assert found[np.array(rows, np.int64)].tolist() == wanted[rows].tolist()
    assert found[part].tolist() == wanted[part].tolist()
    assert (len(found), found.sum()) == (len(wanted), wanted.sum())
    assert np.concatenate(list(found.pieces())).tolist() == wanted.tolist()


@given(lengths, st.integers(1, 12), st.integers(1, 7), st.data())
def test_stretches_are_the_documents_cut_evenly(lengths, most, block, data) -> None:
    wanted, start = [], 0
    for length in lengths:
        n = -(-length // most)
        places = [start + i * length // n for i in range(n)] + [start + length]
        wanted += list(pairwise(places)) if n else []
        start += length
    before, module._BLOCK = module._BLOCK, block
    try:
        found = Stretches(np.cumsum([0, *lengths]), most)
        rows = data.draw(st.lists(st.integers(0, len(wanted) - 1))) if wanted else []
        assert (len(found), found.sum()) == (len(wanted), sum(lengths))
        assert list(zip(*found.edges(np.array(rows, np.int64)), strict=True)) == [wanted[i] for i in rows]
        assert found[:].tolist() == [end - start for start, end in wanted]
    finally:
        module._BLOCK = before


@given(lengths, st.integers(1, 9), st.data())
def test_the_document_of_each_position(lengths, width, data) -> None:
    stream = TokenStream(np.empty(0, "<u2"), np.cumsum([0, *lengths]), np.array(lengths), np.array(lengths))
    begins = np.cumsum([0, *[n + 1 for n in lengths]])  # each has its end, too
    starts = data.draw(st.lists(st.integers(0, int(begins[-1]) - 1), min_size=1, max_size=8))
    positions = np.minimum(np.array(starts)[:, None] + np.arange(width), begins[-1] - 1)
    wanted = np.searchsorted(begins, positions, side="right") - 1
    assert stream.documents_at(positions).tolist() == wanted.tolist()
    assert stream.begins(np.arange(len(begins))).tolist() == begins.tolist()
