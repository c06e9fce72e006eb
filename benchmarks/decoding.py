"""Decoding speed of attendo, CTranslate2, Hugging Face and JoeyNMT with equal weights, sources and output lengths.

    python benchmarks/decoding.py --peer-python PATH [--joey-python PATH] [--sizes small,base] [--threads 1,2]
    python benchmarks/decoding.py --cases 1x1,64x4 --contenders attendo-float32,ctranslate2-float32 ...
    python benchmarks/decoding.py --table benchmarks/results/decoding-*.json

The Python of the peers requires ctranslate2, transformers and torch. JoeyNMT has its own Python. A random model
(post-norm, a vocabulary of 8,000, 20 source tokens, 24 forced steps without an end token) translates 1, 8 and 64
sources, with greedy search and with 4 beams. In each round, all contenders run the same case one after the other. The
result is the median over the rounds of each ratio of output tokens per second. The time is CPU time with one thread
and wall time with several threads (`--clock` overrides this choice). Idle threads sleep in all contenders. By default,
idle threads of CTranslate2 spin, which slows its 8-bit mode with two threads on a shared machine.

The encoder and the tokenizer are not timed. The result is the time of a search of 25 steps minus the time of a search
of 1 step; each time is the shortest of several tries. JoeyNMT receives the output of its encoder, so its search of 24
steps is timed directly.

All contenders have attendo's weights. The benchmark counts the texts that are equal to the float32 texts of
CTranslate2. Hugging Face's model is a `MarianMTModel`. JoeyNMT caches no keys and values: each of its steps runs the
decoder over the whole text so far. JoeyNMT takes part only in the first `--joey-rounds` rounds.

--table prints stored results as tables for the documentation, with the requirements and aims.
"""

import contextlib
import json
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from decoding_peers import PACKAGES, peer_of, pythons, search_of
from decoding_table import table
from decoding_weights import BOS, EOS, PAD, SPECIALS, save_weights
from turns import asked, clock, contenders, listed, orders, ratios, shared_options, store, tell

SIZES = {
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
VOCABULARY, SOURCE_TOKENS, STEPS = 8000, 20, 24
CASES = [f"{sources}x{beam}" for sources in (1, 8, 64) for beam in (1, 4)]
REPEATS = {1: 6, 8: 3, 64: 1}
MINE = ["attendo-plain", "attendo-float32", "attendo-int8"]
PAIRS = {
    "ctranslate2-float32": MINE[:2],
    "ctranslate2-int8": MINE[2:],
    "marian": MINE[:2],
    "joeynmt": MINE[:2],
}


def random_model(size):
    """Build attendo's model with random weights, equal in every run. The model never generates padding or begin ids."""
    import torch

    from attendo.models import EncoderDecoder, ModelConfig

    torch.manual_seed(1)
    numbers = SIZES[size]
    config = ModelConfig(
        vocab_size=VOCABULARY,
        d_model=numbers["d_model"],
        d_ff=numbers["d_ff"],
        n_heads=numbers["heads"],
        n_encoder_layers=numbers["layers"],
        n_decoder_layers=numbers["layers"],
    )
    model = EncoderDecoder(config).eval()
    with torch.no_grad():
        model.output_proj.weight[[PAD, BOS]] = 0.0
    return model


def random_sources():
    """Return 64 random sources of SOURCE_TOKENS ids, each with the end id."""
    src = np.random.default_rng(1).integers(len(SPECIALS) + 1, VOCABULARY, (64, SOURCE_TOKENS))
    src[:, -1] = EOS
    return src.tolist()


def work(options):
    """Run a contender. For each request [sources, beam, repeats, first], send the seconds of STEPS steps.

    If `first` is set, send the generated texts instead, without timing.
    """
    (threads,) = options.threads
    peer, _ = peer_of(options.work)
    search = search_of(options.work, options.file, threads)
    tell({"versions": {package: version(package) for package in PACKAGES[peer]}})
    _, now = clock(threads, options.clock)
    rows_of = {sources: random_sources()[:sources] for sources in (1, 8, 64)}
    for sources, beam, repeats, first in orders():
        rows = rows_of[sources]
        if first:  # warm-up; JoeyNMT's encoder runs here, and its output is cached
            tell({"found": search(rows, beam, STEPS, STEPS)})
            continue

        def best(steps, rows=rows, beam=beam, repeats=repeats):
            return min(seconds(now, search, rows, beam, steps, steps) for _ in range(repeats))

        tell({"seconds": best(STEPS) if peer == "joeynmt" else best(1 + STEPS) - best(1)})


def seconds(now, search, *case):
    """Return the time of one search by the given clock."""
    began = now()
    search(*case)
    return now() - began


def compare(options, size, threads, names, where):
    """Run all contenders alternately for one model size. Return their versions, and the results of each case."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        save_weights(random_model(size), file)
        rest = ["--file", file, "--threads", threads]
        rest += ["--clock", options.clock] if options.clock else []
        commands = {name: [where[peer_of(name)[0]], __file__, "--work", name, *rest] for name in names}
        with contenders(commands, threads) as (workers, facts):
            grid = [one_case(options, case, workers, size, threads) for case in options.cases]
    return {name: fact["versions"] for name, fact in facts.items()}, grid


def one_case(options, case, workers, size, threads):
    """Return the results of one case: tokens per second, ratios, and the number of equal texts."""
    sources, beam = map(int, case.split("x"))
    tokens, speeds = sources * STEPS, {name: [] for name in workers}
    found = {}
    for number in range(options.rounds + 1):
        for name, worker in workers.items():
            if name == "joeynmt" and number > options.joey_rounds:
                continue
            repeats = 1 if name == "joeynmt" else REPEATS.get(sources, 1)
            answer = asked(name, worker, [sources, beam, repeats, number == 0])
            if number:
                speeds[name].append(tokens / answer["seconds"])
            else:
                found[name] = answer["found"]
    assert all(len(text) == STEPS for texts in found.values() for text in texts)
    medians = {name: round(statistics.median(values)) for name, values in speeds.items()}
    print(f"{size}, {threads} threads, {case}: {medians}", file=sys.stderr)
    reference = "ctranslate2-float32" if "ctranslate2-float32" in found else next(iter(found))
    return {
        "size": size,
        "threads": threads,
        "sources": sources,
        "beam": beam,
        "clock": clock(threads, options.clock)[0],
        "tokens_per_second": medians,
        "ratio_quartiles": {
            f"{mine} / {peer}": ratios(speeds[mine][: len(speeds[peer])], speeds[peer])
            for peer, own in PAIRS.items()
            for mine in own
            if peer in speeds and mine in speeds
        },
        "same_texts_as": reference,
        "same_texts": {
            name: sum(a == b for a, b in zip(texts, found[reference], strict=True)) for name, texts in found.items()
        },
    }


def options_of():
    """Return the options, and a parser for error messages."""
    parser = shared_options(__doc__, rounds=7)
    parser.add_argument("--peer-python", help="python of an environment with ctranslate2, transformers, torch")
    parser.add_argument("--joey-python", help="python of an environment with joeynmt")
    parser.add_argument("--joey-rounds", type=int, default=2, help="JoeyNMT is slow (default: 2 rounds)")
    parser.add_argument("--clock", choices=["CPU", "wall"], help="CPU for several threads, too, on a busy machine")
    parser.add_argument("--sizes", type=listed(), default=list(SIZES), help="small,base")
    parser.add_argument("--threads", type=listed(int), default=[1], help="1,2 is both")
    parser.add_argument("--cases", type=listed(), default=CASES, help="sources x beam, as 1x1,64x4")
    parser.add_argument("--contenders", type=listed(), default=[*MINE, *PAIRS], help=",".join([*MINE, *PAIRS]))
    parser.add_argument("--table", type=Path, nargs="+", help="files of results; a later one goes before")
    return parser.parse_args(), parser


def main():
    """Parse the options, compare all contenders, and print and store the results."""
    options, parser = options_of()
    if options.work:
        with contextlib.redirect_stdout(sys.stderr):
            work(options)
        return
    if options.table:
        print(table([json.loads(path.read_text()) for path in options.table]))
        return
    where = pythons(options, sys.executable)
    names = [name for name in options.contenders if peer_of(name)[0] in where]
    wrong = {*options.contenders} - {*MINE, *PAIRS} or {*options.cases} - {*CASES} or {*options.sizes} - {*SIZES}
    if wrong:
        parser.error(f"{', '.join(sorted(wrong))} is none of the choices")
    if len(names) < 2 or min(options.rounds, options.joey_rounds) < 2:
        parser.error("give --peer-python, which has ctranslate2 and transformers, and 2 rounds or more")
    result = {
        "rounds": options.rounds,
        "joey_rounds": options.joey_rounds,
        "idle threads": "sleep (OMP_WAIT_POLICY=PASSIVE), in all contenders",
        "sizes": {size: SIZES[size] for size in options.sizes},
        "vocabulary": VOCABULARY,
        "source_tokens": SOURCE_TOKENS,
        "steps": STEPS,
        "versions": {},
        "grid": [],
    }
    for size in options.sizes:
        for threads in options.threads:
            versions, grid = compare(options, size, threads, names, where)
            result["versions"] |= versions
            result["grid"] += grid
    store("decoding", result, options.out)


if __name__ == "__main__":
    main()
