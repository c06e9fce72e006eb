"""Tags, several labels, numbers and pairs of texts on generated sentences, compared with their simplest baselines.

Tags: English and Japanese sentences with names, whose baseline is a dictionary of the training spans. The names in the
test sentences never occur in the training sentences. A dictionary therefore finds only dates.

Labels: tickets about up to four topics, of which a topic counts if something is wrong with it; baseline: the n-grams
alone. Numbers: reviews whose number is the sum of their judgments, some negated or doubled, with noise; baseline: the
mean. Pairs: whether an answer is about the topic of the question; baseline: the most frequent label, and the n-grams.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

import attendo
from attendo.data.labelled import LabelledSource, read_labelled
from attendo.data.tagged import SPANS, dictionary, dictionary_spans, spans_of
from attendo.inference.tagger import Tagger, span_scores
from attendo.metrics import log_softmax
from attendo.runs.settings import data_of

Parts = list[str | tuple[str, str]]

FIRST = [
    "an",
    "be",
    "ca",
    "da",
    "el",
    "fi",
    "gu",
    "ha",
    "in",
    "jo",
    "ka",
    "li",
    "ma",
    "ni",
    "or",
    "pe",
    "qua",
    "ro",
    "sa",
    "ti",
    "ul",
    "vi",
    "wan",
    "xe",
    "yo",
    "zu",
]
LAST = ["na", "ra", "lo", "to", "mi", "ster", "berg", "mann", "sen", "ssi", "dez", "ko", "ley", "ton", "rik"]
PLACE_ENDS = ["ville", "burg", "ton", "stad", "ford", "heim", "mouth", "dorf"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
KANJI_NAMES = "佐藤鈴木高橋田中伊渡辺山本村小林加吉松井上清斎崎森池阿部石川前岡長谷近坂遠青西福太三原中野"
KANJI_PLACES = "東西南北大小新古上下中川山島浜崎原野田沢津岡富森海松竹梅桜白黒青赤金銀"
GIVEN = [
    "太郎",
    "花子",
    "一郎",
    "美咲",
    "健",
    "翔",
    "由美",
    "直樹",
    "彩",
    "誠",
    "陽子",
    "大輔",
    "恵",
    "拓也",
    "真理",
    "亮",
]


def name(random: random.Random) -> str:
    """Return a name of two random syllables."""
    return random.choice(FIRST).title() + random.choice(LAST)


def english(random: random.Random, person: str, place: str) -> Parts:
    """Return a sentence as texts and labeled spans."""
    date = f"{random.randint(1, 28)} {random.choice(MONTHS)}"
    given = ("PER", person), ("LOC", place), ("DATE", date)
    a, b, d = given
    patterns: list[Parts] = [
        [a, " will travel to ", b, " on ", d, "."],
        ["The weather in ", b, " was mild, said ", a, "."],
        ["On ", d, ", ", a, " met the mayor of ", b, "."],
        [b, " expects rain on ", d, "."],
        ["Yesterday ", a, " opened a shop near ", b, "."],
        ["The Green Party of ", b, " chose ", a, " as its speaker."],
        ["No storm is expected before ", d, "."],
        ["Good Morning is a song that ", a, " wrote in ", b, "."],
    ]
    return random.choice(patterns)


def japanese(random: random.Random, person: str, place: str) -> Parts:
    """Return a sentence as texts and labeled spans."""
    date = f"{random.randint(1, 12)}月{random.randint(1, 28)}日"
    a, b, d = ("PER", person), ("LOC", place), ("DATE", date)
    patterns: list[Parts] = [
        [a, "さんは", d, "に", b, "へ行く。"],
        [b, "では", d, "に雨が降る見込みです。"],
        [d, "、", a, "は", b, "の市長に会った。"],
        ["昨日", b, "で店を開いた", a, "氏に聞いた。"],
        ["大雨の心配は", d, "までない。"],
        [b, "出身の", a, "が歌った。"],
    ]
    return random.choice(patterns)


def row_of(parts: Parts) -> dict[str, object]:
    """Return the text and the spans of a sentence."""
    text, spans = "", []
    for part in parts:
        label, piece = part if isinstance(part, tuple) else ("", part)
        if label:
            spans.append([len(text), len(text) + len(piece), label])
        text += piece
    return {"text": text, "spans": spans}


def names(language: str, random: random.Random) -> tuple[list[str], list[str]]:
    """Return different persons and places."""
    if language == "en":
        persons = {f"{name(random)} {name(random)}" for _ in range(400)}
        places = {name(random) + random.choice(PLACE_ENDS) for _ in range(400)}
    else:
        persons = {"".join(random.sample(KANJI_NAMES, 2)) + random.choice(GIVEN) for _ in range(400)}
        ends = ["市", "町", "村", "県"]
        places = {"".join(random.sample(KANJI_PLACES, 2)) + random.choice(ends) for _ in range(400)}
    return sorted(persons), sorted(places - persons)


def write_tagged(folder: Path, language: str, n_train: int = 2000, n_test: int = 500, seed: int = 1) -> None:
    """Write train.jsonl and test.jsonl. A fifth of the names occurs only in the test rows."""
    make: Callable[..., Parts] = {"en": english, "ja": japanese}[language]
    draw = random.Random(seed)
    groups = names(language, draw)
    folder.mkdir(parents=True, exist_ok=True)
    for file, n, test in (("train", n_train, False), ("test", n_test, True)):
        persons, places = ([x for i, x in enumerate(group) if (i % 5 == 0) == test] for group in groups)
        rows = [row_of(make(draw, draw.choice(persons), draw.choice(places))) for _ in range(n)]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{file}.jsonl").write_text("".join(lines), encoding="utf-8")


TOPICS = {
    "billing": ["invoice", "refund", "payment", "charge", "receipt"],
    "delivery": ["parcel", "courier", "shipment", "tracking", "address"],
    "account": ["password", "login", "profile", "username", "email"],
    "hardware": ["battery", "screen", "charger", "cable", "fan"],
    "support": ["agent", "hotline", "callback", "chat", "reply"],
}
GOOD = ["is fine now", "works again", "was solved", "arrived as promised", "was not wrong after all"]
BAD = ["is missing", "does not work", "was lost", "is wrong", "never came"]
VALUES = {"awful": -3, "bad": -2, "weak": -1, "okay": 0, "decent": 1, "good": 2, "superb": 3}


def labelled(draw: random.Random) -> dict[str, object]:
    """Return a ticket with the topics that have a problem."""
    topics = draw.sample(sorted(TOPICS), draw.randint(1, 4))
    wrong = {topic for topic in topics if draw.random() < 0.5}
    said = (f"the {draw.choice(TOPICS[t])} {draw.choice(BAD if t in wrong else GOOD)}" for t in topics)
    return {"labels": sorted(wrong), "text": ", ".join(said)}


def numbered(draw: random.Random) -> dict[str, object]:
    """Return a review with its number."""
    total = 0.0
    said = []
    for thing in draw.sample(["food", "room", "staff", "view", "bath", "price"], draw.randint(1, 4)):
        word, value = draw.choice(sorted(VALUES.items()))
        mark, factor = draw.choice([("", 1), ("", 1), ("not ", -1), ("very ", 2)])
        total += factor * value
        said.append(f"the {thing} was {mark}{word}")
    return {"number": round(total + draw.gauss(0, 0.3), 2), "text": ", ".join(said)}


def paired(draw: random.Random) -> dict[str, object]:
    """Return a question and an answer, and whether both are about one topic."""
    topic, other = draw.sample(sorted(TOPICS), 2)
    label, own = draw.choice([("yes", topic), ("no", other)])
    question = f"what about my {draw.choice(TOPICS[topic])}?"
    return {
        "label": label,
        "text": question,
        "second": f"the {draw.choice(TOPICS[own])} {draw.choice(GOOD + BAD)}",
    }


def further_kinds(folder: Path, seed: int, epochs: float) -> None:
    """Train models for labels, numbers and pairs, and print their scores and those of their baselines."""
    made = (("multi-label", labelled, None), ("regression", numbered, None), ("classification", paired, PAIR))
    for task, make, columns in made:
        draw = random.Random(seed)
        own = folder / f"{task}-{seed}"
        own.mkdir(parents=True)
        for part, n in (("train", 3000), ("test", 1000)):
            lines = (json.dumps(make(draw)) + "\n" for _ in range(n))
            (own / f"{part}.jsonl").write_text("".join(lines))
        settings = {"training": {"seed": seed}}
        user = attendo.train(
            own / "train.jsonl", own / "run", task=task, columns=columns, epochs=epochs, settings=settings
        )
        data = data_of(task, own / "run")
        rows = list(read_labelled(data.source(own / "test.jsonl")))
        read = user.read([row.text for row in rows])[0] / user.temperature
        found = [
            next(iter(user.scores(log_softmax(user.decisions(logits)), rows).items()))
            for logits in (
                read,
                np.tile(user.prior, (len(rows), 1)),
                user.ngrams.scores([row.text for row in rows]),
            )
        ]
        told = zip(("model", user.baseline, "n-grams"), found, strict=True)
        print(f"{task} seed {seed}: {found[0][0]} " + ", ".join(f"{n} {value:.4f}" for n, (_, value) in told))


PAIR = {"label": "label", "text": "text", "second": "second"}


def dictionary_f1(tagger: Tagger, train: Path, test: Path) -> float:
    """Return the span F1 of a dictionary of all training spans on the test file."""
    known = dictionary(read_labelled(LabelledSource(train, form=SPANS)))
    rows = list(read_labelled(LabelledSource(test, form=SPANS)))
    found = [dictionary_spans(row.text, tagger.borders(row.text), known) for row in rows]
    return span_scores([spans_of(row) for row in rows], found)[1]["f1"]


def main() -> None:
    """Train a tagger per language and seed, and print its span F1 on the test file and that of the dictionary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="new folder for data and runs")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for seed in range(1, options.seeds + 1):
        further_kinds(options.folder, seed, options.epochs)
    for language in ("en", "ja"):
        for seed in range(1, options.seeds + 1):
            folder = options.folder / f"{language}-{seed}"
            write_tagged(folder, language, seed=seed)
            files = folder / "train.jsonl", folder / "test.jsonl"
            settings = {"training": {"seed": seed}}
            attendo.train(files[0], folder / "run", task="tagging", epochs=options.epochs, settings=settings)
            tagger = Tagger.load(folder / "run")
            rows = list(read_labelled(LabelledSource(files[1], form=SPANS)))
            measures = tagger.evaluate(rows).measures
            found = tagger.classify([row.text for row in rows])
            mean = sum(span.probability for each in found for span in each.spans) / sum(len(x.spans) for x in found)
            print(
                f"{language} seed {seed}: span F1 {measures['f1']:.2%} (precision {measures['precision']:.2%},"
                f" mean probability {mean:.2%}), dictionary {dictionary_f1(tagger, *files):.2%}"
            )


if __name__ == "__main__":
    main()
