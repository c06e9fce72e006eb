"""The export of translators as packages that Argos Translate and LibreTranslate install offline."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attendo.bundle import Bundle, load_tokenizer
from attendo.data.languages import name_of
from attendo.data.tokenizers import Kind, Tokenizer
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop import to_ctranslate2
from attendo.interop.onnx_graph import Graph, Weights
from attendo.interop.parity import Found
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import why_no_sentencepiece
from attendo.interop.to_ctranslate2 import Quantization
from attendo.models import Model, ModelConfig

LENGTH_PENALTY, BEAM, LONGEST = 0.2, 4, 256
"""The search settings of Argos Translate. LONGEST is the length limit of CTranslate2, in tokens."""
_MODEL = ("model.bin", "config.json", "shared_vocabulary.json")
_TIMES = (1980, 1, 1, 0, 0, 0)  # fixed, so equal models produce identical packages


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """Return the reason why a model cannot be exported to Argos Translate, or None if it can be exported.

    >>> why_not(ModelConfig(vocab_size=11), "character")
    "tokenizer.kind='character' cannot be written as a SentencePiece model (supported: bpe and unigram)"
    >>> why_not(ModelConfig(vocab_size=11, architecture="decoder", n_encoder_layers=0), "bpe")
    "architecture='decoder' does not translate (Argos Translate supports only translators)"
    """
    if config.architecture != "encoder-decoder":
        return f"architecture={config.architecture!r} does not translate (Argos Translate supports only translators)"
    if config.positions == "learned" and config.max_len < LONGEST:
        return f"positions='learned' end at max_len={config.max_len} (Argos Translate requires {LONGEST})"
    return to_ctranslate2.why_not(config, kind) or why_no_sentencepiece(kind)


def write(
    folder: Path,
    bundle: Bundle,
    model: Model,
    out: Path,
    quantization: Quantization = "float32",
    languages: tuple[str, str] | None = None,
) -> None:
    """Write the package `translate-FROM_TO.argosmodel`.

    The package contains the CTranslate2 model, the SentencePiece model, a sentence splitter and metadata. Raise
    AttendoError for an invalid language code, and if a package is missing.

    >>> write(Path("run"), Bundle({}, None), None, Path("out"), languages=("en", "??"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: '??' is not a language code. Give `languages`, for example en,pt-BR
    """
    source, target = _languages(folder, bundle, languages)
    name = f"translate-{source}_{target}"
    facts = {
        "package_version": "1.0",
        "argos_version": "1.11",
        "from_code": source,
        "from_name": name_of(source),
        "to_code": target,
        "to_name": name_of(target),
    }
    with tempfile.TemporaryDirectory() as place:
        converted = Path(place)
        to_ctranslate2.write(folder, bundle, model, converted, quantization)
        with zipfile.ZipFile(out / f"{name}.argosmodel", "w", zipfile.ZIP_DEFLATED) as package:
            for file in _MODEL:
                _add(package, f"{name}/model/{file}", (converted / file).read_bytes())
            _add(package, f"{name}/sentencepiece.model", (converted / "sentencepiece.model").read_bytes())
            _add(package, f"{name}/minisbd/rules.onnx", sentence_splitter())
            _add(package, f"{name}/metadata.json", (json.dumps(facts, indent=1) + "\n").encode())
            readme = (
                f"# {facts['from_name']} to {facts['to_name']}\n\nMade with attendo {version('attendo')}. Sentence "
                "boundaries are found by rules on characters, without a network.\n"
            )
            _add(package, f"{name}/README.md", readme.encode())
        write_atomic(out / "tokenizer.json", (converted / "tokenizer.json").read_bytes())


def opened(out: Path) -> ArgosPackage:
    """Load an exported package to run it as Argos Translate does. Raise AttendoError if a package is missing.

    >>> opened(Path("none"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none contains no .argosmodel. Export one with `target` argos
    """
    files = sorted(out.glob("*.argosmodel"))
    if not files:
        raise AttendoError(f"{out} contains no .argosmodel. Export one with `target` argos")
    processor, translator = required("sentencepiece"), required("ctranslate2")
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(files[0]) as package:
        package.extractall(place)
        (folder,) = Path(place).iterdir()
        return ArgosPackage(
            load_tokenizer(out / "tokenizer.json"),
            processor.SentencePieceProcessor(model_proto=(folder / "sentencepiece.model").read_bytes()),
            translator.Translator(str(folder / "model"), intra_threads=torch.get_num_threads()),
        )


@dataclass
class ArgosPackage:
    """An exported Argos Translate package, loaded to translate texts."""

    tokenizer: Tokenizer
    pieces: Any
    translator: Any

    @property
    def same_search(self) -> Mapping[str, Any]:
        """The DecodingConfig options with which attendo's search equals that of Argos Translate."""
        return {
            "beam": BEAM,
            "refill": True,
            "length_penalty": LENGTH_PENALTY,
            "length_norm": "plain",
            "coverage_penalty": 0.0,
            "beam_groups": 1,
            "min_length": 2,
            "no_repeat_ngram": 0,
        }

    def translate(self, texts: Sequence[str], beam: int) -> list[Found]:
        """Translate each text as one sentence, with the options and the beam size of Argos Translate."""
        results = self.translator.translate_batch(
            self.pieces.encode(list(texts), out_type=str),
            replace_unknowns=True,
            max_batch_size=32,
            batch_type="tokens",
            beam_size=BEAM,
            length_penalty=LENGTH_PENALTY,
            return_scores=True,
            return_end_token=True,  # the end token counts in the length that divides the score
        )
        return [self._found(result.hypotheses[0], result.scores[0]) for result in results]

    def _found(self, pieces: list[str], score: float) -> Found:
        end = self.tokenizer.entries[self.tokenizer.eos_id]
        pieces = [piece for piece in pieces if piece != end]
        text = self.pieces.decode_pieces(pieces).replace("▁", " ").replace("_", " ")
        return Found(pieces, text.removeprefix(" "), score)


def _languages(folder: Path, bundle: Bundle, given: tuple[str, str] | None) -> tuple[str, str]:
    known = bundle.card.get("languages") or {}
    source, target = given or (known.get("source"), known.get("target"))
    if not source or not target:
        raise AttendoError(
            f"{folder / 'card.json'} names no {'target' if source else 'source'} language, which Argos "
            "Translate requires. Give `languages` en,de, or train with `source_language` and "
            "`target_language`"
        )
    for code in (source, target):
        if not (code.isascii() and code.replace("-", "").isalnum()):
            raise AttendoError(f"{code!r} is not a language code. Give `languages`, for example en,pt-BR")
    return source, target


def _add(package: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIMES)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    package.writestr(entry, data)


_STOP = ".!?…"
_FULL_STOP = "。｡．！？︒‼⁇⁈⁉।॥។؟۔"
_CLOSING = "」』）)]}］｝】〉》〕〗｣\"'”’»"
_CLASSES: dict[str, Callable[[str], bool]] = {
    "space": lambda c: c == " ",
    "period": lambda c: c == ".",
    "stop": lambda c: c in _STOP,
    "full": lambda c: c in _FULL_STOP,
    "closing": lambda c: c in _CLOSING,
    "hiragana": lambda c: "\u3041" <= c <= "\u309f" or c in "、，",
    "lower": str.islower,
    "upper": str.isupper,
}
_LAST = 0xFFFF


@cache
def sentence_splitter() -> bytes:
    """Return a small ONNX network that marks sentence ends: from characters [batch, len] to labels [batch, len, 3].

    Without this network, Argos Translate would download another network (MiniSBD). The rules are those of
    `data.segments` that need at most six characters. A period ends a sentence if a space follows without a lowercase
    letter after it, except in "Dr." or "J.". A full-width stop ends a sentence unless a closing mark follows. Raise
    AttendoError if `onnx` is missing.

    >>> from onnxruntime import InferenceSession
    >>> network = InferenceSession(sentence_splitter())
    >>> ids = json.loads(network.get_modelmeta().custom_metadata_map["vocab"])["_unit2id"]
    >>> text = "Dr. Li came. It rained."
    >>> units = np.array([[ids.get(c, 1) for c in text]])
    >>> labels = network.run(None, {"units": units, "features": np.zeros((1, len(text), 0), np.float32)})[0].argmax(-1)
    >>> text[: labels[0].tolist().index(2) + 1]
    'Dr. Li came.'
    """
    units, table = _alphabet()
    with Weights(os.devnull, torch.nn.Module()) as none:
        graph = Graph(none)
        ids = graph.input("units", ["batch", "len"], integer=True)
        graph.input("features", ["batch", "len", "n_features"])
        classes = graph.op("Gather", graph.constant(table), ids, axis=0)
        graph.output("labels", _labels(graph, classes), ["batch", "len", 3])
    model = graph.model("sentences", opset=13, ir_version=8)
    config = {"skip_newline": False, "max_seqlen": 1000, "no_ssplit": False, "batch_size": 32}
    config |= {"feat_funcs": [], "use_dictionary": False, "num_dict_feat": 0}
    vocab = {"_id2unit": units, "_unit2id": {unit: number for number, unit in enumerate(units)}}
    facts = {"lang_code": "any", "config": json.dumps(config), "vocab": json.dumps(vocab), "lexicon": "null"}
    required("onnx").helper.set_model_props(model, facts)
    return model.SerializeToString(deterministic=True)


def _alphabet() -> tuple[list[str], np.ndarray]:
    """Return the relevant characters, after entries for padding and other characters, and their classes."""
    rows = [(c, [belongs(c) for belongs in _CLASSES.values()]) for c in map(chr, range(1, _LAST))]
    rows = [(c, row) for c, row in rows if any(row)]
    none = [False] * len(_CLASSES)
    table = np.array([none, none, *(row for _, row in rows)], np.float32)
    return ["<PAD>", "<UNK>", *(c for c, _ in rows)], table


def _labels(graph: Graph, classes: str) -> str:
    """Add the rules. Truth values are the numbers 0 and 1 [batch, len, 1]. `classes` is [batch, len, classes]."""
    one = graph.constant(np.ones((1, 1, 1), np.float32))

    def part(value: str, *bounds: int) -> str:
        """Return a slice along an axis."""
        return graph.op("Slice", value, *(graph.constant([number]) for number in bounds))

    def at(name: str, offset: int) -> str:
        """Return whether the character at an offset is in a character class. Outside the text, return 0."""
        number = [*_CLASSES].index(name)
        column = part(classes, number, number + 1, 2)
        if not offset:
            return column
        padded = graph.op("Pad", column, graph.constant([0, max(0, -offset), 0, 0, max(0, offset), 0]))
        return part(padded, offset, 1 << 30, 1) if offset > 0 else part(padded, 0, offset, 1)

    def no(value: str) -> str:
        return graph.op("Sub", one, value)

    def every(*values: str) -> str:
        return reduce(lambda left, right: graph.op("Mul", left, right), values)

    def some(*values: str) -> str:
        return graph.op("Max", *values)

    spaced = every(at("space", 1), no(at("lower", 2)))
    letter = [some(at("upper", -n), at("lower", -n)) for n in range(4)]
    initial = every(letter[1], no(letter[2]))
    title = every(at("lower", -1), at("upper", -2), no(letter[3]))
    short = every(at("period", 0), some(initial, title))
    follows = some(at("full", 1), at("closing", 1), at("stop", 1))
    spoken = some(at("closing", 1), at("hiragana", 1))
    ends = some(
        every(at("stop", 0), spaced, no(short)),
        every(at("closing", 0), at("stop", -1), spaced),
        every(at("full", 0), no(follows)),
        every(at("closing", 0), at("full", -1), no(spoken)),
    )
    undecided = graph.op("Mul", graph.op("Add", ends, no(ends)), graph.constant(0.5))  # of the right shape
    return graph.op("Concat", undecided, graph.op("Sub", ends, ends), ends, axis=2)
