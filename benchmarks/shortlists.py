"""Speedup of translation by a vocabulary shortlist, by vocabulary, size, number format, beam and number of texts.

    python benchmarks/shortlists.py --train pairs.tsv ... --test pairs.tsv [--vocabulary 32000] [--sizes small,base]

A BPE tokenizer with this number of entries and a shortlist (50 targets per source token, 100 frequent ones) are built
from the pairs. The model is random and cannot end a text, so both sides generate equally many tokens: the number of
source tokens plus two. `Translator.translate` is timed from text to text, with and without the shortlist alternately,
in one process with one thread. The result is the median over the rounds of the ratio of CPU seconds.

`lines` is a test set as `attendo translate` processes it: batches of 8,192 source tokens times the beam.
"""

import time
from itertools import product
from pathlib import Path

from decoding import SIZES
from quality import pairs_of
from turns import listed, ratios, shared_options, store

CASES = {"1": (1, 8), "16": (16, 2), "64": (64, 1), "lines": (None, 1)}
"""Number of texts that are translated together (None for all), and repetitions per round, each with other texts."""


def translator_of(tokenizer, size):
    """Return a translator with a random model that never ends a text."""
    import torch

    from attendo.decoding.options import DecodingConfig
    from attendo.inference import Translator
    from attendo.models import EncoderDecoder, ModelConfig

    torch.manual_seed(1)
    numbers = SIZES[size]
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=numbers["d_model"],
        d_ff=numbers["d_ff"],
        n_heads=numbers["heads"],
        n_encoder_layers=numbers["layers"],
        n_decoder_layers=numbers["layers"],
        tie="all",
        output_bias=True,
    )
    model = EncoderDecoder(config).eval()
    with torch.no_grad():
        model.output_proj.bias[tokenizer.eos_id] = -1e4
    return Translator(model, tokenizer, DecodingConfig(max_length_ratio=1.0, max_length_extra=2))


def seconds(translator, batches, beam):
    """Return the CPU seconds of translating these batches of texts, and the number of generated tokens."""
    began = time.process_time()
    found = [translator.translate(texts, beam=beam, guard=False) for texts in batches]
    spent = time.process_time() - began
    return spent, [len(one.candidates[0].token_ids) for batch in found for one in batch]


def one_case(translators, lines, name, beam, rounds):
    """Return the quartiles of the ratio of times without and with a shortlist, and tokens per CPU-second."""
    n_texts, repeats = CASES[name]
    n_texts = n_texts or len(lines)
    ratio = {"without": [], "with": []}
    speeds = {"without": [], "with": []}
    for number in range(rounds + 1):
        first = number * n_texts * repeats
        batches = [
            [lines[(first + batch * n_texts + text) % len(lines)] for text in range(n_texts)]
            for batch in range(repeats)
        ]
        lengths = {}
        for kind in sorted(translators, reverse=number % 2 == 1):
            spent, lengths[kind] = seconds(translators[kind], batches, beam)
            if number:
                ratio[kind].append(spent)
                speeds[kind].append(sum(lengths[kind]) / spent)
        assert lengths["with"] == lengths["without"]
    return {
        "times as fast": ratios(ratio["without"], ratio["with"]),
        "tokens per second": {kind: round(sorted(values)[len(values) // 2]) for kind, values in speeds.items()},
    }


def measure(options):
    """Measure all cases."""
    import torch

    from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    from attendo.decoding.shortlist import shortlist_of_pairs

    torch.set_num_threads(1)
    pairs = [pair for path in options.train for pair in pairs_of(path)]
    texts = [text for pair in pairs for text in pair]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind="bpe", vocab_size=options.vocabulary))
    shortlist = shortlist_of_pairs(tokenizer, pairs, per_token=50, frequent=100)
    lines = [source for source, _ in pairs_of(options.test)][: options.lines]
    grid = []
    for size, bits in product(options.sizes, (32, 8)):
        translators = {kind: translator_of(tokenizer, size) for kind in ("with", "without")}
        translators["with"].shortlist = shortlist
        for translator in translators.values():
            translator.prepare(bits)
        assert not any(translator.why_not_compiled for translator in translators.values())
        for name, beam in product(options.cases, (1, 4)):
            facts = {"size": size, "bits": bits, "texts": name, "beam": beam}
            grid.append(facts | one_case(translators, lines, name, beam, options.rounds))
            print(grid[-1], flush=True)
    lists = [len(shortlist.of(tokenizer.encode(line))) for line in lines]
    return {
        "pairs": [path.parent.name for path in options.train],
        "lines": len(lines),
        "vocabulary": tokenizer.vocab_size,
        "mean tokens in a list": round(sum(lists) / len(lists)),
        "rounds": options.rounds,
        "sizes": {size: SIZES[size] for size in options.sizes},
        "grid": grid,
    }


def main():
    """Parse the options, run the measurements, and print and store the results."""
    parser = shared_options(__doc__, rounds=7)
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="files of pairs, with a tab between")
    parser.add_argument("--test", type=Path, required=True, help="pairs whose sources are translated")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--lines", type=int, default=300, help="how many of the test set")
    parser.add_argument("--sizes", type=listed(), default=list(SIZES), help="small,base")
    parser.add_argument("--cases", type=listed(), default=list(CASES), help=",".join(CASES))
    options = parser.parse_args()
    store("shortlists", measure(options), options.out)


if __name__ == "__main__":
    main()
