"""The commands `attendo runs`, `attendo info` and `attendo report`, which show runs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import typer

from attendo.cli.options import Folder, OneJson, Spoken, argument, option
from attendo.cli.reporting import INDENT, say, wrote
from attendo.cli.translate import LEFT
from attendo.display.formats import duration
from attendo.display.tables import WIDTH, table_lines
from attendo.display.width import flowed, shown
from attendo.errors import AttendoError

HEADS = (f"{'started':<16}", "score", "steps", "time", "run")


def runs(
    folder: Path = argument("[FOLDER]", "Folder that contains run folders, at any depth.", Path("runs")),
    note: str | None = option("TEXT", "Store a note in the run FOLDER; an empty text removes it."),
    as_json: OneJson = False,
) -> int:
    """List all runs in a folder with their date, score, training time, data and note, oldest first.

    The score is the validation measure that selected the weights. A damaged run is listed with the reason.

    Example: attendo runs runs

    Example: attendo runs runs/mine --note "with the cleaned labels"
    """
    from attendo.runs.tracking import list_runs, write_note

    if note is not None:
        write_note(folder, note)
    found = list_runs(folder)
    if as_json:
        print(json.dumps({"runs": found}, ensure_ascii=False))
    elif found:
        print("\n".join(run_lines(found)))
    else:
        say(f"no runs in {folder}")
    return 0


def run_lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table. The folder of a run is the last column, which is never cut."""
    heads, rule, *rows = table_lines(HEADS, [_row(run) for run in found], width=10_000)
    yield from (heads, rule[:WIDTH])
    for run, row in zip(found, rows, strict=True):
        yield row
        yield from flowed(shown(INDENT + "; ".join(_details(run))), WIDTH, INDENT)


def _row(run: dict[str, Any]) -> tuple[str, str, str, str, str]:
    from attendo.training.run import measured

    started = datetime.fromisoformat(run["started"]).astimezone().strftime("%Y-%m-%d %H:%M")
    if "error" in run:
        return started, "damaged", "", "", run["run"]
    score = "none yet" if run["score"] is None else measured({run["deciding"]: run["score"]})[0]
    return started, score, f"{run['steps']:,}", duration(run["wall_seconds"]), run["run"]


def _details(run: dict[str, Any]) -> Iterator[str]:
    from attendo.training.run import measured

    if "error" in run:
        yield run["error"]
        return
    yield run["task"]
    if run["deciding"] == "loss" and "accuracy" in run["validation"]:
        yield from measured({"accuracy": run["validation"]["accuracy"]})
    if names := [Path(file).name for file in run["files"]]:
        rows = "" if run["rows"] is None else f" ({run['rows']:,} rows)"
        yield ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") + rows
    if state := run["origin"] if run["ended"] else "not finished":
        yield state
    if run["note"]:
        yield f"note: {run['note']}"


CALLS = {
    "translate": "translate([text])[0].text",
    "classify": "classify([text])[0].label",
    "tagging": "classify([text])[0].spans",
    "multi-label": "classify([text])[0].labels",
    "regression": "classify([text])[0].number",
    "generate": "generate(text).text",
    "chat": 'chat([{"role": "user", "content": text}]).text',
    "embed": "embed([text])",
}
"""The Python call that uses a model, by its task, or by the command that uses the model."""


def card_lines(folder: Path, facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that `attendo info` prints. A long file name is not broken into two lines."""
    for name, text in _entries(folder, facts):
        lines = textwrap.wrap(shown(text), WIDTH - LEFT, break_long_words=False, break_on_hyphens=False)
        first, *rest = lines or [""]
        yield f"{name:<{LEFT}}{first}".rstrip()
        yield from (" " * LEFT + line for line in rest)


def _entries(folder: Path, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from attendo.bundle import usage, use_of
    from attendo.custom_modules import LOAD, python_line

    config = facts["config"]
    model = config["model"]
    training = config.get("training", {})
    data = facts.get("data", {})
    yield "run", str(folder)
    if note := facts.get("note"):
        yield "note", note
    yield "task", facts.get("task", "?") + _direction(facts.get("languages", {}))
    if values := facts.get("values"):
        yield "numbers", f"about {values[0]:g} to {values[-1]:g}, in {len(values)} bins"
    elif labels := facts.get("labels"):
        yield "labels", ", ".join(f"{label} ({count:,})" for label, count in labels.items())
    layers = "+".join(str(model[n]) for n in ("n_encoder_layers", "n_decoder_layers") if model[n])
    size = f"{layers} layers, d_model {model['d_model']}, {model['n_heads']} heads, d_ff {model['d_ff']}"
    yield "model", f"{size}, {facts.get('parameters', 0):,} parameters"
    if (own := facts.get("own_parts")) is not None:
        yield "own parts", f"{own} (load this run from Python)"
    imported = facts.get("imported")
    if (trained := facts.get("trained_parameters")) is not None:
        yield "trained", _trained(trained, training.get("frozen", []), config.get("lora", {}))
    yield "tokenizer", f"{config.get('tokenizer', {}).get('kind', '?')}, {model['vocab_size']:,} entries"
    if source := facts.get("init_from"):
        yield "began with", source
    if imported:
        yield "imported", " ".join(filter(None, map(imported.get, ("from", "model_type", "name"))))
    else:
        yield "data", ", ".join(_counts(data))
        files = config.get("data", {}).get("train", [])
        for file in files if isinstance(files, list) else ():
            yield "", str(file)
        yield "training", _training(training)
        if not facts.get("bits"):  # a quantized copy has no log of its training
            yield "so far", _progress(facts["progress"])
        yield "validation", _validation(facts.get("validation"))
    if bits := facts.get("bits"):
        yield "quantized", f"{bits} bits per weight"
    if decoding := facts.get("decoding"):
        shown = ("beam", "length_penalty", "max_tokens", "temperature", "top_k", "top_p", "min_p")
        yield "decoding", ", ".join(f"{key} {decoding[key]}" for key in shown if key in decoding)
    for name in ("files", "checkpoints"):
        if sizes := facts[name]:
            yield name, ", ".join(f"{file} ({_bytes(n)})" for file, n in sizes.items())
    yield "made with", ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    architecture = model.get("architecture", "encoder-decoder")
    use = use_of(facts.get("task"), architecture)
    call = CALLS.get(facts.get("task", ""), CALLS[use])
    if own is None:
        yield "use", usage(facts.get("task"), architecture, folder)
    load = f"attendo.load({str(folder)!r}).{call}"
    yield "in Python", load if own is None else python_line(own, folder, f"{LOAD}.{call}")


def _direction(languages: dict[str, str | None]) -> str:
    if not any(languages.values()):
        return ""
    return f", {languages.get('source') or '?'} → {languages.get('target') or '?'}"


def _training(training: dict[str, Any]) -> str:
    ends = (("steps", "steps"), ("epochs", "epochs"), ("minutes", "minutes"), ("cpu_minutes", "CPU-minutes"))
    end = next((f"{training[key]:,g} {word}" for key, word in ends if key in training), "?")
    rate = f"learning rate {training.get('learning_rate', 0):.2g}, schedule {training.get('schedule', '?')}"
    batch = f"{training.get('batch_tokens', 0):,} tokens per batch"
    return f"{end}, {batch}, {rate}, {training.get('precision', '?')}, seed {training.get('seed', '?')}"


def _trained(count: int, frozen: list[str], lora: dict[str, Any]) -> str:
    """Return the trained parts of a model of which only parts were trained."""
    parts = [f"{count:,} parameters"]
    if lora:
        targets = lora["targets"]
        on = "all linear layers" if targets == "all" else ", ".join(targets)
        parts.append(f"LoRA adapters of rank {lora['rank']} on {on}")
        parts += [f"fully trained: {', '.join(lora['trained'])}"] if lora["trained"] else []
    return "; ".join([*parts, f"frozen: {', '.join(frozen)}"] if frozen else parts)


def _progress(entry: dict[str, Any]) -> str:
    from attendo.runs.learning_curves import read_number

    if not entry:
        return "no steps yet"
    wall, cpu, step, epoch = (
        read_number(entry.get(key)) or 0 for key in ("wall_seconds", "cpu_seconds", "step", "epoch")
    )
    state = f"ended: {entry.get('note', '')}" if entry.get("kind") == "end" else "not finished"
    return f"step {step:,.0f}, epoch {epoch + 1:,.0f}, {duration(wall)} ({cpu:,.0f} CPU-seconds); {state}"


def _counts(data: dict[str, Any]) -> Iterator[str]:
    """Yield the sizes of the training set and the validation set."""
    for key, value in data.items():
        if key == "padding_share" and isinstance(value, float):
            yield f"{value:.1%} padding"
        elif isinstance(value, int) and key != "batches_per_epoch":
            yield f"{value:,} {key.replace('_', ' ')}"


def _validation(found: dict[str, float] | None) -> str:
    from attendo.training.run import measured, parts_alone

    if not found:
        return "none yet"
    measures = f"{', '.join(measured(found))} (step {found.get('step', 0):,.0f})"
    return "; ".join([measures, *parts_alone(found)])


def _bytes(size: int) -> str:
    """Return a file size as text.

    >>> _bytes(900), _bytes(1_234_567)
    ('900 bytes', '1.2 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1e6:,.1f} MB"


def info(folder: Folder, as_json: OneJson = False) -> int:
    """Print the model, the data, the training progress and the validation scores of a run.

    Example: attendo info runs/mine
    """
    from attendo.runs.tracking import describe_run

    facts = describe_run(folder)
    print(json.dumps(facts, ensure_ascii=False, indent=1) if as_json else "\n".join(card_lines(folder, facts)))
    return 0


PAGE, PICTURE = "report.html", "curves.png"


def report(
    folders: list[Path] = argument("DIR...", "Run folders."),
    out: Path | None = option("FOLDER", "Output folder for the two files (default: the first run folder)."),
    across: str = option("A", "Unit of the horizontal axis: step, minutes or cpu-minutes.", "--by", default="step"),
    language: Spoken = "en",
) -> int:
    """Draw the learning curves of runs in two files: report.html, which opens offline, and curves.png.

    The page shows the loss, validation metrics, learning rate, gradient norm and speed, the events of the training, and
    a summary of each run. The curves of several runs share their axes. A run that is still training can also be drawn.

    Example: attendo report runs/mine runs/other --out report
    """
    from attendo.files import write_atomic
    from attendo.microscope.curves import report_page, write_picture
    from attendo.runs.learning_curves import Across, read_run

    by = next((known for known in get_args(Across) if known == across), None)
    if by is None:
        raise typer.BadParameter(f"--by {across} is unknown (expected step, minutes or cpu-minutes)")
    records = [read_run(folder) for folder in folders]
    for run in records:
        if run.word:
            say(run.word)
    place = folders[0] if out is None else out
    if not place.is_dir() and (place.exists() or place.suffix in (".html", ".png")):
        raise AttendoError(f"--out {place} is not a folder (expected a folder for {PAGE} and {PICTURE})")
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / PAGE, report_page(records, by, language))
    say(wrote(place / PAGE, language))
    try:
        if write_picture(records, place / PICTURE, by, language) != language:
            say("日本語の文字がそろったフォントがないため、図の文字は英語です")
        say(wrote(place / PICTURE, language))
    except AttendoError as error:  # matplotlib is an extra; the page is complete without it
        say(f"warning: {place / PICTURE} was not written: {error}")
    return 0
