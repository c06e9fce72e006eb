"""Lines of two or three test sentences: BLEU, lost sentences and warnings of missing text, by `--segment`.

    python benchmarks/sentences.py --run RUN --pairs test.tsv [--tokenize 13a]

The benchmark joins random rows of a test set into 500 lines. It translates the lines as a whole (`none`) and by
sentence. A sentence is lost if the translated line contains fewer than half of the words of the sentence's own
translation. The single rows are also translated both ways alternately, to count equal texts and to measure the CPU
seconds of splitting.
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
    """Count the parts with fewer than half of their words in a line. A word of the line counts for one part only."""
    left, n_lost = Counter(line.split()), 0
    for part in parts:
        own = Counter(part.split())
        n_lost += 2 * (left & own).total() < own.total()
        left -= own
    return n_lost


def measure(options):
    """Return all figures of one run and test set."""
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
    """Count the translations that are marked as incomplete, with alignments."""
    found = translator.translate(texts, segment=segment, alignments=True)
    return sum(one.omission != "none" for one in found)


def main():
    """Run the measurements and store the results."""
    parser = shared_options(__doc__, rounds=7)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's (default: %(default)s)")
    options = parser.parse_args()
    store("sentences", measure(options), options.out)


if __name__ == "__main__":
    main()
