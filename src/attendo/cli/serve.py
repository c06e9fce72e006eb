"""attendo serve: trained models over HTTP."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from attendo.cli.options import (
    Machine,
    OptionGroup,
    Segmented,
    argument,
    option,
    refuse_if,
    switch,
    with_groups,
)
from attendo.errors import AttendoError

NEEDED = (
    "fastapi",
    "httptools",
    "prometheus_client",
    "python_multipart",
    "pythonjsonlogger",
    "sse_starlette",
    "uvicorn",
)


@dataclass(frozen=True)
class Limits(OptionGroup):
    """What a server admits at most, and how long it waits: options of ServingConfig, and `watch`."""

    rows: int = option("N", "Texts and beams in a step of a model.", min=1, default=128)
    timeout: float = option("S", "Seconds after which a request is given up.", default=60.0)
    drain: float = option("S", "Seconds that requests have to end after SIGTERM.", default=30.0)
    watch: float | None = option("S", "Every S seconds, load models anew whose files have changed.")
    max_requests: int = option("N", "Admitted at a time; others get 429.", min=1, default=256)
    max_cost: int = option("N", "Their tokens x beams x n, at a time.", min=1, default=1_500_000)
    max_body: int = option("N", "Bytes of a request.", min=1, default=1 << 20)
    max_texts: int = option("N", "Texts of a request.", min=1, default=256)
    max_characters: int = option("N", "Characters of a text.", min=1, default=50_000)
    max_beam: int = option("N", "Beam of a request.", min=1, default=16)
    max_n: int = option("N", "Answers to a text.", min=1, default=16)
    max_tokens: int = option("N", "Tokens of an answer.", min=1, default=2048)


@with_groups
def serve(
    *,
    folders: list[Path] = argument("DIR", "The runs' folders."),
    host: str = option("H", "Where to listen; 0.0.0.0: everywhere.", default="127.0.0.1"),
    port: int = option("P", "0: any free one.", min=0, max=65535, default=8000),
    api_key_file: Path | None = option("F", "Keys that are let in, one a line; # is a comment."),
    no_key: bool = switch("--no-key", "With --host: anybody may ask, and it is meant."),
    source: str | None = option("L", "Source language where a card has none, as en.", "--from"),
    target: str | None = option("L", "Target language where a card has none, as ja.", "--to"),
    look: bool = switch("--look", "Give the microscope's data, too."),
    page: bool = switch("--page/--no-page", "Whether / is a page for people.", default=True),
    cors: list[str] | None = option("ORIGIN", "A page elsewhere that may ask, as https://a.org; repeatable."),
    segment: Segmented = "sentence",
    int8: bool = switch("--int8", "Compute in 8-bit numbers: faster, a little less exact."),
    limits: Limits,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Of the log on stderr, a line a request.")
    ] = "text",
    machine: Machine,
) -> int:
    """Serve trained models over HTTP until Ctrl-C or SIGTERM: to programs, and to people by a page at /.

    The address is printed when the models are loaded; requests that come before get 503.

    Programs that speak to LibreTranslate (/translate) or OpenAI (/v1/completions, /v1/embeddings) work unchanged;
    /openapi.json lists all routes. Only this machine reaches it unless --host says otherwise, and then a key is asked
    for, as Authorization: Bearer KEY or X-Api-Key: KEY, on all but /livez, /readyz and the page itself.

    Ctrl-C or SIGTERM: /readyz says 503, what was admitted is answered to its end, and the exit code is 0; 1 if --drain
    was too short for that. A second one ends it at once. SIGHUP loads models anew whose files have changed; no request
    is lost.

    Example: attendo serve runs/enja

    Example: attendo serve runs/enja runs/jaen --host 0.0.0.0 --api-key-file keys

    Example: curl localhost:8000/translate -d q=Hello -d source=en -d target=ja
    """
    if any(find_spec(name) is None for name in NEEDED):
        raise AttendoError('serve needs FastAPI and uvicorn: pip install "attendo[serve]"')
    for name in ("timeout", "drain", "watch"):
        value = getattr(limits, name)
        if value is not None and not 0 < value < float("inf"):
            raise typer.BadParameter(f"--{name} {value:g}: give seconds, more than 0")
    refuse_if(
        int8 and machine.device == "cuda", "--int8 is for processors; leave it out, or leave out --device"
    )
    refuse_if(not host, "--host is empty; give an address, as 127.0.0.1, or 0.0.0.0 for all")
    from attendo.data.languages import require_code

    require_code("--from", source)
    require_code("--to", target)
    origins = tuple(_origin(origin) for origin in cors or ())
    from attendo.serving import Keys, Log, ModelRegistry, ServingConfig, State
    from attendo.serving.run import is_loopback, names_of
    from attendo.serving.run import serve as serve_models
    from attendo.serving.state import read_keys

    keys = Keys() if api_key_file is None else read_keys(api_key_file)
    if not (keys or no_key or is_loopback(host)):
        raise AttendoError(
            f"--host {host} lets other machines ask: give --api-key-file F, or --no-key if anybody may"
        )
    for folder in folders:
        if not folder.is_dir():
            raise AttendoError(f"{folder} is no folder; give the folder of a run, as attendo train wrote it")
    given = limits.given()
    watch = given.pop("watch", None)
    config = ServingConfig(**given)
    models = ModelRegistry(
        folders,
        rows=config.rows,
        device=machine.chosen(),
        source=source,
        target=target,
        int8=int8,
        segment=segment,
    )
    state = State(models, config, keys, look, page, origins, names_of(host), Log(log_format))
    return _left(serve_models(state, host, port, watch=watch, ready=partial(print, flush=True)))


def _origin(origin: str) -> str:
    """An origin as browsers send it."""
    from urllib.parse import urlsplit

    parts = urlsplit(origin)
    bare = origin == f"{parts.scheme}://{parts.netloc}" and parts.scheme in ("http", "https") and parts.netloc
    if origin != "*" and not bare:
        raise typer.BadParameter(f"--cors {origin} is no origin; give one as https://example.org, or *")
    return origin


def _left(code: int) -> int:
    """Leaves at once where a thread still computes for requests that were cut off: Python would end it midway."""
    if any(thread.name.startswith(("engine", "loading")) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code
