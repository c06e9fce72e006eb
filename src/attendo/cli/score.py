"""The commands `attendo score` and `attendo shortlist`, which read sentence pairs."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from attendo.cli import options as opt
from attendo.cli.evaluate import pairs_of, warn_of_guessing, warn_of_order
from attendo.cli.reporting import MOST_LINES, Counter, say
from attendo.cli.translate import candidate_json


@opt.with_groups
def score(
    *,
    folder: opt.Folder,
    data: opt.DataFiles,
    length_penalty: opt.Penalty = None,
    others: opt.With = None,
    as_json: opt.JsonLines = False,
    machine: opt.Machine,
) -> int:
    """Print the log-probability of given translations, and their score, which is normalized by length.

    The command prints one line per usable sentence pair: the log-probability, a tab and the score. The log-probability
    is in nats and includes the end token. The option --json also prints the line number of the pair.

    Example: attendo score runs/mine pairs.tsv
    """
    from attendo.inference import Translator

    opt.require_files(data.files)
    translator = Translator.load(folder, machine.chosen(), others or ())
    opt.make_ready(translator)
    pairs, row_report = pairs_of(folder, data)
    counter = Counter("pairs")
    log_prob = 0.0
    n_tokens = 0
    while chunk := list(islice(pairs, MOST_LINES)):
        texts = [(source, target) for _, source, target in chunk]
        if not n_tokens:
            warn_of_order(translator.card.get("languages") or {}, texts, data.are_parallel)
        found = translator.score(texts, length_penalty)
        log_prob += sum(candidate.log_prob for candidate in found)
        n_tokens += sum(len(candidate.token_log_probs) for candidate in found)
        for (number, _, _), candidate in zip(chunk, found, strict=True):
            if as_json:
                print(json.dumps({"line": number} | candidate_json(candidate), ensure_ascii=False))
            else:
                print(f"{candidate.log_prob:.4f}\t{candidate.score:.4f}")
        counter.show(row_report.used)
    counter.clear()
    say(row_report.line())
    warn_of_guessing(translator, log_prob, n_tokens, data.are_parallel)
    return 0


@opt.with_groups
def shortlist(
    *,
    folder: opt.Folder,
    data: opt.DataFiles,
    out: Path = opt.option("G", "Output file for the shortlist.", default=...),
    per_token: int = opt.option("K", "Number of likely target tokens per source token.", min=1, default=50),
    frequent: int = opt.option("N", "Number of frequent target tokens, which every text can use.", min=0, default=100),
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
