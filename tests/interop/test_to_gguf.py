"""The export to GGUF: the `gguf` package reads the same tensors, and an imported export is the same model."""

import os
import random

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
gguf = pytest.importorskip("gguf")

from command_line import attendo as command  # noqa: E402
from command_line import refused  # noqa: E402
from exported_models import run_folder  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tiny_tokenizers import config_of, made  # noqa: E402
from tiny_translator import tiny_tokenizer  # noqa: E402

import attendo  # noqa: E402
from attendo.data.chat import Message  # noqa: E402
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer  # noqa: E402
from attendo.interop.exporting import exportable  # noqa: E402
from attendo.interop.huggingface.importing import import_model  # noqa: E402
from attendo.interop.huggingface.model_files import write_model  # noqa: E402
from attendo.interop.huggingface.rotary_scaling import scaled  # noqa: E402
from attendo.interop.huggingface.tokenizers import read_tokenizer  # noqa: E402
from attendo.model_config import ModelConfig  # noqa: E402

LLAMA = {"architecture": "decoder", "n_encoder_layers": 0, "n_decoder_layers": 2, "positions": "rotary"}
LLAMA |= {"norm": "rms", "norm_first": True, "feed_forward_gated": True, "activation": "silu"}
LLAMA |= {"attention_bias": False, "feed_forward_bias": False, "embedding_scale": False, "dropout": 0.0}
LLAMA |= {"d_model": 64, "d_ff": 96, "n_heads": 4, "n_kv_heads": 2, "max_len": 48}
LONG = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG |= {"original_max_position_embeddings": 8192}
CODE = "def rain(day):\n    if day > 3:\n        return 'rain'\n\n    return dry(day)\n"


def frequencies(table, width=16, base=5e5):
    return {"position_base": base, "position_frequencies": tuple(scaled(table, width, base, 48)[0].tolist())}


SHAPES = {
    "llama": {"tie": "none", "head_dim": 24},
    "llama, biases, Llama 3": {"attention_bias": True, "feed_forward_bias": True, **frequencies(LONG)},
    "qwen2, linear": {"attention_bias": True, "attention_out_bias": False}
    | frequencies({"rope_type": "linear", "factor": 4.0}),
    "qwen3": {"attention_norm": True, "tie": "none"},
}


def of(kind, folder):
    """A tokenizer of a kind: attendo's own of program code, or imported."""
    if kind in ("bpe", "character", "byte"):
        size = 340 if kind == "bpe" else None
        return train_tokenizer([CODE * 9, "it rains in Tōkyō "], TokenizerConfig(kind=kind, vocab_size=size))
    theirs = made(kind, folder)
    if kind != "llama":  # its tokenizer.model is read without transformers, whose conversion is not exact
        theirs.save_pretrained(folder)
    ids = {"eos_token_id": theirs.eos_token_id, "bos_token_id": theirs.bos_token_id}
    return read_tokenizer(folder, config_of(kind, len(theirs) + 3, **ids))


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ("llama", "bpe"),
        ("llama, biases, Llama 3", "llama"),
        ("llama", "character"),
        ("llama", "gpt2"),
        ("qwen3", "byte"),
        ("qwen2, linear", "qwen2"),
    ],
)
def test_an_exported_model_is_the_same_model_when_it_comes_back(shape, kind, tmp_path):
    tokenizer = of(kind, tmp_path / "tokenizer")
    if kind == "bpe":
        tokenizer = tokenizer.with_chat()
    folder, _, model = run_folder(tmp_path / "run", LLAMA | SHAPES[shape], tokenizer=tokenizer)
    outcome = command("export", folder, tmp_path / "out.gguf", "--to", "gguf", "--rows", 5)
    assert outcome.code == 0, outcome.err
    assert "best choices 100.0%" in outcome.out
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "tokenizer") == ["out.gguf", "run"]
    import_model(tmp_path / "out.gguf", tmp_path / "back")
    again = attendo.load(tmp_path / "back")
    ids = torch.randint(4, tokenizer.vocab_size, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert (again.model(ids) - model(ids)).abs().max() < 1e-4
    drawn = random.Random(0)
    texts = [
        CODE,
        "Tōkyō 東京 <s>",
        "",
        *("".join(drawn.choices("ab rain\n in()1é", k=12)) for _ in range(200)),
    ]
    if kind == "bpe":  # of this small vocabulary, no subword joins a space with every letter
        texts = [" ".join(text.split()) if text != CODE else text for text in texts]
    assert [again.tokenizer.encode(text) for text in texts] == [tokenizer.encode(text) for text in texts]
    own, back = tokenizer.specials, again.tokenizer.specials
    assert (own.eos_id, own.before_prompt) == (back.eos_id, back.before_prompt)
    if tokenizer.chat is not None:
        talk = [Message("user", "rain"), Message("assistant", "dry")]
        assert again.tokenizer.chat.encode(again.tokenizer, talk) == tokenizer.chat.encode(tokenizer, talk)


def test_each_number_format_is_what_the_package_computes(tmp_path):
    more = {"d_ff": 80}  # rows of 80 weights can't be quantized
    folder, _, model = run_folder(tmp_path / "run", LLAMA | SHAPES["llama"] | more, tokenizer=tiny_tokenizer())
    (tmp_path / "hf").mkdir()
    write_model(model, tmp_path / "hf")
    theirs = load_file(tmp_path / "hf/model.safetensors")
    for name, types in {
        "float32": {"F32"},
        "float16": {"F32", "F16"},
        "bfloat16": {"F32", "BF16"},
        "q8_0": {"F32", "F16", "Q8_0"},
        "q4_0": {"F32", "F16", "Q8_0", "Q4_0"},
    }.items():
        path = tmp_path / f"{name}.gguf"
        outcome = command("export", folder, path, "--to", "gguf", "--quantization", name, "--rows", 2)
        assert outcome.code == 0, outcome.err
        tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        assert {tensor.tensor_type.name for tensor in tensors.values()} == types
        assert len(tensors) == len(theirs)
        for own, other in (
            ("token_embd", "model.embed_tokens"),
            ("blk.1.ffn_up", "model.layers.1.mlp.up_proj"),
            ("blk.0.ffn_down", "model.layers.0.mlp.down_proj"),
            ("output_norm", "model.norm"),
        ):
            kind = tensors[f"{own}.weight"].tensor_type
            wanted = gguf.quants.quantize(theirs[f"{other}.weight"].numpy(), kind)
            assert np.array_equal(wanted, tensors[f"{own}.weight"].data)


def test_what_llama_cpp_does_not_have_is_refused(tmp_path):
    for options, kind, words in (
        ({}, "unigram", "tokenizer.kind='unigram' has no equivalent in llama.cpp"),
        ({"positions": "learned"}, "bpe", "no model of transformers supports positions='learned'"),
        ({"attention_norm": True, "attention_bias": True}, "bpe", "attention_bias=True is not supported"),
        ({"attention_norm": True, **frequencies(LONG)}, "bpe", "position_frequencies of Llama 3"),
    ):
        config = ModelConfig(vocab_size=11, **LLAMA | options)
        assert words in exportable(config, kind, "gguf")
    folder, *_ = run_folder(tmp_path / "run", LLAMA, tokenizer=tiny_tokenizer())
    (tmp_path / "out.gguf").touch()
    assert "out.gguf already exists" in refused("export", folder, tmp_path / "out.gguf", "--to", "gguf")
    said = refused("export", folder, tmp_path / "a.gguf", "--to", "gguf", "--quantization", "int8")
    assert "--quantization int8 is unknown (expected float32, float16, bfloat16, q8_0, q4_0)" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "run"]
