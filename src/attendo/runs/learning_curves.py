"""What the logs of one or several runs show: curves over steps or minutes, what happened when, and a table of facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from attendo.bundle import no_such_run
from attendo.config import read_toml
from attendo.display.i18n import Language, Localized
from attendo.errors import AttendoError
from attendo.runs.tasks import BASELINE_MEASURES
from attendo.runs.tracking import LOG_NAME, read_log
from attendo.training.run import counted

FACTS = {
    "task": Localized("task", "タスク"),
    "model": Localized("model", "モデル"),
    "parameters": Localized("parameters", "パラメータ数"),
    "own parts": Localized("own parts", "自作の部品"),
    "tokenizer": Localized("tokenizer", "トークナイザ"),
    "data": Localized("data", "データ"),
    "training": Localized("training", "学習の設定"),
    "so far": Localized("so far", "進み具合"),
    "time": Localized("time", "時間"),
    "best": Localized("best validation", "最良の検証結果"),
    "end": Localized("end", "終了"),
    "versions": Localized("made with", "使用したもの"),
}
_COMPARED = ("model", "tokenizer", "training")
_SETTINGS = (
    ("steps", Localized("{} steps", "{} ステップ")),
    ("epochs", Localized("{} epochs", "{} エポック")),
    ("minutes", Localized("{} minutes", "{} 分")),
    ("cpu_minutes", Localized("{} CPU-minutes", "CPU 時間 {} 分")),
    ("batch_tokens", Localized("batches of {} tokens", "バッチ {} トークン")),
    ("learning_rate", Localized("peak rate {}", "最大学習率 {}")),
    ("schedule", Localized("schedule {}", "スケジュール {}")),
    ("precision", Localized("{}", "{}")),
    ("seed", Localized("seed {}", "シード {}")),
)


def facts_of(run: RunRecord, language: Language = "en") -> dict[str, str]:
    """Texts by the keys of FACTS; what the run's files don't say is left out."""
    card, model, last = run.card, run.config.get("model", {}), run.entries[-1]
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
    """The settings of model, tokenizer and training that are not alike in all runs, with the value of each run."""
    keys = dict.fromkeys(
        (table, key) for table in _COMPARED for run in runs for key in _table(run.config.get(table))
    )
    found = []
    for table, key in keys:
        values = [_shown(_table(run.config.get(table)).get(key)) or "–" for run in runs]
        if len(set(values)) > 1:
            found.append(f"{table}.{key} {' / '.join(values)}")
    return found


def _model(model: Mapping[str, Any]) -> str:
    layers = "+".join(
        str(model[name]) for name in ("n_encoder_layers", "n_decoder_layers") if model.get(name)
    )
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
    best = next(
        (e for e in reversed(run.entries) if e["kind"] == "evaluation" and e.get("best") is True), None
    )
    if best is None:
        return ""
    measures = {key: read_number(best.get(key)) for key in ("loss", *MEASURES)}
    names = {"loss": Localized("loss", "損失"), **MEASURES}
    parts = [
        f"{names[key].text(language)} {value:.4g}"
        for key, value in measures.items()
        if value is not None and (key == "loss" or key not in NOT_SHOWN)
    ]
    at = Localized("step {}", "ステップ {}").text(language).format(_shown(best["step"]))
    return "; ".join([f"{', '.join(parts)} ({at})", *counted(best)])


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


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
    "bits_per_byte": Localized("bits a byte", "1 バイトあたりのビット数"),
    "exact": Localized("exact matches (%)", "完全一致（%）"),
    "ece": Localized("calibration error", "較正誤差"),
}
"""Measures of an evaluation in the order in which they are shown; others follow under their own names."""

TRAINING, VALIDATION = Localized("training", "学習"), Localized("validation", "検証")
GRADIENT = Localized("gradient norm, before clipping", "勾配のノルム（クリップ前）")
SPEED = Localized("tokens a second", "1 秒あたりのトークン数")
NOT_SHOWN = {"loss", "loss_uncalibrated", "ece_uncalibrated", "brier", "temperature", *BASELINE_MEASURES}
_PLACES = {"kind", "step", "epoch", "best", "note", "cpu_seconds", "wall_seconds", "tokens"}
MOST_POINTS = 800
SMOOTHED = 50
"""A smoothed curve takes a mean over one in so many of its points on either side."""


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says of its training. word: about a log that was cut short, else ""."""

    name: str
    entries: list[dict[str, Any]]
    card: dict[str, Any]
    config: dict[str, dict[str, Any]]
    word: str = ""


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve of the run of that number, from 0: what it is, its points, and how it is drawn."""

    run: int
    what: Localized
    xs: Float[ndarray, " points"]
    ys: Float[ndarray, " points"]
    style: Style


@dataclass(frozen=True)
class Panel:
    """Curves on the same axes. logarithmic: upwards."""

    name: str
    title: Localized
    curves: tuple[Curve, ...]
    logarithmic: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happened in a run: where on the axis across, and a note."""

    run: int
    kind: EventKind
    x: float
    step: int
    note: str = ""


def read_run(folder: Path) -> RunRecord:
    """Reads metrics.jsonl, and card.json and config.toml where there are. AttendoError names what is damaged."""
    if not folder.is_dir():
        raise no_such_run(folder)
    entries, word = read_log(folder / LOG_NAME)
    if not any(entry["kind"] in ("step", "evaluation") for entry in entries):
        raise AttendoError(f"{folder / LOG_NAME} has nothing to show yet; let training make some steps")
    card: Any = {}
    if (path := folder / "card.json").is_file():
        try:
            card = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise AttendoError(f"{path} is damaged (no valid JSON); copy it back") from None
    if not isinstance(card, dict):
        raise AttendoError(f"{path} is damaged (no JSON object); copy it back")
    config = read_toml(path) if (path := folder / "config.toml").is_file() else {}
    return RunRecord(str(folder), entries, card, config, word)


def panels(runs: Sequence[RunRecord], across: Across = "step") -> list[Panel]:
    """The loss, each measure of the validation, and rate, gradient norm and speed, of all runs."""
    found = [
        Panel("loss", Localized("loss (nats)", "損失（nat）"), tuple(_losses(runs, across)), logarithmic=True)
    ]
    names = [key for run in runs for entry in _of(run, "evaluation") for key in entry]
    known = [*MEASURES, *dict.fromkeys(names)]
    for key in dict.fromkeys(known):
        if key in names and key not in NOT_SHOWN | _PLACES:
            curves = [
                _curve(run, i, "evaluation", key, across, VALIDATION, "dots") for i, run in enumerate(runs)
            ]
            title = MEASURES.get(key, Localized(key, key))
            found.append(Panel(key, title, tuple(filter(None, curves)), key == "perplexity"))
    rates = [_curve(run, i, "step", "rate", across, TRAINING, "line") for i, run in enumerate(runs)]
    found.append(Panel("rate", Localized("learning rate", "学習率"), tuple(filter(None, rates))))
    norms = [curve for i, run in enumerate(runs) for curve in _noisy(run, i, "gradient_norm", across)]
    found.append(Panel("gradient_norm", GRADIENT, tuple(norms), logarithmic=True))
    speeds = [Curve(i, TRAINING, *_speed(run, across), "line") for i, run in enumerate(runs)]
    found.append(Panel("speed", SPEED, tuple(curve for curve in speeds if len(curve.xs))))
    return [panel for panel in found if panel.curves]


def events(runs: Sequence[RunRecord], across: Across = "step") -> list[Event]:
    """The best evaluation, the start of the decay, checkpoints, updates left out, and advice, run by run."""
    found = []
    for i, run in enumerate(runs):
        best = [entry for entry in _of(run, "evaluation") if entry.get("best") is True][-1:]
        found += [Event(i, "best", _x(entry, across), entry["step"]) for entry in best]
        if (start := decay_start(run)) is not None and (x := _x_at(run, start, across)) is not None:
            found.append(Event(i, "decay", x, start))
        for entry in run.entries:
            if entry["kind"] in ("checkpoint", "skipped", "advice"):
                found.append(
                    Event(i, entry["kind"], _x(entry, across), entry["step"], str(entry.get("note") or ""))
                )
    return found


def decay_start(run: RunRecord) -> int | None:
    """The step at which the learning rate began to fall towards the end, once that is decided and has come."""
    starts = [entry["decay_start"] for entry in run.entries if type(entry.get("decay_start")) is int]
    reached = bool(starts) and 0 < starts[-1] <= run.entries[-1]["step"]
    return starts[-1] if reached and run.config.get("training", {}).get("schedule", "wsd") == "wsd" else None


def smoothed(values: Float[ndarray, " points"], reach: int) -> Float[ndarray, " points"]:
    """Each value's mean with its neighbors, as many on either side: `reach`, or fewer near the ends, so that none lags.

    >>> smoothed(np.array([9.0, 3.0, 6.0, 3.0]), reach=5).tolist()
    [9.0, 6.0, 4.0, 3.0]
    """
    n, places = len(values), np.arange(len(values))
    half = np.minimum(reach, np.minimum(places, n - 1 - places))
    sums = np.append(0.0, np.cumsum(values))
    return (sums[places + half + 1] - sums[places - half]) / (2 * half + 1)


def thinned(
    xs: Float[ndarray, " points"], ys: Float[ndarray, " points"], most: int = MOST_POINTS
) -> tuple[Float[ndarray, " fewer"], Float[ndarray, " fewer"]]:
    """As many points as can be seen: means over neighbors where there are more.

    >>> [values.tolist() for values in thinned(np.arange(6.0), np.array([0.0, 2, 0, 4, 1, 1]), most=3)]
    [[0.5, 2.5, 4.5], [1.0, 2.0, 1.0]]
    """
    if len(xs) <= most:
        return xs, ys
    places = np.arange(len(xs)) * most // len(xs)
    sizes = np.bincount(places)
    return np.bincount(places, xs) / sizes, np.bincount(places, ys) / sizes


def _losses(runs: Sequence[RunRecord], across: Across) -> Iterator[Curve]:
    """Of training, and of the validation."""
    for i, run in enumerate(runs):
        yield from _noisy(run, i, "loss", across)
        if (loss := _curve(run, i, "evaluation", "loss", across, VALIDATION, "dots")) is not None:
            yield loss


def _noisy(run: RunRecord, number: int, key: str, across: Across) -> Iterator[Curve]:
    """A curve of training as it was, faint, and smoothed."""
    if (curve := _curve(run, number, "step", key, across, TRAINING, "faint")) is not None:
        yield curve
        smooth = smoothed(curve.ys, len(curve.ys) // SMOOTHED)
        yield Curve(number, TRAINING, curve.xs, smooth, "line")


def _curve(
    run: RunRecord, number: int, kind: str, key: str, across: Across, what: Localized, style: Style
) -> Curve | None:
    points = [(_x(entry, across), entry[key]) for entry in _of(run, kind) if _is_number(entry.get(key))]
    if not points:
        return None
    xs, ys = np.array(points, np.float64).T
    return Curve(number, what, *(thinned(xs, ys) if style != "dots" else (xs, ys)), style)


def _speed(run: RunRecord, across: Across) -> tuple[Float[ndarray, " points"], Float[ndarray, " points"]]:
    """Tokens over seconds between the lines of training; where an evaluation stands between two, there is no point."""
    points, tokens, seconds, step = [], None, 0.0, -1
    for entry in run.entries:
        now, so_far = entry.get("wall_seconds"), entry.get("tokens")
        if entry["kind"] == "step" and _is_number(now) and _is_number(so_far):
            if tokens is not None and now > seconds and so_far > tokens:
                points.append((_x(entry, across), (so_far - tokens) / (now - seconds)))
            tokens, seconds, step = so_far, now, entry["step"]
        elif entry["kind"] == "evaluation":
            seconds = now if _is_number(now) else seconds  # the next stretch begins behind it
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
    """Where a step lies, by the first line that has come to it."""
    if across == "step":
        return float(step)
    return next((_x(entry, across) for entry in run.entries if entry["step"] >= step), None)


def read_number(value: Any) -> float | None:
    """A finite number, or None for anything else that a log may hold.

    >>> read_number(3), read_number(float("inf")), read_number(True), read_number("3")
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        return None
    return float(value)


def _is_number(value: Any) -> TypeGuard[float]:
    return read_number(value) is not None
