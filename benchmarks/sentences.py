"""Lines of two or three test sentences: BLEU and lost sentences by `--segment`, and what is marked as missing text.

    python benchmarks/sentences.py --run RUN --pairs test.tsv [--tokenize 13a]

Joins random rows of a test set into 500 lines and translates them whole (`none`, as before sentences were split) and by
sentence. A sentence is lost if fewer than half of the words of its own translation are in the line's. The rows
themselves are translated both ways in turns: equal texts, and the CPU seconds of splitting.
"""

import random
import time
from collections import Counter
from pathlib import Path

from quality import pairs_of
from turns import ratios, shared_options, store

import attendo
from attendo.metrics import bleu

LINES = 500


def lost(line, parts):
    """How many of the parts have fewer than half of their words in a line; a word counts for one part."""
    left, n_lost = Counter(line.split()), 0
    for part in parts:
        own = Counter(part.split())
        n_lost += 2 * (left & own).total() < own.total()
        left -= own
    return n_lost


def measure(options):
    """All figures of one run and test set."""
    translator = attendo.load(options.run)
    sources, targets = zip(*pairs_of(options.pairs), strict=True)
    draw = random.Random(23)
    lines = [draw.sample(range(len(sources)), draw.choice((2, 3))) for _ in range(LINES)]
    plain = {"none": [], "sentence": []}
    texts = {}
    for number in range(options.rounds):
        for segment in sorted(plain, reverse=number % 2 == 1):
            began = time.process_time()
            texts[segment] = [found.text for found in translator.translate(sources, segment=segment)]
            plain[segment].append(time.process_time() - began)
    alone = texts["none"]

    def joined(rows):
        return [" ".join(rows[i] for i in line) for line in lines]

    wanted = joined(targets)
    result = {
        "pairs": options.pairs.name,
        "sentences": sum(map(len, lines)),
        "bleu alone": round(bleu(joined(alone), wanted, options.tokenize).value, 2),
        "plain": {
            "lines": len(sources),
            "equal texts": sum(a == b for a, b in zip(*texts.values(), strict=True)),
            "CPU seconds, sentence / none": ratios(plain["sentence"], plain["none"]),
            "marked": marks(translator, sources),
        },
    }
    for segment in plain:
        found = [one.text for one in translator.translate(joined(sources), segment=segment)]
        losses = [lost(text, [alone[i] for i in line]) for text, line in zip(found, lines, strict=True)]
        result[segment] = {
            "bleu": round(bleu(found, wanted, options.tokenize).value, 2),
            "lost": sum(losses),
            "lines with a loss": sum(n > 0 for n in losses),
            "marked": marks(translator, joined(sources), segment),
        }
        result[segment]["bleu lost"] = round(result["bleu alone"] - result[segment]["bleu"], 2)
        result[segment]["share lost"] = round(result[segment]["lost"] / result["sentences"], 4)
    return result


def marks(translator, texts, segment="none"):
    """How many translations are marked, with alignments."""
    found = translator.translate(texts, segment=segment, alignments=True)
    return sum(one.omission != "none" for one in found)


def main():
    """Measures and stores."""
    parser = shared_options(__doc__, rounds=7)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's (default: %(default)s)")
    options = parser.parse_args()
    store("sentences", measure(options), options.out)


if __name__ == "__main__":
    main()
