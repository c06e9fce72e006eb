"""The command `attendo look`: the attention of a model in the terminal, in a file, or as a live page."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli import options as opt
from attendo.cli.look_text import Stack, json_text, labelled_rows, rank, text_lines
from attendo.cli.reporting import arguments_as_lines, refuse_file_name, say, wrote
from attendo.display.i18n import Language
from attendo.errors import AttendoError, install_command

if TYPE_CHECKING:
    from attendo.microscope.protocol import EditRequest, LookRequest
    from attendo.microscope.run_model import User
    from attendo.models import Model


HARD = ("inf", "infinity", "∞", "hard")
"""The values of --beta for infinite β, in lower case."""


def asked_edits(model: Model, off: list[str], beta: str | None) -> list[EditRequest]:
    """Return the edits that --off and --beta request. Raise BadParameter for an unknown layer, head or β."""
    from attendo.microscope.protocol import EditRequest

    edits = [_off(model, given) for given in off]
    if beta is not None:
        edits.append(EditRequest(kind="beta", path="*", beta=_beta(beta)))
    return edits


def _off(model: Model, given: str) -> EditRequest:
    """Return the edit of one PATH or PATH:HEAD. The path can be a shell pattern."""
    from attendo.microscope.protocol import EditRequest
    from attendo.microscope.run_model import attention_layers, effect_paths

    path, colon, number = given.partition(":")
    parts, layers = effect_paths(model), attention_layers(model)
    matched = [part for part in parts if part == path] or [p for p in parts if fnmatchcase(p, path)]
    if not matched:
        raise typer.BadParameter(f"--off {given}: no such layer. {_nearest(path, parts)}")
    if not colon:
        return EditRequest(kind="off", path=path)
    no_head = path in parts and path not in layers
    opt.refuse_if(no_head, f"--off {given}: a feed-forward layer has no head. Leave out {colon}{number}")
    head = int(number) if number.isascii() and number.isdigit() else 0
    most = min((layers[part].n_heads for part in matched if part in layers), default=0)
    opt.refuse_if(not most, f"--off {given}: feed-forward layers have no heads. Remove {colon}{number}")
    opt.refuse_if(not 1 <= head <= most, f"--off {given}: the head must be 1 to {most}")
    return EditRequest(kind="off", path=path, head=head - 1)


def _nearest(path: str, parts: list[str]) -> str:
    """Return the most similar layer path, or all layer paths."""
    from difflib import get_close_matches

    from attendo.inspecting.edits import paths_in_short

    near = get_close_matches(path, parts, n=1, cutoff=0.7)
    return f"Did you mean {near[0]}?" if near else f"The layers are {paths_in_short(parts)}"


def _beta(text: str) -> Any:
    """Return the value of --beta as in the page's address (state.js): a number of 0 or more, or "inf"."""
    try:
        value = float("inf" if text.lower() in HARD else text)
    except ValueError:
        value = -1.0
    opt.refuse_if(not value >= 0, f"--beta {text} must be a number of 0 or more, or inf")
    return "inf" if value == float("inf") else value


SUFFIXES = (".html", ".png", ".svg", ".csv")
PORT, MAX_TOKENS = 8100, 20
OF_FAMILIES = {
    "--target": ("translation", "language-model"),
    "--beam": ("translation", "language-model"),
    "--max-tokens": ("language-model",),
}
"""The tasks to which an option applies."""


@dataclasses.dataclass(frozen=True)
class LookOptions(opt.OptionGroup):
    """The options of `attendo look`: the text, the edits, and the output."""

    text: str | None = opt.argument("TEXT", "Text for the model to read.", default=None)
    target: str | None = opt.option(
        "T", "Output text to use instead of the decoded output (translator, language model)."
    )
    beam: int | None = opt.option("N", "Beam size of a translator or language model (default: as in the run, or 1).")
    max_tokens: int | None = opt.option("N", f"Maximum answer tokens of a language model (default: {MAX_TOKENS}).")
    off: list[str] | None = opt.option("PATH[:HEAD]", "Layer, or head of a layer (from 1), to switch off; repeatable.")
    beta: str | None = opt.option("B", "Attention is softmax(B · scores): 0 is uniform, 1 normal, inf hard.")
    out: Path | None = opt.option("F", "Output file: page (.html), map (.png, .svg) or the map's numbers (.csv).")
    stack: Stack | None = opt.option("S", "Stack to show: encoder, decoder or cross (default: the last of the model).")
    layer: int | None = opt.option(
        "N", "Layer to show, from 1 (default: the layer with the sharpest attention).", min=1
    )
    head: int | None = opt.option("N", "Attention head to show, from 1 (default: the mean of all heads).", min=1)
    query: int | None = opt.option("N", "Print the computation of row N of the map, key by key.", min=1)
    heads: bool = opt.switch("--heads", "Print a table of measures per attention head instead of the map.")
    serve: bool = opt.switch("--serve", "Serve the live page, to this machine only, until Ctrl-C.")
    port: int | None = opt.option("P", f"Port of --serve; 0 selects a free port (default: {PORT}).", min=0, max=65535)
    open_: bool = opt.switch("--open", "Open the page of --serve in the browser.")
    probe: Path | None = opt.option(
        "FILE", "Labeled texts for --serve, to show what linear probes read from each layer."
    )
    over: Path | None = opt.option("FILE", "Rank the attention heads by their effect on the rows of FILE.")
    alignments: Path | None = opt.option(
        "GOLD", "File with word alignments for --over, one line per row, for example 0-0 1?2."
    )


@opt.with_groups
def look(
    *,
    folder: opt.Folder,
    options: LookOptions,
    as_json: opt.OneJson = False,
    language: opt.Spoken = "en",
    machine: opt.Machine,
) -> int:
    """Show the attention of a model while it reads TEXT and generates its output.

    The command accepts models of all tasks. It prints the text, the output of the model, and a map of one attention
    layer. The map has one line per query token and one shaded character per key token. The option --out page.html
    writes all diagrams to one HTML page, which works offline. The option --serve serves the page live. On the live
    page, you can enter other texts, switch off heads, make attention hard or soft, and see the beam search as a tree.

    An example of PATH is decoder.blocks.0.cross_attention. A path consists of encoder or decoder, a block number (from
    0), and self_attention, cross_attention or feed_forward. An asterisk matches any part of a path. In the output of
    --json, the numbers of layers and heads begin at 0. For a masked language model, write <mask> in TEXT for a token to
    predict.

    The option --query N prints the computation of one row of the map: q·k, score, mask, exp and weight of each key, and
    the weighted sum of the values. If --head is not given, --query uses the head with the sharpest attention.

    Example: attendo look runs/mine "It will rain tomorrow."

    Example: attendo look runs/mine "It will rain." --out page.html

    Example: attendo look runs/mine "It will rain." --stack encoder --layer 1 --head 2 --query 3

    Example: attendo look runs/mine "It will rain." --off "*.self_attention:2"

    Example: attendo look runs/mine --over test.tsv

    Example: attendo look runs/mine --serve --open
    """
    given = collections.defaultdict(bool)
    for name, value in options.given().items():
        is_given = value is not False and value != []  # 0 is a port
        given["TEXT" if name == "text" else opt.flag(name)] = is_given
    _check_together(given, as_json)
    out = options.out
    refuse_file_name([options.text] if options.text else None, "give one of them in quotes")
    for one in (options.text, options.target):
        if one is not None:
            next(arguments_as_lines([one]))  # raises for text that is not UTF-8
    if out is not None:
        _check_file(out)
    from attendo.inference import load
    from attendo.microscope.run_model import require_shown

    user = load(folder, machine.chosen(), bits=32)
    require_shown(user)
    if options.over is not None:
        return rank(user, folder, options.over, options.alignments, as_json, language)
    _check_family(user, given)
    edits = asked_edits(user.model, options.off or [], options.beta)
    from attendo.microscope.run_model import look as look_at
    from attendo.microscope.view import View, ask_for

    most = MAX_TOKENS if options.max_tokens is None else options.max_tokens
    request = ask_for(user, options.text or "", options.target, options.beam, most, edits)
    chosen = (options.stack, _from_0(options.layer), _from_0(options.head))
    if options.serve:
        is_chosen = chosen != (None, None, None)
        opened = View(look_at(user, request, folder)).opened(*chosen) if is_chosen else None
        state = _state_of(request, ask_for(user, ""), opened)
        return _serve(user, folder, state, options, language)
    view = View(look_at(user, request, folder))
    steps = None if options.query is None else view.steps(options.query - 1, *chosen)
    shows = steps or ("heads" if options.heads else "map" if out is None else "answer")
    printed = json_text(view, *chosen, steps) if as_json else "\n".join(text_lines(view, *chosen, language, shows))
    if out is not None:
        view.save(out, *chosen, language)  # first: the reader of stdout may close it before its end
    print(printed)
    if out is not None:
        say(wrote(out, language))
    return 0


def _from_0(number: int | None) -> int | None:
    return None if number is None else number - 1


def _check_together(given: dict[str, bool], as_json: bool) -> None:
    """Raise BadParameter for options that cannot be combined, or that require another option."""
    has_work = given["TEXT"] or given["--serve"] or given["--over"]
    opt.refuse_if(not has_work, "TEXT is missing. Give a text, --serve or --over FILE")
    if given["--over"]:
        opt.refuse("--over", {name: given[name] for name in given if name not in ("--over", "--alignments")})
    if given["--serve"]:
        opt.refuse("--serve", {"--json": as_json, "--out": given["--out"], "--heads": given["--heads"]})
    if given["--query"]:
        opt.refuse("--query", {name: given[name] for name in ("--heads", "--out", "--serve")})
    if given["--target"]:
        opt.refuse("--target", {name: given[name] for name in ("--beam", "--max-tokens")})
    for name in ("--alignments", "--port", "--open", "--probe"):
        way = "--over" if name == "--alignments" else "--serve"
        alone = given[name] and not given[way]
        opt.refuse_if(alone, f"{name} requires {way}")
    for name in ("--stack", "--layer", "--head", "--query"):
        alone = given[name] and not given["TEXT"]
        opt.refuse_if(alone, f"{name} requires TEXT")


def _check_family(user: User, given: dict[str, bool]) -> None:
    """Raise BadParameter for an option that does not apply to the model's task."""
    family = user.task
    for name, families in OF_FAMILIES.items():
        if given[name] and family not in families:
            others = " and ".join(f"{_spoken(one)}s" for one in families)
            raise typer.BadParameter(f"{name} applies only to {others}, not to a {_spoken(family)}. Leave it out")


def _spoken(family: str) -> str:
    """Return the name of a model of a task, for example "translation model" or "masked language model"."""
    return family.replace("-", " ").removesuffix(" model") + " model"


def _check_file(out: Path) -> None:
    """Raise an error, before any work, if the file cannot be written."""
    import tempfile

    suffix = out.suffix.lower()
    opt.refuse_if(suffix not in SUFFIXES, f"--out {out} must end in {', '.join(SUFFIXES)}")
    if not out.absolute().parent.is_dir():
        raise AttendoError(f"--out {out}: folder {out.parent} does not exist. Create it first")
    if out.is_dir():
        raise AttendoError(f"--out {out} is a folder (expected a file, for example {out / f'page{suffix}'})")
    try:
        with tempfile.TemporaryFile(dir=out.resolve().parent):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise AttendoError(
            f"--out {out}: cannot write to {out.absolute().parent} ({why}). Choose another folder"
        ) from error
    if suffix in (".png", ".svg"):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise AttendoError(
                f"--out {out}: {suffix} requires matplotlib. Write .html or .csv, or run: {install_command('plots')}"
            ) from None


# ---- the live page


def _serve(user: User, folder: Path, state: str, options: LookOptions, language: Language) -> int:
    """Serve the page until Ctrl-C (exit code 130) or SIGTERM (143)."""
    from attendo.microscope.server import LookServer
    from attendo.microscope.session import Session, probes_of

    session = Session.prepared(user, folder)
    if options.probe is not None:
        session.probes = probes_of(user, labelled_rows(user, folder, options.probe, language))
    server = LookServer(session, PORT if options.port is None else options.port, language)
    code = opt.serve_page(server.run, server.stop, server.address + state, options.open_, language)
    if server.is_computing:  # torch would abort at the exit of Python
        sys.stdout.flush()
        os._exit(code)
    return code


def _state_of(request: LookRequest, usual: LookRequest, opened: dict[str, Any] | None) -> str:
    """Return the fragment of the page's address for a request. `usual` is the request without options."""
    from urllib.parse import quote, urlencode

    state: dict[str, Any] = {"text": request.text} if request.text else {}
    state |= {"search": request.search} if request.text or request.search != usual.search else {}
    state |= {} if request.target is None else {"target": request.target}
    state |= {} if request.beam is None else {"beam": request.beam}
    state |= {} if request.max_tokens == MAX_TOKENS else {"max_tokens": request.max_tokens}
    edits = [dataclasses.asdict(edit) for edit in request.edits]
    state |= {"edits": json.dumps(edits)} if edits else {}
    state |= {} if opened is None else {"layer": opened["path"], "head": opened["head"]}
    return f"#{urlencode(state, quote_via=quote)}" if state else ""
