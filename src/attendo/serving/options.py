"""How to serve: what a server takes on, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, fields


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
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} is {value}; it must be more than 0")
