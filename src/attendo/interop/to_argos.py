"""Translators to Argos Translate and LibreTranslate: a package that they install and use without a network."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from attendo.bundle import Bundle
from attendo.data.language_names import name_of
from attendo.data.tokenizers import Kind, Tokenizer
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop import to_ctranslate2
from attendo.interop.packages import required
from attendo.interop.parity import Found
from attendo.interop.sentence_splitter import sentence_splitter
from attendo.interop.sentencepiece_models import why_no_sentencepiece
from attendo.interop.to_ctranslate2 import Quantization
from attendo.models import Model, ModelConfig

LENGTH_PENALTY, BEAM, LONGEST = 0.2, 4, 256
"""With which Argos Translate searches: the last is CTranslate2's own limit."""

_MODEL = ("model.bin", "config.json", "shared_vocabulary.json")
_TIMES = (1980, 1, 1, 0, 0, 0)  # the same model gives the same package


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """In a clause, why such a model can't go to Argos Translate; None: it can, if its languages are known.

    >>> why_not(ModelConfig(vocab_size=11), "character")
    "tokenizer.kind='character' can't be a SentencePiece model; bpe and unigram can"
    >>> why_not(ModelConfig(vocab_size=11, architecture="decoder", n_encoder_layers=0), "bpe")
    "architecture='decoder' does not translate, and Argos Translate does nothing else"
    """
    if config.architecture != "encoder-decoder":
        return (
            f"architecture={config.architecture!r} does not translate, and Argos Translate does nothing else"
        )
    if config.positions == "learned" and config.max_len < LONGEST:
        return f"positions='learned' end at max_len={config.max_len}, and Argos Translate asks for {LONGEST}"
    return to_ctranslate2.why_not(config, kind) or why_no_sentencepiece(kind)


def write(
    folder: Path,
    bundle: Bundle,
    model: Model,
    out: Path,
    quantization: Quantization = "float32",
    languages: tuple[str, str] | None = None,
) -> None:
    """Writes `translate-FROM_TO.argosmodel` into the empty folder `out`.

    languages: codes for source and target, else those of the card. In the package are the model as CTranslate2 has it,
    the SentencePiece model, rules for the ends of sentences, and the facts. Raises AttendoError where a language is not
    known, and without the packages.

    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> from attendo.models import build_model
    >>> sizes = dict(d_model=8, d_ff=8, n_heads=2, n_encoder_layers=1, n_decoder_layers=1)
    >>> bundle = Bundle({}, train_tokenizer(["it rains"], TokenizerConfig(vocab_size=280)))
    >>> config, out = ModelConfig(vocab_size=bundle.tokenizer.vocab_size, **sizes), Path(tempfile.mkdtemp())
    >>> bundle.tokenizer.save(out / "tokenizer.json")
    >>> write(out, bundle, build_model(config), out, languages=("en", "de"))
    >>> sorted(file.name for file in out.iterdir())
    ['tokenizer.json', 'translate-en_de.argosmodel']
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
            _add(package, f"{name}/README.md", _readme(facts).encode())
        write_atomic(out / "tokenizer.json", (converted / "tokenizer.json").read_bytes())


def opened(out: Path) -> ArgosPackage:
    """What `write` wrote, unpacked and called as Argos Translate calls it. Raises AttendoError without the packages.

    >>> opened(Path("none"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none holds no .argosmodel; export one with `target` argos
    """
    files = sorted(out.glob("*.argosmodel"))
    if not files:
        raise AttendoError(f"{out} holds no .argosmodel; export one with `target` argos")
    processor, translator = required("sentencepiece"), required("ctranslate2")
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(files[0]) as package:
        package.extractall(place)
        (folder,) = Path(place).iterdir()
        return ArgosPackage(
            Tokenizer.load(out / "tokenizer.json"),
            processor.SentencePieceProcessor(model_proto=(folder / "sentencepiece.model").read_bytes()),
            translator.Translator(str(folder / "model"), intra_threads=torch.get_num_threads()),
        )


@dataclass
class ArgosPackage:
    """A package as Argos Translate loads it; tokenizer: attendo's own, which names the end."""

    tokenizer: Tokenizer
    pieces: Any
    translator: Any

    @property
    def same_search(self) -> Mapping[str, Any]:
        """Argos Translate's own."""
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
        """Each text as one sentence, with Argos Translate's options; the beam is its own, too."""
        results = self.translator.translate_batch(
            self.pieces.encode(list(texts), out_type=str),
            replace_unknowns=True,
            max_batch_size=32,
            batch_type="tokens",
            beam_size=BEAM,
            length_penalty=LENGTH_PENALTY,
            return_scores=True,
            return_end_token=True,  # so that the length by which a score is divided counts it for certain
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
            f"{folder / 'card.json'} names no {'target' if source else 'source'} language, and Argos Translate asks for"
            " it; give `languages` en,de, or train with `source_language` en `target_language` de"
        )
    for code in (source, target):
        if not (code.isascii() and code.replace("-", "").isalnum()):
            raise AttendoError(f"{code!r} is no code of a language; give `languages` as in en,pt-BR")
    return source, target


def _add(package: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIMES)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    package.writestr(entry, data)


def _readme(facts: Mapping[str, str]) -> str:
    return (
        f"# {facts['from_name']} to {facts['to_name']}\n\nMade with attendo {version('attendo')}."
        " Where sentences end is told by rules on characters, without a network.\n"
    )
