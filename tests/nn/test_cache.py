"""The cache of a decoder: places, masks, and what a search does to its rows, told by the numbers it holds.

That decoding with it equals recomputation stands in properties/test_model_properties.py.
"""

import pytest
import torch

from attendo.decoding.protocols import join_rows
from attendo.nn.cache import DecoderCache
from attendo.nn.masks import Mask


def numbers(*values):
    """Keys or memories `[rows, 1, n, 1]` that hold these numbers."""
    return torch.tensor(values, dtype=torch.float64)[:, None, :, None]


def cache_of(memory, rows_per_source=1, capacity=4, lengths=None):
    mask = None if lengths is None else Mask(key_lengths=torch.tensor(lengths))
    return DecoderCache([(memory, 2 * memory)], mask, rows_per_source, capacity, n_kv_heads=1, head_dim=1, value_dim=1)


def write(cache, *values):
    """Appends these numbers as keys; gives back all keys so far as lists."""
    keys, negatives = cache.append(cache.blocks[0], numbers(*values), -numbers(*values))
    assert negatives.equal(-keys)
    cache.advance(len(values[0]))
    return keys[:, 0, :, 0].tolist()


def memories(cache, mask=False):
    """The memory key of each row as lists, through `fold`'s layout."""
    key, value, lengths = cache.memory(cache.blocks[0])
    assert value.equal(2 * key)
    if mask:
        return lengths.key_lengths.tolist()
    return key[:, 0, :, 0].tolist()


def test_rows_of_one_length_are_written_side_by_side():
    cache = cache_of(numbers([7, 8]), rows_per_source=2)
    assert cache.self_mask(1) is None
    assert write(cache, [1, 2], [3, 4]) == [[1, 2], [3, 4]]
    assert write(cache, [5], [6]) == [[1, 2, 5], [3, 4, 6]]
    assert cache.lengths.tolist() == [3, 3]
    assert cache.self_mask(1) is None
    assert cache.self_mask(2).only_causal


def test_rows_of_several_lengths_are_written_each_behind_its_own():
    cache, other = cache_of(numbers([7])), cache_of(numbers([8]))
    write(cache, [1, 2, 3])
    write(other, [4])
    join_rows(cache, other)
    assert cache.lengths.tolist() == [3, 1]
    assert cache.self_mask(1).dense(1, 4)[:, 0, 0].tolist() == [[True] * 4, [True, True, False, False]]
    assert write(cache, [5], [6]) == [[1, 2, 3, 5], [4, 6, 0, 0]]


def test_several_positions_at_once_see_only_what_is_before_each():
    cache, other = cache_of(numbers([7])), cache_of(numbers([8]))
    write(cache, [1, 2])
    join_rows(cache, other)
    first, second = cache.self_mask(2).dense(2, 4)[:, 0].int().tolist()
    assert first == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert second == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert write(cache, [3, 4], [5, 6]) == [[1, 2, 3, 4], [5, 6, 0, 0]]


def test_a_full_row_says_what_it_needs():
    cache = cache_of(numbers([7]), capacity=2)
    write(cache, [1, 2])
    with pytest.raises(ValueError, match="the cache holds 2 positions, but 3 are needed"):
        write(cache, [3])


def test_reorder_continues_old_rows():
    cache = cache_of(numbers([7], [8]), rows_per_source=2, lengths=[1, 1])
    write(cache, [1], [2], [3], [4])
    cache.reorder(torch.tensor([1, 1, 2, 3]))
    assert write(cache, [5], [6], [7], [8]) == [[2, 5], [2, 6], [3, 7], [4, 8]]
    assert memories(cache) == [[7], [8]]  # read once a source


def test_beams_of_one_size_are_folded_and_others_are_not():
    cache = cache_of(numbers([7], [8]), rows_per_source=1, lengths=[1, 1])
    x = torch.arange(6.0).view(6, 1, 1)
    assert cache.fold(x[:2]).shape == (2, 1, 1)
    cache.reorder(torch.tensor([0, 0, 0, 1, 1, 1]))
    assert cache.fold(x)[:, :, 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert cache.unfold(cache.fold(x)).equal(x)
    cache.reorder(torch.tensor([0, 1, 3]))
    assert cache.fold(x[:3]).equal(x[:3])
    assert memories(cache) == [[7], [7], [8]]
    assert memories(cache, mask=True) == [1, 1, 1]


def test_keep_drops_rows_and_memories_no_row_needs():
    cache = cache_of(numbers([7, 0], [8, 8], [9, 9]), rows_per_source=2, lengths=[1, 2, 2])
    write(cache, [1], [2], [3], [4], [5], [6])
    cache.keep(torch.tensor([1, 4, 5]))
    assert cache.blocks[0].memory_key.shape[0] == 2
    assert memories(cache) == [[7, 0], [9, 9], [9, 9]]
    assert memories(cache, mask=True) == [1, 2, 2]
    assert write(cache, [0], [0], [0]) == [[2, 0], [5, 0], [6, 0]]


def test_join_takes_the_larger_of_everything():
    cache = cache_of(numbers([7, 7, 7]), capacity=2)
    join_rows(cache, cache_of(numbers([8], [9]), rows_per_source=2, capacity=5))
    assert cache.capacity == 5
    assert cache.rows == 5
    assert memories(cache) == [[7, 7, 7], [8, 0, 0], [8, 0, 0], [9, 0, 0], [9, 0, 0]]
    assert memories(cache, mask=True) == [3, 1, 1, 1, 1]


def test_full_memories_of_one_length_need_no_mask():
    cache = cache_of(numbers([7]))
    join_rows(cache, cache_of(numbers([8])))
    assert cache.memory(cache.blocks[0])[2] is None
    assert memories(cache) == [[7], [8]]


def test_join_where_a_source_has_lost_its_rows():
    other = cache_of(numbers([8], [9]))
    other.reorder(torch.tensor([0]))  # source 9 stays, but no row continues it
    cache = cache_of(numbers([7]))
    join_rows(cache, other)
    join_rows(cache, cache_of(numbers([6])))
    assert memories(cache) == [[7], [8], [6]]


def test_a_cache_may_run_empty_and_be_filled_again():
    cache = cache_of(numbers([7]), lengths=[1])
    write(cache, [1])
    cache.keep(torch.tensor([], dtype=torch.long))
    assert cache.rows == 0
    assert cache.self_mask(1) is None
    assert memories(cache) == []
    join_rows(cache, cache_of(numbers([8, 9])))
    assert write(cache, [2]) == [[2]]
    assert memories(cache) == [[8, 9]]
    assert cache.memory(cache.blocks[0])[2] is None
