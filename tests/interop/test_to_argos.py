"""A package for Argos Translate: what is in it, that it needs nothing else, and where it cuts sentences."""

import json
import zipfile

import numpy as np
import pytest
from exported_models import run_folder
from onnxruntime import InferenceSession
from sentencepiece import SentencePieceProcessor

from attendo.data.segments import split_sentences
from attendo.errors import AttendoError
from attendo.interop.to_argos import opened, sentence_splitter, why_not, write

SHAPE = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_len": 48}
TEXTS = [
    'Dr. Li came. J. R. Smith left! (It snowed.) "Why?" he asked. What?! Yes… no.',
    "「雨だ。」と彼は言った。本当か？そうだ。「雪だ。」「はい。」",
    "Привет. Как дела? Хорошо.",
    "It costs 3.5 dollars. so be it. A",
    "x",
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(run folder, its bundle, its model, the folder with the package)."""
    place = tmp_path_factory.mktemp("argos")
    card = {"languages": {"source": "en", "target": "pt-BR"}}
    run, bundle, model = run_folder(place / "run", SHAPE, card=card)
    out = place / "out"
    out.mkdir()
    write(run, bundle, model, out)
    return run, bundle, model, out


def test_the_package_has_what_argos_translate_looks_for(exported, tmp_path):
    _, bundle, _, out = exported
    with zipfile.ZipFile(out / "translate-en_pt-BR.argosmodel") as package:
        assert package.testzip() is None
        package.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    facts = json.loads((folder / "metadata.json").read_text())
    assert (facts["from_code"], facts["from_name"]) == ("en", "English")
    assert (facts["to_code"], facts["to_name"]) == ("pt-BR", "Portuguese (BR)")
    names = {file.name for file in (folder / "model").iterdir()}
    assert names == {"model.bin", "config.json", "shared_vocabulary.json"}
    assert len(list((folder / "minisbd").glob("*.onnx"))) == 1  # or it would be fetched
    pieces = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    assert pieces.encode("it will rain") == bundle.tokenizer.encode("it will rain")


def test_the_same_model_gives_the_same_bytes(exported, tmp_path):
    run, bundle, model, out = exported
    write(run, bundle, model, tmp_path)
    name = "translate-en_pt-BR.argosmodel"
    assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_it_translates_as_argos_translate_calls_it(exported):
    found = opened(exported[-1]).translate(["it will rain tomorrow .", "snow"], beam=1)
    assert all(row.pieces and row.score < 0 for row in found)


@pytest.mark.parametrize(
    ("languages", "given", "said"),
    [
        ({}, None, "names no source language, which Argos Translate requires. Give `languages` en,de"),
        ({"source": "en", "target": None}, None, "names no target language"),
        ({}, ("en", "../x"), "'../x' is not a language code"),
    ],
)
def test_languages_that_nobody_has_told(exported, tmp_path, languages, given, said):
    run, bundle, model, _ = exported
    bundle = type(bundle)(bundle.tables, bundle.tokenizer, {**bundle.card, "languages": languages})
    with pytest.raises(AttendoError, match=said):
        write(run, bundle, model, tmp_path, languages=given)
    assert list(tmp_path.iterdir()) == []


def test_only_translators_with_pieces_can_go(exported):
    config = exported[2].config
    assert why_not(config, "unigram") is None
    assert "SentencePiece" in (why_not(config, "byte") or "")


def test_sentences_end_where_attendo_ends_them():
    network = InferenceSession(sentence_splitter())
    ids = json.loads(network.get_modelmeta().custom_metadata_map["vocab"])["_unit2id"]
    longest = max(map(len, TEXTS)) + 1
    units = np.array([[ids.get(c, 1) for c in text] + [0] * (longest - len(text)) for text in TEXTS])
    features = np.zeros((*units.shape, 0), np.float32)
    (labels,) = network.run(None, {"units": units, "features": features})
    for text, row in zip(TEXTS, labels.argmax(-1), strict=True):
        ends = [n + 1 for n, label in enumerate(row[: len(text) - 1]) if label == 2] + [len(text)]
        sentences = [text[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)]
        assert tuple(sentences) == split_sentences(text).pieces
