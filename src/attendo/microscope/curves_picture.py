"""Learning curves as one PNG, by matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.display.i18n import Language
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.microscope.curves_page import EVENT_WORDS, axis_across, axis_of, short_names, tick_texts
from attendo.runs.learning_curves import (
    ACROSS,
    TRAINING,
    VALIDATION,
    Across,
    Curve,
    Event,
    EventKind,
    Panel,
    RunRecord,
    events,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

COLORS = ("#0072b2", "#d55e00", "#009e73", "#a8568a", "#b87f00", "#4a5a6a")
"""After Okabe & Ito 2008, as on the page."""
VALID, BAD, ADVICE = "#d55e00", "#b3261e", "#b87f00"
INK, FAINT, GRID = "#1b2430", "#5b6673", "#e9edf1"
DOTS: dict[str, Any] = {
    "linewidth": 1.2,
    "linestyle": "--",
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": "white",
}
MARKS: dict[EventKind, dict[str, Any]] = {
    "best": {"linestyle": "", "marker": "o", "color": INK, "fillstyle": "none", "markersize": 9},
    "skipped": {"linestyle": "", "marker": "^", "color": BAD, "markersize": 5},
    "advice": {"linestyle": "", "marker": "D", "color": ADVICE, "markersize": 5},
    "decay": {"linestyle": ":", "linewidth": 1.1},
}
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 2, 5.6, 2.9  # inches
DOTS_PER_INCH = 130


def write_picture(
    runs: Sequence[RunRecord], path: Path, across: Across = "step", language: Language = "en"
) -> Language:
    """Draws all panels into a PNG and gives the language of its words.

    That is English where no font installed here has the Japanese characters. Raises AttendoError without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        raise AttendoError('the picture needs matplotlib: pip install "attendo[plots]"') from None
    from attendo.display.fonts import fonts_for

    shown, names = panels(runs, across), short_names(runs)
    words = [*(panel.title for panel in shown), *EVENT_WORDS.values(), ACROSS[across], TRAINING, VALIDATION]
    wanted = set("".join(word.text(language) for word in words))
    fonts, drawable = fonts_for("".join(sorted(wanted.union(*names))))
    if not wanted <= drawable:
        language = "en"
    names = ["".join(c if c in drawable else "?" for c in name) for name in names]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["font.family"] = fonts
        write_atomic(path, _rendered(shown, events(runs, across), names, across, language))
    return language


def _rendered(
    shown: Sequence[Panel],
    happened: Sequence[Event],
    names: Sequence[str],
    across: Across,
    language: Language,
) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    n_rows = math.ceil(len(shown) / COLUMNS)
    figure = Figure((COLUMNS * PANEL_WIDTH, n_rows * PANEL_HEIGHT + 0.5), facecolor="white")
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", h_pad=0.1)
    for number, panel in enumerate(shown, 1):
        axes = figure.add_subplot(n_rows, COLUMNS, number)
        axes.set_xlim(0, axis_across(shown).high)
        _panel(axes, panel, happened, len(names) == 1)
        axes.set_title(panel.title.text(language), fontsize=11, color=INK, loc="left", parse_math=False)
        axes.set_xlabel(ACROSS[across].text(language), fontsize=8.5, color=FAINT)
    _legend(figure, shown, happened, names, language)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return file.getvalue()


def _panel(axes: Axes, panel: Panel, happened: Sequence[Event], alone: bool) -> None:
    up = axis_of((float(y) for curve in panel.curves for y in curve.ys), panel.logarithmic)
    axes.set_yscale("log" if up.logarithmic else "linear")
    axes.set_ylim(up.low, up.high)
    ticks = up.ticks()
    axes.set_yticks(ticks, tick_texts(ticks))
    axes.set_yticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.6g}")
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(labelsize=8.5, labelcolor=FAINT, color=FAINT, left=False)
    for curve in panel.curves:
        _curve(axes, curve, alone)
    foot = axes.get_xaxis_transform()
    for event in happened:
        color = COLORS[event.run % len(COLORS)]
        match event.kind:
            case "decay":
                axes.axvline(event.x, color=color, **MARKS["decay"])
            case "checkpoint" if alone:
                axes.plot([event.x] * 2, [0, 0.02], color=FAINT, linewidth=1.2, transform=foot)
            case "skipped":
                axes.plot(event.x, 0.03, **MARKS["skipped"], transform=foot, clip_on=False)
            case "advice":
                axes.plot(event.x, 0.97, **MARKS["advice"], transform=foot, clip_on=False)
            case _:
                pass
    best = {event.run: event.x for event in happened if event.kind == "best"}
    for curve in panel.curves:
        at = [
            i for i, x in enumerate(curve.xs.tolist()) if curve.style == "dots" and x == best.get(curve.run)
        ]
        if at:
            axes.plot(curve.xs[at], curve.ys[at], **MARKS["best"], clip_on=False)


def _curve(axes: Axes, curve: Curve, alone: bool) -> None:
    color = VALID if alone and curve.style == "dots" else COLORS[curve.run % len(COLORS)]
    match curve.style:
        case "faint":
            axes.plot(curve.xs, curve.ys, color=color, linewidth=0.8, alpha=0.35)
        case "line":
            axes.plot(
                curve.xs, curve.ys, color=color, linewidth=1.8, marker="o" if len(curve.xs) == 1 else ""
            )
        case "dots":
            axes.plot(curve.xs, curve.ys, color=color, **DOTS)


def _legend(
    figure: Figure,
    shown: Sequence[Panel],
    happened: Sequence[Event],
    names: Sequence[str],
    language: Language,
) -> None:
    """What the colors and marks are; of several runs, which is which."""
    several, there = len(names) > 1, {event.kind for event in happened}
    plain, valid = (COLORS[5], COLORS[5]) if several else (COLORS[0], VALID)
    runs = enumerate(names if several else [])
    keys = [_key(name, color=COLORS[run % len(COLORS)], linewidth=1.8) for run, name in runs]
    styles = {curve.style for panel in shown for curve in panel.curves}
    if "line" in styles:
        keys.append(_key(TRAINING.text(language), color=plain, linewidth=1.8))
    if "dots" in styles:
        keys.append(_key(VALIDATION.text(language), color=valid, **DOTS))
    for kind, style in MARKS.items():
        if kind in there:
            keys.append(_key(EVENT_WORDS[kind].text(language), **{"color": plain, **style}))
    found = figure.legend(
        handles=keys, loc="outside upper left", ncols=6, frameon=False, fontsize=9, labelcolor=INK
    )
    for text in found.get_texts():
        text.set_parse_math(False)  # "$" in a folder's name is a dollar


def _key(label: str, **style: Any) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)
