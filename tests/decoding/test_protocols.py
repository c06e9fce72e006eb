"""Caches that take the memory of spent ones, and those that cannot."""

from attendo.decoding.protocols import reusing


class Plain(list):
    """A cache of rows that keeps no memory."""


class Reusing(Plain):
    def in_place_of(self, spent):
        spent[:] = self
        return spent


def test_only_a_cache_that_can_takes_the_memory_of_a_spent_one():
    plain, can, spent = Plain([1]), Reusing([2]), Reusing([7, 8])
    assert reusing(plain, Plain([9])) is plain
    assert reusing(can, spent) is spent and spent == [2]
