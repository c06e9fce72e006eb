"""The embedded corpus `forecasts`: English-Japanese weather forecasts in three splits, as gzipped TSV files.

`attendo_course.lessons.forecast_grammar` defines the forecasts, and `tools/forecast_pairs.py` writes the files.
"""

import gzip
from collections.abc import Sequence
from importlib.resources import files
from io import TextIOWrapper
from itertools import islice
from typing import Literal

from attendo.errors import AttendoError

Split = Literal["train", "valid", "test"]
SIZES: dict[Split, int] = {"train": 30_000, "valid": 2_000, "test": 5_000}
"""The number of pairs in each split."""


def pairs(n: int, split: Split) -> list[tuple[str, str]]:
    """Return the first `n` (English, Japanese) pairs of a split. Raises AttendoError if the split is smaller.

    >>> pairs(1, "train") == pairs(2, "train")[:1]
    True
    """
    if n > SIZES[split]:
        raise AttendoError(f"the corpus forecasts has {SIZES[split]:,} {split} pairs, not {n:,}. Use fewer pairs")
    path = files("attendo.data") / "forecast_pairs" / f"{split}.tsv.gz"
    with path.open("rb") as packed, TextIOWrapper(gzip.GzipFile(fileobj=packed), encoding="utf-8") as lines:
        rows = (line.rstrip("\n").split("\t") for line in islice(lines, n))
        return [(english, japanese) for english, japanese in rows]


def nearest_neighbor_baseline(train_pairs: Sequence[tuple[str, str]], test_pairs: Sequence[tuple[str, str]]) -> float:
    """Return the share of test pairs whose target equals the target of the training pair with the most similar source.

    Memorizing training pairs achieves this score. Similarity is the cosine of TF-IDF vectors over words and word pairs.
    Raises ValueError if there are no training pairs or no test pairs.

    >>> nearest_neighbor_baseline([("it will rain", "雨"), ("it will snow", "雪")], [("snow it will", "雪")])
    1.0
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not train_pairs or not test_pairs:
        raise ValueError("nearest_neighbor_baseline needs at least one training pair and one test pair")
    vectorizer = TfidfVectorizer(token_pattern=r"-?\w+", ngram_range=(1, 2))
    known = vectorizer.fit_transform([source for source, _ in train_pairs]).T.tocsr()
    asked = vectorizer.transform([source for source, _ in test_pairs])
    # one row at a time, because a row of similarities is dense
    nearest = (train_pairs[(asked[row] @ known).argmax()][1] for row in range(len(test_pairs)))
    right = sum(found == target for found, (_, target) in zip(nearest, test_pairs, strict=True))
    return right / len(test_pairs)
