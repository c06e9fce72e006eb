"""A search that is begun with given ids: what its cache has read before the first step."""

from attendo.decoding.searcher import SearchBackend


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
