"""Training speed: attendo's own update beside a plain loop around torch.nn.Transformer, and JoeyNMT.

    python benchmarks/training.py --train pairs.tsv [--joey-python PATH] [--dropout paper|everywhere]

The same sizes (3+3 layers, d_model 256, FFN 1,024, 4 heads, norm last, label smoothing 0.1, one shared matrix
for both embeddings and the output), dropout 0.1 at the same sites, the same batches of whitespace words, one
process a contender. A round gives each contender the same few batches, one contender after the other; its figure
is real target tokens per CPU-second, and the result the median over the rounds of each ratio.

--dropout paper: behind each sub-layer and embedding (17 sites: Vaswani et al. 2017, 5.4; attendo's default).
--dropout everywhere: on attention weights and inside the feed-forward net too (32 sites: the peers' default).

attendo runs as its commands choose: products by oneDNN where a probe finds that faster. `attendo-torch-products`
is the same without it, on the matrix library that the peers use; `attendo-bfloat16` is there where this processor
is faster at it, beside the claim and no part of it.

What differs all the same. torch.nn.Transformer has a norm more behind either stack (1,024 parameters). JoeyNMT
counts the right tokens of each step, as its training does, and its loss is a divergence: lower than a cross-entropy
by the entropy of the smoothed targets. Both peers compute logits of padding. JoeyNMT's configurations use Adam,
mostly; here all use AdamW (attendo and the plain loop in torch's fused form, JoeyNMT as it builds it) and clip.
JoeyNMT 2.3 runs in an environment of its own.
"""

import contextlib
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
from turns import asked, contenders, orders, ratios, shared_options, spread, store, tell

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


def attendo_step(vocab, everywhere, precision="float32", products=None):
    """The update of attendo's training loop, and its model; products None: as the probe chooses."""
    import torch

    from attendo.data.batches import Batch
    from attendo.models import EncoderDecoder, ModelConfig
    from attendo.training.loop import Run, update
    from attendo.training.optimizer import TrainingConfig
    from attendo.training.precision import fastest_products
    from attendo.training.state import CheckpointConfig

    inner = SIZES["dropout"] if everywhere else 0.0
    config = ModelConfig(
        vocab_size=vocab,
        d_model=SIZES["d_model"],
        d_ff=SIZES["d_ff"],
        n_heads=SIZES["heads"],
        n_encoder_layers=SIZES["layers"],
        n_decoder_layers=SIZES["layers"],
        dropout=SIZES["dropout"],
        attention_dropout=inner,
        activation_dropout=inner,
    )
    training = TrainingConfig(
        steps=10**9,
        learning_rate=RATE,
        warmup_steps=1,
        precision=precision,
        products=products or fastest_products(torch.device("cpu")),
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

    return lambda src, tgt: update(run, [batch(src, tgt)]).loss, run.model


def torch_step(vocab, everywhere):
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
            frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
            place = torch.arange(512)[:, None] * frequencies
            self.register_buffer("places", torch.stack([place.sin(), place.cos()], -1).flatten(1))
            self.dropout = nn.Dropout(SIZES["dropout"])
            numbers = (SIZES[name] for name in ("heads", "layers", "layers", "d_ff", "dropout"))
            self.transformer = nn.Transformer(width, *numbers, batch_first=True)

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
    if not everywhere:
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # on the weights; without it torch has a faster kernel
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # between the two layers of the feed-forward net
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)

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

    return step, model


def joey_step(vocab, everywhere):
    """JoeyNMT's model, batch, loss, clipper and optimizer, and the calls of its `TrainManager._train_step`."""
    from types import SimpleNamespace

    import torch
    from joeynmt.batch import Batch
    from joeynmt.builders import build_gradient_clipper, build_optimizer
    from joeynmt.model import build_model
    from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
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
        "embeddings": {"embedding_dim": SIZES["d_model"], "scale": True},
        "hidden_size": SIZES["d_model"],
        "ff_size": SIZES["d_ff"],
        "dropout": SIZES["dropout"],
        "layer_norm": "post",
    }
    config = {"encoder": dict(part), "decoder": dict(part), "tied_embeddings": True, "tied_softmax": True}
    model = build_model(config, src_vocab=words, trg_vocab=words)
    model.loss_function = ("crossentropy", SIZES["smoothing"])
    if not everywhere:
        for module in model.modules():
            if isinstance(module, MultiHeadedAttention):
                module.dropout.p = 0.0
            if isinstance(module, PositionwiseFeedForward):
                module.pwff_layer[2].p = 0.0
    clip = build_gradient_clipper({"clip_grad_val": None, "clip_grad_norm": 1.0})
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
        model.train()
        batch.sort_by_src_length()
        loss, _, _, correct = model(return_type="loss", **vars(batch))
        loss = batch.normalize(loss, normalization="tokens")
        loss.backward()
        correct.item()
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()
        return loss.item()

    return step, model


def work(options):
    """A contender: for each order [first, count], makes updates and tells CPU seconds, tokens and loss."""
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    data = np.load(options.file)
    vocab, count, everywhere = int(data["vocab"]), int(data["count"]), options.dropout == "everywhere"
    batches = [(data[f"src{n}"], data[f"tgt{n}"]) for n in range(count)]
    match options.work:
        case "attendo":
            step, model = attendo_step(vocab, everywhere)
        case "attendo-torch-products":
            step, model = attendo_step(vocab, everywhere, products="torch")
        case "attendo-bfloat16":
            step, model = attendo_step(vocab, everywhere, "bfloat16", "torch")
        case "torch":
            step, model = torch_step(vocab, everywhere)
        case "joeynmt":
            step, model = joey_step(vocab, everywhere)
    packages = ["torch", "joeynmt"] if options.work == "joeynmt" else ["torch"]
    versions = {package: version(package) for package in packages}
    tell({"parameters": sum(p.numel() for p in model.parameters()), "versions": versions})
    for first, number in orders():
        chosen = [batches[(first + n) % count] for n in range(number)]
        began = time.process_time()
        losses = [step(*batch) for batch in chosen]
        spent = time.process_time() - began
        tokens = sum(int((tgt[:, 1:] != PAD).sum()) for _, tgt in chosen)
        tell({"cpu": spent, "tokens": tokens, "loss": sum(losses) / number})


def compare(options, names):
    """All contenders in turns: vocabulary size, their own facts, speeds and losses by name."""
    vocab, batches = word_batches(options.train, 2048, 200)
    arrays = {
        f"{side}{n}": ids
        for n, pair in enumerate(batches)
        for side, ids in zip(("src", "tgt"), pair, strict=True)
    }
    speeds, losses = {name: [] for name in names}, {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        np.savez(file, vocab=vocab, count=len(batches), **arrays)
        pythons = {"joeynmt": options.joey_python}
        rest = ["--file", file, "--dropout", options.dropout, "--threads", options.threads]
        commands = {
            name: [pythons.get(name, sys.executable), __file__, "--work", name, *rest] for name in names
        }
        with contenders(commands, options.threads) as (workers, facts):
            for number in range(options.rounds + 1):
                for name, worker in workers.items():
                    order = [number * options.steps_per_round, options.steps_per_round]
                    found = asked(name, worker, order)
                    if number:  # the first round warms up
                        speeds[name].append(found["tokens"] / found["cpu"])
                        losses[name].append(found["loss"])
                latest = {name: round(values[-1]) for name, values in speeds.items() if values}
                print(number, latest or "warm", file=sys.stderr)
    return vocab, facts, speeds, losses


def main():
    """Reads the options, compares, prints and stores."""
    parser = shared_options(__doc__, rounds=9)
    parser.add_argument("--train", type=Path, help="pairs, a tab between the sides")
    parser.add_argument("--joey-python", help="python of an environment with joeynmt")
    parser.add_argument("--steps-per-round", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dropout", choices=("paper", "everywhere"), default="paper")
    options = parser.parse_args()
    if options.work:
        with contextlib.redirect_stdout(sys.stderr):
            work(options)
        return
    if options.train is None or options.rounds < 2:
        parser.error("give --train, a file of pairs with a tab between the sides, and --rounds 2 or more")
    import torch

    from attendo.training.precision import fastest_precision, fastest_products

    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    products, precision = fastest_products(device), fastest_precision(device)
    names = ["torch", "attendo"] + ["joeynmt"] * bool(options.joey_python)
    names += ["attendo-torch-products"] * (products != "torch")
    names += ["attendo-bfloat16"] * (precision == "bfloat16")
    vocab, facts, speeds, losses = compare(options, names)
    peers = [name for name in names if not name.startswith("attendo")]
    quartiles = {
        f"{name} / {peer}": ratios(speeds[name], speeds[peer])
        for name in names
        if name not in peers
        for peer in peers
    }
    result = {
        "versions": {name: fact["versions"] for name, fact in facts.items()},
        "threads": options.threads,
        "rounds": options.rounds,
        "steps_per_round": options.steps_per_round,
        "sizes": SIZES | {"vocabulary": vocab, "batch_tokens": 2048},
        "dropout_sites": options.dropout,
        "attendo_products": products,
        "parameters": {name: fact["parameters"] for name, fact in facts.items()},
        "ratio_quartiles": quartiles,
        "target_tokens_per_cpu_second_quartiles": {name: spread(values) for name, values in speeds.items()},
        "last_loss": {name: round(values[-1], 3) for name, values in losses.items()},
    }
    store("training", result, options.out)


if __name__ == "__main__":
    main()
