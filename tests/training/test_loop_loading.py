"""Batches made ahead: in their order, with their errors at their place, and no thread that outlives them."""

import threading
import time
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.training.loop import grouped, prefetched


def loading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "loading"]


def failing_at(n, made):
    """Numbers from 0 on, with an error in the place of n."""
    for number in range(1000):
        if number == n:
            raise ZeroDivisionError(f"at {n}")
        made.append(number)
        yield number


@given(st.lists(st.integers() | st.none()), st.integers(0, 5))
def test_all_come_once_in_their_order(items, ahead):
    assert list(prefetched(items, ahead)) == items
    assert not loading_threads()


@given(st.integers(0, 20), st.integers(0, 5))
def test_an_error_comes_at_its_place(n, ahead):
    made, came = [], []
    with pytest.raises(ZeroDivisionError, match=f"^at {n}$"):
        came.extend(prefetched(failing_at(n, made), ahead))
    assert came == made == list(range(n))
    iterator = prefetched(failing_at(n, []), ahead)
    assert [next(iterator) for _ in range(n)] == list(range(n))
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert not loading_threads()


@settings(max_examples=20)
@given(st.integers(0, 10), st.integers(1, 5))
def test_no_more_are_made_than_were_to_be_ahead(taken, ahead):
    made = []
    with closing(prefetched(failing_at(999, made), ahead)) as coming:
        for number in range(taken):
            assert next(coming) == number
        until = time.monotonic() + 60
        while taken and len(made) < taken + ahead and time.monotonic() < until:
            time.sleep(0.001)
    assert len(made) <= (taken + ahead + 1 if taken else 0)  # one more waits for its place
    assert not loading_threads()
    assert not taken or len(made) >= taken + ahead


@given(st.integers(1, 5))
def test_one_that_is_left_in_the_middle_ends_its_thread(ahead):
    made = []
    for number in (coming := prefetched(failing_at(999, made), ahead)):
        if number == 3:
            break
    coming.close()
    n = len(made)
    assert not loading_threads() and n <= 4 + ahead + 1
    time.sleep(0.002)
    assert len(made) == n


def test_an_iterator_that_nobody_looked_at_has_no_thread():
    coming = prefetched(range(3), 2)
    assert not loading_threads()
    coming.close()
    del coming


def test_threads_of_an_iterator_that_is_thrown_away_end_too():
    coming = prefetched(range(1000), 2)
    next(coming)
    assert len(loading_threads()) == 1
    del coming
    assert not loading_threads()


def test_a_stop_within_making_is_passed_on():
    def interrupted():
        yield 1
        raise KeyboardInterrupt

    coming = prefetched(interrupted(), 4)
    assert next(coming) == 1
    with pytest.raises(KeyboardInterrupt):
        next(coming)


@given(st.lists(st.integers()), st.integers(1, 6))
def test_groups_hold_all_in_their_order(items, size):
    groups = list(grouped(items, size))
    assert [item for group in groups for item in group] == items
    assert all(len(group) == size for group in groups[:-1]) and all(groups)
