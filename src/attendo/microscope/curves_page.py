"""The report of runs as one self-contained page: curves, facts, events; no script, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from attendo.display.i18n import Language, Localized, labelled
from attendo.microscope.curve_axes import Axis
from attendo.microscope.curve_drawing import EVENT_WORDS, color_of, panel_svg
from attendo.runs.learning_curves import (
    ACROSS,
    MEASURES,
    Across,
    Event,
    Panel,
    RunRecord,
    events,
    panels,
    read_number,
)
from attendo.runs.run_facts import FACTS, differing_settings, facts_of

TITLE = Localized("Learning curves", "学習曲線")
_FACTS = Localized("Runs", "実行")
_DIFFERING = Localized("Settings that differ between the runs", "実行の間で異なる設定")
_EVENTS = Localized("What happened", "できごと")
_ALL = Localized("All evaluations", "すべての評価")
_STEP, _RUN, _WHAT = Localized("step", "ステップ"), Localized("run", "実行"), Localized("what", "内容")
_SMOOTH = Localized(
    "Faint: means of 20 steps; bold: smoothed. Label smoothing and dropout raise the loss of training.",
    "薄い線は 20 ステップの平均、太い線はその平滑化。学習の損失はラベル平滑化とドロップアウトの分だけ高い。",
)
_LEGEND = (
    ('<path class="line {color}" d="M0 6H28"/>', Localized("training", "学習")),
    (
        '<path class="dots {valid}" d="M0 6H28"/><circle class="dot {valid}" cx="14" cy="6" r="2.6"/>',
        Localized("validation", "検証"),
    ),
)
_MARKS = {
    "best": '<circle class="best" cx="14" cy="6" r="5"/>',
    "decay": '<path class="decay {color}" d="M14 -2V14"/>',
    "checkpoint": '<path class="checkpoint" d="M14 3v6"/>',
    "skipped": '<path class="skipped" d="M14 1l4.5 8h-9z"/>',
    "advice": '<path class="advice" d="M14 1l5 5l-5 5l-5 -5z"/>',
}


def report_page(runs: Sequence[RunRecord], across: Across = "step", language: Language = "en") -> str:
    """The page. Whatever the files hold, it stands there as text: nothing of it is read as HTML."""
    style = (files("attendo.microscope") / "assets" / "curves.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    names = short_names(runs)
    title = labelled(TITLE, ", ".join(names), language)
    shown, happened = panels(runs, across), events(runs, across)
    if len(runs) > 1:  # of several runs they would say nothing but clutter
        happened = [event for event in happened if event.kind != "checkpoint"]
    parts = [
        "<!doctype html>",
        f'<html lang="{language}">',
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy"'
        f" content=\"default-src 'none'; style-src 'sha256-{digest}'\">",
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style></head>",
        f"<body><main><h1>{escape(title)}</h1>",
        *(f'<p class="note">{escape(run.word)}</p>' for run in runs if run.word),
        *_legend(names, happened, language),
        f'<p class="note">{_SMOOTH.text(language)}</p>',
        '<div class="panels">',
        *_figures(shown, happened, across, language),
        "</div>",
        f"<h2>{_FACTS.text(language)}</h2>",
        *_facts(runs, names, language),
        *_happened(happened, names, language),
        *_evaluations(runs, names, language),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def short_names(runs: Sequence[RunRecord]) -> list[str]:
    """The last part of each run's folder, or all of it where two would be alike."""
    last = [run.name.rstrip("/").rpartition("/")[2] or run.name for run in runs]
    return last if len(set(last)) == len(last) else [run.name for run in runs]


def axis_across(shown: Sequence[Panel]) -> Axis:
    """The axis that all panels share: from 0 to the last point of any."""
    last = max(float(curve.xs[-1]) for panel in shown for curve in panel.curves)
    return Axis(0.0, last * 1.01 or 1.0)


def _legend(names: Sequence[str], happened: Sequence[Event], language: Language) -> Iterator[str]:
    """What the colors and marks are; of several runs, which is which."""
    yield '<ul class="legend">'
    if len(names) > 1:
        for run, name in enumerate(names):
            yield _key(f'<path class="line {color_of(run)}" d="M0 6H28"/>', name)
    color, valid = ("run-0", "valid") if len(names) == 1 else ("run-5", "run-5")
    for drawing, words in _LEGEND:
        yield _key(drawing.format(color=color, valid=valid), words.text(language))
    there = {event.kind for event in happened}
    for kind, drawing in _MARKS.items():
        if kind in there:
            yield _key(drawing.format(color=color), EVENT_WORDS[kind].text(language))
    yield "</ul>"


def _key(drawing: str, text: str) -> str:
    return f'<li><svg viewBox="0 0 28 12" aria-hidden="true">{drawing}</svg>{escape(text)}</li>'


def _figures(
    shown: Sequence[Panel], happened: Sequence[Event], across: Across, language: Language
) -> Iterator[str]:
    axis = axis_across(shown)
    for panel in shown:
        name = escape(panel.title.text(language))
        drawing = panel_svg(panel, happened, axis, ACROSS[across].text(language), language)
        yield f"<figure><figcaption>{name}</figcaption>{drawing}</figure>"


def _facts(runs: Sequence[RunRecord], names: Sequence[str], language: Language) -> Iterator[str]:
    columns = [facts_of(run, language) for run in runs]
    yield '<div class="scroll"><table>'
    if len(runs) > 1:
        yield _row("th", ["", *names], "thead")
    yield "<tbody>"
    for name, words in FACTS.items():
        if any(name in column for column in columns):
            cells = "".join(f"<td>{escape(column.get(name, ''))}</td>" for column in columns)
            yield f'<tr><th scope="row">{words.text(language)}</th>{cells}</tr>'
    yield "</tbody></table></div>"
    if differing := differing_settings(runs):
        yield f'<p class="note">{_DIFFERING.text(language)}: {escape("; ".join(differing))}</p>'


def _happened(happened: Sequence[Event], names: Sequence[str], language: Language) -> Iterator[str]:
    """The events in the order of the steps, but for checkpoints, of which there are many."""
    rows = sorted((e for e in happened if e.kind != "checkpoint"), key=lambda e: (e.step, e.run))
    if not rows:
        return
    yield f"<h2>{_EVENTS.text(language)}</h2>"
    several = len(names) > 1
    heads = [_STEP, *([_RUN] if several else []), _WHAT]
    yield '<div class="scroll"><table>' + _row("th", [words.text(language) for words in heads], "thead")
    yield "<tbody>"
    for event in rows:
        what = EVENT_WORDS[event.kind].text(language)
        text = f"{what}: {event.note}" if event.note else what
        yield _row("td", [f"{event.step:,}", *([names[event.run]] if several else []), text])
    yield "</tbody></table></div>"


def _evaluations(runs: Sequence[RunRecord], names: Sequence[str], language: Language) -> Iterator[str]:
    """Every evaluation in numbers, folded up."""
    rows = [(i, e) for i, run in enumerate(runs) for e in run.entries if e["kind"] == "evaluation"]
    keys = [key for key in ("loss", *MEASURES) if any(key in entry for _, entry in rows)]
    if not rows:
        return
    yield f"<details><summary>{_ALL.text(language)}</summary>"
    titles = [{"loss": Localized("loss", "損失"), **MEASURES}[key].text(language) for key in keys]
    several = len(names) > 1
    heads = [*([_RUN.text(language)] if several else []), _STEP.text(language), *titles, ""]
    yield '<div class="scroll"><table>' + _row("th", heads, "thead") + "<tbody>"
    for run, entry in rows:
        numbers = [read_number(entry.get(key)) for key in keys]
        cells = ["" if number is None else f"{number:,.4f}" for number in numbers]
        best = "★" if entry.get("best") is True else ""
        yield _row("td", [*([names[run]] if several else []), f"{entry['step']:,}", *cells, best])
    yield "</tbody></table></div></details>"


def _row(cell: str, texts: Sequence[str], around: str = "") -> str:
    row = "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"
    return f"<{around}>{row}</{around}>" if around else row
