"""What is told of a run while it trains, in lines for a person: evaluations, the coach's advice, the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attendo.display.formats import duration, plural
from attendo.display.width import fitted

if TYPE_CHECKING:
    from attendo.training.run import Report

WIDTH = 79

_FORMS: dict[str, Callable[[float], str]] = {
    "bleu": "BLEU {:.1f}".format,
    "chrf": "chrF {:.1f}".format,
    "exact": "exact {:.1f} %".format,
    "loss": "loss {:.3f}".format,
    "perplexity": "perplexity {:.2f}".format,
    "bits_per_byte": "{:.3f} bits a byte".format,
    "accuracy": lambda share: f"accuracy {100 * share:.1f} %",
    "macro_f1": lambda share: f"macro-F1 {100 * share:.1f} %",
    "ece": lambda share: f"calibration error {100 * share:.1f} %",
}

_NAMES = {"chrf": "chrF", "macro_f1": "macro-F1"}
"""Of measures that decide which state is the best, where they are written otherwise than called."""


def report_lines(report: Report) -> list[str]:
    """What a report has to say; nothing of an update like others, and of a checkpoint."""
    done = report.progress
    match report.kind:
        case "evaluation":
            return evaluation_lines(report)
        case "end":
            return [
                f"done: {report.note}; {plural(done.step, 'step')} in {duration(done.wall_seconds)}"
                f" ({done.cpu_seconds:,.0f} CPU-seconds)",
                *kept_lines(report),
            ]
        case "advice":
            from attendo.training.coach import advice_lines

            return advice_lines(report.note)
        case "step" | "skipped" if report.note:
            return [f"step {done.step:,}: {report.note}"]
        case _:
            return []


def evaluation_lines(report: Report) -> list[str]:
    """An evaluation's measures, and a sample: the source, what was found, what it should be.

    Of translations always the first, which is seen to become better; of labels another one each time.
    """
    assert report.evaluation is not None
    first, *parts = measured(report.evaluation.measures)
    deciding = report.evaluation.deciding
    parts += [f"({report.note})"] if report.note else []
    parts += (
        [f"best {_NAMES.get(deciding, deciding)} so far"]
        if report.is_best and not report.note.startswith("all")
        else []
    )
    lines = [f"step {report.progress.step:,}: {first}"]
    for part in parts:
        if len(lines[-1]) + 2 + len(part) <= WIDTH:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}")
    are_labels, samples = "macro_f1" in report.evaluation.measures, report.evaluation.samples
    at = report.progress.step % len(samples) if are_labels and samples else 0
    for source, wanted, given in samples[at : at + 1]:
        right = f"{given} (right)" if are_labels else given
        texts = [("  ", source), *([("→ ", right)] if given == wanted else [("→ ", given), ("≠ ", wanted)])]
        lines += [fitted(f"    {mark}{' '.join(text.splitlines())}", WIDTH) for mark, text in texts]
    return lines


def kept_lines(report: Report) -> list[str]:
    """Which state was kept, by what decided, where the report of the end knows it; a loss with its perplexity.

    And what to do where the model knows less than a count of words.
    """
    if report.evaluation is None:
        return []
    deciding = {report.evaluation.deciding} | (
        {"perplexity"} if report.evaluation.deciding == "loss" else set()
    )
    measures = report.evaluation.measures
    chosen = {name: value for name, value in measures.items() if name in deciding}
    lines = [", ".join([f"kept: step {report.progress.best_step:,}", *measured(chosen)])]
    counting = measures.get(f"{report.evaluation.deciding}_counting_words", -math.inf)
    if report.evaluation.value < counting:
        [reached] = measured({report.evaluation.deciding: counting})
        lines += [
            f"counting words does better, {reached}: give it more rows,",
            "    or a start that has read other texts (masked-language-model, `init_from`)",
        ]
    return lines


def counted(measures: Mapping[str, float]) -> list[str]:
    """What counting words reaches on the same texts, in words; nothing where it was not tried.

    >>> counted({"accuracy": 0.9, "accuracy_counting_words": 0.875, "macro_f1_counting_words": 0.75})
    ['counting words: accuracy 87.5 %, macro-F1 75.0 %']
    """
    found = {
        name: measures[f"{name}_counting_words"] for name in _FORMS if f"{name}_counting_words" in measures
    }
    return [f"counting words: {', '.join(measured(found))}"] if found else []


def measured(measures: Mapping[str, float]) -> list[str]:
    """The measures that people look at, in words.

    >>> measured({"loss": 0.5, "accuracy": 0.875, "macro_f1": 0.75})
    ['loss 0.500', 'accuracy 87.5 %', 'macro-F1 75.0 %']
    """
    return [form(measures[name]) for name, form in _FORMS.items() if name in measures]
