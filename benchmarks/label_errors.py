"""Precision and recall of the search for wrong labels (attendo errors), on rows of which a share is made wrong.

    python benchmarks/label_errors.py [--corpora DIR] [--seeds 1,2,3] [--share 0.05] [--rows 5000] [--minutes 1]

The corpora are those of classification.py, but the Japanese and German texts have no wrong labels of their own. A share
of the labels of the training rows is changed, and attendo trains on these rows. Three rankings of the rows are
compared: by attendo errors (probabilities from cross-validation), by the cross-entropy of the run itself, and at
random. The precision at k is the share of changed labels among the first k rows, where k is the number of changed
labels. The recall is the share of the changed labels that are among the first tenth of the rows.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import classification
from turns import listed, shared_options, store


def changed(rows, share, seed):
    """Return the rows with some wrong labels, and whether each label was changed."""
    draw = random.Random(seed)
    labels = sorted({label for label, _ in rows})
    wrong = [draw.random() < share for _ in rows]
    others = [draw.choice([other for other in labels if other != label]) for label, _ in rows]
    return [
        (other if is_wrong else label, text) for (label, text), other, is_wrong in zip(rows, others, wrong, strict=True)
    ], wrong


def scores(order, wrong):
    """Return the precision at the number of changed labels, and the recall in the first tenth of the rows."""
    k = sum(wrong)
    return {
        "precision at 50": sum(wrong[i] for i in order[:50]) / 50,
        "precision at k": sum(wrong[i] for i in order[:k]) / k,
        "recall in a tenth": sum(wrong[i] for i in order[: len(order) // 10]) / k,
    }


def measured(rows, wrong, seed, minutes, work):
    """Train on the rows, and return the scores of each ranking and the estimated number of wrong labels."""
    file, run = work / f"{seed}.tsv", work / f"run-{seed}"
    file.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    command = [
        Path(sys.executable).with_name("attendo"),
        "train",
        "classification",
        "--train",
        file,
        "--out",
        run,
    ]
    command += ["--cpu-minutes", minutes, "--set", f"training.seed={seed}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*map(str, command)], check=True, capture_output=True, env=environment)
    from attendo.data.held_out import trained_rows
    from attendo.data.labelled import LabelledRow
    from attendo.inference import Classifier
    from attendo.inference.label_errors import label_errors

    classifier, known = Classifier.load(run), trained_rows(run, "all")
    labeled = [LabelledRow(n, label, text) for n, (label, text) in enumerate(rows)]
    found = label_errors(classifier, labeled, trained=[text in known for _, text in rows])
    own = label_errors(classifier, labeled)
    losses = {suspect.row.number: suspect.label_probability for suspect in own.suspects}
    orders = {
        "attendo errors": [suspect.row.number for suspect in found.suspects],
        "cross-entropy of the run": sorted(losses, key=losses.__getitem__),
        "random": random.Random(seed).sample(range(len(rows)), len(rows)),
    }
    result = {name: scores(order, wrong) for name, order in orders.items()}
    return result | {"estimate": {"changed": sum(wrong), "estimated": found.wrong}}


def main():
    """Measure all corpora and store the results."""
    parser = shared_options(__doc__)
    parser.add_argument("--corpora", type=Path)
    parser.add_argument("--only", default="", help="beginning of the name of a corpus")
    parser.add_argument("--seeds", type=listed(int), default=[1, 2, 3])
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args()
    classification.WRONG = 0.0
    found = {}
    for name, train, *_ in classification.corpora(options.corpora):
        if not name.startswith(options.only):
            continue
        results = []
        for seed in options.seeds:
            rows, wrong = changed(train[: options.rows], options.share, seed)
            with tempfile.TemporaryDirectory() as work:
                results.append(measured(rows, wrong, seed, options.minutes, Path(work)))
        found[name] = {
            ranking: {score: round(statistics.mean(one[ranking][score] for one in results), 3) for score in values}
            for ranking, values in results[0].items()
        }
        print(name, found[name], file=sys.stderr, flush=True)
    facts = {"seeds": options.seeds, "share": options.share, "rows": options.rows, "minutes": options.minutes}
    store("label_errors", facts | {"rankings": found}, options.out)


if __name__ == "__main__":
    main()
