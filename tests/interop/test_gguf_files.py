"""GGUF files that the `gguf` package wrote from models of `transformers`: the same logits and ids, and errors."""

import json
import os

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
gguf = pytest.importorskip("gguf")

import transformers  # noqa: E402
from sentencepiece import SentencePieceProcessor  # noqa: E402
from tiny_tokenizers import byte_level, made  # noqa: E402
from tokenizers import Tokenizer as LibraryTokenizer  # noqa: E402

import attendo  # noqa: E402
from attendo.data.chat import Message  # noqa: E402
from attendo.errors import AttendoError  # noqa: E402
from attendo.interop.huggingface.importing import import_model  # noqa: E402

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 96, "max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32}
CASES = {
    "llama F32": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    "llama Q5_K": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "hidden_size": 256}),
    "llama BF16": ("Llama", {"rope_parameters": LLAMA3 | {"factor": 32.0}, "head_dim": 32}),
    "qwen2 Q8_0": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3 F16": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
TEXTS = [
    "the quick brown fox",
    "e\u0301 fox",
    "it won't  rain\n in Łódź 2025 !",
    " 猫 は",
    "",
    "x\t🙂 YES'LL",
]
SCALE = {"F32": 0, "F16": 1, "BF16": 32}
NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
NAMES |= {f"self_attn.{x}_proj": f"attn_{'output' if x == 'o' else x}" for x in "qkvo"}
NAMES |= {f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"} | {"input_layernorm": "attn_norm"}
NAMES |= {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")} | {"post_attention_layernorm": "ffn_norm"}


def written(path, case, tokenizer, **keys):
    """A GGUF file as llama.cpp's converter lays it out, and the model of `transformers` with its rounded weights."""
    kind, type_name = case.split()
    name, more = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(vocab_size=len(tokenizer["tokens"]), **SIZES | more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    writer = gguf.GGUFWriter(path, kind)
    width = getattr(config, "head_dim", None) or config.hidden_size // 4
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(width)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)
    elif rope["rope_type"] == "llama3":
        plain = 1 / rope["rope_theta"] ** (torch.arange(0, width, 2) / width)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    for key, value in (tokenizer | keys).items():
        own = f"tokenizer.{'' if key == 'chat_template' else 'ggml.'}{key}"
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](own, value)
    for name, weight in model.named_parameters():
        kind_of = gguf.GGMLQuantizationType[type_name if weight.ndim == 2 else "F32"]
        weight.data += 0.1 * torch.randn_like(weight)
        if type_name == "Q5_K" and weight.ndim == 2 and weight.shape[1] % 256 == 0:
            data = random_q5_k(weight.shape)
        else:
            kind_of = gguf.GGMLQuantizationType.F32 if type_name == "Q5_K" else kind_of
            data = gguf.quants.quantize(weight.detach().numpy(), kind_of)
        weight.data = torch.from_numpy(gguf.quants.dequantize(data, kind_of)).view_as(weight).clone()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = 4 if "q_proj" in name else 2  # as `permute` of convert_hf_to_gguf.py
            data = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
            data = np.ascontiguousarray(data.swapaxes(1, 2)).reshape(heads * width, *data.shape[3:])
        *_, n, rest = ["", "", *name.removeprefix("model.").removeprefix("layers.").split(".", 1)]
        layer, _, part = rest.rpartition(".") if n.isdigit() else (n, "", rest)
        place = f"blk.{n}.{NAMES[layer]}.{part}" if n.isdigit() else f"{NAMES[layer]}.{part}"
        writer.add_tensor(place, data, raw_dtype=kind_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def random_q5_k(shape):
    """Blocks of 256 weights in 176 bytes, which the package can only read: two scales in float16, then integers."""
    rows, blocks = shape[0], shape[1] // 256
    found = np.random.default_rng(0).integers(0, 256, (rows, blocks, 176), dtype=np.uint8)
    found[..., :4] = np.array([3e-5, 3e-4], np.float16).view(np.uint8)
    return found.reshape(rows, blocks * 176)


def llama_tokenizer(folder):
    """The keys of a SentencePiece tokenizer."""
    folder.mkdir()
    made("llama", folder)
    pieces = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = range(pieces.get_piece_size())
    kinds = [2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else 1 for i in ids]
    tokens, scores = [pieces.id_to_piece(i) for i in ids], [pieces.get_score(i) for i in ids]
    return {"model": "llama", "tokens": tokens, "scores": scores, "token_type": kinds, **IDS}, pieces.encode


def byte_level_tokenizer(folder, pre):
    """The keys of a byte-level tokenizer."""
    folder.mkdir()
    vocab, merges = byte_level(folder, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokens = sorted(vocab, key=vocab.get)
    keys = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [3, 3, 3] + [1] * (len(tokens) - 3)}
    library = LibraryTokenizer.from_str(
        transformers.Qwen2Tokenizer(vocab=vocab, merges=merges).backend_tokenizer.to_str()
    )
    keys |= {"merges": [" ".join(pair) for pair in merges], "eos_token_id": 2, "bos_token_id": 0}
    return keys, lambda text: library.encode(text).ids


@pytest.mark.some(4)
@pytest.mark.parametrize("case", CASES)
def test_an_imported_file_gives_the_logits_of_transformers_and_its_ids(case, tmp_path):
    is_llama = case.startswith("llama")
    keys, encode = llama_tokenizer(tmp_path / "t") if is_llama else byte_level_tokenizer(tmp_path / "t", "qwen2")
    model = written(tmp_path / "model.gguf", case, keys, **({} if is_llama else {"chat_template": CHATML}))
    import_model(tmp_path / "model.gguf", tmp_path / "run")
    found = attendo.load(tmp_path / "run")
    ids = torch.randint(3, len(keys["tokens"]), (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = model(ids).logits
        assert (found.model(ids) - wanted).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max()))
    assert [found.tokenizer.encode(text) for text in TEXTS] == [encode(text) for text in TEXTS]
    assert found.tokenizer.specials.prompt([9]) == ([1, 9] if is_llama else [9])
    if not is_llama:
        chat = found.tokenizer.chat.encode(found.tokenizer, [Message("user", "rain")], True)[0]
        assert chat == [1, *encode("user\nrain"), 2, *encode("\n"), 1, *encode("assistant\n")]
        assert found.tokenizer.eos_id == 2
    assert json.loads((tmp_path / "run/card.json").read_text())["imported"]["from"] == "gguf"


CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_damaged_or_unknown_file_is_refused_in_one_line_and_nothing_is_written(tmp_path):
    keys, _ = byte_level_tokenizer(tmp_path / "t", "qwen2")
    path = tmp_path / "model.gguf"
    written(path, "qwen3 F16", keys)
    whole = path.read_bytes()

    def refused(data):
        path.write_bytes(data)
        with pytest.raises(AttendoError) as caught:
            import_model(path, tmp_path / "run")
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    for size in (0, 3, 8, 30, 100, 2000, 6000, len(whole) // 2, len(whole) - 1):
        assert "is not a valid model (" in refused(whole[:size]), size
    for old, new, words in (
        (b"GGUF", b"GGML", "magic"),
        (b"qwen3", b"gemma", "general.architecture=gemma is unknown (expected ('llama', 'qwen2', 'qwen3'))"),
        (b"tokenizer.ggml.pre", b"tokenizer.ggml.prx", "tokenizer gpt2 with pre-tokenizer None is unknown"),
        (b"qwen3.block_count", b"qwen3.block_cOUNT", "(KeyError: 'block_count')"),
        (
            b"qwen3.attention.key_length",
            b"qwen3.rope.scaling.new_one",
            "qwen3.rope.scaling.new_one is not supported",
        ),
        (
            b"blk.1.attn_q.weight",
            b"blk.1.attn_q.weighs",
            "the weights have no model.layers.1.self_attn.q_proj.weight",
        ),
    ):
        assert words in refused(whole.replace(old, new)), old
    path.unlink()
    with pytest.raises(AttendoError, match=r"model\.gguf: no such file or folder"):
        import_model(path, tmp_path / "run")
