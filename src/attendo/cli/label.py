"""The command `attendo label`."""

from __future__ import annotations

import shlex
from pathlib import Path

from attendo.cli import options as opt
from attendo.cli.classify import rows_of
from attendo.cli.reporting import say
from attendo.data.corpora import parse_columns
from attendo.data.data_files import require_file
from attendo.data.row_report import RowReport

PORT = 8002


@opt.with_groups
def label(
    *,
    folder: opt.Folder,
    source: Path = opt.argument("F", "Table, or .txt file with one text per line."),
    out: Path = opt.option("F", "File for the labels: .csv or .jsonl.", "--out", default=Path("labels.csv")),
    columns: str | None = opt.option(
        "C",
        "Text column of F, for example text=body or 2 (default: as in training).",
        "--columns",
        "--column",
    ),
    header: opt.Header = None,
    port: int = opt.option("N", "Port of the page; 0 selects a free port.", default=PORT, min=0, max=65535),
    open_: bool = opt.switch("--open", "Open the page in a browser."),
    language: opt.Spoken = "en",
    machine: opt.Machine,
) -> int:
    """Label texts on a local page. The texts of which the model is least sure come first.

    The page shows a text and the label that the model suggests. The keys 1 to 9 choose a label, S skips the text, and U
    undoes the last label. Each label is written to --out at once, in a format that `attendo train classification`
    reads. To continue later, run the same command again. At the end, the command prints how to train the model on the
    new labels.

    Only this machine can open the page.

    Example: attendo label runs/mine texts.txt --out labels.csv --open
    """
    from attendo.data.labelled import LABELLED
    from attendo.inference import Classifier
    from attendo.inference.labeling import LabelFile, Labeling, to_label
    from attendo.microscope.server import LabelServer
    from attendo.runs.init_from import rows_before
    from attendo.runs.settings import data_of

    require_file(source)
    classifier = Classifier.load(folder, machine.chosen())
    trained = data_of(classifier.task, folder).columns
    names = LABELLED if trained is None else parse_columns(trained, LABELLED)
    names = LABELLED if any(name.isdecimal() for name in names) else names
    row_report = RowReport(str(source))
    rows = rows_of(source, folder, columns, (), header, row_report, LABELLED)
    texts = list(dict.fromkeys(text for _, (text,) in rows))
    say(row_report.line())
    known = rows_before(folder, classifier.task, say)
    new = [text for text in texts if text not in known]
    if len(new) < len(texts):
        say(f"{len(texts) - len(new):,} of {len(texts):,} different texts are training rows and are left out")
    file = LabelFile(out, (names[0], names[1]))
    try:
        queue = to_label(classifier, new, file)
        say(f"{out}: {len(file.labels):,} labels; {len(queue):,} texts to label")
        server = LabelServer(Labeling(queue, file), classifier.labels.names, folder.name, port, language)
        code = opt.serve_page(server.run, server.stop, server.address, open_, language)
    finally:
        file.close()
    say(_next_step(folder, out, names, [*file.labels.values()]))
    return code


def _next_step(folder: Path, out: Path, names: tuple[str, ...], labels: list[str]) -> str:
    """Return the command that trains on the labels, or how many labels are missing."""
    from attendo.data.held_out import FEWEST_ROWS
    from attendo.data.labelled import LABELLED

    count = f"{out}: {len(labels):,} labels"
    if len(labels) < FEWEST_ROWS or len(set(labels)) < 2:
        return f"{count}. Training requires at least {FEWEST_ROWS} texts with at least two different labels"
    number = 2
    while (other := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    words = ["attendo", "train", "classification", "--train", str(out)]
    if names != LABELLED:
        words += ["--columns", f"label={names[0]},text={names[1]}"]
    words += ["--init-from", str(folder), "--out", str(other)]
    return f"{count}. To train on them: {shlex.join(words)}"
