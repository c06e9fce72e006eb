"""The command `attendo shortlist`."""

from __future__ import annotations

from pathlib import Path

from attendo.cli.evaluate import pairs_of
from attendo.cli.options import DataFiles, Folder, option, with_groups
from attendo.cli.reporting import Counter, say


@with_groups
def shortlist(
    *,
    folder: Folder,
    data: DataFiles,
    out: Path = option("G", "Output file for the shortlist.", default=...),
    per_token: int = option("K", "Number of likely target tokens per source token.", min=1, default=50),
    frequent: int = option(
        "N", "Number of frequent target tokens, which every text can use.", min=0, default=100
    ),
) -> int:
    """Write a list of the likely target tokens of each source token, for `attendo translate --shortlist`.

    Use the sentence pairs that the run was trained on. Only the first 100,000 pairs are read.

    Example: attendo shortlist runs/mine train.tsv --out runs/mine/shortlist.safetensors
    """
    from attendo.decoding.shortlist import MOST_PAIRS, save_shortlist, shortlist_of_pairs
    from attendo.inference import Translator

    tokenizer = Translator.load(folder).tokenizer
    pairs, row_report = pairs_of(folder, data)
    counter = Counter("pairs")

    def shown():
        for n, (_, source, target) in enumerate(pairs):
            if n == MOST_PAIRS:
                break
            yield source, target
            counter.show(row_report.used)

    learned = shortlist_of_pairs(tokenizer, shown(), per_token=per_token, frequent=frequent)
    counter.clear()
    save_shortlist(out, learned, tokenizer)
    say(row_report.line())
    say(f"{out}: up to {per_token:,} targets per source token, {len(learned.frequent):,} for every text")
    return 0
