"""What is usual in a translator's training pairs: stored in its card, or counted in the data of an older run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from attendo.config import build, read_toml
from attendo.data.segments import Usual, usual_of
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError

ROWS, ROWS_OF_OLDER = 20_000, 2000
"""The pairs whose texts are counted at training, and the pairs of an older run that are, each time it is loaded."""


def usual_of_run(card: Mapping[str, Any], folder: Path | None, tokenizer: Tokenizer) -> Usual | None:
    """What the card of a run says, or its first training pairs; None where neither is known.

    Raises AttendoError for a card with other values than a training writes.
    """
    data = card.get("data")
    stored = data.get("usual") if isinstance(data, dict) else None
    if stored is None:
        return _counted(folder, tokenizer) if data and folder is not None else None
    match stored:
        case {"longest": int(longest), "fewest": int() | float() as fewest, "beginnings": [*words]} if (
            longest > 0 and 0 <= fewest < 100 and all(isinstance(word, str) for word in words)
        ):
            return Usual(longest, fewest, tuple(words))
    raise AttendoError(
        f"{folder}: card.json has an invalid data.usual (expected longest, fewest and beginnings, as training writes"
        " them); copy the run's card.json back"
    )


def _counted(folder: Path, tokenizer: Tokenizer) -> Usual | None:
    from attendo.data.pair_corpus import PairCorpus
    from attendo.data.pair_data import PairData

    try:
        data = build(PairData, read_toml(folder / "config.toml").get("data", {}), "config.toml [data]")
        data.check()
        data = replace(data, valid=data.train, drop="")  # the first rows suffice: nothing is split off
        pairs = list(islice(PairCorpus(data, lambda _: None).pairs(), ROWS_OF_OLDER))
    except (AttendoError, OSError, ValueError):
        return None  # the data have moved, or are damaged: the model can still be used
    sources, targets = [source for _, source, _ in pairs], [target for _, _, target in pairs]
    each = ((tokenizer, sources), (tokenizer.target, targets))
    source, target = (np.array([len(row) for row in own.encode_batch(texts)]) for own, texts in each)
    return usual_of([(source, target)], sources) if pairs else None
