"""Batches for the loop: made ahead by a thread, and joined to the groups of an update."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def prefetched(items: Iterable[T], ahead: int) -> Generator[T]:
    """The items in their order, up to `ahead` of them made by a thread before they are asked for; 0 = without one.

    An error in making one comes where that item would. Closing the iterator ends the thread.

    >>> list(prefetched(range(5), 2))
    [0, 1, 2, 3, 4]
    """
    if ahead < 1:
        yield from items
        return
    made: queue.Queue[tuple[bool, T | BaseException | None]] = queue.Queue(ahead)
    closed = threading.Event()

    def hand_over(entry: tuple[bool, T | BaseException | None]) -> None:
        while not closed.is_set():
            try:
                made.put(entry, timeout=0.1)
                return
            except queue.Full:
                pass

    def make() -> None:
        try:
            for item in items:
                hand_over((True, item))
                if closed.is_set():
                    return
            hand_over((False, None))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that asks
            hand_over((False, error))

    thread = threading.Thread(target=make, name="loading", daemon=True)
    thread.start()
    try:
        while True:
            is_item, value = made.get()
            if is_item:
                yield value  # pyright: ignore[reportReturnType]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        closed.set()
        thread.join()


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`; the last list may be shorter.

    >>> list(grouped("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
