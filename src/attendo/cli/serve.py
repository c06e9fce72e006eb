"""attendo serve: trained models over HTTP."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from attendo.cli.options import Device, Segmented, Threads, chosen_device
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


def _limit(help_: str) -> typer.models.OptionInfo:
    return typer.Option(metavar="N", min=1, help=help_)


def serve(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="The runs' folders.")],
    host: Annotated[
        str, typer.Option(metavar="H", help="Where to listen; 0.0.0.0: everywhere.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="P", min=0, max=65535, help="0: any free one.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="F", help="Keys that are let in, one a line; # is a comment.")
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="With --host: anybody may ask, and it is meant.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--from", metavar="L", help="Source language where a card has none, as en.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--to", metavar="L", help="Target language where a card has none, as ja.")
    ] = None,
    look: Annotated[bool, typer.Option("--look", help="Give the microscope's data, too.")] = False,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Whether / is a page for people.")] = True,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A page elsewhere that may ask, as https://a.org; repeatable."),
    ] = None,
    segment: Segmented = "sentence",
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in 8-bit numbers: faster, a little less exact.")
    ] = False,
    rows: Annotated[int, _limit("Texts and beams in a step of a model.")] = 128,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds after which a request is given up.")
    ] = 60.0,
    drain: Annotated[
        float, typer.Option(metavar="S", help="Seconds that requests have to end after SIGTERM.")
    ] = 30.0,
    watch: Annotated[
        float | None,
        typer.Option(metavar="S", help="Every S seconds, load models anew whose files have changed."),
    ] = None,
    max_requests: Annotated[int, _limit("Admitted at a time; others get 429.")] = 256,
    max_cost: Annotated[int, _limit("Their tokens x beams x n, at a time.")] = 1_500_000,
    max_body: Annotated[int, _limit("Bytes of a request.")] = 1 << 20,
    max_texts: Annotated[int, _limit("Texts of a request.")] = 256,
    max_characters: Annotated[int, _limit("Characters of a text.")] = 50_000,
    max_beam: Annotated[int, _limit("Beam of a request.")] = 16,
    max_n: Annotated[int, _limit("Answers to a text.")] = 16,
    max_tokens: Annotated[int, _limit("Tokens of an answer.")] = 2048,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="Of the log on stderr, a line a request.")
    ] = "text",
    device: Device = "cpu",
    threads: Threads = None,
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
    for name, value in (("--timeout", timeout), ("--drain", drain), ("--watch", watch)):
        if value is not None and not 0 < value < float("inf"):
            raise typer.BadParameter(f"{name} {value:g}: give seconds, more than 0")
    if int8 and device == "cuda":
        raise typer.BadParameter("--int8 is for processors; leave it out, or leave out --device")
    if not host:
        raise typer.BadParameter("--host is empty; give an address, as 127.0.0.1, or 0.0.0.0 for all")
    from attendo.data.language_names import require_code

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
    config = ServingConfig(
        rows=rows,
        max_requests=max_requests,
        max_cost=max_cost,
        max_body=max_body,
        max_texts=max_texts,
        max_characters=max_characters,
        max_beam=max_beam,
        max_n=max_n,
        max_tokens=max_tokens,
        timeout=timeout,
        drain=drain,
    )
    models = ModelRegistry(
        folders,
        rows=rows,
        device=chosen_device(device, threads),
        source=source,
        target=target,
        int8=int8,
        segment=segment,
    )
    state = State(models, config, keys, look, page, origins, names_of(host), Log(log_format))
    return _left(serve_models(state, host, port, watch=watch, ready=_tell))


def _tell(address: str) -> None:
    print(address, flush=True)


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
