"""GGUF files, the format of llama.cpp: their names, and their conversion to the files of a Hugging Face model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendo.data.tokenizers import library_document
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop.huggingface.families import FAMILIES
from attendo.interop.huggingface.rotary_scaling import described, scaled
from attendo.interop.huggingface.table import Row
from attendo.interop.huggingface.tokenizers import template
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import added_token, sentencepiece_document
from attendo.nn.positions import frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""The supported architectures. Mistral models have the architecture llama."""


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=") for pair in text.split())


KEYS = _pairs("""
    context_length=max_position_embeddings embedding_length=hidden_size block_count=num_hidden_layers
    feed_forward_length=intermediate_size attention.head_count=num_attention_heads
    attention.head_count_kv=num_key_value_heads attention.layer_norm_rms_epsilon=rms_norm_eps
""")
"""The keys of config.json, by the keys of a GGUF file without the architecture."""
_SCALING = _pairs("type=rope_type factor=factor original_context_length=original_max_position_embeddings")
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor by which the frequencies of RoPE are divided (Llama 3)."""


def rows_of(architecture: str, n_layers: int) -> dict[str, Row]:
    """Return the description of each tensor of a Hugging Face model, by its name in a GGUF file.

    >>> rows_of("llama", 1)["blk.0.attn_q.weight"].theirs
    'model.layers.0.self_attn.q_proj.weight'
    """
    gguf: Any = required("gguf")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], n_layers)
    rows = [
        row.of_block(n) for row in FAMILIES[architecture][0].weights for n in range(n_layers if row.of_a_block else 1)
    ]
    return {names.get_name(row.theirs, (".weight", ".bias")): row for row in rows}


def rope_factors(table: Mapping[str, Any], width: int, longest: int) -> Tensor:
    """Return the factors by which a rope table divides the frequencies of a head. `longest` is the context length.

    >>> rope_factors({"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}, 4, 99)
    tensor([4., 4.])
    """
    base = table["rope_theta"]
    return (frequencies(width // 2, width, base) / scaled(table, width, base, longest)[0]).float()


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
_WORDS += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, _LEVEL | {"use_regex": False}]}


_DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _LEVEL,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _LEVEL]},
    "llama-bpe": _split(_WORDS),
    "qwen2": _split(_WORDS.replace("{1,3}", "")),
}
"""The pre-tokenizers of byte-level BPE for the `tokenizers` library, by their names (`tokenizer.ggml.pre`)."""
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


class GgufFile:
    """A memory-mapped GGUF file, whose tensors have the names and shapes of a Hugging Face model.

    The constructor raises AttendoError for an unsupported model, and errors of the package `gguf` for a damaged file.
    """

    def __init__(self, path: Path) -> None:
        self._gguf: Any = required("gguf")
        reader = self._gguf.GGUFReader(path, "c")  # copy-on-write, because torch requires writable memory
        values = {key: field.contents() for key, field in reader.fields.items()}
        self.architecture = values["general.architecture"]
        if self.architecture not in ARCHITECTURES:
            raise AttendoError(f"general.architecture={self.architecture} is unknown (expected {ARCHITECTURES})")
        if values.get("split.count", 1) > 1:
            raise AttendoError("the model has several files. First merge them: llama-gguf-split --merge")
        self._values = {
            key.removeprefix(f"{self.architecture}.").removeprefix("tokenizer.ggml."): value
            for key, value in values.items()
        }
        width = self._values["embedding_length"] // self._values["attention.head_count"]
        self._width = self._values.get("attention.key_length", width)
        self._rows = rows_of(self.architecture, self._values["block_count"])
        names = {name: row.theirs for name, row in self._rows.items()}
        self.tensors: dict[str, Any] = {names.get(one.name) or one.name: one for one in reader.tensors}
        self._factors = self.tensors.pop(ROPE_FACTORS, None)
        roles = _pairs("bos=bos eos=eos unk=unknown pad=padding").items()
        ids = {role: self._values.get(f"{name}_token_id") for role, name in roles}
        self._special = {role: i for role, i in ids.items() if i is not None}

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor by its name in a Hugging Face model. Quantized tensors are returned in float32."""
        tensor = self.tensors[name]
        kind, data = tensor.tensor_type, tensor.data
        if kind.name == "BF16":
            found = torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
        else:
            found = torch.from_numpy(data if kind.name == "F16" else self._gguf.quants.dequantize(data, kind))
        if self.architecture == "llama" and tensor.name in self._rows and self._rows[tensor.name].turned:
            found = found.unflatten(0, (-1, self._width // 2, 2)).transpose(1, 2).flatten(0, 2)
        return found

    def config(self) -> dict[str, Any]:
        """Return the contents of config.json."""
        return {
            "model_type": self.architecture,
            "_name_or_path": self._values.get("general.name"),
            **{theirs: self._values[name] for name, theirs in KEYS.items()},
            **{f"{role}_token_id": i for role, i in self._special.items()},
            "head_dim": self._width,
            "vocab_size": int(self.tensors["model.embed_tokens.weight"].shape[1]),
            "tie_word_embeddings": "lm_head.weight" not in self.tensors,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self.tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self.tensors,
            "partial_rotary_factor": self._values.get("rope.dimension_count", self._width) / self._width,
            "rope_parameters": self._rope(self._values.get("rope.freq_base", 10000.0)),
        }

    def _rope(self, base: float) -> dict[str, Any]:
        start = "rope.scaling."
        given = {key.removeprefix(start): value for key, value in self._values.items() if key.startswith(start)}
        if unknown := given.keys() - _SCALING.keys() - {"finetuned"}:
            raise AttendoError(f"{self.architecture}.{start}{min(unknown)} is not supported")
        names = () if given.get("type") == "none" else _SCALING.keys() & given.keys()
        table = {"rope_theta": base} | {_SCALING[name]: given[name] for name in names}
        if self._factors is not None:
            factors, width = torch.from_numpy(self._factors.data), self._width
            table |= described((frequencies(width // 2, width, base) / factors).tolist(), base)
            again = rope_factors(table, width, self._values["context_length"])
            if not torch.allclose(again, factors, rtol=1e-4):
                raise AttendoError(f"{ROPE_FACTORS} is neither the scaling of Llama 3 nor linear scaling")
        return table

    def tokenizer(self, place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents of tokenizer.json and tokenizer_config.json. Other files are written to a folder."""
        values, special = self._values, self._special
        tokens, kinds, kind = values["tokens"], values["token_type"], values["model"]
        pre = _ALIASES.get(values.get("pre", ""), values.get("pre"))
        if kind == "llama":
            proto = required("sentencepiece.sentencepiece_model_pb2").ModelProto()
            for token, number, score in zip(tokens, kinds, values["scores"], strict=True):
                proto.pieces.add(piece=token, type=number, score=score)
            proto.trainer_spec.model_type, proto.trainer_spec.byte_fallback = proto.trainer_spec.BPE, True
            proto.normalizer_spec.add_dummy_prefix = values.get("add_space_prefix", True)
            proto.normalizer_spec.remove_extra_whitespaces = False
            (place / "tokenizer.model").write_bytes(proto.SerializeToString())
            document = sentencepiece_document(place / "tokenizer.model")
        elif kind == "gpt2" and pre in PRE_TOKENIZERS:
            vocab = {token: i for i, token in enumerate(tokens)}
            merges = [merge.split(" ") for merge in values["merges"]]
            user = self._gguf.TokenType.USER_DEFINED
            document = library_document(
                {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre == "llama-bpe"},
                added=[added_token(i, tokens[i], special=k != user) for i, k in enumerate(kinds) if k > 1],
                normalizer={"type": "NFC"} if pre == "qwen2" else None,
                cuts=PRE_TOKENIZERS[pre],
                decoder=_LEVEL,
            )
        else:
            known = f"llama, gpt2 with {', '.join(PRE_TOKENIZERS)}"
            raise AttendoError(f"tokenizer {kind} with pre-tokenizer {pre} is unknown (expected {known})")
        if values.get("add_bos_token", kind == "llama" or pre == "llama-bpe"):
            document["post_processor"] = template(((special["bos"],), ()), tokens)
        config = {f"{role}_token": tokens[i] for role, i in special.items()}
        return document, config | {"chat_template": values.get("tokenizer.chat_template")}


@contextmanager
def hugging_face_files(path: Path) -> Iterator[tuple[Path, GgufFile]]:
    """Yield a temporary folder with config.json and the tokenizer of a GGUF file, and the opened file.

    >>> with hugging_face_files(Path("none.gguf")):
    ...     pass
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'none.gguf'
    """
    with tempfile.TemporaryDirectory() as place:
        try:
            file = GgufFile(path)
            document, names = file.tokenizer(Path(place))
            tables = {"config": file.config(), "tokenizer": document, "tokenizer_config": names}
            for name, table in tables.items():
                write_atomic(Path(place, f"{name}.json"), json.dumps(table))
            yield Path(place), file
        except AttendoError as error:
            raise AttendoError(f"{path}: {str(error).replace(place, path.name)}") from error
