"""Errors of the cost model of docs/en/cost-model.md, as far as one machine can measure them.

    python benchmarks/scale.py memory  --train pairs.tsv     predicted and measured peak memory of updates
    python benchmarks/scale.py run     --train pairs.tsv     `attendo plan`, then the run that it predicts
    python benchmarks/scale.py traffic                       bytes and seconds of all-reduces, and of DDP's updates

memory: one process per case. The result is its peak resident memory (ru_maxrss) during updates on a real batch, minus
its memory after one update of a tiny model. Each case is measured twice: normally, and with malloc returning all freed
memory. run: the number of updates of a run with a CPU time budget, as predicted by the plan and as logged in
metrics.jsonl. traffic: gloo between processes of this machine. The bytes are counted by the loopback interface. A
straight line through the seconds by size determines latency and bandwidth. From these values and the time of an update
without traffic, the time with DDP is predicted, and then measured.

Each process has one thread. Each result is stored under results/, as in every benchmark.
"""

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import shared_options, store

MEMORY_CASES = [
    (size, tokens, precision)
    for size in ("small", "base")
    for tokens in (2048, 8192)
    for precision in ("float32", "bfloat16")
] + [("small", 8192, "float32", "recomputed")]
SHAPES = {
    "small": {"d_model": 256, "d_ff": 1024, "n_heads": 4, "n_encoder_layers": 3, "n_decoder_layers": 3},
    "base": {"d_model": 512, "d_ff": 2048, "n_heads": 8, "n_encoder_layers": 6, "n_decoder_layers": 6},
}
BUFFERS = [2**power for power in range(12, 27, 2)]
"""Sizes of the all-reduced buffers in bytes, from 4 KiB to 64 MiB."""


def material_of(train, vocab=8000):
    """Return the pairs of a file as ids, with a vocabulary of 8,000 subwords."""
    from attendo.runs.settings import choose_tokenizer
    from attendo.runs.task_specs import family_of

    family = family_of("translation")
    corpus = family.open(family.data(train=(str(train),)), lambda line: None)
    tables = {**family.defaults(), "tokenizer": {"vocab_size": vocab}}
    tables, tokenizer = choose_tokenizer(tables, family, corpus, lambda line: None)
    return family.material(corpus, tokenizer, tables), tables["model"]


# ---- memory


def memory_case(train, size, tokens, precision, *recomputed):
    """Return the predicted and measured bytes of one case, in a process of its own.

    With `recomputed`, blocks store only their inputs.
    """
    import torch

    from attendo.models import ModelConfig
    from attendo.runs.settings import measured_pace
    from attendo.training.costs import Formats, cells_of, on_paper, training_memory

    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    material, model = material_of(train)
    batches = material.batches(tokens, 1, 0)
    training = {"precision": precision, "products": "torch", "activation_checkpointing": bool(recomputed)}
    tiny = {**model, "d_model": 16, "d_ff": 16, "n_heads": 1, "n_encoder_layers": 1, "n_decoder_layers": 1}
    measured_pace(tiny, training, material.batches(64, 1, 0)[:2], cpu, 0.0, 1)
    ctypes.CDLL(None).malloc_trim(0)
    before = resident()
    shape = {**model, **SHAPES[size], "norm_first": True}
    few = batches[:1]  # repeated, so the optimizer state exists at the peak
    seconds = measured_pace(shape, training, few, cpu, 0.0, 3)
    measured = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    formats = Formats(precision == "bfloat16")
    memory = training_memory(on_paper(ModelConfig(**shape)), cells_of(few[0]), formats, checkpointing=bool(recomputed))
    parts = {name: round(value) for name, value in vars(memory).items()}
    return {
        "predicted": round(memory.peak),
        "measured": measured,
        "seconds": seconds,
        **parts,
        "before": before,
    }


def resident():
    """Return the bytes of this process that are in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def memory(options):
    """Measure all cases, one after the other."""
    found = {}
    for case in MEMORY_CASES:
        order, name = json.dumps([str(options.train), *case]), " ".join(map(str, case))
        result = json.loads(work("memory", order))
        # malloc returns every large block of memory at once, and keeps no free memory
        exact = json.loads(work("memory", order, {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}))
        found[name] = result = result | {"measured without malloc's own room": exact["measured"]}
        for key in ("measured", "measured without malloc's own room"):
            result["error of the " + key] = round(result["predicted"] / result[key] - 1, 4)
        print(name, json.dumps(result), file=sys.stderr)
    store("scale-memory", {"corpus": options.train.name, "cases": found}, options.out)


def work(kind, order, environment=None):
    """Run this script as a worker process, and return the last line of its output."""
    command = [sys.executable, __file__, kind, "--work", order]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()[-1]


# ---- a run


def run(options):
    """Plan a run, train the run, and return the predicted and the real numbers."""
    command = [sys.executable, "-c", "import sys; from attendo.cli import main; sys.exit(main())"]
    shared = ["--train", str(options.train), "--threads", "1", "--cpu-minutes", str(options.minutes)]
    shared += [part for setting in options.set for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        spoken = subprocess.run([*command, "plan", *shared, "--json"], check=True, capture_output=True, text=True)
        plan = json.loads(spoken.stdout)
        subprocess.run([*command, "train", "translation", *shared, "--out", str(out)], check=True)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        card = json.loads((out / "card.json").read_text())
    steps = [line for line in lines if line["kind"] == "step"]
    first, last = steps[0], steps[-1]
    seconds = (last["cpu_seconds"] - first["cpu_seconds"]) / (last["step"] - first["step"])
    result = {
        "corpus": options.train.name,
        "cpu_minutes": options.minutes,
        "settings": options.set,
        "parameters": {"plan": plan["n_parameters"], "run": card["parameters"]},
        "updates": {"plan": plan["updates"], "run": lines[-1]["step"]},
        "seconds_per_update": {"plan": plan["pace"]["seconds"], "run": seconds},
        "tokens_per_update": {"plan": plan["tokens_per_update"], "run": last["tokens"] / last["step"]},
        "share_of_peak": plan["share_of_peak"],
    }
    store("scale-run", result, options.out)


# ---- traffic


def traffic(options):
    """Measure all-reduces of several sizes between 2 and 4 processes, and updates with DDP between 2 processes."""
    found = {str(world): together(world, {"what": "reduce"}) for world in (2, 4)}
    for rows in (1, 32):
        found[f"ddp {rows}"] = together(2, {"what": "ddp", "rows": rows})
    store("scale-traffic", with_predictions(found), options.out)


def together(world, order):
    """Run `world` processes, and return the answer of the first process."""
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for rank in range(world):
            facts = json.dumps({**order, "world": world, "rank": rank, "store": f"{folder}/store"})
            command = [sys.executable, __file__, "traffic", "--work", facts]
            workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        said = [worker.communicate(timeout=600)[0] for worker in workers]
    return json.loads(said[0].splitlines()[-1])


def traffic_work(order):
    """Run one of several communicating processes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(order["store"], order["world"]),
        rank=order["rank"],
        world_size=order["world"],
    )
    found = reduced(order["world"]) if order["what"] == "reduce" else ddp_updates(order)
    dist.barrier()
    dist.destroy_process_group()
    return found


def on_loopback():
    """Return the bytes that the loopback interface has received."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def reduced(world, repeats=40):
    """Return the seconds and bytes of all-reduces by size, and the line through the shortest times.

    Other work on the machine can only add time.
    """
    import numpy as np
    import torch
    import torch.distributed as dist

    from attendo.training.costs import ring_bytes

    rows = []
    for n_bytes in BUFFERS:
        buffer = torch.ones(n_bytes // 4)
        seconds, counted = [], []
        for _ in range(repeats):
            dist.barrier()
            time.sleep(0.01)
            before, start = on_loopback(), time.perf_counter()
            dist.all_reduce(buffer)
            seconds.append(time.perf_counter() - start)
            dist.barrier()
            counted.append(on_loopback() - before)
        formula = world * ring_bytes(n_bytes, world)
        rows.append([n_bytes, statistics.median(seconds), min(seconds), statistics.median(counted), formula])
    table = np.array(rows)
    # relative errors are minimized, so short messages count as much as long messages
    matrix = np.stack([np.full(len(table), 1.0), 2 * (world - 1) / world * table[:, 0]], axis=1)
    fit, *_ = np.linalg.lstsq(matrix / table[:, 2:3], np.ones(len(table)), rcond=None)
    return {
        "columns": ["bytes", "median s", "least s", "bytes on the loopback", "bytes by the formula"],
        "rows": [[*map(float, row)] for row in rows],
        "latency": float(fit[0] / (2 * (world - 1))),
        "bandwidth": float(1 / fit[1]),
        "fitted": [float(value) for value in matrix @ fit],
    }


def ddp_updates(order, repeats=25):
    """Return the seconds of forward and backward passes without and with DDP, in turns, and the all-reduced bytes."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from attendo.models import EncoderDecoder, ModelConfig

    torch.manual_seed(1)
    model = EncoderDecoder(ModelConfig(vocab_size=4000, dropout=0.0, **SHAPES["small"]))
    wrapped = DistributedDataParallel(model)
    ids = torch.randint(4, 4000, (order["rows"], 20))
    handed = []

    def noted(state, bucket):
        handed.append(bucket.buffer().numel() * bucket.buffer().element_size())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    wrapped.register_comm_hook(None, noted)
    taken = {"alone": [], "ddp": []}
    for _ in range(repeats + 1):  # the first repeat is a warm-up
        for name, module in (("alone", model), ("ddp", wrapped)):
            dist.barrier()
            start = time.perf_counter()
            module(ids, ids).logsumexp(-1).mean().backward()
            dist.barrier()
            taken[name].append(time.perf_counter() - start)
            model.zero_grad(set_to_none=False)
    parameters = sum(p.numel() for p in model.parameters())
    facts = {"parameters": parameters, "handed": sum(handed) / (repeats + 1), "formula": 4 * parameters}
    return facts | {
        f"{name} {kind}": of(seconds[1:])
        for name, seconds in taken.items()
        for kind, of in (("least", min), ("median", statistics.median))
    }


def with_predictions(found, world=2, rows=(1, 32)):
    """Add the predicted seconds with DDP, from the seconds without DDP and the line through the all-reduces."""
    line = found[str(world)]
    for name in (f"ddp {n}" for n in rows):
        case = found[name]
        compute = case["alone least"]
        traffic = 2 * (world - 1) * line["latency"] + case["formula"] / line["bandwidth"]
        case["traffic"] = traffic
        case["predicted beside"] = compute / 3 + max(2 / 3 * compute, traffic)
        case["predicted behind"] = compute + traffic
    return found


if __name__ == "__main__":
    parser = shared_options(__doc__)
    parser.add_argument("kind", choices=["memory", "run", "traffic"])
    parser.add_argument("--train", type=Path)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--work")
    given = parser.parse_args()
    if given.work:
        order = json.loads(given.work)
        result = memory_case(*order) if given.kind == "memory" else traffic_work(order)
        print(json.dumps(result))
    else:
        {"memory": memory, "run": run, "traffic": traffic}[given.kind](given)
