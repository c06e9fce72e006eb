"""The export to Hugging Face: a folder with the model and the tokenizer, which `transformers` loads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attendo.bundle import Bundle, embeds_texts
from attendo.config import build
from attendo.data.chat import CHAT_TOKENS
from attendo.data.tokenizers import SPECIALS, Kind, Tokenizer
from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.options import DecodingConfig
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop.huggingface.chat_templates import jinja_of
from attendo.interop.huggingface.importing import POOLINGS
from attendo.interop.huggingface.model_files import place_of, write_model
from attendo.interop.huggingface.tokenizers import renamed, template
from attendo.interop.parity import Foreign, Found
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import added_token
from attendo.models import Model, ModelConfig
from attendo.nn.layers import Pooling, pool

_POOLING = "1_Pooling"
MOST = 512
"""The maximum number of tokens for which `generate` is configured. The context length can be smaller."""


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """Return the reason why no class of `transformers` supports a model, or None if a class supports it.

    >>> why_not(ModelConfig(vocab_size=11), "bpe")
    >>> why_not(ModelConfig(vocab_size=11, positions="alibi"), "bpe")
    "no model of transformers supports positions='alibi' with the other settings here"
    """
    if kind == "word":
        return f"tokenizer.kind={kind!r} has no equivalent in transformers"
    try:
        place_of(config)
    except AttendoError as error:
        return str(error)
    return None


def write(folder: Path, bundle: Bundle, model: Model, out: Path) -> None:
    """Write config.json, model.safetensors, the tokenizer and generation_config.json to the empty folder `out`.

    >>> from tempfile import mkdtemp
    >>> write(Path(), Bundle({"model": {"vocab_size": 9, "positions": "alibi"}}, None), None, Path(mkdtemp()))
    Traceback (most recent call last):
    attendo.errors.AttendoError: no model of transformers supports positions='alibi' with the other settings here
    """
    place_of(bundle.model_config)
    own = bundle.tokenizer.specials
    ids = {"pad_token_id": own.pad_id, "bos_token_id": own.bos_id, "eos_token_id": own.eos_id}
    more: dict[str, Any] = dict(ids)
    if model.config.architecture == "encoder-decoder":
        more["decoder_start_token_id"] = own.begin[0]
    if labels := list(bundle.card.get("labels", {})):
        if model.config.pooling == "none":
            labels = ["O", *(f"{place}-{label}" for label in labels for place in "BI")]
        more["id2label"] = {str(n): label for n, label in enumerate(labels)}
        more["label2id"] = {label: n for n, label in enumerate(labels)}
    write_model(model, out, more)
    write_atomic(out / "tokenizer.json", _json(_tokenizer(bundle)))
    write_atomic(out / "tokenizer_config.json", _json(_tokenizer_config(bundle)))
    if embeds_texts(bundle.model_config):
        _write_pooling(bundle, out)
    if (how := _generation(bundle)) is not None:
        write_atomic(out / "generation_config.json", _json(ids | how))


def opened(out: Path) -> Foreign:
    """Load an exported model with `transformers`. Raise AttendoError if `transformers` is not installed.

    >>> opened(Path("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere/config.json'
    """
    name = json.loads((out / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    transformers = required("transformers")
    transformers.utils.logging.disable_progress_bar()
    how = {"add_pooling_layer": False} if name == "BertModel" else {}
    model = getattr(transformers, name).from_pretrained(out, local_files_only=True, **how).eval()
    if not model.config.is_encoder_decoder:
        pooling = out / _POOLING / "config.json"
        settings = json.loads(pooling.read_text(encoding="utf-8")) if pooling.is_file() else {}
        return ForeignModel(model, next((name for name, theirs in POOLINGS.items() if settings.get(theirs)), None))
    return _ForeignTranslator(model, transformers.AutoTokenizer.from_pretrained(out, local_files_only=True))


def _write_pooling(bundle: Bundle, out: Path) -> None:
    """Write the additional files for sentence-transformers."""
    pooling, table = bundle.model_config.pooling, bundle.tables.get("embedding", {})
    said = {theirs: name == pooling for name, theirs in POOLINGS.items()}
    modules = ["Transformer", "Pooling", *(["Normalize"] if table.get("normalize") else [])]
    listed = []
    for n, name in enumerate(modules):
        path = f"{n}_{name}" if n else ""
        (out / path).mkdir(exist_ok=n == 0)
        listed.append({"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"})
    width = {"word_embedding_dimension": bundle.model_config.d_model}
    write_atomic(out / _POOLING / "config.json", _json(width | said))
    write_atomic(out / "modules.json", json.dumps(listed, indent=1) + "\n")
    sizes = {"max_seq_length": bundle.model_config.max_len, "do_lower_case": False}
    write_atomic(out / "sentence_bert_config.json", _json(sizes))


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def library_document_of(tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[int, str]]:
    """Return the document of the `tokenizers` library without special tokens, and the special tokens by id.

    Raise AttendoError if the tokenizer has one document for sources and one for targets.

    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> library_document_of(train_tokenizer(["a"], TokenizerConfig(kind="byte")))[1]
    {0: '<pad>', 1: '<unk>', 2: '<s>', 3: '</s>'}
    """
    document = json.loads(tokenizer.text)
    if tokenizer.kind == "imported":
        if document["target"] is not None or document["source"]["ids"] is not None:
            raise AttendoError(
                "this imported tokenizer treats sources and targets differently, which tokenizer.json cannot "
                "express. Use the tokenizer of the original model"
            )
        return document["source"]["library"], {int(i): piece for i, piece in document["marks"].items()}
    marks = dict[int, str](enumerate(SPECIALS))
    if tokenizer.chat is None:
        return document, marks
    return document["library"], marks | dict(enumerate(CHAT_TOKENS, tokenizer.vocab_size - len(CHAT_TOKENS)))


def _tokenizer(bundle: Bundle) -> dict[str, Any]:
    """Return the document of the tokenizer, with the special tokens that the model reads before and after a text."""
    document, marks = library_document_of(bundle.tokenizer)
    words = [token for token in document.get("added_tokens") or () if token["id"] not in marks]
    added = words + [added_token(i, piece) for i, piece in sorted(marks.items())]
    own, architecture = bundle.tokenizer.specials, bundle.model_config.architecture
    around = {"encoder-decoder": own.around_source, "decoder": (own.before_prompt, ())}
    names = dict(enumerate(bundle.tokenizer.entries))
    # the library gives a special token the id of the vocabulary entry with its name, or a new id
    own_names = {f" {piece}": piece for piece in marks.values()}
    return document | {
        "model": renamed(document["model"], own_names),
        "added_tokens": added,
        "post_processor": template(around.get(architecture, own.around_text), names),
    }


def _tokenizer_config(bundle: Bundle) -> dict[str, Any]:
    entries, own, chat = bundle.tokenizer.entries, bundle.tokenizer.specials, bundle.tokenizer.chat
    ids = {"pad": own.pad_id, "bos": own.bos_id, "eos": own.eos_id, "unk": own.unk_id}
    if bundle.model_config.architecture == "masked":
        ids["mask"] = own.mask_id
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": entries[i] for name, i in ids.items() if i >= 0 and entries[i]},
        "model_max_length": bundle.model_config.max_len,
        "padding_side": "left" if bundle.model_config.architecture == "decoder" else "right",
        "clean_up_tokenization_spaces": False,
        **({} if chat is None else {"chat_template": jinja_of(chat, entries)}),
    }


def _generation(bundle: Bundle) -> dict[str, Any] | None:
    """Return the options of `generate` that are closest to the decoding settings of the run."""
    table = bundle.tables.get("decoding", {})
    match bundle.model_config.architecture:
        case "encoder-decoder":
            decoding, own = build(DecodingConfig, table, "config.toml [decoding]"), bundle.tokenizer.specials
            beam = decoding.beam
            return {
                "decoder_start_token_id": own.begin[0],
                **({"forced_bos_token_id": own.begin[1]} if len(own.begin) > 1 else {}),
                "suppress_tokens": sorted({*bundle.tokenizer.never, own.pad_id} - {own.eos_id}),
                "max_length": min(bundle.model_config.max_len, MOST),
                "num_beams": beam,
                **({"early_stopping": True, "length_penalty": decoding.length_penalty} if beam > 1 else {}),
                **({"no_repeat_ngram_size": decoding.no_repeat_ngram} if decoding.no_repeat_ngram else {}),
            }
        case "decoder":
            sampling = build(SamplingConfig, table, "config.toml [decoding]")
            how: dict[str, Any] = {
                "do_sample": sampling.temperature > 0,
                "max_new_tokens": sampling.max_tokens,
            }
            if sampling.temperature > 0:
                how |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
            if (chat := bundle.tokenizer.chat) is not None:
                how["eos_token_id"] = sorted({bundle.tokenizer.eos_id, chat.end_id})
            return how
        case _:
            return None


@dataclass
class _ForeignTranslator:
    model: Any
    tokenizer: Any

    @property
    def same_search(self) -> Mapping[str, Any]:
        """The DecodingConfig options with which attendo's search equals that of `generate`."""
        how = self.model.generation_config
        return {
            "length_norm": "plain",
            "refill": how.num_beams > 1,
            "max_length_ratio": 0.0,
            "max_length_extra": how.max_length - 1,
        }

    def translate(self, texts: Sequence[str], beam: int) -> list[Found]:
        """Translate one text at a time with `generate`, because batching slightly changes the results."""
        found = []
        for text in texts:
            read = self.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            with torch.inference_mode():
                how = {"return_dict_in_generate": True, "output_scores": True} if beam > 1 else {}
                written = self.model.generate(**read, num_beams=beam, **how)
            ids = (written.sequences if beam > 1 else written)[0].tolist()
            ends = {self.model.config.eos_token_id, self.model.config.pad_token_id}
            begin = 1 + (self.model.generation_config.forced_bos_token_id is not None)
            pieces = self.tokenizer.convert_ids_to_tokens([i for i in ids[begin:] if i not in ends])
            score = float(written.sequences_scores[0]) if beam > 1 else float("nan")
            found.append(Found(pieces, self.tokenizer.decode(ids, skip_special_tokens=True), score))
        return found


@dataclass
class ForeignModel:
    """A model of `transformers` that computes logits, or vectors if `pooling` is given."""

    model: Any
    pooling: Pooling | None

    def logits(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the logits of each row (for an embedding model: its vector), computed one row at a time."""
        found = []
        for row in rows:
            with torch.inference_mode():
                output = self.model(input_ids=torch.tensor([list(row)]))
            vector = output.logits if self.pooling is None else pool(output.last_hidden_state, self.pooling)
            found.append(vector[0].numpy())
        return found
