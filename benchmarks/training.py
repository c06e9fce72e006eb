"""Training speed and memory of attendo's update, a plain torch.nn.Transformer loop, Hugging Face and JoeyNMT.

    python benchmarks/training.py --train pairs.tsv [--size small|base] [--joey-python PATH] [--peer-python PATH]
    python benchmarks/training.py --train pairs.tsv --memory ...

All contenders have the same sizes (small: 3+3 layers, d_model 256, FFN 1,024, 4 heads; base: 6+6, 512, 2,048, 8;
post-norm, label smoothing 0.1, one shared matrix for both embeddings and the output), dropout 0.1 in the same places,
and the same batches of whitespace words. Each contender is one process. In each round, all contenders process the same
few batches, one contender after the other. The measured value is target tokens without padding per CPU-second (per
second of wall time with several threads). The result is the median over the rounds of each ratio.

--dropout paper: after each sub-layer and embedding (17 places at 3+3: Vaswani et al. 2017, 5.4; attendo's default).
--dropout everywhere: also on attention weights and inside the feed-forward net (32 places: the peers' default).

Share of peak: the FLOPs that the real tokens require (training_shares.py) per second, divided by the speed of 2048³
products in float32 in the same round. It is computed for PyTorch's own library, and for the faster of this library and
oneDNN.

--memory: each contender runs alone in a new process. The figure is the peak memory in steps on batches of 8,192
tokens, minus the memory between steps with model and optimizer (VmHWM, VmRSS). The batches have short, medium and long
sentences.

attendo runs with the settings that its commands choose: products by oneDNN if a probe finds oneDNN faster.
`attendo-torch-products` has no oneDNN and uses the matrix library of the peers. `attendo-bfloat16` is added if this
CPU is faster in bfloat16; it is not part of the claim. attendo's update is complete, with its guards.
training_guards.py measures the cost of guards, checkpoints and the log.

Some differences remain. torch.nn.Transformer has one more normalization layer after each stack (1,024 parameters at
small size), and the MarianMTModel has its table of sinusoids. JoeyNMT counts the correct tokens of each step, as in its
training. Its loss is a divergence, which is lower than the cross-entropy by the entropy of the smoothed targets. The
label smoothing of the Trainer mixes the targets differently. The peers compute logits of padding. JoeyNMT's
configurations mostly use Adam. Here all contenders use AdamW (JoeyNMT as it builds it, the others in PyTorch's fused
form) and clipping. JoeyNMT 2.3 and transformers 4 run in their own environments.
"""

import contextlib
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
from training_peers import BOS, EOS, PACKAGES, PAD, SIZES, UNK, contender_of
from training_shares import least_flops, sgemm_rates, watched
from turns import asked, clock, contenders, orders, ratios, shared_options, spread, store, tell


def word_batches(path, batch_tokens, count):
    """Return the vocabulary size and the padded batches: (sources with end, targets between begin and end)."""
    from attendo.data.batches import token_batches

    pairs = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
    counts = Counter(word for pair in pairs for text in pair for word in text.split())
    words = [word for word, n in counts.most_common() if n >= 2]
    ids = {word: number for number, word in enumerate(words, 4)}
    sides = [[[ids.get(word, UNK) for word in pair[side].split()] for pair in pairs] for side in (0, 1)]
    lengths = [np.array([len(row) for row in rows]) for rows in sides]
    batches = []
    for rows in token_batches(*lengths, batch_tokens, 1, 0)[:count]:
        sources = padded([[*sides[0][i], EOS] for i in rows])
        batches.append((sources, padded([[BOS, *sides[1][i], EOS] for i in rows])))
    return len(words) + 4, batches


def padded(rows):
    """Return one array with padding at the end of the rows."""
    longest = max(map(len, rows))
    return np.array([row + [PAD] * (longest - len(row)) for row in rows])


def lengths_of(src, tgt):
    """Return for each sentence the length of the source, and the number of positions at which the target is predicted.

    >>> lengths_of(np.array([[5, 3, 0]]), np.array([[2, 7, 8, 3, 0]]))
    [(2, 3)]
    """
    return [(int(s), int(t)) for s, t in zip((src != PAD).sum(1), (tgt[:, 1:] != PAD).sum(1), strict=True)]


def work(options):
    """Run a contender. For each request [first, count], make updates and send the seconds, tokens and loss."""
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    _, now = clock(options.threads)
    if options.work == "sgemm":
        tell({"versions": {}, "parameters": 0})
        for _, number in orders():
            tell(sgemm_rates(now, number))
        return
    data = np.load(options.file)
    count, losses = int(data["count"]), []
    batches = [(data[f"src{n}"], data[f"tgt{n}"]) for n in range(count)]
    model, loop = contender_of(
        options.work, int(data["vocab"]), SIZES[options.size], options.dropout == "everywhere", losses
    )
    versions = {package: version(package) for package in PACKAGES.get(options.work, ["torch"])}

    def feed():
        tell({"parameters": sum(p.numel() for p in model.parameters()), "versions": versions})
        for first, number in orders():
            chosen = [batches[(first + n) % count] for n in range(number)]
            if options.memory:
                tell((yield from watched(model, batches[-1], chosen)))
                continue
            losses.clear()
            began = now()
            yield from chosen
            tell({"seconds": now() - began, "loss": sum(losses) / number})

    loop(feed())


def compared(options, names):
    """Run all contenders alternately. Return the vocabulary size, and the facts and reports of each contender."""
    vocab, batches = word_batches(options.train, options.batch_tokens, 200)
    if options.memory:
        batches = memory_batches(batches)
    said = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        save_batches(file, vocab, batches)
        commands = {name: command(name, file, options) for name in names}
        if options.memory:
            facts = {}
            for name in names:  # one process at a time
                with contenders({name: commands[name]}, options.threads) as (workers, found):
                    facts |= found
                    said[name].append(asked(name, workers[name], [0, len(batches) - 1]))
            return vocab, facts, said, batches
        with contenders(commands, options.threads) as (workers, facts):
            for number in range(options.rounds + 1):
                order = [number * options.steps_per_round, options.steps_per_round]
                for name, worker in workers.items():
                    found = asked(name, worker, order)
                    if number:  # the first round is a warm-up
                        said[name].append(found)
                latest = {name: rounds[-1] for name, rounds in said.items() if rounds}
                print(
                    number,
                    {name: round(one.get("seconds", 0), 2) for name, one in latest.items()},
                    file=sys.stderr,
                )
    return vocab, facts, said, batches


def memory_batches(batches):
    """Return batches of short, medium, long and short sentences, and last a small batch to initialize the optimizer."""
    by_length = sorted(batches, key=lambda batch: batch[0].shape[1] + batch[1].shape[1])
    chosen = [by_length[int(share * (len(by_length) - 1))] for share in (0.1, 0.5, 0.95, 0.1)]
    return [*chosen, tuple(side[:2] for side in batches[0])]


def save_batches(file, vocab, batches):
    """Write the batches to a file for the contenders."""
    arrays = {
        f"{side}{n}": ids for n, pair in enumerate(batches) for side, ids in zip(("src", "tgt"), pair, strict=True)
    }
    np.savez(file, vocab=vocab, count=len(batches), **arrays)


def command(name, file, options):
    """Return the command line of a contender."""
    pythons = {"joeynmt": options.joey_python, "transformers": options.peer_python}
    given = [
        "--file",
        file,
        "--dropout",
        options.dropout,
        "--threads",
        options.threads,
        "--size",
        options.size,
    ]
    return [
        pythons.get(name, sys.executable),
        __file__,
        "--work",
        name,
        *given,
        *["--memory"] * options.memory,
    ]


def figures(options, vocab, said, batches):
    """Return the speeds, their ratios and the shares of the peak."""
    count, sizes = len(batches), SIZES[options.size]
    rounds = [
        [batches[(number * options.steps_per_round + n) % count] for n in range(options.steps_per_round)]
        for number in range(1, options.rounds + 1)
    ]
    pairs = [[pair for batch in chosen for pair in lengths_of(*batch)] for chosen in rounds]
    tokens = [sum(t for _, t in one) for one in pairs]
    flops = [least_flops(sizes, vocab, one) for one in pairs]
    peaks = said.pop("sgemm")
    speeds = {name: [n / one["seconds"] for n, one in zip(tokens, r, strict=True)] for name, r in said.items()}
    rates = {name: [n / one["seconds"] for n, one in zip(flops, r, strict=True)] for name, r in said.items()}
    peers = [name for name in said if not name.startswith("attendo")]
    return {
        "ratio_quartiles": {
            f"{name} / {peer}": ratios(speeds[name], speeds[peer])
            for name in said
            if name not in peers
            for peer in peers
        },
        "target_tokens_per_second_quartiles": {name: spread(values) for name, values in speeds.items()},
        "gflops_quartiles": {name: spread([v / 1e9 for v in values]) for name, values in rates.items()},
        "sgemm_gflops_quartiles": {kind: spread([peak[kind] / 1e9 for peak in peaks]) for kind in peaks[0]},
        "share_of_torch_sgemm_quartiles": {
            name: ratios(values, [peak["torch"] for peak in peaks]) for name, values in rates.items()
        },
        "share_of_fastest_sgemm_quartiles": {
            name: ratios(values, [max(peak.values()) for peak in peaks]) for name, values in rates.items()
        },
        "last_loss": {name: round(r[-1]["loss"], 3) for name, r in said.items()},
    }


def memory_figures(said, facts, batches):
    """Return the peak bytes above the memory between steps, and the ratio to the plain loop."""
    peaks = {name: max(rounds[0]["peaks"]) for name, rounds in said.items()}
    return {
        "shapes": [[list(src.shape), list(tgt.shape)] for src, tgt in batches[:-1]],
        "kept_mib": {name: round(rounds[0]["kept"] / 2**20, 1) for name, rounds in said.items()},
        "weights_and_optimizer_mib": {name: round(12 * facts[name]["parameters"] / 2**20, 1) for name in said},
        "most_above_mib": {name: round(peak / 2**20, 1) for name, peak in peaks.items()},
        "above_by_step_mib": {
            name: [round(peak / 2**20, 1) for peak in rounds[0]["peaks"]] for name, rounds in said.items()
        },
        "ratio_to_torch": {name: round(peak / peaks["torch"], 3) for name, peak in peaks.items()},
    }


def read_options():
    """Parse the command line."""
    parser = shared_options(__doc__, rounds=9)
    parser.add_argument("--train", type=Path, help="pairs, a tab between the sides")
    parser.add_argument("--joey-python", help="python of an environment with joeynmt")
    parser.add_argument("--peer-python", help="python of an environment with transformers and accelerate")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch-tokens", type=int, help="2,048; with --memory 8,192")
    parser.add_argument("--steps-per-round", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dropout", choices=("paper", "everywhere"), default="paper")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of speed")
    options = parser.parse_args()
    options.batch_tokens = options.batch_tokens or (8192 if options.memory else 2048)
    if not options.work and (options.train is None or options.rounds < 2):
        parser.error("give --train, a file of pairs with a tab between the sides, and --rounds 2 or more")
    return options


def main():
    """Parse the options, compare all contenders, and print and store the results."""
    options = read_options()
    if options.work:
        with contextlib.redirect_stdout(sys.stderr):
            work(options)
        return
    import torch

    from attendo.training.acceleration import fastest_precision, fastest_products

    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    products, precision = fastest_products(device), fastest_precision(device)
    names = ["torch", "attendo", *["joeynmt"] * bool(options.joey_python)]
    names += ["transformers"] * bool(options.peer_python)
    if not options.memory:
        names += ["attendo-torch-products"] * (products != "torch")
        names += ["attendo-bfloat16"] * (precision == "bfloat16")
        names += ["sgemm"]
    vocab, facts, said, batches = compared(options, names)
    facts.pop("sgemm", None)
    result = {
        "versions": {name: fact["versions"] for name, fact in facts.items()},
        "corpus": options.train.parent.name,
        "threads": options.threads,
        "clock": clock(options.threads)[0],
        "rounds": options.rounds,
        "steps_per_round": options.steps_per_round,
        "size": options.size,
        "sizes": SIZES[options.size] | {"vocabulary": vocab, "batch_tokens": options.batch_tokens},
        "dropout_sites": options.dropout,
        "attendo_products": products,
        "parameters": {name: fact["parameters"] for name, fact in facts.items()},
    }
    if options.memory:
        store("training-memory", result | memory_figures(said, facts, batches), options.out)
    else:
        store("training", result | figures(options, vocab, said, batches), options.out)


if __name__ == "__main__":
    main()
