"""The report of runs: a self-contained page with curves, facts and events, without scripts or downloads.

matplotlib draws the same curves as one image, from the SVG drawings and the style sheet of the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from attendo.display.i18n import Language, Localized, labelled
from attendo.display.web import asset, hash_of, page_of
from attendo.display.width import columns
from attendo.files import write_atomic
from attendo.runs.learning_curves import (
    ACROSS,
    FACTS,
    MEASURES,
    TRAINING,
    VALIDATION,
    Across,
    Curve,
    Event,
    Panel,
    RunRecord,
    differing_settings,
    events,
    facts_of,
    panels,
    read_number,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis that maps the value `low` to 0 and the value `high` to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1.

        >>> Axis(0, 10).place(2.5), Axis(1, 100, logarithmic=True).place(10)
        (0.25, 0.5)
        """
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most `most` round numbers on the axis.

        On a linear axis, the distance between two numbers is 1, 2 or 5 times a power of 10. On a logarithmic axis, the
        numbers are 1, 2, 3 or 5 times a power of 10.

        >>> Axis(0.3, 9.4).ticks(), Axis(0.3, 40, logarithmic=True).ticks()
        ([2.0, 4.0, 6.0, 8.0], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0])
        """
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in ((1, 2, 3, 5), (1, 2, 5), (1,)):
                found = [_round(f, power) for power in powers for f in factors]
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= most:
                    return found
            return found[:: math.ceil(len(found) / most)]
        power = math.floor(math.log10((self.high - self.low) / most))
        for factor in (1, 2, 5, 10, 20, 50):
            step = _round(factor, power)
            first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
            if last - first + 1 <= most:
                break
        digits = max(0, 1 - power)
        return [round(n * step, digits) + 0.0 for n in range(first, last + 1)]


def axis_of(values: Iterable[float], logarithmic: bool = False, margin: float = 0.04) -> Axis:
    """Return an axis that contains all values, with a margin.

    The axis is logarithmic only if `logarithmic` is true, all values are positive, and their ratio is above 4.

    >>> axis_of([1.0, 3.0], margin=0.5)
    Axis(low=0.0, high=4.0, logarithmic=False)
    """
    known = list(values)
    low, high = min(known), max(known)
    if logarithmic and low > 0 and high / low > 4:
        ratio = (high / low) ** margin
        return Axis(low / ratio, high * ratio, True)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-30):  # one value
        return Axis(low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))
    return Axis(low - margin * (high - low), high + margin * (high - low))


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Return axis labels with the same number of decimal places.

    >>> tick_texts([0.0, 0.0005, 0.001]), tick_texts([0.0, 2000.0]), tick_texts([0.5, 1.0, 20.0])
    (['0', '0.0005', '0.0010'], ['0', '2,000'], ['0.5', '1.0', '20.0'])
    """
    shortest = [f"{tick:.10f}".rstrip("0").partition(".")[2] for tick in ticks]
    digits = max(map(len, shortest), default=0)
    if any(tick and abs(tick) < 1e-6 for tick in ticks):
        return [f"{tick:g}" for tick in ticks]
    return ["0" if tick == 0 else f"{tick:,.{digits}f}".replace("-", "−") for tick in ticks]


def _round(factor: int, power: int) -> float:
    """Return the float that is closest to factor times 10 to a power."""
    return float(f"{factor}e{power}")


WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 42
N_COLORS = 6
"""The number of different colors of runs. Further runs repeat the colors."""
EVENT_WORDS = {
    "best": Localized("best", "最良"),
    "decay": Localized("decay begins", "学習率の減衰開始"),
    "checkpoint": Localized("checkpoint", "チェックポイント"),
    "skipped": Localized("skipped update", "更新の取り消し"),
    "advice": Localized("advice", "助言"),
}


def panel_svg(panel: Panel, events: Sequence[Event], axis: Axis, across: str, language: Language) -> str:
    """Return an SVG drawing of the curves of a panel with axes and events.

    The style classes `run-0` to `run-5` set the colors of the runs.
    """
    up = axis_of((float(y) for curve in panel.curves for y in curve.ys), panel.logarithmic)
    frame = _Frame(axis, up)
    title = panel.title.text(language)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts += frame.grid(across)
    shown = {curve.run for curve in panel.curves}
    parts += [line for event in events if event.run in shown for line in _behind(event, frame, language)]
    order = {"faint": 0, "line": 1, "dots": 2}
    n_runs = len({curve.run for curve in panel.curves})
    for curve in sorted(panel.curves, key=lambda curve: order[curve.style]):
        parts += _curve(curve, frame, language, alone=n_runs == 1 and len(shown) == 1)
    parts += _best(panel, events, frame)
    return "\n".join([*parts, "</svg>"])


class _Frame:
    """The mapping from values to coordinates of the drawing."""

    def __init__(self, across: Axis, up: Axis) -> None:
        self.across, self.up = across, up

    def x(self, value: float) -> float:
        return LEFT + self.across.place(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.up.place(value) * (HEIGHT - TOP - BOTTOM)

    def grid(self, across: str) -> Iterator[str]:
        """Yield the grid lines at round numbers, and their labels."""
        bottom = HEIGHT - BOTTOM
        ticks = self.up.ticks()
        for tick, text in zip(ticks, tick_texts(ticks), strict=True):
            y = self.y(tick)
            yield _path("grid", [(LEFT, y), (WIDTH - RIGHT, y)])
            yield f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        ticks = self.across.ticks(8)
        for tick, text in zip(ticks, tick_texts(ticks), strict=True):
            x = self.x(tick)
            yield _path("grid", [(x, bottom), (x, bottom + 5)])
            yield f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>'
        yield _path("axis", [(LEFT, bottom), (WIDTH - RIGHT, bottom)])
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'


def color_of(run: int) -> str:
    """Return the style class for the color of a run."""
    return f"run-{run % N_COLORS}"


def _curve(curve: Curve, frame: _Frame, language: Language, alone: bool) -> Iterator[str]:
    places = [(frame.x(x), frame.y(y)) for x, y in zip(curve.xs.tolist(), curve.ys.tolist(), strict=True)]
    color = "valid" if alone and curve.style == "dots" else color_of(curve.run)
    yield _path(f"{curve.style} {color}", places, escape(curve.what.text(language)))
    if curve.style == "dots" or len(places) == 1:
        for (x, y), at, value in zip(places, curve.xs.tolist(), curve.ys.tolist(), strict=True):
            text = f"{at:,.6g}: {value:,.5g}"
            yield f'<circle class="dot {color}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{text}</title></circle>'


def _behind(event: Event, frame: _Frame, language: Language) -> Iterator[str]:
    """Yield the background of an event: a line at the start of the decay, and marks at the bottom and the top."""
    x, bottom = frame.x(event.x), HEIGHT - BOTTOM
    word = escape(EVENT_WORDS[event.kind].text(language))
    note = f": {escape(event.note)}" if event.note else ""
    title = f"{event.step:,}: {word}{note}"
    if event.kind == "decay":
        yield _path(f"decay {color_of(event.run)}", [(x, TOP), (x, bottom)], title)
    elif event.kind in _SHAPES:
        y = {"checkpoint": bottom - 5, "skipped": bottom - 9, "advice": TOP}[event.kind]
        yield _mark(event.kind, x, y, title)


_SHAPES: dict[str, list[tuple[float, float]]] = {
    "checkpoint": [(0, 0), (0, 5)],
    "skipped": [(0, 0), (4.5, 8), (-4.5, 8), (0, 0)],
    "advice": [(0, 0), (5, 5), (0, 10), (-5, 5), (0, 0)],
}
"""The points of the mark of each kind of event."""


def _mark(kind: str, x: float, y: float, title: str = "") -> str:
    return _path(kind, [(x + dx, y + dy) for dx, dy in _SHAPES[kind]], title)


def _path(classes: str, points: Sequence[tuple[float, float]], title: str = "") -> str:
    """Return a line through points, with an HTML tooltip `title`."""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    end = f"><title>{title}</title></path>" if title else "/>"
    return f'<path class="{classes}" d="{path}"{end}'


def _best(panel: Panel, events: Sequence[Event], frame: _Frame) -> Iterator[str]:
    """Yield a ring around the point of the best evaluation."""
    best = {event.run: event.x for event in events if event.kind == "best"}
    for curve in panel.curves:
        if curve.style == "dots" and curve.run in best:
            for x, y in zip(curve.xs.tolist(), curve.ys.tolist(), strict=True):
                if x == best[curve.run]:
                    yield f'<circle class="best" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="6"/>'


STYLES = ("shared/tokens.css", "report.css")
TITLE = Localized("Learning curves", "学習曲線")
_DOT = '<circle class="dot {}" cx="14" cy="6" r="2.6"/>'
_RING = '<circle class="best" cx="14" cy="6" r="5"/>'


def report_page(runs: Sequence[RunRecord], across: Across = "step", language: Language = "en") -> str:
    """Return the HTML report of runs. Texts from run files are escaped."""
    style = _style()
    names = short_names(runs)
    shown = panels(runs, across)
    happened = _drawn_events(runs, across)
    axis, foot = axis_across(shown), ACROSS[across].text(language)
    drawings = (panel_svg(panel, happened, axis, foot, language) for panel in shown)
    measures, evaluations = _evaluations(runs, names)
    page = page_of(
        "report.html",
        language,
        style=style,
        style_hash=hash_of(style),
        title=labelled(TITLE, ", ".join(names), language),
        names=names,
        notes=[run.word for run in runs if run.word],
        legend=[(_key(drawing), words) for drawing, words in _legend(names, happened, language)],
        figures=[(panel.title.text(language), svg) for panel, svg in zip(shown, drawings, strict=True)],
        facts=_facts(runs, language),
        differing=differing_settings(runs),
        events=_happened(happened, names, language),
        measures=[name.text(language) for name in measures],
        evaluations=evaluations,
    )
    return f"{page}\n"


def _style() -> str:
    return "\n".join(map(asset, STYLES))


def short_names(runs: Sequence[RunRecord]) -> list[str]:
    """Return the folder name of each run, or the full paths if two names are equal."""
    last = [run.name.rstrip("/").rpartition("/")[2] or run.name for run in runs]
    return last if len(set(last)) == len(last) else [run.name for run in runs]


def axis_across(shown: Sequence[Panel]) -> Axis:
    """Return the horizontal axis of all panels, from 0 to the last point of all curves."""
    last = max(float(curve.xs[-1]) for panel in shown for curve in panel.curves)
    return Axis(0.0, last * 1.01 or 1.0)


def _drawn_events(runs: Sequence[RunRecord], across: Across) -> list[Event]:
    """Return the events to draw. With several runs, checkpoints are left out."""
    return [event for event in events(runs, across) if len(runs) == 1 or event.kind != "checkpoint"]


def _legend(names: Sequence[str], happened: Sequence[Event], language: Language) -> Iterator[tuple[str, str]]:
    """Yield the drawing and the text of each entry in the legend."""
    across = [(0, 6), (28, 6)]
    if len(names) > 1:
        yield from ((_path(f"line {color_of(run)}", across), name) for run, name in enumerate(names))
    color, valid = ("run-0", "valid") if len(names) == 1 else ("run-5", "run-5")
    yield _path(f"line {color}", across), TRAINING.text(language)
    yield _path(f"dots {valid}", across) + _DOT.format(valid), VALIDATION.text(language)
    there = {event.kind for event in happened}
    for kind, words in EVENT_WORDS.items():
        if kind in there:
            down = _path(f"decay {color}", [(14, -2), (14, 14)])
            drawing = {"best": _RING, "decay": down}.get(kind) or _mark(kind, 14, 1)
            yield drawing, words.text(language)


def _key(drawing: str) -> str:
    return f'<svg viewBox="0 0 28 12" aria-hidden="true">{drawing}</svg>'


def _facts(runs: Sequence[RunRecord], language: Language) -> list[tuple[str, list[str]]]:
    """Return the name of each fact that is known of a run, and its text for each run."""
    columns = [facts_of(run, language) for run in runs]
    return [
        (words.text(language), [column.get(name, "") for column in columns])
        for name, words in FACTS.items()
        if any(name in column for column in columns)
    ]


def _happened(happened: Sequence[Event], names: Sequence[str], language: Language) -> list[list[str]]:
    """Return the rows of the table of events in the order of the steps, without checkpoints."""
    rows = []
    for event in sorted(happened, key=lambda event: (event.step, event.run)):
        if event.kind != "checkpoint":
            what = EVENT_WORDS[event.kind].text(language)
            text = f"{what}: {event.note}" if event.note else what
            rows.append([f"{event.step:,}", *([names[event.run]] if len(names) > 1 else []), text])
    return rows


def _evaluations(runs: Sequence[RunRecord], names: Sequence[str]) -> tuple[list[Localized], list[list[str]]]:
    """Return the names of all measures, and the rows of the table of all evaluations."""
    found = [(i, e) for i, run in enumerate(runs) for e in run.entries if e["kind"] == "evaluation"]
    measures = {"loss": Localized("loss", "損失"), **MEASURES}
    keys = [key for key in measures if any(key in entry for _, entry in found)]
    rows = []
    for run, entry in found:
        numbers = [read_number(entry.get(key)) for key in keys]
        cells = ["" if number is None else f"{number:,.4f}" for number in numbers]
        best = "★" if entry.get("best") is True else ""
        rows.append([*([names[run]] if len(names) > 1 else []), f"{entry['step']:,}", *cells, best])
    return [measures[key] for key in keys], rows


COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, LEGEND_LINE = 2, WIDTH + 14, HEIGHT + 28, 24
PIXELS_AN_INCH, DOTS_PER_INCH = 100, 130


def write_picture(
    runs: Sequence[RunRecord], path: Path, across: Across = "step", language: Language = "en"
) -> Language:
    """Draw all panels in a PNG file, and return the language of the image (English if there is no Japanese font).

    Raise AttendoError if matplotlib is not installed.
    """
    from attendo.display.fonts import drawn, fonts_for  # raises if matplotlib is not installed

    shown, names = panels(runs, across), short_names(runs)
    words = [*(panel.title for panel in shown), *EVENT_WORDS.values(), ACROSS[across], TRAINING, VALIDATION]
    wanted = set("".join(word.text(language) for word in words))
    fonts, drawable = fonts_for("".join(sorted(wanted.union(*names))))
    if not wanted <= drawable:
        language = "en"
    names = [drawn(name, drawable) for name in names]
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["font.family"] = fonts
        # notes are only tooltips, and may contain characters that XML does not allow
        happened = [replace(event, note="") for event in _drawn_events(runs, across)]
        write_atomic(path, _picture(shown, happened, names, across, language))
    return language


def _picture(
    shown: Sequence[Panel],
    happened: Sequence[Event],
    names: Sequence[str],
    across: Across,
    language: Language,
) -> bytes:
    """Return the PNG image: the legend, and below it two panels per row."""
    from matplotlib.figure import Figure

    from attendo.display.fonts import figure_bytes

    keys, x, y = [], LEFT, 14
    for drawing, words in _legend(names, happened, language):
        width = 60 + 7 * columns(words)
        if x > LEFT and x + width > COLUMNS * PANEL_WIDTH:
            x, y = LEFT, y + LEGEND_LINE
        keys.append((x, y, drawing, words))
        x += width
    top = y + LEGEND_LINE
    size = (COLUMNS * PANEL_WIDTH, top + math.ceil(len(shown) / COLUMNS) * PANEL_HEIGHT)
    figure = Figure((size[0] / PIXELS_AN_INCH, size[1] / PIXELS_AN_INCH), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(size[1], 0))
    axes.set_axis_off()
    pen = _Pen(axes, _style())
    for x, y, drawing, words in keys:
        pen.draw(_key(drawing), x, y - 6)
        pen.write(words, x + 36, y + 4)
    axis, foot = axis_across(shown), ACROSS[across].text(language)
    for number, panel in enumerate(shown):
        x, y = number % COLUMNS * PANEL_WIDTH, top + number // COLUMNS * PANEL_HEIGHT
        pen.write(panel.title.text(language), x + LEFT, y + 16, fontsize=11)
        pen.draw(panel_svg(panel, happened, axis, foot, language), x, y + 22)
    return figure_bytes(figure, ".png", DOTS_PER_INCH)


class _Pen:
    """A renderer of the page's SVG drawings on matplotlib axes, in the light colors of the page's style."""

    def __init__(self, axes: Axes, css: str) -> None:
        colors: dict[str, str] = dict(re.findall(r"(--[\w-]+): (?:light-dark\()?(#\w+)", css))
        css = re.sub(r"var\((--[\w-]+)\)", lambda match: colors.get(match[1], ""), css)
        self.axes, self.ink = axes, colors["--ink"]
        self.rules = {
            name: dict(re.findall(r"([\w-]+): ([^;]+);", body))
            for name, body in re.findall(r"(?:^|\} )(?:svg path)?\.([\w-]+) \{(.*?)(?=\})", css, re.M)
        }

    def write(self, text: str, x: float, y: float, **how: Any) -> None:
        """Write a text with its baseline at (x, y)."""
        # "$" in a folder's name is a dollar
        style = {"color": self.ink, "fontsize": 8.5, "parse_math": False}
        self.axes.text(x, y, text, **(style | how))

    def draw(self, svg: str, x: float, y: float) -> None:
        """Draw the paths, circles and texts of an SVG drawing with its upper left corner at (x, y)."""
        from matplotlib.patches import Circle, Polygon

        for order, element in enumerate(ElementTree.fromstring(svg)):
            style: dict[str, str] = {}
            for name in element.get("class", "").split():
                style |= self.rules[name]
            match element.tag:
                case "text":
                    side = "right" if element.get("text-anchor") == "end" else "center"
                    place = x + float(element.get("x", 0)), y + float(element.get("y", 0))
                    self.write(element.text or "", *place, color=style["fill"], ha=side)
                    continue
                case "circle":
                    center = x + float(element.get("cx", 0)), y + float(element.get("cy", 0))
                    shape = Circle(center, float(element.get("r", 0)))
                case _:
                    points = [point.split() for point in element.get("d", "")[1:].split("L")]
                    shape = Polygon([(x + float(a), y + float(b)) for a, b in points], closed=False)
            width = float(style.get("stroke-width", 1))
            dashes = [float(n) / width for n in style.get("stroke-dasharray", "").split()]
            shape.set(
                edgecolor=style.get("stroke", "none"),
                facecolor=style.get("fill", "none"),
                linewidth=width * 72 / PIXELS_AN_INCH,
                linestyle=(0, dashes) if dashes else "-",
                alpha=float(style.get("opacity", 1)),
                zorder=order,
            )
            self.axes.add_patch(shape)
