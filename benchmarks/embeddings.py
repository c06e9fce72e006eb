"""Sentence embeddings of attendo and `transformers`: equality of the vectors, and sentences per CPU-second.

    python benchmarks/embeddings.py --model FOLDER --run RUN --lines FILE [--sentences N] [--batch N] [--threads N]

FOLDER is a sentence-transformers model with mean pooling. RUN is the run folder that `attendo import FOLDER RUN` wrote.
FILE has one sentence per line, in the first column. Both programs process the same batches in the same order, and
alternate. All work is timed: tokenization, the model, pooling over the real tokens, and normalization to length 1.
"""

import sys
from pathlib import Path

import numpy as np
from turns import asked, clock, contenders, listed, orders, ratios, shared_options, store, tell


def attendo(run, threads):
    """Answer the requests of the benchmark with attendo."""
    import torch

    torch.set_num_threads(threads)
    import attendo

    embedder = attendo.load(run)
    answer(lambda texts: embedder.embed(texts), threads)


def transformers(model, threads):
    """Answer the requests of the benchmark with BertModel, pooled as in sentence-transformers."""
    import torch

    torch.set_num_threads(threads)
    from transformers import AutoModel, AutoTokenizer

    tokenizer, bert = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()

    @torch.inference_mode()
    def embed(texts):
        read = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
        states = bert(**read).last_hidden_state
        real = read["attention_mask"][..., None].to(states.dtype)
        mean = (states * real).sum(1) / real.sum(1)
        return torch.nn.functional.normalize(mean).numpy()

    answer(embed, threads)


def answer(embed, threads):
    """Answer the requests of the benchmark with the seconds that `embed` takes, and with the vectors if requested."""
    _, now = clock(threads)
    embed(["A sentence."])
    tell({"ready": True})
    for order in orders():
        began, vectors = now(), []
        for batch in order["batches"]:
            vectors.append(embed(batch))
        spent = now() - began
        tell({"seconds": spent} | ({"vectors": np.concatenate(vectors).tolist()} if order["vectors"] else {}))


def main():
    """Measure each batch size, and print and store the results."""
    made = shared_options(__doc__, rounds=7)
    made.add_argument("--model", required=True, help="the folder of the model")
    made.add_argument("--run", required=True, help="the run folder made of it")
    made.add_argument("--lines", required=True, help="sentences, one a line")
    made.add_argument("--sentences", type=int, default=1000)
    made.add_argument("--batch", type=listed(int), default=[1, 8, 32], help="sentences a call, with commas between")
    made.add_argument("--threads", type=int, default=1)
    options = made.parse_args()
    if options.work is not None:
        {"attendo": attendo, "transformers": transformers}[options.work](
            options.run if options.work == "attendo" else options.model, options.threads
        )
        return
    with Path(options.lines).open(encoding="utf-8") as file:
        lines = [line.partition("\t")[0].strip() for line in file]
    lines = [line for line in lines if line][: options.sentences]
    call = [
        sys.executable,
        __file__,
        "--model",
        options.model,
        "--run",
        options.run,
        "--lines",
        options.lines,
    ]
    call += ["--threads", options.threads, "--work"]
    unit, _ = clock(options.threads)
    with contenders({name: [*call, name] for name in ("attendo", "transformers")}, options.threads) as (
        workers,
        _,
    ):
        order = {"batches": [lines[i : i + 32] for i in range(0, len(lines), 32)], "vectors": True}
        ours, theirs = (np.array(asked(name, workers[name], order)["vectors"]) for name in workers)
        figures = {}
        for size in options.batch:
            order = {"batches": [lines[i : i + size] for i in range(0, len(lines), size)], "vectors": False}
            seconds = {name: [] for name in workers}
            for _ in range(options.rounds):
                for name, worker in workers.items():
                    seconds[name].append(asked(name, worker, order)["seconds"])
            figures[size] = {
                "ratio": ratios(seconds["transformers"], seconds["attendo"]),
                "sentences per second": {name: round(len(lines) / min(all_)) for name, all_ in seconds.items()},
            }
    import torch
    from transformers import __version__

    result = {
        "torch": torch.__version__,
        "transformers": __version__,
        "threads": options.threads,
        "seconds": unit,
        "rounds": options.rounds,
        "sentences": len(lines),
        "largest difference": float(np.abs(ours - theirs).max()),
        "batches": figures,
    }
    store("embeddings", result, options.out)


if __name__ == "__main__":
    main()
