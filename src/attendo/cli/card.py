"""A run's card for the terminal, in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attendo.cli.reporting import duration

LEFT, WIDTH = 12, 79


def card_lines(folder: Path, facts: dict[str, Any]) -> Iterator[str]:
    """The lines that `attendo info` prints, from what `describe_run` gives; only a file's name runs over."""
    for name, text in _entries(folder, facts):
        lines = textwrap.wrap(text, WIDTH - LEFT, break_long_words=False, break_on_hyphens=False) or [""]
        yield f"{name:<{LEFT}}{lines[0]}".rstrip()
        yield from (" " * LEFT + line for line in lines[1:])


def _entries(folder: Path, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    config = facts["config"]
    model, training, data = config["model"], config.get("training", {}), facts.get("data", {})
    yield "run", str(folder)
    yield "task", facts.get("task", "?") + _direction(facts.get("languages", {}))
    size = f"{model['n_encoder_layers']}+{model['n_decoder_layers']} layers, d_model {model['d_model']}"
    yield (
        "model",
        f"{size}, {model['n_heads']} heads, d_ff {model['d_ff']}, {facts.get('parameters', 0):,} parameters",
    )
    yield "tokenizer", f"{config.get('tokenizer', {}).get('kind', '?')}, {model['vocab_size']:,} entries"
    rows = f"{data.get('pairs', 0):,} pairs, {data.get('source_tokens', 0):,} source and"
    yield (
        "data",
        f"{rows} {data.get('target_tokens', 0):,} target tokens, {data.get('padding_share', 0):.1%} padding",
    )
    for file in config.get("data", {}).get("train", []):
        yield "", str(file)
    yield "training", _training(training)
    yield "so far", _progress(facts["progress"])
    yield "validation", _validation(facts.get("validation"), data.get("validation_pairs", 0))
    yield (
        "decoding",
        ", ".join(
            f"{k} {v}" for k, v in facts.get("decoding", {}).items() if k in ("beam", "length_penalty")
        ),
    )
    yield "files", ", ".join(f"{name} ({_bytes(size)})" for name, size in facts["files"].items())
    if facts["checkpoints"]:
        yield (
            "checkpoints",
            ", ".join(f"{name} ({_bytes(size)})" for name, size in facts["checkpoints"].items()),
        )
    yield "made with", ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    yield "use", f'attendo translate {folder} "your sentence"'
    yield "in Python", f"attendo.load({str(folder)!r}).translate([text])[0].text"


def _direction(languages: dict[str, str | None]) -> str:
    if not any(languages.values()):
        return ""
    return f", {languages.get('source') or '?'} → {languages.get('target') or '?'}"


def _training(training: dict[str, Any]) -> str:
    ends = (("steps", "steps"), ("epochs", "epochs"), ("minutes", "minutes"), ("cpu_minutes", "CPU-minutes"))
    end = next((f"{training[key]:,g} {word}" for key, word in ends if key in training), "?")
    rate = f"peak rate {training.get('learning_rate', 0):.2g}, schedule {training.get('schedule', '?')}"
    batch = f"{training.get('batch_tokens', 0):,} tokens a batch"
    return f"{end}, {batch}, {rate}, {training.get('precision', '?')}, seed {training.get('seed', '?')}"


def _progress(entry: dict[str, Any]) -> str:
    if not entry:
        return "not a step yet"
    clock = f"{duration(entry.get('wall_seconds', 0))} ({entry.get('cpu_seconds', 0):,.0f} CPU-seconds)"
    state = f"ended: {entry.get('note', '')}" if entry.get("kind") == "end" else "not at its end"
    return f"step {entry.get('step', 0):,}, epoch {entry.get('epoch', 0) + 1}, {clock}; {state}"


def _validation(found: dict[str, float] | None, rows: int) -> str:
    if not found:
        return "none yet"
    scores = f"BLEU {found['bleu']:.1f}, chrF {found['chrf']:.1f}, exact {found['exact']:.1f} %"
    return f"{scores}, perplexity {found['perplexity']:.2f} (greedy, {rows:,} rows, step {found['step']:,})"


def _bytes(size: int) -> str:
    """A size for people.

    >>> _bytes(900), _bytes(1_234_567)
    ('900 bytes', '1.2 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1e6:,.1f} MB"
