"""Decisions from the probabilities of labels: thresholds, and the curves by which thresholds are chosen."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from attendo.bundle import load_bundle, save_card
from attendo.display.width import fitted
from attendo.errors import AttendoError, install_command
from attendo.files import write_atomic

Thresholds = Mapping[str, float]
"""The lowest probability at which a label is given. A threshold above 1 means that the label is never given."""
NEVER = 2.0
CONFIDENCE = 0.9
"""The probability that a threshold for a precision keeps it on further rows of the same kind."""
N_TRIED = 16
"""The number of thresholds that are tried per label and start."""
STARTS = (0.25, 0.5)
"""The first threshold of each sequence gives the label to this share of the most texts that can be given it."""
MOST_POINTS = 101
"""The maximum number of points of a curve."""
N_BINS = 10
"""The number of bins of the reliability diagram."""
CURVE_FILES = (".json", ".png", ".svg")


def parse_thresholds(text: str, labels: Sequence[str]) -> dict[str, float]:
    """Return thresholds from a number for all labels, or from `LABEL=NUMBER,…` for some labels.

    Raises AttendoError for an unknown label, and for a threshold that is not in [0, 1].

    >>> parse_thresholds("0.8", ["ham", "spam"]), parse_thresholds("spam=0.3", ["ham", "spam"])
    ({'ham': 0.8, 'spam': 0.8}, {'spam': 0.3})
    """
    parts = [part.rpartition("=") for part in text.split(",")]
    if len(parts) == 1 and not parts[0][1]:
        return dict.fromkeys(labels, _probability(text))
    thresholds = {}
    for label, _, number in parts:
        if label.strip() not in labels:
            known = ", ".join(labels[:8]) + (", …" if len(labels) > 8 else "")
            raise AttendoError(f"threshold {text!r}: unknown label {label.strip()!r} (expected {known})")
        thresholds[label.strip()] = _probability(number)
    return thresholds


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise AttendoError(f"threshold {text!r} is not a probability (expected a number from 0 to 1)")
    return value


def decide(
    probabilities: Float[ndarray, "texts classes"], thresholds: Float[ndarray, " classes"]
) -> Int[ndarray, " texts"]:
    """Return the class of each text, or -1 if no class is given.

    Of the classes that reach their threshold, the most probable is given; otherwise the most probable class without a
    threshold (NaN), if there is one.

    >>> p = np.array([[0.6, 0.4], [0.9, 0.1], [0.5, 0.5]])
    >>> decide(p, np.array([np.nan, 0.3])).tolist(), decide(p, np.array([0.8, 0.8])).tolist()
    ([1, 0, 1], [-1, 0, -1])
    """
    reached = np.where(probabilities >= thresholds, probabilities, -1.0)
    others = np.where(np.isnan(thresholds), probabilities, -1.0)
    best = np.where(reached.max(1) >= 0, reached.argmax(1), others.argmax(1))
    return np.where(np.maximum(reached, others).max(1) >= 0, best, -1)


def lowest_precision(n_right: int, n: int, error: float) -> float:
    """Return the lower bound of a precision, which is above the true precision with probability at most `error`.

    Clopper & Pearson 1934, one-sided.

    >>> round(lowest_precision(95, 100, 0.1), 2), lowest_precision(0, 3, 0.1)
    (0.91, 0.0)
    """
    from scipy.stats import beta

    return float(beta.ppf(error, n_right, n - n_right + 1)) if n_right else 0.0


def threshold_for_precision(
    probabilities: Float[ndarray, " texts"], is_class: Bool[ndarray, " texts"], precision: float
) -> float:
    """Return the lowest threshold that was shown to keep the precision of a label with probability CONFIDENCE.

    The texts must not have been used for training. From each of STARTS, lower and lower thresholds are tested until one
    fails: each start has its share of the error, and no correction for the number of thresholds is needed (Angelopoulos
    et al. 2021, "Learn then Test": fixed-sequence testing with several starts). If there are not enough texts to show
    the precision, the threshold is NEVER.
    """
    ordered = np.sort(probabilities)[::-1]
    most = min(len(ordered), math.ceil(int(is_class.sum()) / precision))
    found = NEVER
    for start in STARTS:
        for rank in np.unique(np.linspace(max(1, start * most), most, N_TRIED).astype(int)) if most else ():
            threshold = math.floor(ordered[rank - 1] * 1e4) / 1e4
            given = probabilities >= threshold
            n_right, n = int(is_class[given].sum()), int(given.sum())
            if lowest_precision(n_right, n, (1 - CONFIDENCE) / len(STARTS)) < precision:
                break
            found = min(found, threshold)
    return found


def threshold_for_share(probabilities: Float[ndarray, "texts classes"], share: float) -> float:
    """Return the threshold of all labels at which this share of the texts receives no label.

    >>> threshold_for_share(np.array([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), 0.25)
    0.7
    """
    ordered = np.sort(probabilities.max(1))
    return math.floor(ordered[min(len(ordered) - 1, round(share * len(ordered)))] * 1e4) / 1e4


def store_thresholds(folder: str | Path, thresholds: Thresholds, origin: str = "") -> None:
    """Store thresholds by label in the card.json of a run folder, where every use of the classifier finds them.

    Without any, stored thresholds are removed. `origin` describes for people how they were chosen.
    """
    folder = Path(folder)
    card = dict(load_bundle(folder).card)
    for key in ("thresholds", "thresholds_from"):
        card.pop(key, None)
    new = {"thresholds": {**thresholds}, "thresholds_from": origin} if thresholds else {}
    save_card(folder, card | new)


def decision_curves(
    probabilities: Float[ndarray, "texts classes"], true: Int[ndarray, " texts"], names: Sequence[str]
) -> dict[str, Any]:
    """Return the curves by which people choose thresholds, as a value for JSON. Each curve has at most 101 points.

    `reliability`: for each occupied bin of the largest probability, the number of texts (`n`), the mean `probability`
    and the `accuracy`. `coverage`: for each `threshold`, the share of texts with a larger or equal probability
    (`coverage`) and their `accuracy`. `labels`: for each label with texts and other texts, the `average_precision`, the
    `roc_auc`, and the points of both curves.
    """
    from sklearn import metrics

    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == true
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    reliability = [
        {
            "n": int((bins == b).sum()),
            "probability": float(confidence[bins == b].mean()),
            "accuracy": float(right[bins == b].mean()),
        }
        for b in np.unique(bins)
    ]
    order = np.argsort(-confidence, kind="stable")
    n = np.arange(1, len(order) + 1)
    coverage = {"threshold": confidence[order], "coverage": n / len(n), "accuracy": right[order].cumsum() / n}
    labels: dict[str, Any] = {}
    for number, name in enumerate(names):
        own, scores = true == number, probabilities[:, number]
        if own.all() or not own.any():
            continue
        precision, recall, thresholds = metrics.precision_recall_curve(own, scores)
        false_rate, true_rate, _ = metrics.roc_curve(own, scores)
        labels[name] = {
            "average_precision": float(metrics.average_precision_score(own, scores)),
            "roc_auc": float(metrics.roc_auc_score(own, scores)),
            **_points({"threshold": thresholds, "precision": precision[:-1], "recall": recall[:-1]}),
            **_points({"false_positive_rate": false_rate, "true_positive_rate": true_rate}),
        }
    return {"reliability": reliability, "coverage": _points(coverage), "labels": labels}


def _points(columns: Mapping[str, Float[ndarray, " points"]]) -> dict[str, list[float]]:
    """Return at most MOST_POINTS evenly spaced points of a curve, always with both ends."""
    n = len(next(iter(columns.values())))
    kept = np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(int))
    return {name: [round(float(value), 4) for value in values[kept]] for name, values in columns.items()}


def write_curves(
    path: Path, curves: Mapping[str, Any], confusion: Int[ndarray, "classes classes"], names: Sequence[str]
) -> None:
    """Write the curves and the confusion matrix to a .json file, or draw them in a .png or .svg file.

    Raises AttendoError if the suffix is unknown, or if matplotlib is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in CURVE_FILES:
        raise AttendoError(f"{path} must end in {', '.join(CURVE_FILES[:-1])} or {CURVE_FILES[-1]}")
    if suffix == ".json":
        facts = {**curves, "classes": [*names], "confusion": confusion.tolist()}
        text = json.dumps(facts, ensure_ascii=False, indent=1)
        write_atomic(path, text + "\n")
        return
    try:
        import matplotlib
    except ImportError:
        raise AttendoError(f"pictures require matplotlib. Run: {install_command('plots')}") from None
    from attendo.display.fonts import fonts_for

    fonts, drawable = fonts_for("".join(names))
    # "$" would begin a formula
    shown = {name: "".join(c if c in drawable else "?" for c in name).replace("$", r"\$") for name in names}
    with matplotlib.rc_context({"svg.hashsalt": "attendo", "font.family": fonts, "font.size": 9}):
        write_atomic(path, _picture(curves, shown, confusion, suffix))


SHOWN_LABELS = 8
"""The maximum number of labels with curves in a picture: those with the lowest average precision."""


def _picture(
    curves: Mapping[str, Any],
    shown: Mapping[str, str],
    confusion: Int[ndarray, "classes classes"],
    suffix: str,
) -> bytes:
    """Return the picture: precision and recall, ROC, reliability, coverage, and the confusion matrix."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((13.5, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (recall, roc, reliability), (coverage, matrix, legend) = figure.subplots(2, 3)
    labels = sorted(curves["labels"].items(), key=lambda pair: pair[1]["average_precision"])
    for name, own in labels[:SHOWN_LABELS]:
        text = f"{shown[name]}: average precision {own['average_precision']:.3f}, ROC AUC {own['roc_auc']:.3f}"
        recall.plot(own["recall"], own["precision"], label=text)
        roc.plot(own["false_positive_rate"], own["true_positive_rate"])
    bins = curves["reliability"]
    for axes in (roc, reliability):
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--")
    reliability.plot([b["probability"] for b in bins], [b["accuracy"] for b in bins], marker="o")
    for b in bins:
        reliability.annotate(f"{b['n']:,}", (b["probability"], b["accuracy"]), (4, -10), textcoords="offset points")
    coverage.plot(curves["coverage"]["coverage"], curves["coverage"]["accuracy"])
    for axes, title, x, y in (
        (recall, "Precision and recall", "recall", "precision"),
        (roc, "ROC", "false positive rate", "true positive rate (recall)"),
        (reliability, "Reliability (with numbers of texts)", "mean probability", "accuracy"),
        (coverage, "Accuracy of the most certain texts", "coverage: share of texts with a label", "accuracy"),
        (matrix, "Confusion matrix", "predicted class", "true class"),
    ):
        axes.set(title=title, xlabel=x, ylabel=y)
    shares = confusion / np.maximum(1, confusion.sum(1, keepdims=True))
    matrix.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(confusion) <= N_BINS:
        places = range(len(confusion))
        matrix.set_xticks(places, [fitted(name, 14) for name in shown.values()], rotation=30, ha="right")
        matrix.set_yticks(places, [fitted(name, 14) for name in shown.values()])
        for (row, column), n in np.ndenumerate(confusion):
            color = "white" if shares[row, column] > 0.5 else "black"
            matrix.text(column, row, f"{n:,}", ha="center", va="center", color=color)
    legend.axis("off")
    legend.legend(*recall.get_legend_handles_labels(), loc="upper left", frameon=False)
    file = io.BytesIO()
    metadata = {"Software": None} if suffix == ".png" else {"Date": None, "Creator": "attendo"}
    figure.savefig(file, format=suffix[1:], dpi=130, metadata=metadata)
    return file.getvalue()
