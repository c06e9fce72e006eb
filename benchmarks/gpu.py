"""All figures of one NVIDIA GPU, within 25 minutes: `make gpu-figures`.

    python benchmarks/gpu.py [--corpora DIR] [--seeds 1] [--parts training,decoding] [--folder DIR]
    python benchmarks/gpu.py --device cpu --tiny     # a rehearsal with tiny sizes and no meaning

Each part is a process with a time limit. Its result is stored in the folder as soon as it ends, so a stopped run
continues with the parts that are missing. A part that fails or exceeds its limit is listed with its last words, and the
other parts still run. Training runs are resumed.

`training` compares attendo's whole update (bfloat16, clipping, AdamW; also with compiled blocks) with
torch.nn.Transformer under torch.compile (bfloat16 autocast, fused AdamW, clipping), on equal batches without padding,
in alternating rounds. The share of the peak is that of 8192³ products in bfloat16 in the same process, with the FLOPs
of training_shares.py. `decoding` compares the search on a random model of base size with CTranslate2 in float16.
`language` compares a language model in bfloat16 with Transformers, with a dynamic cache and, compiled, with a static
cache. Medians over the rounds.

--corpora is a folder with multi30k_ende (for recipes/multi30k.sh) and tinyshakespeare (for recipes/shakespeare.sh).
"""

import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from turns import HERE, listed, ratios, shared_options, spread, store

ROOT = HERE.parent
LIMITS = {
    "check": 60,
    "tests": 150,
    "resume": 90,
    "training": 270,
    "decoding": 120,
    "language": 180,
    "shakespeare": 200,
    "multi30k": 400,
}
"""The parts and their limits in seconds."""
SIZES = {
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
    "big": {"layers": 6, "d_model": 1024, "d_ff": 4096, "heads": 16},
    "d2048": {"layers": 6, "d_model": 2048, "d_ff": 8192, "heads": 32},
}
TINY_SIZES = {"tiny": {"layers": 1, "d_model": 32, "d_ff": 64, "heads": 2}}
ROWS, LENGTH, VOCABULARY = 256, 64, 32_000
PEAK_SIDE = 8192
SHAPES = ("smollm2-135m", "llama-1b")
CONTEXT = 1024
REFERENCE_BLEU = 41.02
"""BLEU4 of Wu et al. 2021 on test_2016, lower-cased and tokenized."""


def waited(device):
    """Return the wall time after all work of the device."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(device, work):
    """Return the wall time of a function, with the work that it starts on the device."""
    began = waited(device)
    work()
    return waited(device) - began


def alternated(contenders, rounds, device):
    """Return the seconds of each contender in each round. The contenders take turns, and warm up before."""
    times = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            spent = seconds(device, work)
            if number:
                times[name].append(spent)
    return times


def check(options):
    """Return the names of the device and the driver, and compare a product of matrices with that of the CPU."""
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU. Install a CUDA build of PyTorch (docs/en/gpu.md)")
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    there = (a.to(options.device) @ b.to(options.device)).cpu()
    assert torch.allclose(there, a @ b, atol=1e-3), "a product of matrices differs from that of the CPU"
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if options.device == "cuda":
        about = torch.cuda.get_device_properties(0)
        found |= {"device": about.name, "memory_gib": round(about.total_memory / 2**30)}
    return found


def tests(options):
    """Run the tests of devices, which use a GPU if PyTorch finds one."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/parity/test_devices.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stdout[-2000:])
    return {"pytest": run.stdout.strip().splitlines()[-1]}


def attendo(*arguments, json_output=False):
    """Run a command of attendo, and return what it prints."""
    command = [Path(sys.executable).with_name("attendo"), *map(str, arguments)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise SystemExit(f"attendo {arguments[0]} ended with status {run.returncode}; its own words are above")
    return json.loads(run.stdout) if json_output else run.stdout


def trained(task, out, options, *arguments):
    """Train a run, or resume it if it has checkpoints."""
    if list(out.glob("checkpoints/step-*")):
        attendo("resume", out, "--device", options.device)
    else:
        attendo("train", task, "--out", out, "--device", options.device, *arguments)


def resume(options):
    """Train for some steps, and repeat the last steps from a checkpoint: all values must be equal bit for bit."""
    text = options.folder / "pairs.tsv"
    text.write_text("".join(f"{n} men see {n % 7} dogs\t{n} homens {n % 7} cães\n" for n in range(2000)))
    out, steps = options.folder / "resume", 8 if options.tiny else 200
    trained(
        "translation", out, options, "--train", text, "--steps", steps, "--set", "tokenizer.vocab_size=300",
        "--set", f"checkpoint.every_steps={steps // 2}", "--set", "model.d_model=64",
    )  # fmt: skip
    return {"verify-resume": attendo("verify-resume", out, "--device", options.device).strip().splitlines()[-1]}


def peak(device, side):
    """Return the FLOP/s of products of square matrices in bfloat16."""
    import torch

    a = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    times = alternated({"product": lambda: [a @ a for _ in range(10)]}, 5, device)["product"]
    return 10 * 2 * side**3 / statistics.median(times)


def updates(sizes, options, batch):
    """Return one update by name: attendo's, attendo's with compiled blocks, and the compiled torch.nn.Transformer."""
    import torch
    from training_peers import plain_transformer

    from attendo.models import EncoderDecoder, ModelConfig
    from attendo.training.checkpoints import CheckpointConfig
    from attendo.training.loop import update
    from attendo.training.optimizer import TrainingConfig
    from attendo.training.run import Run

    config = ModelConfig(
        vocab_size=options.vocabulary, d_model=sizes["d_model"], d_ff=sizes["d_ff"], n_heads=sizes["heads"],
        n_encoder_layers=sizes["layers"], n_decoder_layers=sizes["layers"], dropout=0.1,
    )  # fmt: skip
    found = {}
    on_gpu = options.device == "cuda"  # on a CPU, compilation takes a minute
    for name, compiled in (("attendo", False), ("attendo, compiled blocks", on_gpu)):
        training = TrainingConfig(
            steps=10**9, learning_rate=5e-4, warmup_steps=1, precision="bfloat16", compile=compiled
        )
        model = EncoderDecoder(config).to(options.device)
        run = Run(model, None, training, CheckpointConfig(), Path("unused"))
        found[name] = lambda run=run: update(run, [batch])
    plain = plain_transformer(options.vocabulary, sizes | {"dropout": 0.1}, padded=False)
    plain = plain.to(options.device).train()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    forward = torch.compile(plain) if on_gpu else plain

    def step():
        with torch.autocast(options.device, torch.bfloat16):
            logits = forward(batch.inputs["src"], batch.inputs["tgt"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()

    return found | {"torch.nn.Transformer, compiled": step}


def training(options):
    """Return target tokens per second, shares of the peak, and ratios to the compiled torch.nn.Transformer."""
    import numpy as np
    import torch
    from training_shares import least_flops

    from attendo.data.batches import Batch

    most, found = peak(options.device, 256 if options.tiny else PEAK_SIDE), {}
    for size, sizes in (TINY_SIZES if options.tiny else SIZES).items():
        torch.manual_seed(1)
        ids = torch.randint(5, options.vocabulary, (3, options.rows, LENGTH), device=options.device)
        batch = Batch({"src": ids[0], "tgt": ids[1]}, ids[2], ids[2].numel(), np.arange(options.rows))
        contenders = {
            name: lambda update=update: [update() for _ in range(options.steps)]
            for name, update in updates(sizes, options, batch).items()
        }
        times = alternated(contenders, options.rounds, options.device)
        flops = least_flops(sizes, options.vocabulary, [(LENGTH, LENGTH)] * options.rows) * options.steps
        *mine, theirs = times
        found[size] = {
            "target_tokens_per_second": {
                name: spread([ids[2].numel() * options.steps / s for s in t]) for name, t in times.items()
            },
            "share_of_peak": {name: spread([flops / s / most for s in t]) for name, t in times.items()},
            "ratio_to_torch": {name: ratios(times[theirs], times[name]) for name in mine},
        }
        del contenders, batch
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return {"peak_tflops": round(most / 1e12, 3), "sizes": found}


def decoding(options):
    """Return output tokens per second of the search and of CTranslate2 in float16 with the same weights."""
    import ctranslate2
    from decoding import STEPS, random_model, random_sources
    from decoding_peers import attendo_search, ctranslate2_search
    from decoding_weights import save_weights

    file, sources = options.folder / "decoding.npz", random_sources()
    save_weights(random_model("small" if options.tiny else "base"), file)
    form = "float16" if options.device == "cuda" else "float32"
    searches = {
        "attendo": attendo_search(file, "float32", options.device),
        "ctranslate2": ctranslate2_search(file, form, 1, options.device),
    }
    found = {}
    for n, beam in [(1, 1)] if options.tiny else [(1, 1), (1, 4), (64, 1), (64, 4), (1024, 4)]:
        rows = (sources * (1 + n // len(sources)))[:n]
        works = {name: partial(search, rows, beam, STEPS, STEPS) for name, search in searches.items()}
        times = alternated(works, options.rounds, options.device)
        found[f"{n}x{beam}"] = {
            "output_tokens_per_second": {k: spread([n * STEPS / s for s in t]) for k, t in times.items()},
            "ratio": ratios(times["ctranslate2"], times["attendo"]),
        }
    return {"ctranslate2": ctranslate2.__version__, "compute_type": form, "cases": found}


def language_programs(shape, options):
    """Return a function (ids, number of new tokens) for each program, in bfloat16 on a GPU."""
    import language_models
    import torch
    import transformers

    from attendo.decoding.backends import best_decoder

    backend = best_decoder(language_models.model_of(shape).to(options.device))
    like = type("Options", (), {"shape": shape, "threads": torch.get_num_threads()})
    peer = language_models.Transformers(like, "transformers").model.to(options.device)
    compiled, caches = peer, {}
    if options.device == "cuda":
        peer = peer.bfloat16()
        compiled = torch.compile(peer, mode="reduce-overhead")

    def own(ids, n):
        cache = backend.start(len(ids), ids.shape[1] + n)
        for _ in range(n):
            ids = backend.step(ids, cache).argmax(-1, keepdim=True)

    def dynamic(ids, n):
        past = None
        for _ in range(n):
            answer = peer(ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, ids = answer.past_key_values, answer.logits[:, -1].argmax(-1, keepdim=True)

    def static(ids, n):
        cache = caches.setdefault(len(ids), transformers.StaticCache(config=peer.config, max_cache_len=CONTEXT))
        cache.reset()
        at = torch.arange(ids.shape[1], device=ids.device)
        for number in range(n):
            run = compiled if number else peer
            answer = run(ids, past_key_values=cache, cache_position=at, logits_to_keep=1)
            at, ids = at[-1:] + 1, answer.logits[:, -1].argmax(-1, keepdim=True).clone()

    return {"attendo": own, "transformers": dynamic, "transformers, static and compiled": static}


def language(options):
    """Return the tokens per second of prompts and of new tokens, of attendo and of Transformers."""
    import torch
    import transformers

    n_prompt, n_new = (16, 4) if options.tiny else (512, 128)
    found = {}
    for shape in ("tiny",) if options.tiny else SHAPES:
        programs = language_programs(shape, options)
        for batch in (1,) if options.tiny else (1, 8):
            ids = torch.randint(10, 900, (batch, n_prompt), device=options.device)

            def timed(n, ids=ids, programs=programs):
                works = {name: partial(program, ids, n) for name, program in programs.items()}
                return alternated(works, options.rounds, options.device)

            with torch.inference_mode():
                prompt, whole = timed(1), timed(n_new)
            counted = {"prompt": (batch * n_prompt, prompt)}
            counted["decode"] = (
                batch * (n_new - 1),
                {name: [max(a - b, 1e-9) for a, b in zip(whole[name], prompt[name], strict=True)] for name in programs},
            )
            found[f"{shape}, batch {batch}"] = {
                part: {name: spread([n / s for s in t]) for name, t in times.items()}
                for part, (n, times) in counted.items()
            }
    return {"transformers": transformers.__version__, "tokens_per_second": found}


def shakespeare(options):
    """Return the loss of nanoGPT's model for a GPU (6 layers, width 384, context 256) on Tiny Shakespeare."""
    data = options.corpora / "tinyshakespeare"
    out = options.folder / "shakespeare"
    width, context, steps = (32, 32, 4) if options.tiny else (384, 256, 5000)
    chosen = {
        "tokenizer.kind": "character", "model.max_len": context, "model.d_model": width,
        "model.n_heads": width // 64 or 2, "model.n_decoder_layers": 6 if width > 64 else 1, "model.dropout": 0.2,
        "training.batch_tokens": 64 * context,
        "training.learning_rate": 0.001, "training.evaluate_every": 500,
    }  # fmt: skip
    settings = [part for name, value in chosen.items() for part in ("--set", f"{name}={value}")]
    trained(
        "language-model", out, options, "--train", data / "train.txt", "--valid", data / "val.txt", "--steps", steps,
        *settings,
    )  # fmt: skip
    measured = attendo(
        "evaluate", out, data / "val.txt", "--context", context, "--stride", context // 2, "--json",
        "--device", options.device, json_output=True,
    )  # fmt: skip
    return {"nats_per_character": measured["nats_per_character"], "nanogpt": 1.4697}


def multi30k(options):
    """Return the BLEU of the reference configuration on Multi30k, for each seed."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TEXTS": "tok_lc",
    }
    environment |= {"CPU_MINUTES": "0.05"} if options.tiny else {}
    out = options.folder / "multi30k"
    seeds = [str(1 + seed) for seed in range(options.seeds)]
    subprocess.run(
        ["bash", ROOT / "recipes" / "multi30k.sh", options.corpora / "multi30k_ende", out, *seeds],
        env=environment, check=True, stdout=sys.stderr,
    )  # fmt: skip
    scores = [json.loads((out / f"tok_lc-{seed}" / "test_2016.json").read_text())["bleu"] for seed in seeds]
    return {"bleu4": scores, "reference": REFERENCE_BLEU}


PARTS = {part.__name__: part for part in (check, tests, resume, training, decoding, language, shakespeare, multi30k)}


def measured(part, options):
    """Run a part in a process of its own, and return its result or why there is none. Stored results are reused."""
    file = options.folder / f"{part}.json"
    if file.exists():
        return json.loads(file.read_text())
    if part in ("shakespeare", "multi30k") and options.corpora is None:
        return {"not measured": "requires --corpora"}
    command = [
        sys.executable,
        __file__,
        *sys.argv[1:],
        "--folder",
        options.folder,
        "--work",
        part,
        "--file",
        file,
    ]
    limit = LIMITS[part] * (4 if options.tiny else 1)  # a rehearsal may be on a busy machine
    print(f"{part}: at most {limit} seconds", file=sys.stderr)
    began = time.monotonic()
    with (options.folder / f"{part}.log").open("w") as log:
        worker = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, start_new_session=True)
        try:
            worker.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, 9)
            worker.wait()
    if file.exists():
        return json.loads(file.read_text())
    last = (options.folder / f"{part}.log").read_text().strip().splitlines()[-1:]
    return {"not measured": f"after {time.monotonic() - began:.0f} s: {''.join(last)}"}


def rows_of(found, path=()):
    """Yield a name and a value for each number or text of a nested result. Of quartiles, it yields the median."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from rows_of(value, (*path, name))
        else:
            yield ", ".join((*path, name)), value[1] if isinstance(value, list) and len(value) == 3 else value


def read_options():
    """Parse the command line."""
    parser = shared_options(__doc__, rounds=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, as a rehearsal")
    parser.add_argument("--parts", type=listed(), default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--corpora", type=Path, help="folder with multi30k_ende and tinyshakespeare")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of Multi30k (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "gpu-figures", help="results of parts, and their runs"
    )
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part {min(unknown)} (expected {', '.join(PARTS)})")
    options.rounds = 2 if options.tiny else options.rounds
    options.steps = 1 if options.tiny else 10
    options.rows, options.vocabulary = (2, 100) if options.tiny else (ROWS, VOCABULARY)
    return options


def main():
    """Run the parts, print the table, and store the results."""
    options = read_options()
    if options.work:
        result = PARTS[options.work](options)
        options.file.write_text(json.dumps(result, indent=1) + "\n")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    results = {part: measured(part, options) for part in options.parts}
    store("gpu", {"device": options.device, "tiny": options.tiny, "parts": results}, options.out)
    for name, value in rows_of(results):
        print(f"{name:<78} {value}")


if __name__ == "__main__":
    main()
