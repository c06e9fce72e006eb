"""The shared state of a server: its limits, its keys, the admission of requests, and its activity."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

from attendo.errors import AttendoError
from attendo.serving.errors import ApiError
from attendo.serving.monitoring import Log, Metrics
from attendo.serving.registry import ModelRegistry

SLOWEST = 1.0
"""The least cost per second that is reckoned with."""
LONGEST_WAIT = 60
"""The most seconds that a client is told to wait."""

IN_A_ROW = 4
"""Requests that found no room for their cost, after which none is looked at until something is admitted or done."""


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
        self.max_requests = max_requests
        self.max_cost = max_cost
        self.requests = self.cost = 0
        self.refused = 0
        self._in_a_row = 0  # refused since anything was admitted or done
        self._rate = 0.0  # cost a second, of late
        self._since: float | None = None  # when it was last empty, or its rate was last taken
        self._done = 0

    @contextmanager
    def entered(self, cost: int, *, again: bool = False) -> Iterator[None]:
        """Admit this cost within the context. Raises ApiError: 429 without room now, 413 if there never is any.

        `again`: the request was admitted before and always finds room, to keep its results.
        """
        if cost > self.max_cost:
            raise ApiError(
                413,
                f"the request costs {cost:,} (tokens x beams x n; at most {self.max_cost:,}); send it in parts",
            )
        if not again:
            self.check()
            if self.cost + cost > self.max_cost:
                self._refuse()
        self._in_a_row = 0
        if not self.requests:
            self._since = time.monotonic()
            self._done = 0
        self.requests += 1
        self.cost += cost
        try:
            yield
        finally:
            self.requests -= 1
            self.cost -= cost
            self._done += cost
            self._in_a_row = 0
            self._update_rate()

    def check(self) -> None:
        """Raise ApiError, 429, if there is no room for any request, before it is read."""
        if self.requests >= self.max_requests or self._in_a_row >= IN_A_ROW:
            self._refuse()

    @property
    def retry_after(self) -> int:
        """Whole seconds in which half of the admitted cost should be done, at the recent rate."""
        seconds = math.ceil(self.cost / 2 / max(self._rate, SLOWEST)) if self._rate else 1
        return max(1, min(LONGEST_WAIT, seconds))

    def _refuse(self) -> None:
        self.refused += 1
        self._in_a_row += 1
        seconds = self.retry_after
        raise ApiError(429, f"the server is full; try again in {seconds} s", retry_after=seconds)

    def _update_rate(self) -> None:
        now = time.monotonic()
        if self._since is not None and (elapsed := now - self._since) >= 1.0:
            new = self._done / elapsed
            self._rate = new if not self._rate else 0.7 * self._rate + 0.3 * new
            self._since = now
            self._done = 0


class Keys:
    """API keys, stored as SHA-256 digests and compared in constant time.

    Args:
        keys: The keys.

    >>> keys = Keys(["correct horse"])
    >>> bool(keys), keys.admit(b"correct horse"), keys.admit(b"battery staple")
    (True, True, False)
    >>> bool(Keys())
    False
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, key: bytes) -> bool:
        """Return whether a key is valid.

        Args:
            key: The key of a request.
        """
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(known, digest) for known in self._digests) > 0


def read_keys(file: Path) -> Keys:
    """Return the keys in a file, one per line; empty lines and lines that begin with # are skipped.

    Raises AttendoError, which never shows a key, for a file that is unreadable, has no key, or has an invalid one.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise AttendoError(f"{file}: cannot read the keys ({why}). Write one key per line") from None
    keys: list[str] = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise AttendoError(
                f"{file}, line {number}: a key must consist of ASCII letters, digits and punctuation, without spaces"
            )
        keys.append(key)
    if not keys:
        raise AttendoError(f"{file} has no key. Write one per line, for example from: openssl rand -hex 32")
    return Keys(keys)


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """The limits of a server.

    Attributes:
        rows: Largest number of texts, or rows of beams, in one step of a model.
        max_requests: Largest number of requests that are processed at the same time.
        max_cost: Largest total cost of these requests, in tokens x beam size x n. A larger single request is rejected.
        max_body: Largest size of a request, in bytes.
        max_texts: Largest number of texts in a request.
        max_characters: Largest number of characters in a text.
        max_beam: Largest beam size that a request can ask for.
        max_n: Largest number of outputs per text that a request can ask for.
        max_tokens: Largest number of generated tokens that a request can ask for.
        timeout: Seconds after which a request is canceled. A request can ask for fewer.
        drain: Seconds that running requests have after the server receives a stop signal.
    """

    rows: int = 128
    max_requests: int = 256
    max_cost: int = 1_500_000
    max_body: int = 1 << 20
    max_texts: int = 256
    max_characters: int = 50_000
    max_beam: int = 16
    max_n: int = 16
    max_tokens: int = 2048
    timeout: float = 60.0
    drain: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not value > 0:
                raise ValueError(f"{each.name}={value} must be above 0")


@dataclass(eq=False)
class State:
    """The models, limits and activity of one server, for the thread of the event loop.

    Attributes:
        keys: The accepted API keys; without keys every request is accepted.
        look: Whether the microscope's data is served.
        page: Whether the web page is served.
        cors: The origins of other pages that may send requests; `*` is any.
        hosts: The accepted host names; None accepts all.
        draining: Whether the server is shutting down.
        working: The number of requests in progress.
        loaded: The time when each model was loaded, in seconds since 1970.
        paths: The paths of routes without fields, which name requests that are rejected early.
    """

    models: ModelRegistry
    config: ServingConfig = field(default_factory=ServingConfig)
    keys: Keys = field(default_factory=Keys)
    look: bool = False
    page: bool = True
    cors: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    log: Log = field(default_factory=Log)
    draining: bool = False
    working: int = 0
    loaded: dict[str, float] = field(default_factory=dict)
    paths: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.admission = Admission(self.config.max_requests, self.config.max_cost)
        self.metrics = Metrics(self)

    @property
    def ready(self) -> bool:
        """Whether new requests are accepted: all models are loaded and the server is not shutting down."""
        return self.models.ready and not self.draining
