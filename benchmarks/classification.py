"""Test accuracy of attendo's classifier and of a tuned linear model, on the same rows.

    python benchmarks/classification.py [--corpora DIR] [--seeds 1,2,3] [--minutes 0,1]

The linear model is TF-IDF with logistic regression from scikit-learn. Its n-grams (words and pairs, or characters 1 to
4), its C (1, 3, 10, 30) and its class weights are those with the highest accuracy on the validation rows. attendo
trains with its defaults, without a budget (0 minutes) or with CPU minutes, with one thread.

Two corpora are made here, in Japanese (reviews: good, mixed or bad) and in German (subjects of requests). A tenth of
the labels is wrong. --corpora names a folder with sst2 and imdb, which are used if they are there.
"""

import gzip
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import listed, shared_options, store

WRONG = 0.1
THINGS = [
    "部屋",
    "朝食",
    "風呂",
    "駅からの道",
    "受付の人",
    "眺め",
    "ベッド",
    "夕食",
    "温泉",
    "廊下",
    "庭",
    "値段",
]
GOOD = ["きれい", "静か", "すばらしい", "広い", "おいしい", "親切", "快適", "最高", "よい", "楽しい"]
BAD = ["汚い", "うるさい", "残念", "狭い", "まずい", "冷たい", "不快", "最悪", "悪い", "古い"]
STEMS = {
    "Rechnung": ["Rechnungs", "Zahlungs", "Mahn", "Gutschrift", "Betrags", "Konto", "Überweisungs", "Steuer"],
    "Lieferung": ["Liefer", "Paket", "Versand", "Zustell", "Sendungs", "Transport", "Abhol", "Retouren"],
    "Technik": ["Geräte", "Akku", "Bildschirm", "Software", "Netzwerk", "Drucker", "Kabel", "Update"],
}
ENDS = [
    "nummer",
    "adresse",
    "frist",
    "fehler",
    "bestätigung",
    "anfrage",
    "problem",
    "termin",
    "stelle",
    "dienst",
]
VERBS = ["fehlt", "stimmt nicht", "wurde geändert", "ist verschwunden", "funktioniert nicht", "kam zu spät"]
OPENERS = ["Guten Tag,", "Hallo,", "Sehr geehrte Damen und Herren,", "Leider", "Seit gestern", "Meine"]


def japanese(draw):
    """Return a review and its label. A negated word means its opposite, and the part after しかし counts twice."""
    parts = []
    for weight in draw.sample([1, 1, 2], draw.randint(1, 3)):
        good, negated = draw.random() < 0.5, draw.random() < 0.3
        word = draw.choice(GOOD if good != negated else BAD)
        text = f"{draw.choice(THINGS)}は{word}{'とは言えません' if negated else 'でした'}。"
        parts.append((weight, 1 if good else -1, text))
    parts.sort(key=lambda part: part[0])
    score = sum(weight * value for weight, value, _ in parts)
    texts = [("しかし" if weight == 2 and len(parts) > 1 else "") + text for weight, _, text in parts]
    return "".join(texts), "good" if score > 0 else "bad" if score < 0 else "mixed"


def german(draw):
    """Return a request and its label: the subject of most compounds, which are made of a stem and an end."""
    label, other = draw.sample(list(STEMS), 2)
    names = [draw.choice(STEMS[label]) + draw.choice(ENDS) for _ in range(draw.randint(1, 2))]
    names += [draw.choice(STEMS[other]) + draw.choice(ENDS)] if len(names) == 2 and draw.random() < 0.5 else []
    draw.shuffle(names)
    said = [f"die {name} {draw.choice(VERBS)}" for name in names]
    return f"{draw.choice(OPENERS)} {', und '.join(said)}.", label


def made(make, seed):
    """Return training, validation and test rows (label, text) without equal texts."""
    draw = random.Random(seed)
    texts = {}
    while len(texts) < 4500:
        text, label = make(draw)
        texts[text] = label
    labels = sorted(set(texts.values()))
    rows = [(draw.choice(labels) if draw.random() < WRONG else label, text) for text, label in texts.items()]
    return rows[:2000], rows[2000:2500], rows[2500:]


def lines_of(path):
    """Return the rows (label, text) of a .tsv file, whose last column is the text."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [(line.split("\t")[0], line.rstrip("\n").split("\t")[-1]) for line in file]


def corpora(folder):
    """Yield the name and the three parts of each corpus."""
    yield "Japanese reviews (made)", *made(japanese, 1)
    yield "German requests (made)", *made(german, 2)
    if folder and (folder / "sst2").is_dir():
        yield "SST-2", *(lines_of(folder / "sst2" / f"{part}.tsv") for part in ("train", "dev", "test"))
    if folder and (folder / "imdb").is_dir():
        rows = lines_of(folder / "imdb" / "train.tsv.gz")
        random.Random(0).shuffle(rows)
        yield "IMDB", rows[2000:], rows[:2000], lines_of(folder / "imdb" / "test.tsv.gz")


def linear(train, valid, test):
    """Return the test accuracy of the tuned linear model, and its CPU seconds."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    began = time.process_time()
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char", ngram_range=(1, 4), sublinear_tf=True, min_df=2)
    results = []
    for features in (words, characters) if sum(len(text) for _, text in train) < 1e7 else (words,):
        parts = [features.fit_transform(text for _, text in train)]
        parts += [features.transform(text for _, text in rows) for rows in (valid, test)]
        for strength in (1, 3, 10, 30):
            for weights in (None, "balanced"):
                model = LogisticRegression(C=strength, class_weight=weights, max_iter=1000)
                model.fit(parts[0], [label for label, _ in train])
                scores = [
                    model.score(part, [label for label, _ in rows])
                    for part, rows in zip(parts[1:], (valid, test), strict=True)
                ]
                results.append(scores)
    return max(results, key=lambda scores: scores[0])[1], time.process_time() - began


def attendo(parts, seed, minutes, work):
    """Return the test accuracy of attendo's classifier, the CPU seconds of the training, and `promises` of seed 1."""
    files = {}
    for name, rows in zip(("train", "valid", "test"), parts, strict=True):
        files[name] = work / f"{name}.tsv"
        files[name].write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    out = work / f"run-{seed}-{minutes:g}"
    command = [
        Path(sys.executable).with_name("attendo"),
        "train",
        "classification",
        "--train",
        files["train"],
    ]
    command += ["--valid", files["valid"], "--out", out, "--set", f"training.seed={seed}"]
    command += ["--cpu-minutes", str(minutes)] if minutes else []
    before = os.times()
    subprocess.run([*map(str, command)], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = os.times()
    from attendo.data.labelled import LabelledRow
    from attendo.inference import Classifier

    rows = [LabelledRow(n, label, text) for n, (label, text) in enumerate(parts[2], 1)]
    accuracy = Classifier.load(out).evaluate(rows).measures["accuracy"]
    kept = promises(out, rows) if seed == 1 else {}
    return accuracy, sum(after[2:4]) - sum(before[2:4]), kept


N_SPLITS, PROMISED = 20, 0.9


def promises(folder, rows):
    """Return how often thresholds keep the promised precision on the half of the rows that did not choose them.

    In each of 20 random splits, one half chooses the threshold of each label. The result has the number of labels that
    are given, of those whose precision on the other half is at least the promised precision, and of those whose 95%
    interval there includes it or is above it.
    """
    import numpy as np

    from attendo.inference import Classifier
    from attendo.inference.decisions import NEVER, lowest_precision, threshold_for_precision

    found = Classifier.load(folder).evaluate(rows)
    draw = np.random.default_rng(0)
    given = kept = within = 0
    covered = []
    for _ in range(N_SPLITS):
        is_first = draw.permutation(len(rows)) < len(rows) // 2
        for number in range(found.probabilities.shape[1]):
            own, is_class = found.probabilities[:, number], found.true == number
            threshold = threshold_for_precision(own[is_first], is_class[is_first], PROMISED)
            if threshold == NEVER:
                continue
            chosen = ~is_first & (own >= threshold)
            n_right, n = int(is_class[chosen].sum()), int(chosen.sum())
            given += 1
            kept += n_right >= PROMISED * n
            within += 1 - lowest_precision(n - n_right, n, 0.025) >= PROMISED
            covered.append(n_right / max(1, int(is_class[~is_first].sum())))
    return {
        "given": given,
        "kept": kept,
        "within interval": within,
        "recall": round(statistics.mean(covered), 3),
    }


def main():
    """Measure all corpora and store the results."""
    parser = shared_options(__doc__)
    parser.add_argument("--corpora", type=Path)
    parser.add_argument("--only", default="", help="beginning of the name of a corpus")
    parser.add_argument("--seeds", type=listed(int), default=[1, 2, 3])
    parser.add_argument("--minutes", type=listed(float), default=[0.0, 1.0])
    options = parser.parse_args()
    found = {}
    for name, *parts in corpora(options.corpora):
        if not name.startswith(options.only):
            continue
        accuracy, seconds = linear(*parts)
        own = {"linear": {"accuracy": round(accuracy, 4), "CPU seconds": round(seconds, 1)}}
        for minutes in options.minutes:
            with tempfile.TemporaryDirectory() as work:
                results = [attendo(parts, seed, minutes, Path(work)) for seed in options.seeds]
            scores, times, kept = zip(*results, strict=True)
            own[f"attendo, {minutes:g} CPU-minutes" if minutes else "attendo, no budget"] = {
                "accuracy": [round(score, 4) for score in scores],
                "mean": round(statistics.mean(scores), 4),
                "CPU seconds": round(statistics.mean(times), 1),
                f"labels with a precision of {PROMISED:g} in {N_SPLITS} splits": next(filter(None, kept), {}),
            }
        found[name] = own
        print(name, own, file=sys.stderr, flush=True)
    store("classification", {"seeds": options.seeds, "accuracy": found}, options.out)


if __name__ == "__main__":
    main()
