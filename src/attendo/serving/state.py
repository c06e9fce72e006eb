"""What all parts of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from attendo.serving.admission import Admission
from attendo.serving.keys import Keys
from attendo.serving.logs import Log
from attendo.serving.metrics import Metrics
from attendo.serving.served import Models


@dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """The limits of a server.

    rows: texts, or rows of beams, that take part in a step of a model at most. max_requests, max_cost: what is admitted
    at a time, in requests and in tokens x beams x n; a request that is larger by itself is refused for good.
    max_body: bytes of a request. max_texts: texts of a request. max_characters: of one text. max_beam, max_n,
    max_tokens: the largest a request may ask for. timeout: seconds after which a request is given up, unless it asks
    for fewer. drain: seconds that admitted requests have once the server is told to stop.
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
                raise ValueError(f"{each.name} is {value}; it must be more than 0")


@dataclass(eq=False)
class State:
    """One server: its models, its limits, and what it is doing. For the thread of the event loop.

    keys: those that are let in; none: everybody. look: the microscope's data are given. page: the page is given. cors:
    origins of pages elsewhere that may ask; `*` is any. hosts: the names that it answers to; None: any. draining: it
    was told to stop. working: requests that were let in and are not answered to their end. loaded: when each model was,
    in seconds since 1970. paths: those of routes without fields, by which a request that is refused before is named.
    """

    models: Models
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
        """Whether new work is taken: every model is loaded, and nobody has told it to stop."""
        return self.models.ready and not self.draining
