"""The command `attendo thresholds`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendo.cli import options as opt
from attendo.cli.evaluate import given_line, labelled_rows
from attendo.cli.reporting import say
from attendo.display.tables import table_lines
from attendo.display.width import shown

if TYPE_CHECKING:
    from attendo.data.labelled import LabelledRow
    from attendo.inference import Classifier
    from attendo.inference.classifier import ClassAssessment


@opt.with_groups
def thresholds(
    *,
    folder: opt.Folder,
    file: Path | None = opt.argument(
        "[FILE]", "Labeled texts to choose from (default: the validation texts of the run).", default=None
    ),
    precision: float | None = opt.option(
        "P", "Precision that each label must have, for example 0.95.", min=0.01, max=0.999
    ),
    abstain: float | None = opt.option(
        "S", "Share of texts that receive no label: the least certain texts.", min=0.001, max=0.999
    ),
    threshold: str | None = opt.option("T", "The thresholds: a number, or LABEL=NUMBER,... for some labels."),
    remove: bool = opt.switch("--remove", "Remove the stored thresholds."),
    columns: opt.Columns = None,
    header: opt.Header = None,
    machine: opt.Machine,
) -> int:
    """Choose and store the lowest probability at which a classifier gives each label.

    A text for which no label reaches its threshold has no label. A label with a threshold is preferred to more probable
    labels without a threshold. The thresholds are stored in the run folder and used by `attendo classify`, the API and
    the page. Without an option, the command prints the stored thresholds and their effect.

    With --precision, each threshold is as low as possible. The precision holds for new texts of the same kind with 90%
    probability. If too few texts are available to show this, the label is never given.

    Example: attendo thresholds runs/mine --precision 0.95

    Example: attendo thresholds runs/mine valid.csv --abstain 0.1

    Example: attendo thresholds runs/mine --threshold spam=0.9
    """
    from dataclasses import replace

    from attendo.inference import Classifier
    from attendo.inference.decisions import parse_thresholds, store_thresholds

    choices = [precision, abstain, threshold, remove or None]
    opt.refuse_if(
        sum(choice is not None for choice in choices) > 1,
        "--precision, --abstain, --threshold and --remove exclude each other. Give one",
    )
    classifier = Classifier.load(folder, machine.chosen())
    labels = classifier.labels.names
    if remove:
        store_thresholds(folder, {})
        say(f"{folder}: thresholds removed")
        return 0
    given = parse_thresholds(threshold, labels) if threshold else None
    rows, name = _rows(classifier, folder, file, columns, header)
    read = classifier.read([row.text for row in rows])
    found = classifier.evaluate(rows, name, read)
    origin = "given"
    if precision is not None or abstain is not None:
        given, origin = _chosen(classifier, found, precision, abstain)
        origin += f", chosen from {len(rows):,} texts of {name}"
    if given is not None:
        store_thresholds(folder, given, origin)
        classifier = replace(classifier, card={**classifier.card, "thresholds": given})
        found = classifier.evaluate(rows, name, read)
    elif not classifier.thresholds:
        say("the run has no thresholds: every text has its most probable label")
    print(shown("\n".join(_lines(classifier, found))))
    none = (
        "" if found.measures.get("coverage", 1.0) else "warning: no text has a label with these thresholds. "
    )
    if none or given is not None:
        say(f"{none}To remove the thresholds, run: attendo thresholds {folder} --remove")
    return 0


def _rows(
    classifier: Classifier, folder: Path, file: Path | None, columns: str | None, header: bool | None
) -> tuple[list[LabelledRow], str]:
    """Return labeled rows of a file, or the validation rows of the run, and the name of the file."""
    from attendo.data.held_out import TrainedRows, trained_rows
    from attendo.data.labelled_corpus import LabelledCorpus
    from attendo.runs.settings import data_of

    if file is not None:
        opt.require_files([file])
        rows, _, name = labelled_rows(classifier, folder, opt.DataFiles([file], columns, header))
        return rows, name
    before = trained_rows(folder, "before") or TrainedRows()
    corpus = LabelledCorpus(data_of(classifier.task, folder), lambda line: None, before)
    return corpus.validation(0)[0], corpus.validation_name


def _chosen(
    classifier: Classifier, found: ClassAssessment, precision: float | None, abstain: float | None
) -> tuple[dict[str, float], str]:
    """Return thresholds for a precision, or for the share of texts without a label, and a description."""
    from attendo.inference.decisions import NEVER, threshold_for_precision, threshold_for_share

    labels = classifier.labels.names
    if precision is None:
        assert abstain is not None
        return dict.fromkeys(
            labels, threshold_for_share(found.probabilities, abstain)
        ), f"{abstain:g} without a label"
    chosen = {
        name: threshold_for_precision(found.probabilities[:, number], found.true == number, precision)
        for number, name in enumerate(labels)
    }
    if never := [name for name, threshold in chosen.items() if threshold == NEVER]:
        n_texts = len(found.true)
        say(
            f"{', '.join(never[:5])}{', …' if len(never) > 5 else ''}: a precision of {precision:g} cannot be shown"
            f" with {n_texts:,} texts, so the label is never given. Give more texts or a lower precision"
        )
    return chosen, f"precision {precision:g}"


def _lines(classifier: Classifier, found: ClassAssessment) -> list[str]:
    """Return the table of thresholds, and the shares of texts with a label and of correct labels among them."""
    from attendo.inference.decisions import lowest_precision

    rows: list[Any] = []
    for number, score in enumerate(found.labels):
        threshold = classifier.thresholds.get(score.label)
        n_given = int(found.confusion[:, number].sum())
        n_right = int(found.confusion[number, number])
        text = "–" if threshold is None else "never" if threshold > 1 else f"{threshold:.4f}"
        low = lowest_precision(n_right, n_given, 0.025)
        high = 1 - lowest_precision(n_given - n_right, n_given, 0.025)
        precision = f"{score.precision:.1%} ({low:.1%} to {high:.1%})" if n_given else "–"
        recall = f"{score.recall:.1%}" if score.support else "–"
        rows.append([score.label, text, score.support, n_given, precision, recall])
    heads = ["label", "threshold", "rows", "given", "precision (95% interval)", "recall"]
    m = found.measures
    return [
        *table_lines(heads, rows),
        "",
        f"{given_line(m)} (without thresholds: all texts, {m['accuracy']:.2%})",
    ]
