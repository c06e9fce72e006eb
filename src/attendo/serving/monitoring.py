"""The log and the metrics of the server, which contain no texts, API keys or query strings.

The log has one line per request or event, as JSON or as text. The metrics are in the format of Prometheus. The labels
of the metrics are route patterns and model names, which are a fixed set.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pythonjsonlogger.json import JsonFormatter

if TYPE_CHECKING:
    from attendo.serving.state import State


LogFormat = Literal["json", "text"]
CONTEXT = "attendo.context"
"""The key of an ASGI scope under which its RequestContext is stored."""
OURS = "/attendo/"
"""The part of a file path that identifies files of this package."""


@dataclass(eq=False, slots=True)
class RequestContext:
    """The values of a request for the log and the metrics: the model, token counts and the seconds in the queue."""

    request_id: str
    model: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    queued: float | None = None


class Log:
    """A log that writes one line per event to a stream.

    Args:
        form: The format of the lines, "text" or "json".
        stream: The output stream (default: stderr).

    >>> import sys
    >>> Log("text", sys.stdout).event("ready", {"models": 2})  # doctest: +ELLIPSIS
    20...Z ready models=2
    >>> Log("json", sys.stdout).event("ready", {"models": 2})  # doctest: +ELLIPSIS
    {"time": "20...Z", "event": "ready", "models": 2}
    """

    def __init__(self, form: LogFormat = "text", stream: TextIO | None = None) -> None:
        handler = _Handler(stream)
        self.stream = handler.stream
        handler.setFormatter(_Formatter(form))
        self._logger = logging.Logger("attendo.serving")
        self._logger.addHandler(handler)

    def event(self, name: str, facts: dict[str, Any] | None = None) -> None:
        """Write a line with the time and the name of an event.

        Args:
            name: The name of the event.
            facts: Further fields by name. Fields with the value None are left out.
        """
        given = {key: value for key, value in (facts or {}).items() if value is not None}
        self._logger.info({"event": name, **given})

    def request(self, context: RequestContext, method: str, route: str, status: int, seconds: float) -> None:
        """Write the log line of a finished request.

        Args:
            context: The id and the measurements of the request.
            method: The HTTP method.
            route: The path of the route.
            status: The HTTP status.
            seconds: The duration of the request in seconds.
        """
        facts: dict[str, Any] = {"id": context.request_id, "method": method, "route": route, "status": status}
        facts["ms"] = round(1000 * seconds, 2)
        if context.model is not None:
            facts["model"] = context.model
            facts["tokens_in"] = context.tokens_in
            facts["tokens_out"] = context.tokens_out
        if context.queued is not None:
            facts["queue_ms"] = round(1000 * context.queued, 2)
        self.event("request", facts)

    def fault(self, context: RequestContext, error: BaseException) -> None:
        """Write the type and the location of an unexpected error. The message of the error is left out, because it may
        contain a text.

        Args:
            context: The id and the measurements of the request.
            error: The unexpected error.
        """
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames[:-1] if OURS in frame.filename] + frames[-1:]
        where = [f"{frame.filename.rpartition(OURS)[2]}:{frame.lineno} {frame.name}" for frame in ours]
        self.event("fault", {"id": context.request_id, "error": type(error).__name__, "trace": where})


class _Handler(logging.StreamHandler[TextIO]):
    """A stream handler that ignores write errors, for example a closed pipe."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _Formatter(JsonFormatter):
    """A formatter of log lines, with the time in UTC."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, form: LogFormat) -> None:
        super().__init__("%(asctime)s", rename_fields={"asctime": "time"})
        self._form = form

    def serialize_log_record(self, log_data: dict[str, Any]) -> str:
        """Format a log line as JSON, or as the time, the event and fields of the form name=value."""
        if self._form == "json":
            return super().serialize_log_record(log_data)
        moment, event, *_ = log_data.values()
        facts = list(log_data.items())[2:]
        return " ".join([moment, event, *(f"{key}={_plain(value)}" for key, value in facts)])


def _plain(value: Any) -> str:
    text = " < ".join(reversed(value)) if isinstance(value, list) else str(value)
    return json.dumps(text) if " " in text or not text.isprintable() else text


MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"})


class Metrics:
    """The Prometheus metrics of the server.

    Requests are counted when they end. All other metrics are read from the state when the metrics are requested.
    """

    def __init__(self, state: State) -> None:
        self.registry = CollectorRegistry()
        self._models = frozenset(state.models.folders)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, labelnames=["route"], buckets=SECONDS, registry=self.registry)
        self._requests = counter("attendo_requests", "Finished requests.", ["route", "method", "status"])
        self._seconds = histogram(
            "attendo_request_seconds", "Seconds from the head of a request to the end of its response."
        )
        self._first = histogram(
            "attendo_first_piece_seconds",
            "Seconds from the head of a request to the first piece of a stream.",
        )
        self._read = counter("attendo_tokens_in", "Input tokens.", ["model"])
        self._written = counter("attendo_tokens_out", "Output tokens.", ["model"])
        self._swaps = counter(
            "attendo_model_swaps",
            "Reloads of changed models: swapped, or kept if the new model cannot be loaded.",
            ["model", "outcome"],
        )
        self.registry.register(_Live(state))
        ProcessCollector(registry=self.registry)

    def finished(
        self,
        context: RequestContext,
        method: str,
        route: str,
        status: int,
        seconds: float,
        first: float | None,
    ) -> None:
        """Count a finished request. `first` is the time to the first piece of a stream in seconds, or None."""
        self._requests.labels(route, method if method in METHODS else "other", str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        if first is not None:
            self._first.labels(route).observe(first)
        if context.model in self._models:
            self._read.labels(context.model).inc(context.tokens_in)
            self._written.labels(context.model).inc(context.tokens_out)

    def swapped(self, model: str, outcome: Literal["swapped", "kept"]) -> None:
        """Count an attempt to reload a changed model."""
        self._swaps.labels(model, outcome).inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


_OF_MODELS = (
    ("engine_steps", "Steps of a model.", CounterMetricFamily, "engine.counts.steps"),
    (
        "engine_rows",
        "Rows in all steps. Rows per step are the batch size.",
        CounterMetricFamily,
        "engine.counts.rows",
    ),
    ("engine_seconds", "Seconds spent in steps.", CounterMetricFamily, "engine.counts.seconds"),
    ("engine_jobs", "Unfinished jobs.", GaugeMetricFamily, "engine.going_on"),
    ("model_created_seconds", "Unix time of a model's file.", GaugeMetricFamily, "created"),
)
"""The metrics of each model: name, help text, type, and the attribute of ServedModel."""


class _Live(Collector):
    """A collector that reads the current values of the server and of each model."""

    def __init__(self, state: State) -> None:
        self._state = state

    def describe(self) -> list[Metric]:
        """Return an empty list, because the names of the metrics are fixed."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics of the server and of each model."""
        state = self._state
        admission = state.admission
        for name, words, value in (
            ("ready", "1 while new requests are accepted.", state.ready),
            ("working_requests", "Requests in progress.", state.working),
            ("admitted_requests", "Requests admitted to the models.", admission.requests),
            ("admitted_cost", "Cost of the admitted requests: tokens x beams x n.", admission.cost),
        ):
            yield GaugeMetricFamily(f"attendo_{name}", words, value=float(value))
        yield CounterMetricFamily("attendo_refused", "Requests rejected with 429.", value=admission.refused)
        for name, words, kind, path in _OF_MODELS:
            metric = kind(f"attendo_{name}", words, labels=["model"])
            for served in state.models:
                metric.add_metric([served.name], attrgetter(path)(served))
            yield metric
        loaded = GaugeMetricFamily(
            "attendo_model_loaded_seconds", "Unix time when a model was loaded.", labels=["model"]
        )
        for name, moment in state.loaded.items():
            loaded.add_metric([name], moment)
        yield loaded
