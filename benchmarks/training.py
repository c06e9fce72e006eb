"""Training speed: attendo's own update beside a plain loop around torch.nn.Transformer, and JoeyNMT.

    python benchmarks/training.py --train pairs.tsv [--joey-python PATH] [--rounds 9] [--steps 6] [--threads 1]

The same sizes (3+3 layers, d_model 256, FFN 1,024, 4 heads, dropout 0.1, label smoothing 0.1, one shared matrix for
both embeddings and the output), the same batches of whitespace words, one process a contender. A round gives each
contender the same few batches, one contender after the other; its figure is real target tokens per CPU-second, and
the result the median over the rounds of each ratio. JoeyNMT 2.3 runs in an environment of its own.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np

SIZES = {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "dropout": 0.1, "smoothing": 0.1}
PAD, UNK, BOS, EOS = 0, 1, 2, 3
RATE = 5e-4


def word_batches(path, batch_tokens, count):
    """(vocabulary size, batches): each batch is (sources with end, targets between begin and end), padded."""
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
    """One array, padded behind."""
    longest = max(map(len, rows))
    return np.array([row + [PAD] * (longest - len(row)) for row in rows])


def attendo_step(vocab, precision):
    """The update of attendo's training loop."""
    import torch

    from attendo.data.batches import Batch
    from attendo.models import EncoderDecoder, ModelConfig
    from attendo.training.loop import Run, update
    from attendo.training.optimizer import TrainingConfig
    from attendo.training.precision import fastest_products
    from attendo.training.state import CheckpointConfig

    config = ModelConfig(
        vocab_size=vocab,
        d_model=SIZES["d_model"],
        d_ff=SIZES["d_ff"],
        n_heads=SIZES["heads"],
        n_encoder_layers=SIZES["layers"],
        n_decoder_layers=SIZES["layers"],
        dropout=SIZES["dropout"],
    )
    training = TrainingConfig(
        steps=10**9,
        learning_rate=RATE,
        warmup_steps=1,
        precision=precision,
        products=fastest_products(torch.device("cpu")) if precision == "float32" else "torch",
    )
    run = Run(EncoderDecoder(config), None, training, CheckpointConfig(), Path("unused"))

    def batch(src, tgt):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        lengths = (src != PAD).sum(1)
        inputs = {"src": src, "tgt": tgt[:, :-1].contiguous()}
        if int(lengths.min()) < src.shape[1]:
            inputs["src_lengths"] = lengths
        targets = tgt[:, 1:].contiguous()
        return Batch(inputs, targets, int((targets != PAD).sum()), np.arange(len(src)))

    return lambda src, tgt: update(run, [batch(src, tgt)]).loss


def torch_step(vocab):
    """A plain loop around torch.nn.Transformer, as a careful user of torch writes it."""
    import math

    import torch
    import torch.nn.functional as F
    from torch import nn

    width = SIZES["d_model"]

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocab, width, padding_idx=PAD)
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            place = torch.arange(512)[:, None] * torch.exp(
                torch.arange(0, width, 2) * (-math.log(1e4) / width)
            )
            self.register_buffer("places", torch.stack([place.sin(), place.cos()], -1).flatten(1))
            self.dropout = nn.Dropout(SIZES["dropout"])
            self.transformer = nn.Transformer(
                width,
                SIZES["heads"],
                SIZES["layers"],
                SIZES["layers"],
                SIZES["d_ff"],
                SIZES["dropout"],
                batch_first=True,
            )

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * width**0.5 + self.places[: ids.shape[1]])

        def forward(self, src, tgt):
            padding = src == PAD
            mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1])
            hidden = self.transformer(
                self.embed(src),
                self.embed(tgt),
                tgt_mask=mask,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return F.linear(hidden, self.embedding.weight)

    model = Plain().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9)

    def step(src, tgt):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        logits, targets = model(src, tgt[:, :-1]), tgt[:, 1:]
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=SIZES["smoothing"]
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def joey_step(vocab):
    """JoeyNMT's model, batch, loss and optimizer, and the calls of its training step."""
    from types import SimpleNamespace

    import torch
    from joeynmt.batch import Batch
    from joeynmt.builders import build_optimizer
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"w{number}" for number in range(4, vocab)], special)
    part = {
        "type": "transformer",
        "num_layers": SIZES["layers"],
        "num_heads": SIZES["heads"],
        "embeddings": {"embedding_dim": SIZES["d_model"], "scale": True, "dropout": 0.0},
        "hidden_size": SIZES["d_model"],
        "ff_size": SIZES["d_ff"],
        "dropout": SIZES["dropout"],
        "layer_norm": "post",
    }
    config = {"encoder": dict(part), "decoder": dict(part), "tied_embeddings": True, "tied_softmax": True}
    model = build_model(config, src_vocab=words, trg_vocab=words)
    model.loss_function = ("crossentropy", SIZES["smoothing"])
    model.train()
    optimizer = build_optimizer(
        {"optimizer": "adamw", "learning_rate": RATE, "adam_betas": [0.9, 0.98]}, model.parameters()
    )
    swapped = np.arange(vocab)
    swapped[[PAD, UNK]] = UNK, PAD  # its padding is id 1

    def step(src, tgt):
        src, tgt = torch.from_numpy(swapped[src]), torch.from_numpy(swapped[tgt])
        batch = Batch(
            src=src, src_length=(src != 1).sum(1), src_prompt_mask=None, trg=tgt, trg_prompt_mask=None,
            indices=torch.arange(len(src)), device=torch.device("cpu"), pad_index=1, eos_index=3,
        )  # fmt: skip
        batch.sort_by_src_length()
        loss, _, _, _ = model(return_type="loss", **vars(batch))
        loss = batch.normalize(loss, normalization="tokens")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def work(name, file, threads):
    """A contender: for each line `first count` on stdin, makes updates and tells CPU seconds, tokens and loss."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    data = np.load(file)
    vocab, count = int(data["vocab"]), int(data["count"])
    batches = [(data[f"src{n}"], data[f"tgt{n}"]) for n in range(count)]
    match name:
        case "attendo" | "attendo-bfloat16":
            step = attendo_step(vocab, "bfloat16" if name.endswith("16") else "float32")
        case "torch":
            step = torch_step(vocab)
        case "joeynmt":
            step = joey_step(vocab)
    for line in sys.stdin:
        first, number = map(int, line.split())
        chosen = [batches[(first + n) % count] for n in range(number)]
        began = time.process_time()
        losses = [step(*batch) for batch in chosen]
        spent = time.process_time() - began
        tokens = sum(int((tgt[:, 1:] != PAD).sum()) for _, tgt in chosen)
        print(json.dumps({"cpu": spent, "tokens": tokens, "loss": sum(losses) / number}), flush=True)


def compare(options):
    """All contenders in turns; gives the figures."""
    vocab, batches = word_batches(options.train, 2048, 200)
    names = ["torch", "attendo", "attendo-bfloat16"] + (["joeynmt"] if options.joey_python else [])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        arrays = {
            f"{side}{n}": batch[i] for n, batch in enumerate(batches) for i, side in enumerate(("src", "tgt"))
        }
        np.savez(file, vocab=vocab, count=len(batches), **arrays)
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(options.threads)}
        workers = {}
        for name in names:
            python = options.joey_python if name == "joeynmt" else sys.executable
            command = [
                python,
                __file__,
                "--work",
                name,
                "--file",
                str(file),
                "--threads",
                str(options.threads),
            ]
            workers[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        speeds = {name: [] for name in names}
        losses = {name: [] for name in names}
        for number in range(options.rounds + 1):
            for name, worker in workers.items():
                worker.stdin.write(f"{number * options.steps} {options.steps}\n")
                worker.stdin.flush()
                found = json.loads(worker.stdout.readline())
                if number:  # the first round warms up
                    speeds[name].append(found["tokens"] / found["cpu"])
                    losses[name].append(found["loss"])
            print(
                number,
                {name: round(values[-1]) for name, values in speeds.items() if values},
                file=sys.stderr,
            )
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
    return vocab, speeds, losses


def main():
    """Reads the options, compares, prints and stores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=Path, help="pairs of whitespace words, tab between the sides")
    parser.add_argument("--joey-python", help="python of an environment with joeynmt")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / f"training-{date.today()}.json"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.file, options.threads)
        return
    import torch

    vocab, speeds, losses = compare(options)
    ratios = {
        f"attendo / {peer}": statistics.median(
            a / b for a, b in zip(speeds["attendo"], speeds[peer], strict=True)
        )
        for peer in speeds
        if peer != "attendo"
    }
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next(
        (line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor()
    )
    result = {
        "date": str(date.today()),
        "commit": commit,
        "machine": f"{processor}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": options.threads,
        "rounds": options.rounds,
        "steps_per_round": options.steps,
        "sizes": SIZES | {"vocabulary": vocab, "batch_tokens": 2048},
        "target_tokens_per_cpu_second": {name: round(statistics.median(v)) for name, v in speeds.items()},
        "quartiles": {name: [round(q) for q in statistics.quantiles(v)] for name, v in speeds.items()},
        "median_ratio": {name: round(value, 3) for name, value in ratios.items()},
        "last_loss": {name: round(values[-1], 3) for name, values in losses.items()},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
