"""Logs of runs for a report: learning curves over steps or minutes, events, and a table of facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attendo.bundle import no_such_run
from attendo.config import read_toml
from attendo.display.i18n import Language, Localized
from attendo.errors import AttendoError
from attendo.runs.tasks import PART_MEASURES
from attendo.runs.tracking import LOG_NAME, read_log
from attendo.training.run import parts_alone

FACTS = {
    "task": Localized("task", "タスク"),
    "model": Localized("model", "モデル"),
    "parameters": Localized("parameters", "パラメータ数"),
    "own parts": Localized("own parts", "自作の部品"),
    "tokenizer": Localized("tokenizer", "トークナイザ"),
    "data": Localized("data", "データ"),
    "training": Localized("training", "訓練の設定"),
    "so far": Localized("so far", "進み具合"),
    "time": Localized("time", "時間"),
    "best": Localized("best validation", "最良の検証結果"),
    "end": Localized("end", "終了"),
    "versions": Localized("made with", "使用したもの"),
}
_SETTINGS = (
    ("steps", Localized("{} steps", "{} ステップ")),
    ("epochs", Localized("{} epochs", "{} エポック")),
    ("minutes", Localized("{} minutes", "{} 分")),
    ("cpu_minutes", Localized("{} CPU-minutes", "CPU 時間 {} 分")),
    ("batch_tokens", Localized("batches of {} tokens", "バッチ {} トークン")),
    ("learning_rate", Localized("peak learning rate {}", "最大学習率 {}")),
    ("schedule", Localized("schedule {}", "スケジュール {}")),
    ("precision", Localized("{}", "{}")),
    ("seed", Localized("seed {}", "シード {}")),
)


def facts_of(run: RunRecord, language: Language = "en") -> dict[str, str]:
    """Return the facts of a run as text, by the keys of FACTS. Facts that are missing in the files are left out."""
    card = run.card
    model = run.config.get("model", {})
    last = run.entries[-1]
    kind = run.config.get("tokenizer", {}).get("kind")
    size = model.get("vocab_size")
    found = {
        "task": str(card.get("task") or "") + _direction(card.get("languages")),
        "model": _model(model),
        "parameters": _shown(card.get("parameters")),
        "own parts": _shown(card.get("own_parts")),
        "tokenizer": f"{kind}, {_shown(size)}" if kind and size else "",
        "data": ", ".join(_counts(card.get("data"))),
        "training": ", ".join(_settings(run.config.get("training", {}), language)),
        "so far": _so_far(run, language),
        "time": _time(last, language),
        "best": _best(run, language),
        "end": str(last.get("note") or "") if last["kind"] == "end" else "",
        "versions": ", ".join(f"{name} {version}" for name, version in _table(card.get("versions")).items()),
    }
    return {name: text for name, text in found.items() if text}


def differing_settings(runs: Sequence[RunRecord]) -> list[str]:
    """Return the model, tokenizer and training settings that differ between the runs, with the value of each run."""
    compared = ("model", "tokenizer", "training")
    keys = dict.fromkeys((table, key) for table in compared for run in runs for key in _table(run.config.get(table)))
    found = []
    for table, key in keys:
        values = [_shown(_table(run.config.get(table)).get(key)) or "–" for run in runs]
        if len(set(values)) > 1:
            found.append(f"{table}.{key} {' / '.join(values)}")
    return found


def _model(model: Mapping[str, Any]) -> str:
    layers = "+".join(str(model[n]) for n in ("n_encoder_layers", "n_decoder_layers") if model.get(n))
    shapes = [f"{name} {model[name]}" for name in ("d_model", "n_heads", "d_ff", "dropout") if name in model]
    return ", ".join([*([f"n_layers {layers}"] if layers else []), *shapes])


def _direction(languages: Any) -> str:
    known = _table(languages)
    return f", {known.get('source') or '?'} → {known.get('target') or '?'}" if any(known.values()) else ""


def _counts(data: Any) -> list[str]:
    return [
        f"{value:,} {key.replace('_', ' ')}"
        for key, value in _table(data).items()
        if type(value) is int and key != "batches_per_epoch"
    ]


def _settings(training: Mapping[str, Any], language: Language) -> list[str]:
    known = [(name, words) for name, words in _SETTINGS if training.get(name) is not None]
    return [words.text(language).format(_shown(training[name])) for name, words in known]


def _so_far(run: RunRecord, language: Language) -> str:
    last = run.entries[-1]
    parts = [Localized("step {}", "ステップ {}").text(language).format(_shown(last["step"]))]
    if type(last.get("epoch")) is int:
        parts.append(Localized("epoch {}", "エポック {}").text(language).format(last["epoch"] + 1))
    if tokens := next((e["tokens"] for e in reversed(run.entries) if type(e.get("tokens")) is int), 0):
        parts.append(Localized("{} tokens", "{} トークン").text(language).format(_shown(tokens)))
    return ", ".join(parts)


def _time(last: Mapping[str, Any], language: Language) -> str:
    wall, cpu = (read_number(last.get(name)) for name in ("wall_seconds", "cpu_seconds"))
    if wall is None or cpu is None:
        return ""
    words = Localized("{:,.1f} minutes ({:,.1f} CPU-minutes)", "{:,.1f} 分（CPU 時間 {:,.1f} 分）")
    return words.text(language).format(wall / 60, cpu / 60)


def _best(run: RunRecord, language: Language) -> str:
    evaluations = [entry for entry in _of(run, "evaluation") if entry.get("best") is True]
    if not evaluations:
        return ""
    best = evaluations[-1]
    measures = {key: read_number(best.get(key)) for key in ("loss", *MEASURES)}
    names = {"loss": Localized("loss", "損失"), **MEASURES}
    parts = [
        f"{names[key].text(language)} {value:.4g}"
        for key, value in measures.items()
        if value is not None and (key == "loss" or key not in NOT_SHOWN)
    ]
    at = Localized("step {}", "ステップ {}").text(language).format(_shown(best["step"]))
    return "; ".join([f"{', '.join(parts)} ({at})", *parts_alone(best)])


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


Across = Literal["step", "minutes", "cpu-minutes"]
Style = Literal["faint", "line", "dots"]
EventKind = Literal["best", "decay", "checkpoint", "skipped", "advice"]

ACROSS: dict[Across, Localized] = {
    "step": Localized("step", "ステップ"),
    "minutes": Localized("minutes", "経過時間（分）"),
    "cpu-minutes": Localized("CPU-minutes", "CPU 時間（分）"),
}
MEASURES = {
    "bleu": Localized("BLEU", "BLEU"),
    "chrf": Localized("chrF", "chrF"),
    "accuracy": Localized("accuracy", "正解率"),
    "macro_f1": Localized("macro-F1", "マクロ F1"),
    "perplexity": Localized("perplexity", "パープレキシティ"),
    "bits_per_byte": Localized("bits per byte", "1 バイトあたりのビット数"),
    "exact": Localized("exact matches (%)", "完全一致（%）"),
    "ended": Localized("answers that end", "終端で終わる回答"),
    "ece": Localized("calibration error", "較正誤差"),
}
"""Measures of an evaluation in the order of the panels. Other measures follow under their own names."""

TRAINING, VALIDATION = Localized("training", "訓練"), Localized("validation", "検証")
GRADIENT = Localized("gradient norm, before clipping", "勾配のノルム（クリップ前）")
SPEED = Localized("tokens per second", "1 秒あたりのトークン数")
NOT_SHOWN = {"loss", "loss_uncalibrated", "ece_uncalibrated", "brier", "temperature", *PART_MEASURES}
_PLACES = {"kind", "step", "epoch", "best", "note", "cpu_seconds", "wall_seconds", "tokens"}
MOST_POINTS = 800
SMOOTHED = 50
"""Inverse of the share of points on each side that a smoothed curve averages over."""


@dataclass(frozen=True)
class RunRecord:
    """Log entries, model card and settings of a run. `word` is a message about an incomplete last log line, or ""."""

    name: str
    entries: list[dict[str, Any]]
    card: dict[str, Any]
    config: dict[str, dict[str, Any]]
    word: str = ""


@dataclass(frozen=True, eq=False)
class Curve:
    """Curve of the run with the number `run` (from 0): title, coordinates of the points, and style."""

    run: int
    what: Localized
    xs: Float[ndarray, " points"]
    ys: Float[ndarray, " points"]
    style: Style


@dataclass(frozen=True)
class Panel:
    """Curves on the same axes. `logarithmic` states whether the vertical axis is logarithmic."""

    name: str
    title: Localized
    curves: tuple[Curve, ...]
    logarithmic: bool = False


@dataclass(frozen=True)
class Event:
    """Event in a run, with its position on the horizontal axis, its step and a note."""

    run: int
    kind: EventKind
    x: float
    step: int
    note: str = ""


def read_run(folder: Path) -> RunRecord:
    """Read metrics.jsonl from a run folder, and card.json and config.toml if they exist.

    Raises AttendoError with the name of a missing or damaged file.
    """
    if not folder.is_dir():
        raise no_such_run(folder)
    entries, word = read_log(folder / LOG_NAME)
    if not any(entry["kind"] in ("step", "evaluation") for entry in entries):
        raise AttendoError(f"{folder / LOG_NAME} has no entries to show yet. Train for some steps first")
    card: Any = {}
    if (path := folder / "card.json").is_file():
        try:
            card = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise AttendoError(f"{path} is damaged (invalid JSON). Restore it from a copy") from None
    if not isinstance(card, dict):
        raise AttendoError(f"{path} is damaged (expected a JSON object). Restore it from a copy")
    config = read_toml(path) if (path := folder / "config.toml").is_file() else {}
    return RunRecord(str(folder), entries, card, config, word)


def panels(runs: Sequence[RunRecord], across: Across = "step") -> list[Panel]:
    """Return the panels of all runs: loss, validation measures, learning rate, gradient norm and speed."""

    def each(curves: Callable[[RunRecord, int], Iterable[Curve]]) -> tuple[Curve, ...]:
        return tuple(curve for i, run in enumerate(runs) for curve in curves(run, i))

    def evaluated(run: RunRecord, i: int, key: str = "loss") -> Iterator[Curve]:
        return _curve(run, i, "evaluation", key, across, VALIDATION, "dots")

    losses = each(lambda run, i: (*_noisy(run, i, "loss", across), *evaluated(run, i)))
    found = [Panel("loss", Localized("loss (nats)", "損失（nat）"), losses, logarithmic=True)]
    names = [key for run in runs for entry in _of(run, "evaluation") for key in entry]
    for key in dict.fromkeys([*MEASURES, *names]):
        if key in names and key not in NOT_SHOWN | _PLACES:
            curves = each(partial(evaluated, key=key))
            found.append(Panel(key, MEASURES.get(key, Localized(key, key)), curves, key == "perplexity"))
    rates = each(lambda run, i: _curve(run, i, "step", "rate", across, TRAINING, "line"))
    found.append(Panel("rate", Localized("learning rate", "学習率"), rates))
    norms = each(lambda run, i: _noisy(run, i, "gradient_norm", across))
    found.append(Panel("gradient_norm", GRADIENT, norms, logarithmic=True))
    speeds = [Curve(i, TRAINING, *_speed(run, across), "line") for i, run in enumerate(runs)]
    found.append(Panel("speed", SPEED, tuple(curve for curve in speeds if len(curve.xs))))
    return [panel for panel in found if panel.curves]


def events(runs: Sequence[RunRecord], across: Across = "step") -> list[Event]:
    """Return the best evaluation, the start of the decay, checkpoints, skipped updates and advice of each run."""
    found = []
    for i, run in enumerate(runs):
        best = [entry for entry in _of(run, "evaluation") if entry.get("best") is True][-1:]
        found += [Event(i, "best", _x(entry, across), entry["step"]) for entry in best]
        if (start := decay_start(run)) is not None and (x := _x_at(run, start, across)) is not None:
            found.append(Event(i, "decay", x, start))
        for entry in run.entries:
            if (kind := entry["kind"]) in ("checkpoint", "skipped", "advice"):
                note = str(entry.get("note") or "")
                found.append(Event(i, kind, _x(entry, across), entry["step"], note))
    return found


def decay_start(run: RunRecord) -> int | None:
    """Return the step at which the learning rate began to decay, or None if the decay has not begun."""
    starts = [entry["decay_start"] for entry in run.entries if type(entry.get("decay_start")) is int]
    reached = bool(starts) and 0 < starts[-1] <= run.entries[-1]["step"]
    return starts[-1] if reached and run.config.get("training", {}).get("schedule", "wsd") == "wsd" else None


def smoothed(values: Float[ndarray, " points"], reach: int) -> Float[ndarray, " points"]:
    """Return the mean of each value and its neighbors: up to `reach` values per side, equally many on both sides.

    >>> smoothed(np.array([9.0, 3.0, 6.0, 3.0]), reach=5).tolist()
    [9.0, 6.0, 4.0, 3.0]
    """
    n = len(values)
    places = np.arange(len(values))
    half = np.minimum(reach, np.minimum(places, n - 1 - places))
    sums = np.append(0.0, np.cumsum(values))
    return (sums[places + half + 1] - sums[places - half]) / (2 * half + 1)


def thinned(
    xs: Float[ndarray, " points"], ys: Float[ndarray, " points"], most: int = MOST_POINTS
) -> tuple[Float[ndarray, " fewer"], Float[ndarray, " fewer"]]:
    """Reduce a curve to at most `most` points by averaging neighboring points. Shorter curves do not change.

    >>> [values.tolist() for values in thinned(np.arange(6.0), np.array([0.0, 2, 0, 4, 1, 1]), most=3)]
    [[0.5, 2.5, 4.5], [1.0, 2.0, 1.0]]
    """
    if len(xs) <= most:
        return xs, ys
    places = np.arange(len(xs)) * most // len(xs)
    sizes = np.bincount(places)
    return np.bincount(places, xs) / sizes, np.bincount(places, ys) / sizes


def _noisy(run: RunRecord, number: int, key: str, across: Across) -> Iterator[Curve]:
    """Yield a training curve in a faint style, and its smoothed curve."""
    for curve in _curve(run, number, "step", key, across, TRAINING, "faint"):
        smooth = smoothed(curve.ys, len(curve.ys) // SMOOTHED)
        yield from (curve, Curve(number, TRAINING, curve.xs, smooth, "line"))


def _curve(
    run: RunRecord, number: int, kind: str, key: str, across: Across, what: Localized, style: Style
) -> Iterator[Curve]:
    """Yield the curve of a numeric value in the entries of a kind, if any entry has the value."""
    points = [(_x(entry, across), entry[key]) for entry in _of(run, kind) if _is_number(entry.get(key))]
    if points:
        xs, ys = np.array(points, np.float64).T
        if style != "dots":
            xs, ys = thinned(xs, ys)
        yield Curve(number, what, xs, ys, style)


def _speed(run: RunRecord, across: Across) -> tuple[Float[ndarray, " points"], Float[ndarray, " points"]]:
    """Return the tokens per second between log lines of training that have no evaluation between them."""
    points = []
    tokens = None
    seconds = 0.0
    step = -1
    for entry in run.entries:
        now, so_far = entry.get("wall_seconds"), entry.get("tokens")
        if entry["kind"] == "step" and _is_number(now) and _is_number(so_far):
            if tokens is not None and now > seconds and so_far > tokens:
                points.append((_x(entry, across), (so_far - tokens) / (now - seconds)))
            tokens, seconds, step = so_far, now, entry["step"]
        elif entry["kind"] == "evaluation":
            seconds = now if _is_number(now) else seconds  # the next interval begins after the evaluation
            tokens = tokens if entry["step"] == step else None
    xs, ys = np.array(points, np.float64).reshape(-1, 2).T
    xs, ys = thinned(xs, ys)
    return xs, smoothed(ys, len(ys) // SMOOTHED)


def _of(run: RunRecord, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in run.entries if entry["kind"] == kind]


def _x(entry: Mapping[str, Any], across: Across) -> float:
    if across == "step":
        return float(entry["step"])
    seconds = entry.get("wall_seconds" if across == "minutes" else "cpu_seconds")
    return seconds / 60 if _is_number(seconds) else 0.0


def _x_at(run: RunRecord, step: int, across: Across) -> float | None:
    """Return the horizontal position of a step, from the first log line that reaches the step."""
    if across == "step":
        return float(step)
    return next((_x(entry, across) for entry in run.entries if entry["step"] >= step), None)


def read_number(value: Any) -> float | None:
    """Return a number of a log as a float, or None if the value is not a finite number.

    >>> read_number(3), read_number(float("inf")), read_number(True), read_number("3")
    (3.0, None, None, None)
    """
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
