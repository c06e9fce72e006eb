"""Shortlists of a translator, from raw text pairs, and as files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attendo.data.tokenizers import Tokenizer
from attendo.decoding.shortlist import Shortlist, learned_shortlist
from attendo.errors import AttendoError
from attendo.files import with_facts, write_atomic

FORMAT = "attendo shortlist 1"
MOST_PAIRS = 100_000
_NONE = "it is no shortlist that attendo wrote; make one with attendo shortlist"


def shortlist_of_pairs(
    tokenizer: Tokenizer, pairs: Iterable[tuple[str, str]], *, per_token: int = 50, frequent: int = 100
) -> Shortlist:
    """What `learned_shortlist` makes of the first `MOST_PAIRS` pairs of texts, source first.

    Raises AttendoError where there are none, and for numbers out of range.
    """
    if not 1 <= per_token <= tokenizer.vocab_size or not 0 <= frequent <= tokenizer.vocab_size:
        raise AttendoError(
            f"per_token is {per_token} and frequent {frequent}; choose per_token from 1 and frequent from 0 to"
            f" {tokenizer.vocab_size}, the size of the vocabulary"
        )
    ids = [
        (tokenizer.encode(source), tokenizer.target.encode(target))
        for source, target in islice(pairs, MOST_PAIRS)
    ]
    return learned_shortlist(
        ids, tokenizer.vocab_size, tokenizer.eos_id, per_token=per_token, frequent=frequent
    )


def save_shortlist(path: Path, shortlist: Shortlist, tokenizer: Tokenizer) -> None:
    """Writes it as safetensors, whole or not at all, with the tokenizer that its ids are of."""
    arrays = {
        "likely": shortlist.likely.astype(np.int32),
        "frequent": shortlist.frequent.astype(np.int32),
    }
    facts = {"format": FORMAT, "tokenizer_sha256": tokenizer.sha256}
    write_atomic(path, with_facts(save(arrays, facts)))


def load_shortlist(path: Path, tokenizer: Tokenizer) -> Shortlist:
    """The shortlist of a file. Raises AttendoError if it is none, damaged, or of another tokenizer."""
    if not path.is_file():
        raise AttendoError(f"{path} is not there; make it with attendo shortlist")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise AttendoError(f"{path}: {_NONE}")
            if header.get("tokenizer_sha256") != tokenizer.sha256:
                raise AttendoError(
                    f"{path} is of another tokenizer than the run's; make one for it with attendo shortlist"
                )
            likely, frequent = (file.get_tensor(name).astype(np.int64) for name in ("likely", "frequent"))
    except SafetensorError as error:
        raise AttendoError(f"{path} is damaged ({error}); make it again with attendo shortlist") from None
    return Shortlist(likely, frequent)
