"""Who may come in: a bound on what is admitted at a time, and how long the others should wait."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLOWEST, LONGEST_WAIT = 1.0, 60
"""Cost a second that is reckoned with at least, and the most seconds that anybody is told to wait."""

IN_A_ROW = 4
"""Requests that found no room for their cost, after which none is looked at until something is admitted or done."""


class Full(Exception):
    """There is no room. retry_after: whole seconds after which there may be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the server is full; try again in {retry_after} s")
        self.retry_after = retry_after


class TooLarge(Exception):
    """A request costs more than the server ever admits."""


class Admission:
    """Counts what is admitted, by requests and by cost (tokens x beams x n). For one thread.

    >>> admission = Admission(max_requests=2, max_cost=100)
    >>> with admission.entered(60):
    ...     admission.cost, admission.requests
    (60, 1)
    >>> admission.cost, admission.requests
    (0, 0)
    """

    def __init__(self, max_requests: int, max_cost: int) -> None:
        self.max_requests, self.max_cost = max_requests, max_cost
        self.requests = self.cost = 0
        self.refused = 0
        self._in_a_row = 0  # refused since anything was admitted or done
        self._rate = 0.0  # cost a second, of late
        self._since: float | None = None  # when it was last empty, or its rate was last taken
        self._done = 0

    @contextmanager
    def entered(self, cost: int, *, again: bool = False) -> Iterator[None]:
        """Within it, so much is admitted. Raises Full where there is no room now, TooLarge where there never is.

        again: the request was admitted before, and finds room: what it has had computed is not thrown away.
        """
        if cost > self.max_cost:
            raise TooLarge(
                f"the request costs {cost:,} (tokens x beams x n), and the server admits {self.max_cost:,} at a time;"
                " send it in parts"
            )
        if not again:
            self.check()
            if self.cost + cost > self.max_cost:
                self._refuse()
        self._in_a_row = 0
        if not self.requests:
            self._since, self._done = time.monotonic(), 0
        self.requests += 1
        self.cost += cost
        try:
            yield
        finally:
            self.requests -= 1
            self.cost -= cost
            self._finished(cost)

    def check(self) -> None:
        """Raises Full where there is no room whatever a request may cost: so it need not be read to be refused."""
        if self.requests >= self.max_requests or self._in_a_row >= IN_A_ROW:
            self._refuse()

    @property
    def retry_after(self) -> int:
        """Whole seconds in which half of what is admitted should be done, at the rate of late."""
        return max(
            1, min(LONGEST_WAIT, math.ceil(self.cost / 2 / max(self._rate, SLOWEST)) if self._rate else 1)
        )

    def _refuse(self) -> None:
        self.refused += 1
        self._in_a_row += 1
        raise Full(self.retry_after)

    def _finished(self, cost: int) -> None:
        self._in_a_row = 0
        self._done += cost
        now = time.monotonic()
        if self._since is not None and (elapsed := now - self._since) >= 1.0:
            new = self._done / elapsed
            self._rate = new if not self._rate else 0.7 * self._rate + 0.3 * new
            self._since, self._done = now, 0
