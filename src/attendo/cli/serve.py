"""The command `attendo serve`: an HTTP server for trained models."""

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

from attendo.cli import options as opt
from attendo.data.languages import require_code
from attendo.decoding.options import Bits, CacheBits
from attendo.errors import AttendoError, install_command

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
class Limits(opt.OptionGroup):
    """The limits and timeouts of a server, which are fields of ServingConfig, and the option --watch."""

    rows: int = opt.option("N", "Maximum number of texts times beams per model step.", min=1, default=128)
    timeout: float = opt.option("S", "Timeout of a request, in seconds.", default=60.0)
    drain: float = opt.option("S", "Seconds that open requests have to finish after SIGTERM.", default=30.0)
    watch: float | None = opt.option("S", "Reload changed model files every S seconds (default: never).")
    max_requests: int = opt.option("N", "Maximum number of open requests; others get status 429.", min=1, default=256)
    max_cost: int = opt.option("N", "Maximum total of tokens x beams x n in open requests.", min=1, default=1_500_000)
    max_body: int = opt.option("N", "Maximum size of a request, in bytes.", min=1, default=1 << 20)
    max_texts: int = opt.option("N", "Maximum number of texts per request.", min=1, default=256)
    max_characters: int = opt.option("N", "Maximum number of characters per text.", min=1, default=50_000)
    max_beam: int = opt.option("N", "Maximum beam size of a request.", min=1, default=16)
    max_n: int = opt.option("N", "Maximum number of outputs per text.", min=1, default=16)
    max_tokens: int = opt.option("N", "Maximum number of tokens per output.", min=1, default=2048)


@opt.with_groups
def serve(
    *,
    folders: list[Path] = opt.argument("DIR", "Run folders to serve."),
    host: str = opt.option("H", "Address to listen on; 0.0.0.0 means all interfaces.", default="127.0.0.1"),
    port: int = opt.option("P", "Port to listen on; 0 selects a free port.", min=0, max=65535, default=8000),
    api_key_file: Path | None = opt.option("F", "File with API keys, one per line; # starts a comment."),
    no_key: bool = opt.switch("--no-key", "Allow requests without a key when --host is not loopback."),
    source: str | None = opt.option("L", "Source language of runs without languages, for example en.", "--from"),
    target: str | None = opt.option("L", "Target language of runs without languages, for example ja.", "--to"),
    look: bool = opt.switch("--look", "Also serve the microscope of each model, at /look/NAME/."),
    page: bool = opt.switch("--page/--no-page", "Whether to serve the web page at the path /.", default=True),
    examples: bool | None = opt.switch(
        "--examples/--no-examples",
        "Whether pages and /v1/models show examples of the validation texts (default: only on loopback).",
        default=None,
    ),
    cors: list[str] | None = opt.option("ORIGIN", "Web origin allowed by CORS, for example https://a.org; repeatable."),
    segment: opt.Segmented = "sentence",
    bits: Bits | None = opt.bits_option(),
    cache_bits: CacheBits | None = opt.cache_bits_option(),
    limits: Limits,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Format of the log on stderr, one line per request.")
    ] = "text",
    machine: opt.Machine,
) -> int:
    """Serve trained models over HTTP until Ctrl-C or SIGTERM, as an API and as a web page.

    The command prints the address when the models are loaded. While the models load, requests get status 503.

    Clients of LibreTranslate (/translate) and OpenAI (/v1/completions, /v1/chat/completions, /v1/embeddings) work
    unchanged. The document /openapi.json lists all endpoints. By default, only this machine can connect. With another
    --host, requests require an API key in the header Authorization: Bearer KEY or X-Api-Key: KEY. Only /livez, /readyz
    and the web page require no key.

    After Ctrl-C or SIGTERM, /readyz returns 503, and the server finishes open requests. The exit code is then 0, or 1
    if the time of --drain was too short. A second signal stops the server immediately. SIGHUP reloads models whose
    files have changed. No request is lost during a reload.

    Example: attendo serve runs/enja

    Example: attendo serve runs/enja runs/jaen --host 0.0.0.0 --api-key-file keys

    Example: curl localhost:8000/translate -d q=Hello -d source=en -d target=ja
    """
    if any(find_spec(name) is None for name in NEEDED):
        raise AttendoError(f"the server requires FastAPI and uvicorn. Run: {install_command('serve')}")
    for name in ("timeout", "drain", "watch"):
        value = getattr(limits, name)
        if value is not None and not 0 < value < float("inf"):
            raise typer.BadParameter(f"--{name} {value:g} must be a number of seconds above 0")
    opt.refuse_if(bits not in (None, 32) and machine.device == "cuda", opt.BITS_ON_GPU)
    opt.refuse_if(not host, "--host is empty (expected an address: 127.0.0.1, or 0.0.0.0 for all interfaces)")

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
            f"--host {host} exposes the server to other machines. Give --api-key-file F, or --no-key for no keys"
        )
    for folder in folders:
        if not folder.is_dir():
            raise AttendoError(f"{folder} is not a folder (expected a run folder of attendo train)")
    given = limits.given()
    watch = given.pop("watch", None)
    config = ServingConfig(**given)
    models = ModelRegistry(
        folders,
        rows=config.rows,
        device=machine.chosen(bits),
        source=source,
        target=target,
        bits=bits,
        cache_bits=cache_bits,
        segment=segment,
        examples=is_loopback(host) if examples is None else examples,
    )
    state = State(models, config, keys, look, page, origins, names_of(host), Log(log_format))
    return _left(serve_models(state, host, port, watch=watch, on_ready=partial(print, flush=True)))


def _origin(origin: str) -> str:
    """Return an origin. Raise BadParameter if a browser cannot send it."""
    from urllib.parse import urlsplit

    parts = urlsplit(origin)
    bare = origin == f"{parts.scheme}://{parts.netloc}" and parts.scheme in ("http", "https") and parts.netloc
    if origin != "*" and not bare:
        raise typer.BadParameter(f"--cors {origin} is not an origin (expected https://example.org or *)")
    return origin


def _left(code: int) -> int:
    """Exit immediately if a thread still computes, because Python would abort this thread at exit."""
    if any(thread.name.startswith(("engine", "loading")) for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    return code
