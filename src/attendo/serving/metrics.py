"""What a server tells Prometheus. Labels are routes as the code has them, and names of models: a fixed set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from attendo.serving.logs import Noted
    from attendo.serving.state import State

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})


class Metrics:
    """Counts requests as they end, and reads the rest from the state when it is asked."""

    def __init__(self, state: State) -> None:
        self.registry = CollectorRegistry()
        self._models = frozenset(state.models.folders)
        self._requests = Counter(
            "attendo_requests", "Requests answered.", ["route", "method", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "attendo_request_seconds",
            "From the head of a request to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._first = Histogram(
            "attendo_first_piece_seconds",
            "From the head of a request to the first piece of its stream.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._read = Counter("attendo_tokens_in", "Tokens read.", ["model"], registry=self.registry)
        self._written = Counter("attendo_tokens_out", "Tokens written.", ["model"], registry=self.registry)
        self._swaps = Counter(
            "attendo_model_swaps",
            "Models loaded anew: swapped, or kept where the new one is damaged.",
            ["model", "outcome"],
            registry=self.registry,
        )
        self.registry.register(_Live(state))
        ProcessCollector(registry=self.registry)

    def finished(
        self, notes: Noted, method: str, route: str, status: int, seconds: float, first: float | None
    ) -> None:
        """Counts a request. first: seconds until the first piece of a stream; None where there was none."""
        self._requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if first is not None:
            self._first.labels(route).observe(first)
        if notes.model in self._models:
            self._read.labels(notes.model).inc(notes.tokens_in)
            self._written.labels(notes.model).inc(notes.tokens_out)

    def swapped(self, model: str, outcome: Literal["swapped", "kept"]) -> None:
        """Counts a model that was to be loaded anew."""
        self._swaps.labels(model, outcome).inc()

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)


class _Live(Collector):
    """What the state says now."""

    def __init__(self, state: State) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        """Nothing: the names are fixed."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The server's own numbers, and those of each model."""
        state = self._state
        admission = state.admission
        for name, words, value in (
            ("ready", "1 when new work is taken.", state.ready),
            ("working_requests", "Requests being answered.", state.working),
            ("admitted_requests", "Requests admitted to the models.", admission.requests),
            ("admitted_cost", "Their cost: tokens x beams x n.", admission.cost),
        ):
            yield GaugeMetricFamily(f"attendo_{name}", words, value=float(value))
        yield CounterMetricFamily("attendo_refused", "Requests refused as full.", value=admission.refused)
        yield from self._of_models()

    def _of_models(self) -> Iterator[Metric]:
        steps = CounterMetricFamily("attendo_engine_steps", "Steps of a model.", labels=["model"])
        rows = CounterMetricFamily(
            "attendo_engine_rows",
            "Rows that took part in steps; rows a step are the batch.",
            labels=["model"],
        )
        seconds = CounterMetricFamily("attendo_engine_seconds", "Seconds spent in steps.", labels=["model"])
        jobs = GaugeMetricFamily("attendo_engine_jobs", "Jobs not at their end.", labels=["model"])
        created = GaugeMetricFamily(
            "attendo_model_created_seconds", "When a model's file was written.", labels=["model"]
        )
        loaded = GaugeMetricFamily(
            "attendo_model_loaded_seconds", "When a model was loaded.", labels=["model"]
        )
        for name, moment in self._state.loaded.items():
            loaded.add_metric([name], moment)
        for served in self._state.models:
            counts = served.engine.counts
            steps.add_metric([served.name], counts.steps)
            rows.add_metric([served.name], counts.rows)
            seconds.add_metric([served.name], counts.seconds)
            jobs.add_metric([served.name], served.engine.going_on)
            created.add_metric([served.name], served.created)
        yield from (steps, rows, seconds, jobs, created, loaded)
