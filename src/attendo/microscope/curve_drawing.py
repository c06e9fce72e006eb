"""A panel of learning curves as an SVG that stands in a page and takes its colors from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from attendo.display.i18n import Language, Localized
from attendo.microscope.curve_axes import Axis, axis_of, tick_texts
from attendo.runs.learning_curves import Curve, Event, Panel

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 42
N_COLORS = 6
"""Runs are told apart by so many colors, then they come again."""

EVENT_WORDS = {
    "best": Localized("best", "最良"),
    "decay": Localized("decay begins", "学習率の減衰開始"),
    "checkpoint": Localized("checkpoint", "チェックポイント"),
    "skipped": Localized("update left out", "更新の省略"),
    "advice": Localized("advice", "助言"),
}


def panel_svg(panel: Panel, events: Sequence[Event], axis: Axis, across: str, language: Language) -> str:
    """Draws the curves of a panel, its axes, and what happened when; axis: the one across, of all panels.

    The classes of the page's style say what everything looks like: `run-0` to `run-5` give a run's color.
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
    """From values to places on the drawing."""

    def __init__(self, across: Axis, up: Axis) -> None:
        self.across, self.up = across, up

    def x(self, value: float) -> float:
        return LEFT + self.across.place(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.up.place(value) * (HEIGHT - TOP - BOTTOM)

    def grid(self, across: str) -> Iterator[str]:
        """Lines at round numbers, and the numbers."""
        bottom = HEIGHT - BOTTOM
        ticks = self.up.ticks()
        for tick, text in zip(ticks, tick_texts(ticks), strict=True):
            y = self.y(tick)
            yield f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            yield f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        ticks = self.across.ticks(8)
        for tick, text in zip(ticks, tick_texts(ticks), strict=True):
            x = self.x(tick)
            yield f'<path class="grid" d="M{x:.1f} {bottom}v5"/>'
            yield f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{text}</text>'
        yield f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'


def color_of(run: int) -> str:
    """The class that gives a run its color."""
    return f"run-{run % N_COLORS}"


def _curve(curve: Curve, frame: _Frame, language: Language, alone: bool) -> Iterator[str]:
    places = [(frame.x(x), frame.y(y)) for x, y in zip(curve.xs.tolist(), curve.ys.tolist(), strict=True)]
    color = "valid" if alone and curve.style == "dots" else color_of(curve.run)
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    name = escape(curve.what.text(language))
    yield f'<path class="{curve.style} {color}" d="{path}"><title>{name}</title></path>'
    if curve.style == "dots" or len(places) == 1:
        for (x, y), at, value in zip(places, curve.xs.tolist(), curve.ys.tolist(), strict=True):
            text = f"{at:,.6g}: {value:,.5g}"
            yield f'<circle class="dot {color}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{text}</title></circle>'


def _behind(event: Event, frame: _Frame, language: Language) -> Iterator[str]:
    """What stands behind the curves: a line where the decay begins, and marks along the foot."""
    x, bottom = frame.x(event.x), HEIGHT - BOTTOM
    word = escape(EVENT_WORDS[event.kind].text(language))
    note = f": {escape(event.note)}" if event.note else ""
    title = f"<title>{event.step:,}: {word}{note}</title>"
    match event.kind:
        case "decay":
            yield f'<path class="decay {color_of(event.run)}" d="M{x:.1f} {TOP}V{bottom}">{title}</path>'
        case "checkpoint":
            yield f'<path class="checkpoint" d="M{x:.1f} {bottom}v-5">{title}</path>'
        case "skipped":
            yield f'<path class="skipped" d="M{x:.1f} {bottom - 9}l4.5 8h-9z">{title}</path>'
        case "advice":
            yield f'<path class="advice" d="M{x:.1f} {TOP}l5 5l-5 5l-5 -5z">{title}</path>'
        case "best":
            pass


def _best(panel: Panel, events: Sequence[Event], frame: _Frame) -> Iterator[str]:
    """A ring around the best evaluation's point."""
    best = {event.run: event.x for event in events if event.kind == "best"}
    for curve in panel.curves:
        if curve.style == "dots" and curve.run in best:
            for x, y in zip(curve.xs.tolist(), curve.ys.tolist(), strict=True):
                if x == best[curve.run]:
                    yield f'<circle class="best" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="6"/>'
