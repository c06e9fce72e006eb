"""The disk space, the memory and the start of a large language model with random weights, by its number of bits.

    python benchmarks/quantized.py [--shape smollm2-1.7b] [--folder DIR]

The model has the layers and the vocabulary size of SmolLM2-1.7B (1.7 billion parameters) and random bfloat16 weights.
Each row is one process of `attendo generate` with one thread: the file, the peak of the resident memory (with the pages
of the mapped file), and the CPU seconds of loading and of 8 new tokens. "packed at load" reads the bfloat16 file with
--bits, "quantized" reads the copy of `attendo quantize`. The CPU seconds include the start of Python, the check of the
file's hash and a prompt of 4 words.
"""

import json
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
    words = " ".join(f"word{number}" for number in range(vocab))  # every token that is sampled must be one of a text
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
    return sum(tensor.numel() for tensor in tensors.values())


def main():
    """Write and quantize the model, measure, and print and store the results."""
    parser = shared_options(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-1.7b")
    parser.add_argument("--folder", type=Path, help="folder for about 7 GB of models (default: temporary)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        plain = Path(place) / "run"
        found = {"shape": options.shape, "parameters": write_run(plain, options.shape), "rows": []}
        for bits in (16, 8, 4):
            forms = {"packed at load": (plain, None)}
            if bits < 16:
                small = plain.with_name(f"run-{bits}")
                command = [ATTENDO, "quantize", plain, "--bits", bits, "--out", small, "--threads", 1]
                forms["quantized"] = small, cost(command)
            for form, (run, own) in forms.items():
                seconds, peak = cost(
                    [ATTENDO, "generate", run, "word1 word2 word3 word4", "--max-tokens", 8, "--seed", 1]
                    + ["--bits", bits, "--threads", 1]
                )
                row = {"bits": bits, "form": form, "file_gib": (run / "model.safetensors").stat().st_size / 2**30}
                row |= {"cpu_seconds": seconds, "peak_gib": peak * 1000 / 2**20}
                if own is not None:
                    row |= {"quantize_cpu_seconds": own[0], "quantize_peak_gib": own[1] * 1000 / 2**20}
                print(json.dumps(row), file=sys.stderr)
                found["rows"].append(row)
    store("quantized", found, options.out)


if __name__ == "__main__":
    main()
