"""The command `attendo errors`."""

from __future__ import annotations

import json
from pathlib import Path

from attendo.cli.evaluate import labelled_rows
from attendo.cli.options import DataFiles, Folder, Machine, OneJson, option, require_files, with_groups
from attendo.cli.reporting import Counter, one_line, say, wrote
from attendo.display.tables import table_lines
from attendo.display.width import fitted, shown

HEADS = ("line", "label", "suggested", "label_probability", "probability", "text")
LABEL_WIDTH, TEXT_WIDTH = 12, 36


@with_groups
def errors(
    *,
    folder: Folder,
    data: DataFiles,
    top: int = option("N", "Number of rows to print.", default=20, min=1),
    out: Path | None = option("F", "New table with all rows: .csv, .tsv, .jsonl, .parquet or .xlsx."),
    as_json: OneJson = False,
    machine: Machine,
) -> int:
    """Find labels that are probably wrong in a file of labeled texts.

    The command prints the rows whose label is least probable compared with another label, and an estimate of the number
    of wrong labels. The run has learned the wrong labels of its training rows. The log-probabilities of these rows are
    therefore averaged with those of a linear model of n-grams, from 5-fold cross-validation.

    The option --out writes all rows to a table, the most suspicious first, with the line number, the label, the
    suggested label, the probabilities of both, and the text.

    Example: attendo errors runs/mine train.tsv --out check.xlsx
    """
    from attendo.inference import Classifier
    from attendo.inference.label_errors import FOLDS, label_errors
    from attendo.inference.tables import check_table, label_table
    from attendo.runs.init_from import rows_before

    require_files(data.files)
    if out is not None:
        check_table(out, "--out")
    classifier = Classifier.load(folder, machine.chosen())
    rows, row_report, name = labelled_rows(classifier, folder, data, is_score=False)
    say(row_report.line())
    known = rows_before(folder, classifier.task, say)
    counter = Counter(f"of {FOLDS} folds")
    found = label_errors(classifier, rows, name, [row.text in known for row in rows], counter.show)
    counter.clear()
    if found.n_crossed:
        say(f"{found.n_crossed:,} of {len(rows):,} texts are training rows; their labels are cross-validated")
    if found.n_inflated:
        say(
            f"warning: {found.n_inflated:,} training rows cannot be cross-validated (too few rows or a rare label), so"
            " their labels seem right"
        )
    places = row_report.places_json([suspect.row.number for suspect in found.suspects])
    table = [
        (place, row.label, suggested, own, probability, row.text)
        for place, (row, suggested, own, probability) in zip(places, found.suspects, strict=True)
    ]
    if out is not None:
        with label_table(out, HEADS) as write:
            for cells in table:
                write(cells)
    if as_json:
        facts = {"account": row_report.as_json(), "rows": len(rows), "wrong": found.wrong}
        facts |= {"errors": [dict(zip(HEADS, cells, strict=True)) for cells in table[:top]]}
        print(json.dumps(facts, ensure_ascii=False))
    else:
        heads = ("line", "label", "suggested", "p(label)", "p(suggested)", "text")
        printed = [
            (
                str(line),
                fitted(one_line(label), LABEL_WIDTH),
                fitted(one_line(suggested), LABEL_WIDTH),
                f"{own:.3f}",
                f"{p:.3f}",
                fitted(one_line(text), TEXT_WIDTH),
            )
            for line, label, suggested, own, p, text in table[:top]
        ]
        print(shown("\n".join(table_lines(heads, printed))))
        print(
            f"about {found.wrong:,.0f} of {len(rows):,} labels seem wrong ({found.wrong / len(rows):.1%}). The number"
            " is too high if the model is weak"
        )
    if out is not None:
        say(wrote(out))
    return 0
