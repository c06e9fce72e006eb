"""A run's facts as a table for people: what was trained, on what, how long, how far it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attendo.display.i18n import Language, Localized
from attendo.runs.learning_curves import MEASURES, NOT_SHOWN, RunRecord, read_number
from attendo.training.report_lines import counted

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
