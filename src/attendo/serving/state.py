"""The shared state of a server: limits, API keys, the admission of requests, and the current activity."""

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
"""The minimum cost per second that is assumed for Retry-After."""
LONGEST_WAIT = 60
"""The maximum value of Retry-After, in seconds."""
IN_A_ROW = 4
"""The number of consecutive rejections after which all requests are rejected until a job is admitted or finished."""


class Admission:
    """The admission of requests, limited by their number and by their total cost (tokens x beams x n).

    The class is not thread-safe.

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
        self._in_a_row = 0  # consecutive rejections
        self._rate = 0.0  # recent cost per second
        self._since: float | None = None  # start of the measurement of the rate
        self._done = 0

    @contextmanager
    def entered(self, cost: int, *, again: bool = False) -> Iterator[None]:
        """Admit a request with a cost (tokens x beams x n) until the end of the context.

        If `again` is true, the request was admitted before. It is then always admitted, so its results are not lost.
        Raise ApiError if the server is full now (status 429), or if the cost exceeds the limit of the server (413).
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
        """Before a request is parsed, raise ApiError with status 429 if the server is full."""
        if self.requests >= self.max_requests or self._in_a_row >= IN_A_ROW:
            self._refuse()

    @property
    def retry_after(self) -> int:
        """The whole seconds in which half of the admitted cost will be finished at the recent speed."""
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
        keys: The accepted API keys.

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
        """Return whether an API key is accepted.

        Args:
            key: The API key of a request.
        """
        digest = hashlib.sha256(key).digest()
        return sum(hmac.compare_digest(known, digest) for known in self._digests) > 0


def read_keys(file: Path) -> Keys:
    """Return the API keys of a file with one key per line. Empty lines and lines that begin with # are skipped.

    Raise AttendoError if the file is unreadable, contains no key, or contains an invalid key. The error message never
    contains a key.
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
        rows: Maximum number of texts or beams in one step of a model.
        max_requests: Maximum number of requests that are processed at the same time.
        max_cost: Maximum total cost of all open requests, in tokens x beam size x n. A single request with a larger
            cost is rejected.
        max_body: Maximum size of a request body, in bytes.
        max_texts: Maximum number of texts in a request.
        max_characters: Maximum number of characters in a text.
        max_beam: Maximum beam size that a request can set.
        max_n: Maximum number of outputs per text that a request can set.
        max_tokens: Maximum number of generated tokens per text that a request can set.
        timeout: Seconds after which a request is canceled. A request can set a shorter timeout.
        drain: Seconds that running requests have to finish after the server receives a stop signal.
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
    """The models, limits and activity of a server. Only the thread of the event loop uses the state.

    Attributes:
        models: The served models.
        config: The limits of the server.
        keys: The accepted API keys. If `keys` is empty, requests require no key.
        look: Whether the microscope is served.
        page: Whether the web page is served at /.
        cors: The origins of other websites that may send requests. `*` allows all origins.
        hosts: The accepted host names, or None for all names.
        log: The log of the server.
        draining: Whether the server is shutting down.
        working: The number of requests in progress.
        loaded: The time when each model was loaded, by name, in seconds since 1970.
        paths: The route paths without parameters, which are used in the log for requests that are rejected early.
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
