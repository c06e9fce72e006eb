"""GGUF files, the format of llama.cpp: names, the reading of a file, and its form as a Hugging Face model folder."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor

from attendo.data.tokenizers import library_document
from attendo.errors import AttendoError, is_failure
from attendo.files import write_atomic
from attendo.interop.huggingface.rotary_scaling import described, scaled
from attendo.interop.huggingface.tokenizers import NAMES, template
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import added_tokens, pieces_document
from attendo.nn.positions import frequencies

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""The architectures of GGUF that attendo reads and writes. A Mistral model has the architecture llama."""

KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""The keys of config.json, by the keys of a GGUF file after the architecture."""

_OPTIONAL = ("attention.head_count_kv", "attention.key_length", "rope.freq_base")
_SCALING = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""The keys of a rope table, by the keys of a GGUF file after `rope.scaling`."""

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor by which the frequencies of RoPE are divided (Llama 3)."""

_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
"""The types of tokens, which equal those of SentencePiece. The type 1 is an ordinary token."""


def tensor_names(n_layers: int) -> dict[str, str]:
    """Return the names of a Hugging Face model's tensors, by the names in a GGUF file.

    >>> tensor_names(1)["blk.0.attn_q.weight"]
    'model.layers.0.self_attn.q_proj.weight'
    """
    layers = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for n in range(n_layers):
        layers |= {f"blk.{n}.{name}": f"model.layers.{n}.{theirs}" for name, theirs in _TENSORS.items()}
    return {
        f"{name}.{part}": f"{theirs}.{part}" for name, theirs in layers.items() for part in ("weight", "bias")
    }


def is_turned(architecture: str, name: str) -> bool:
    """Return whether RoPE pairs adjacent rows of a tensor. Hugging Face pairs row i with row i + head_dim / 2.

    >>> is_turned("llama", "blk.0.attn_q.weight"), is_turned("qwen2", "blk.0.attn_q.weight")
    (True, False)
    """
    return architecture == "llama" and (".attn_q." in name or ".attn_k." in name)


def rope_factors(table: Mapping[str, Any], width: int, longest: int) -> Tensor:
    """Return the factors by which the scaling of a rope table divides the frequencies. `longest` is the context length.

    >>> rope_factors({"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}, 4, 99)
    tensor([4., 4.])
    """
    base = table["rope_theta"]
    return (frequencies(width // 2, width, base) / scaled(table, width, base, longest)[0]).float()


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe", "qwen2")
"""The names of the ways to cut texts before byte-level BPE (`tokenizer.ggml.pre`)."""
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


def pre_tokenizer(name: str) -> dict[str, Any]:
    """Return the pre-tokenizer of the `tokenizers` library with a name of PRE_TOKENIZERS.

    >>> cut_text({"pre_tokenizer": pre_tokenizer("smollm")}, "it's 12")
    ['it', "'s", 'Ġ', '1', '2']
    """
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if name == "gpt-2":
        return level
    if name == "smollm":
        first = {"type": "Digits", "individual_digits": True}
    else:
        digits = r"\p{N}{1,3}" if name == "llama-bpe" else r"\p{N}"
        pattern = {"Regex": f"{_WORDS}|{digits}|{_REST}"}
        first = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        level |= {"use_regex": False}
    return {"type": "Sequence", "pretokenizers": [first, level]}


def cut_text(document: Mapping[str, Any], text: str) -> list[str]:
    """Return the words into which a document of the `tokenizers` library normalizes and cuts a text."""
    parts = {name: document.get(name) for name in ("normalizer", "pre_tokenizer")}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    empty = library_document(model, normalizer=None, cuts=None, decoder=None)
    library = LibraryTokenizer.from_str(json.dumps(empty | parts))
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    cuts = library.pre_tokenizer
    return [text] if cuts is None else [word for word, _ in cuts.pre_tokenize_str(text)]


class GgufFile:
    """A GGUF file, whose tensors have the names, shapes and order of rows of a Hugging Face model.

    Args:
        path: The file, which is memory-mapped.

    Raises:
        AttendoError: The file is damaged or truncated, or the model is not supported.
    """

    def __init__(self, path: Path) -> None:
        self._gguf: Any = required("gguf")
        try:
            # copy-on-write, because torch requires writable memory
            self._reader = self._gguf.GGUFReader(path, "c")
            self._values = {key: field.contents() for key, field in self._reader.fields.items()}
        except BaseException as error:
            if not is_failure(error):
                raise
            raise AttendoError(
                f"{path} is not a GGUF file, or is damaged or truncated ({str(error)[:80]}). Download it again"
            ) from error
        self.architecture = str(self._values.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise AttendoError(
                f"{path}: general.architecture={self.architecture} is not supported (supported: "
                f"{', '.join(ARCHITECTURES)})"
            )
        if self._values.get("split.count", 1) > 1:
            raise AttendoError(
                f"{path} is a part of a model. First merge the parts: llama-gguf-split --merge"
            )
        for name in ("expert_count", "attention.scale"):
            if self._own(name):
                raise AttendoError(f"{path}: {self.architecture}.{name}={self._own(name)} is not supported")
        if missing := [name for name in KEYS if self._own(name) is None and name not in _OPTIONAL]:
            raise AttendoError(f"{path} has no {self.architecture}.{missing[0]}. Download it again")
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._factors = tensors.pop(ROPE_FACTORS, None)
        self._names = {name: name for name in tensors} | tensor_names(self._own("block_count"))
        self.tensors: dict[str, Any] = {self._names[name]: tensor for name, tensor in tensors.items()}

    def _own(self, name: str) -> Any:
        return self._values.get(f"{self.architecture}.{name}")

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor by its name in a Hugging Face model. Quantized tensors are returned in float32."""
        tensor = self.tensors[name]
        kind, data = tensor.tensor_type.name, tensor.data
        if kind in ("F32", "F16"):
            found = torch.from_numpy(data)
        elif kind == "BF16":
            found = torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
        else:
            try:
                found = torch.from_numpy(self._gguf.quants.dequantize(data, tensor.tensor_type))
            except NotImplementedError:
                raise AttendoError(f"{tensor.name} has the type {kind}, which is not supported") from None
        if is_turned(self.architecture, tensor.name):
            found = found.unflatten(0, (-1, self._width // 2, 2)).transpose(1, 2).flatten(0, 2)
        return found

    @property
    def _width(self) -> int:
        return self._own("attention.key_length") or self._own("embedding_length") // self._own(
            "attention.head_count"
        )

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        found = {theirs: self._own(name) for name, theirs in KEYS.items() if self._own(name) is not None}
        # files contain float32, whose shortest form is the number that was meant
        found |= {
            name: float(str(np.float32(value))) for name, value in found.items() if type(value) is float
        }
        ids = {f"{name}_token_id": self._token(name) for name in ("bos", "eos", "pad")}
        return {
            "model_type": self.architecture,
            "_name_or_path": self._values.get("general.name"),
            **found,
            **{name: i for name, i in ids.items() if i is not None},
            "vocab_size": int(self.tensors["model.embed_tokens.weight"].shape[1]),
            "tie_word_embeddings": "lm_head.weight" not in self.tensors,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self.tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self.tensors,
            "partial_rotary_factor": (self._own("rope.dimension_count") or self._width) / self._width,
            "rope_parameters": self._rope(float(found.get("rope_theta", 10000.0))),
        }

    def _rope(self, base: float) -> dict[str, Any]:
        start = f"{self.architecture}.rope.scaling."
        table: dict[str, Any] = {"rope_theta": base}
        for key, value in self._values.items():
            if key.startswith(start) and (name := key.removeprefix(start)) != "finetuned":
                if name not in _SCALING:
                    raise AttendoError(f"{key}={value} is not supported")
                table[_SCALING[name]] = value
        if table.get("rope_type", "none") == "none":
            table = {"rope_theta": base, "rope_type": "default"}
        if self._factors is None:
            return table
        factors = torch.from_numpy(self._factors.data)
        table |= described((frequencies(self._width // 2, self._width, base) / factors).tolist(), base)
        if not torch.allclose(
            rope_factors(table, self._width, self._own("context_length")), factors, rtol=1e-4
        ):
            raise AttendoError(f"{ROPE_FACTORS} contains neither the scaling of Llama 3 nor linear scaling")
        return table

    def _token(self, role: str) -> int | None:
        """Return the id of the special token with a role, for example "eos", or None if there is none."""
        full = {"unk": "unknown", "pad": "padding", "sep": "seperator"}.get(role, role)  # spelled so in files
        default = (
            {"bos": 1, "eos": 2, "unk": 0} if self._values.get("tokenizer.ggml.model") == "llama" else {}
        )
        return self._values.get(f"tokenizer.ggml.{full}_token_id", default.get(role))

    def tokenizer(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the contents of tokenizer.json and tokenizer_config.json."""
        values = {key.removeprefix("tokenizer.ggml."): value for key, value in self._values.items()}
        tokens: list[str] = values.get("tokens", [])
        kinds: list[int] = values.get("token_type", [1] * len(tokens))
        pre = _ALIASES.get(values.get("pre", ""), values.get("pre"))
        match values.get("model"):
            case "llama":
                scores = values.get("scores", [0.0] * len(tokens))
                prefixed = values.get("add_space_prefix", True)
                document = pieces_document(tokens, kinds, scores, prefixed=prefixed)
            case "gpt2" if pre in PRE_TOKENIZERS:
                document = _byte_level(tokens, kinds, values.get("merges", []), pre)
            case model:
                raise AttendoError(
                    f"tokenizer.ggml.model={model} with tokenizer.ggml.pre={pre} is not supported (supported: "
                    f"llama, and gpt2 with {', '.join(PRE_TOKENIZERS)})"
                )
        bos_id = self._token("bos")
        if (
            values.get("add_bos_token", values["model"] == "llama" or pre == "llama-bpe")
            and bos_id is not None
        ):
            document["post_processor"] = template(((bos_id,), ()), dict(enumerate(tokens)))
        ids = {name: self._token(name) for name in NAMES}
        config = {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None}
        return document, config | {"chat_template": self._values.get("tokenizer.chat_template")}


def _byte_level(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str], pre: str
) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "ignore_merges": pre == "llama-bpe",
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [merge.split(" ") for merge in merges],
    }
    return library_document(
        model,
        added=added_tokens(tokens, kinds),
        normalizer={"type": "NFC"} if pre == "qwen2" else None,
        cuts=pre_tokenizer(pre),
        decoder=pre_tokenizer("gpt-2"),
    )


@contextmanager
def hugging_face_files(path: Path) -> Iterator[tuple[Path, GgufFile]]:
    """Yield a temporary folder with config.json and the tokenizer of a GGUF file, and the opened file.

    Raise AttendoError for an unsupported or damaged file.

    >>> with hugging_face_files(Path("nowhere.gguf")):  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     pass
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere.gguf is not a GGUF file, or is damaged or truncated
    """
    file = GgufFile(path)
    with tempfile.TemporaryDirectory() as place:
        try:
            document, tokenizer_config = file.tokenizer()
            for name, table in (
                ("config.json", file.config),
                ("tokenizer.json", document),
                ("tokenizer_config.json", tokenizer_config),
            ):
                write_atomic(Path(place, name), json.dumps(table, ensure_ascii=False))
            yield Path(place), file
        except AttendoError as error:
            raise AttendoError(f"{path}: {str(error).replace(place, path.name)}") from error
