"""What all parts of a server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from attendo.serving.admission import Admission
from attendo.serving.keys import Keys
from attendo.serving.logs import Log
from attendo.serving.metrics import Metrics
from attendo.serving.options import ServingConfig
from attendo.serving.served import Models


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
