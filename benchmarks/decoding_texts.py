"""Translation from raw text to raw text: a trained translator of attendo and the peers with its weights.

    python benchmarks/decoding_texts.py --run RUN --pairs test.tsv --peer-python PATH [--joey-python PATH]

Every contender receives and returns the same lines. attendo uses `Translator.translate` after `prepare`. The peers use
the `tokenizers` library with the `tokenizer.json` of the run, their own search, and the decoder of the library. All
contenders search in batches of lines with similar lengths. A batch has at most `batch_tokens` of the run, divided by
the beam, as source tokens. `--alone` lines are also translated one by one. Search is greedy and with 4 beams, with the
score log-probability / length ** 0.6. The length limit is the limit of the run for attendo, and 256 tokens for the
peers. The results are lines per second (CPU seconds with one thread, wall time with more), the ratios, BLEU, and the
number of texts that are equal to the texts of attendo as trained. Searches with 4 beams differ, because CTranslate2,
Hugging Face and JoeyNMT have different rules for the end of a search.

Hugging Face's model is Marian. For a pre-norm run it is Pegasus, which is Marian with pre-norm layers.
"""

import contextlib
import dataclasses
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from decoding_peers import ALPHA, PACKAGES, peer_of, pythons, search_of
from decoding_weights import EOS, ctranslate2_translator, save_weights
from turns import asked, clock, contenders, listed, orders, ratios, shared_options, store, tell

MINE = ["attendo-plain", "attendo-float32", "attendo-int8"]
PAIRS = {
    "ctranslate2-float32": MINE[1:2],
    "ctranslate2-int8": MINE[2:],
    "marian": MINE[1:2],
    "joeynmt": MINE[1:2],
}
BATCH_TOKENS, LONGEST = 8192, 256


def attendo_texts(run, form):
    """Return attendo's function from lines to lines. `form` is "plain", "float32" (prepared) or "int8"."""
    from attendo.inference.translator import Translator

    translator = Translator.load(run)
    translator.decoding = dataclasses.replace(
        translator.decoding, length_norm="plain", length_penalty=ALPHA, batch_tokens=BATCH_TOKENS
    )
    if form != "plain":
        translator.prepare(8 if form == "int8" else 32)
    return lambda lines, beam: [found.text for found in translator.translate(lines, beam=beam, segment="none")]


def ctranslate2_texts(run, file, form, threads):
    """Return CTranslate2's function from lines to lines."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(run / "tokenizer.json"))
    words = [library.id_to_token(number) for number in range(library.get_vocab_size())]
    translator, words = ctranslate2_translator(file, form, threads, words)
    ids = {word: number for number, word in enumerate(words)}

    def translate(lines, beam):
        rows = library.encode_batch(lines, add_special_tokens=False)
        found = translator.translate_batch(
            [[*row.tokens, words[EOS]] for row in rows],
            beam_size=beam,
            length_penalty=ALPHA,
            max_batch_size=BATCH_TOKENS // beam,
            batch_type="tokens",
            max_decoding_length=LONGEST,
        )
        return library.decode_batch([[ids[word] for word in result.hypotheses[0]] for result in found])

    return translate


def searched_texts(run, name, file, threads):
    """Return a function from lines to lines for a peer whose search takes ids. The batches are sorted by length."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(run / "tokenizer.json"))
    search = search_of(name, file, threads)

    def translate(lines, beam):
        rows = [[*row.ids, EOS] for row in library.encode_batch_fast(lines, add_special_tokens=False)]
        found = [[]] * len(rows)
        for numbers in batches([len(row) for row in rows], BATCH_TOKENS // beam):
            texts = search([rows[number] for number in numbers], beam, 0, LONGEST)
            for number, text in zip(numbers, texts, strict=True):
                found[number] = text
        return library.decode_batch(found)

    return translate


def batches(lengths, most):
    """Divide row numbers into batches, longest rows first, with at most `most` tokens including padding.

    >>> batches([2, 5, 5, 1], 10)
    [[1, 2], [0, 3]]
    """
    found, room = [], 0
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not room:
            found.append([])
            room = max(1, most // lengths[number])
        found[-1].append(number)
        room -= 1
    return found


def work(options):
    """Run a contender. For each request [lines, beam, alone], send the seconds and the translated lines."""
    (threads,) = options.threads
    peer, form = peer_of(options.work)
    if peer == "attendo":
        import torch

        torch.set_num_threads(threads)
        translate = attendo_texts(options.run, form)
    elif peer == "ctranslate2":
        translate = ctranslate2_texts(options.run, options.file, form, threads)
    else:
        translate = searched_texts(options.run, options.work, options.file, threads)
    tell({"versions": {package: version(package) for package in PACKAGES[peer]}})
    _, now = clock(threads)
    for lines, beam, alone in orders():
        began = now()
        texts = [text for line in lines for text in translate([line], beam)] if alone else translate(lines, beam)
        tell({"seconds": now() - began, "texts": texts})


def one_case(options, workers, pairs, beam, alone):
    """Return the results of all contenders with one beam size, for all lines in batches or for some lines alone."""
    from attendo.metrics import bleu

    pairs = pairs[: options.alone] if alone else pairs
    lines, targets = [source for source, _ in pairs], [target for _, target in pairs]
    speeds, texts = {name: [] for name in workers}, {}
    for number in range(options.rounds + 1):
        for name, worker in workers.items():
            given = lines if number else lines[:64]  # the first round is a warm-up
            answer = asked(name, worker, [given, beam, alone])
            if number:
                speeds[name].append(len(lines) / answer["seconds"])
                texts[name] = answer["texts"]
    medians = {name: round(statistics.median(values), 1) for name, values in speeds.items()}
    print(f"beam {beam}, {'alone' if alone else 'in batches'}: {medians}", file=sys.stderr)
    reference = next(iter(texts))
    return {
        "beam": beam,
        "lines": len(lines),
        "alone": alone,
        "lines_per_second": medians,
        "ratio_quartiles": {
            f"{mine} / {peer}": ratios(speeds[mine], speeds[peer])
            for peer, own in PAIRS.items()
            for mine in own
            if mine in speeds and peer in speeds
        },
        "bleu": {name: round(bleu(found, targets, "13a").value, 2) for name, found in texts.items()},
        "same_texts_as": reference,
        "same_texts": {
            name: sum(a == b for a, b in zip(found, texts[reference], strict=True)) for name, found in texts.items()
        },
    }


def compare(options, threads, names, pairs, where):
    """Run all contenders alternately on every case."""
    from attendo.inference.translator import Translator

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        save_weights(Translator.load(options.run).model, file)
        rest = ["--file", file, "--run", options.run, "--threads", threads]
        commands = {name: [where[peer_of(name)[0]], __file__, "--work", name, *rest] for name in names}
        with contenders(commands, threads) as (workers, facts):
            cases = [
                one_case(options, workers, pairs, beam, alone)
                for beam in options.beams
                for alone in (False, True)[: 1 + (options.alone > 0)]
            ]
    return {name: fact["versions"] for name, fact in facts.items()}, cases


def main():
    """Parse the options, compare all contenders, and print and store the results."""
    parser = shared_options(__doc__, rounds=5)
    parser.add_argument("--run", type=Path, required=True, help="a folder that attendo train translation made")
    parser.add_argument("--pairs", type=Path, help="sources and references, a tab between them")
    parser.add_argument("--lines", type=int, default=1000, help="how many of them (default: 1000)")
    parser.add_argument("--alone", type=int, default=100, help="how many also one by one (default: 100)")
    parser.add_argument("--beams", type=listed(int), default=[1, 4])
    parser.add_argument("--threads", type=listed(int), default=[1], help="1,2 is both")
    parser.add_argument("--peer-python", help="python of an environment with ctranslate2, transformers, torch")
    parser.add_argument("--joey-python", help="python of an environment with joeynmt and tokenizers")
    parser.add_argument("--contenders", type=listed(), default=[*MINE, *PAIRS], help=",".join([*MINE, *PAIRS]))
    options = parser.parse_args()
    if options.work:
        with contextlib.redirect_stdout(sys.stderr):
            work(options)
        return
    if options.pairs is None or options.rounds < 2:
        parser.error("give --pairs, a file with a tab between source and reference, and --rounds 2 or more")
    with options.pairs.open(encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split("\t")[:2] for line in file][: options.lines]
    where = pythons(options, sys.executable)
    names = [name for name in options.contenders if peer_of(name)[0] in where]
    result = {"rounds": options.rounds, "lines": len(pairs), "versions": {}, "threads": {}}
    for threads in options.threads:
        versions, cases = compare(options, threads, names, pairs, where)
        result["versions"] |= versions
        result["threads"][threads] = {"clock": clock(threads)[0], "cases": cases}
    store("decoding-texts", result, options.out)


if __name__ == "__main__":
    main()
