"""The command `attendo lesson`."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.options import Spoken
from attendo.cli.reporting import say
from attendo.display.formats import duration
from attendo.display.progress import ProgressLine
from attendo.display.tables import WIDTH, table_lines
from attendo_course.book import passage, translated

if TYPE_CHECKING:
    from attendo.display.i18n import Language
    from attendo_course.lessons.lesson import Cell, Lesson, Piece


def lesson(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the lesson (default: a list of all).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of models of each kind (default: as in the list).")
    ] = None,
    effort: Annotated[
        float,
        typer.Option(metavar="X", help="Share of the training steps: 0.1 is quick, without conclusions."),
    ] = 1.0,
    train: Annotated[
        list[Path] | None,
        typer.Option(metavar="F", help="Your own data, for a lesson that uses files; repeatable."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Number of CPU threads; more than 1 rarely helps small models."),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    language: Spoken = "en",
) -> int:
    """Run a lesson: train small models, compare them in tables and curves, and explain the result.

    Without NAME, the command prints a list of all lessons with the CPU time of each lesson. --json prints one object
    per part of the lesson, with the key "text", "table" or "picture".

    With --seeds 1, a lesson is shorter and prints its conclusion, but the tables have no error bars. With --effort
    below 1, a lesson is also shorter, but prints no conclusion.

    Example: attendo lesson reverse --seeds 1
    """
    from attendo_course.lessons import NAMES, find_lesson
    from attendo_course.lessons.lesson import Options

    if name is None:
        rows = [_listed(find_lesson(known), language) for known in NAMES]
        heads = ["", "CPU min", "seeds", ""] if language == "en" else ["", "CPU 分", "シード", ""]
        print("\n".join(table_lines(heads, rows)))
        return 0
    import torch

    found, options = find_lesson(name), Options(seeds, effort, tuple(train or ()), language)
    if train and not found.takes_files:
        raise typer.BadParameter(f"--train does not apply to the lesson {name}, which makes its own data. Leave it out")
    torch.set_num_threads(threads)
    minutes, began = found.minutes(options), time.process_time()
    if not as_json:
        source = translated(found.source).text(language)
        print("\n".join([*_paragraph(f"{found.title.text(language)} — {source}"), ""]))
        print("\n".join([*_paragraph(found.question.text(language)), ""]), flush=True)
        if minutes > 4:
            # One seed reaches the conclusion. With fewer steps, Transformers can look worse than they are.
            less = "--seeds 1" if found.seeds else "--effort 0.2"
            en = f"this takes about {minutes:.0f} CPU-minutes; use {less} for a shorter run"
            ja = f"CPU 時間で約 {minutes:.0f} 分かかります。短くするには {less} を付けてください"
            say(en if language == "en" else ja)
    pieces = found.teach(options)
    for piece in waiting(pieces if effort >= 1 else quick_look(pieces, effort), minutes, language):
        if as_json:
            print(json.dumps(_piece_json(piece, language), ensure_ascii=False), flush=True)
        else:
            print("\n".join([*piece_lines(piece, language), ""]), flush=True)
    spent = duration(time.process_time() - began)
    say(f"{spent} of CPU time" if language == "en" else f"CPU 時間：{spent}")
    return 0


def quick_look(pieces: Iterable[Piece], effort: float) -> Iterator[Piece]:
    """Yield the parts of a lesson whose models are only partly trained: with a warning and without a conclusion."""
    from attendo_course.lessons.lesson import Conclusion, Table

    warned = held_back = False
    for piece in pieces:
        if isinstance(piece, Table) and not warned:
            warned = True
            yield passage("lesson.quick_look", effort=effort)
        if isinstance(piece, Conclusion):
            held_back = True
        else:
            yield piece
    if held_back:
        yield passage("lesson.quick_look-2")


def waiting(pieces: Iterator[Piece], cpu_minutes: float, language: Language = "en") -> Iterator[Piece]:
    """Yield the parts of a lesson. On a terminal, a line shows the progress until the next part."""
    line, began = ProgressLine(), time.process_time()
    while True:
        done = threading.Event()

        def tick(done: threading.Event = done) -> None:
            while not done.wait(line.every):
                spent, whole = duration(time.process_time() - began), duration(60 * cpu_minutes)
                en = f"training: {spent} of about {whole} of CPU time"
                line.show(en if language == "en" else f"訓練中：CPU 時間 {spent}（全体で約 {whole}）")

        thread = threading.Thread(target=tick, daemon=True)
        if line.is_live:
            thread.start()
        try:
            piece = next(pieces, None)
        finally:
            done.set()
            if line.is_live:
                thread.join()
            line.clear()
        if piece is None:
            return
        yield piece


def _listed(lesson: Lesson, language: Language) -> list[str | float]:
    seeds = sorted({*lesson.seeds}) or [1]
    shown = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
    return [lesson.name, f"{math.ceil(lesson.cpu_minutes)}", shown, lesson.title.text(language)]


def _paragraph(text: str) -> list[str]:
    from attendo.display.width import flowed

    return flowed(text, WIDTH)


def piece_lines(piece: Piece, language: Language) -> list[str]:
    """Return a part of a lesson as lines of at most WIDTH columns."""
    from attendo_course.lessons.lesson import Conclusion, Table
    from attendo_course.pictures import Picture, picture_lines

    match piece:
        case Table():
            heads = [head.text(language) for head in piece.columns]
            rows = [[_cell(cell, language) for cell in row] for row in piece.rows]
            return [*_paragraph(piece.title.text(language)), *table_lines(heads, rows)]
        case Picture():
            return picture_lines(piece, language, WIDTH)
        case Conclusion(words) | words:
            return _paragraph(words.text(language))


def _piece_json(piece: Piece, language: Language) -> dict[str, Any]:
    from attendo_course.lessons.lesson import Conclusion, Table
    from attendo_course.pictures import Picture

    match piece:
        case Table():
            heads = [head.text(language) for head in piece.columns]
            rows = [[_cell(cell, language) for cell in row] for row in piece.rows]
            title = piece.title.text(language)
            return {"table": {"name": piece.name, "title": title, "columns": heads, "rows": rows}}
        case Picture():
            facts = {
                "kind": piece.kind,
                "title": piece.title.text(language),
                "rows": piece.row_labels(language),
            }
            return {"picture": facts | {"columns": piece.columns, "values": piece.values.tolist()}}
        case Conclusion(words) | words:
            return {"text": words.text(language)}


def _cell(cell: Cell, language: Language) -> str | float:
    return cell if isinstance(cell, str | float | int) else cell.text(language)
