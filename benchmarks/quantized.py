"""The disk space, the memory and the start of a large language model with random weights, by its number of bits.

    python benchmarks/quantized.py [--shape smollm2-1.7b] [--folder DIR]   (about 7 GB)

The model has the layers and the vocabulary size of SmolLM2-1.7B (1.7 billion parameters) and random bfloat16 weights.
Each row is one process of `attendo generate` with one thread: the file, the peak of the resident memory (with the pages
of the mapped file), and the CPU seconds of loading and of 8 new tokens. "packed at load" reads the bfloat16 file with
--bits, "quantized" reads the copy of `attendo quantize`. The CPU seconds include the start of Python, the check of the
file's hash and a prompt of 4 words.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from commands import ATTENDO, cost
from turns import shared_options, store

SHAPES = {  # d_model, d_ff, layers, heads, vocabulary
    "tiny": (64, 160, 2, 4, 1000),
    "smollm2-1.7b": (2048, 8192, 24, 32, 49152),
}


def write_run(folder, shape):
    """Write a run with random weights."""
    import torch

    from attendo.bundle import Bundle, save_description, save_tensors
    from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    from attendo.models import DecoderLM, ModelConfig

    d_model, d_ff, layers, heads, vocab = SHAPES[shape]
    config = {
        "architecture": "decoder", "vocab_size": vocab, "d_model": d_model, "d_ff": d_ff, "n_heads": heads,
        "n_encoder_layers": 0, "n_decoder_layers": layers, "max_len": 2048, "positions": "rotary", "norm": "rms",
        "norm_first": True, "feed_forward_gated": True, "activation": "silu", "attention_bias": False,
        "feed_forward_bias": False, "output_bias": False, "tie": "output", "embedding_scale": False,
    }  # fmt: skip
    words = " ".join(f"word{number}" for number in range(vocab))  # a text for every token that is sampled
    tokenizer = train_tokenizer([words], TokenizerConfig(kind="word", vocab_size=vocab, min_count=1))
    assert tokenizer.vocab_size == vocab
    bundle = Bundle({"model": config}, tokenizer, {"task": "language-model"})
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in DecoderLM(ModelConfig(**config)).named_parameters()}
    draw = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=draw)
        if len(shape) > 1
        else torch.ones(shape, dtype=torch.bfloat16)
        for name, shape in shapes.items()
    }
    save_description(folder, bundle)
    save_tensors(folder, tensors, bundle, 0)


def measured(run, bits, form):
    """Return the row of one run: the size of its file, and the costs of loading it and of 8 new tokens."""
    command = [ATTENDO, "generate", run, "word1 word2 word3 word4", "--max-tokens", 8, "--seed", 1]
    seconds, peak = cost([*command, "--bits", bits, "--threads", 1])
    size = (run / "model.safetensors").stat().st_size / 2**30
    return {
        "bits": bits,
        "form": form,
        "file_gib": size,
        "cpu_seconds": seconds,
        "peak_gib": peak * 1000 / 2**20,
    }


def main():
    """Write and quantize the model, measure, and print and store the results."""
    parser = shared_options(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-1.7b")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "quantized")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    plain = options.folder / options.shape
    if options.write:
        return write_run(plain, options.shape)
    if not plain.exists():  # in a process of its own: the peak of a child process includes that of its parent
        own = [sys.executable, __file__, "--write", "--shape", options.shape, "--folder", options.folder]
        subprocess.run(list(map(str, own)), check=True)
    found = {"shape": options.shape, "rows": []}
    for bits in (8, 4, 16):
        rows = [measured(plain, bits, "packed at load")]
        if bits < 16:
            small = options.folder / f"{options.shape}-{bits}"
            shutil.rmtree(small, ignore_errors=True)
            quantizing = cost([ATTENDO, "quantize", plain, "--bits", bits, "--out", small, "--threads", 1])
            rows.append(measured(small, bits, "quantized"))
            rows[1]["quantizing"] = {"cpu_seconds": quantizing[0], "peak_gib": quantizing[1] * 1000 / 2**20}
        print(json.dumps(rows), file=sys.stderr)
        found["rows"] += rows
    return store("quantized", found, options.out)


if __name__ == "__main__":
    main()
