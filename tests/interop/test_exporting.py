"""attendo export: written whole or not at all, with a report, or refused in one line."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
from command_line import attendo, refused, settings
from exported_models import run_folder
from sentencepiece import SentencePieceProcessor
from tiny_classifiers import COUNTS, config, saved
from tiny_corpus import SMALL, pairs_file
from tiny_translator import tiny_tokenizer

import attendo as attendo_package
from attendo.data import forecasts
from attendo.errors import AttendoError, install_command
from attendo.inference import Translator
from attendo.interop import exporting, requirements
from attendo.interop.exporting import exportable, not_exportable
from attendo.interop.parity import examples_of
from attendo.models import ModelConfig

SHAPE = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "max_len": 96}
SHAPE |= {"output_bias": True}
TRANSLATORS = [target for target in exporting.TARGETS if target != "gguf"]
REPORT = "attendo-parity.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("run") / "run", SHAPE)[0]


@pytest.fixture
def valid(tmp_path):
    path = tmp_path / "valid.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in forecasts.pairs(12, "valid")), encoding="utf-8")
    return path


# ---- what is written


def test_a_translator_leaves_with_a_report(run, valid, tmp_path):
    outcome = attendo("export", run, tmp_path / "out", "--to", "ctranslate2", "--valid", valid)
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert (report["n"], report["same_tokens"], report["same_texts"]) == (12, 1.0, 1.0)
    assert report["largest_difference"] < 1e-4
    assert report["bleu"]["there"] == report["bleu"]["here"]
    assert "identical: tokens 100.0%, texts 100.0%" in outcome.out
    assert f"compared on 12 rows of {valid}" in outcome.out
    assert {file.stat().st_mode for file in (tmp_path / "out").iterdir()} == {valid.stat().st_mode}


@pytest.mark.parametrize("target", TRANSLATORS)
def test_every_file_has_the_permissions_of_any_other_new_file(run, valid, tmp_path, target):
    languages = ["--languages", "en,ja"] if target == "argos" else []
    outcome = attendo("export", run, tmp_path / "out", "--to", target, *languages, "--valid", valid, "--rows", 1)
    assert outcome.code == 0, outcome.err
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert {file.stat().st_mode for file in files} == {valid.stat().st_mode}


def test_the_card_of_an_exported_classifier_describes_its_encoder(tmp_path):
    measures = {"step": 7, "accuracy": 0.9, "accuracy_encoder": 0.8, "share": 0.4, "temperature": 2.0}
    card = {
        "task": "classification",
        "labels": COUNTS,
        "validation": {**measures, "encoder_temperature": 1.5},
        "files": {"ngrams.safetensors": "0"},
        "thresholds": {"wet": 0.9},
    }
    folder = saved(tmp_path / "run", config(), card)
    said = []
    exporting.export(folder, tmp_path / "out", "onnx", say=said.append)
    assert said[-1] == ("warning: the export has the encoder alone. In attendo, n-grams have 60% of the decision")
    written = json.loads((tmp_path / "out" / "card.json").read_text())
    assert written["validation"] == {"step": 7, "accuracy": 0.8, "temperature": 1.5}
    assert not {"files", "thresholds"} & written.keys()


def test_its_own_words_on_how_to_call_it_give_what_attendo_says(run, tmp_path):
    attendo("export", run, tmp_path / "out", "--to", "ctranslate2", "--rows", 1)
    out = tmp_path / "out"
    said = json.loads((out / "attendo.json").read_text())
    pieces = SentencePieceProcessor(model_file=str(out / "sentencepiece.model"))
    tokens = [pieces.encode("it will rain tomorrow .", out_type=str)]
    options = said["options"] | {"max_decoding_length": len(tokens[0]) + 1 + 4}
    (found,) = ctranslate2.Translator(str(out)).translate_batch(tokens, **options)
    scores = [
        score * len(h) ** options["length_penalty"] / ((5 + len(h)) / 6) ** 0.6
        for score, h in zip(found.scores, found.hypotheses, strict=True)
    ]
    best = [piece for piece in found.hypotheses[int(np.argmax(scores))] if piece != "</s>"]
    translator = Translator.load(run)
    translator.decoding = replace(translator.decoding, refill=True)
    own = translator.translate(["it will rain tomorrow ."], guard=False)[0].candidates[0]
    assert [pieces.piece_to_id(piece) for piece in best] == list(own.token_ids)
    assert max(scores) == pytest.approx(own.score, abs=1e-4)


def test_int8_leaves_the_run_as_it_is(run, tmp_path):
    before = (run / "model.safetensors").read_bytes()
    outcome = attendo("export", run, tmp_path / "out", "--to", "ctranslate2", "--quantization", "int8", "--rows", 9)
    assert outcome.code == 0, outcome.err
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    # noise, rounded: without 8-bit products of the CPU (VNNI), its sums are rounded once more, and nothing may be left
    assert report["same_tokens"] > 0.3 or "vnni" not in Path("/proc/cpuinfo").read_text()
    assert (run / "model.safetensors").read_bytes() == before
    assert ctranslate2.Translator(str(tmp_path / "out")).compute_type.startswith("int8")


def test_to_argos(run, tmp_path):
    assert "Give --languages en,de" in refused("export", run, tmp_path / "out", "--to", "argos")
    assert not (tmp_path / "out").exists()
    outcome = attendo("export", run, tmp_path / "out", "--to", "argos", "--languages", "en,ja", "--rows", 4)
    assert outcome.code == 0, outcome.err
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"translate-en_ja.argosmodel", "tokenizer.json", REPORT}


# ---- what is compared


def test_without_files_built_in_texts_are_compared(run, tmp_path):
    attendo("export", run, tmp_path / "out", "--to", "ctranslate2", "--rows", 5)
    report = json.loads((tmp_path / "out" / REPORT).read_text())
    assert report["compared"] == "5 built-in English sentences, without references"
    assert "bleu" not in report


def test_the_runs_own_validation_rows_are_found(tmp_path, valid):
    bundle = run_folder(tmp_path / "run", SHAPE)[1]
    bundle.tables["data"] = {"train": [str(valid)], "valid": [str(valid)]}
    found = examples_of(bundle)
    assert (found.name, len(found.references or ())) == ("12 validation rows of the run", 12)
    assert len(examples_of(bundle, most=5).texts) <= 5
    bundle.tables["data"]["drop"] = "leaks"
    assert examples_of(bundle, [valid]).name == f"12 rows of {valid}"
    bundle.card["task"], bundle.tables["data"] = "classification", {"train": ["gone.tsv"]}
    assert len(examples_of(bundle, [valid]).texts) == 12


# ---- what is refused


def test_a_place_that_is_taken(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    said = refused("export", run, tmp_path / "out", "--to", "ctranslate2")
    assert "out already exists. Give a folder that is new or empty" in said
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]
    taken = tmp_path / "out" / "mine"
    for command in (["export", run, taken / "a", "--to", "ctranslate2"], ["import", run, taken / "a" / "b"]):
        assert f"{taken} is a file; choose another folder than {taken / 'a'}" in refused(*command)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--to", "tensorflow"],
            "--to tensorflow is unknown (expected huggingface, ctranslate2, argos, onnx, gguf)",
        ),
        (
            ["--to", "ctranslate2", "--quantization", "int3"],
            "--quantization int3 is unknown (expected float32, int8",
        ),
        (["--to", "ctranslate2", "--languages", "en,de"], "--languages has no effect with --to ctranslate2"),
        (["--to", "argos", "--languages", "en"], "--languages en must be two codes"),
        (["--to", "ctranslate2", "--valid", "none.tsv"], "none.tsv"),
    ],
)
def test_options_that_make_no_sense(run, tmp_path, options, said):
    assert said in refused("export", run, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_a_failure_leaves_nothing_behind(run, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "TOO_FAR", -1.0)
    said = refused("export", run, tmp_path / "out", "--to", "ctranslate2", "--rows", 3)
    assert "the ctranslate2 export differs from the model" in said
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_the_remedy(run, tmp_path, monkeypatch):
    def gone(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(requirements, "import_module", gone)
    said = refused("export", run, tmp_path / "out", "--to", "ctranslate2")
    assert said == f"ctranslate2 is not installed. Run: {install_command('interop')}"
    said = refused("export", run, tmp_path / "out", "--to", "huggingface")
    assert said == f"transformers is not installed. Run: {install_command('interop')}"
    assert list(tmp_path.iterdir()) == []


def test_the_package_of_a_missing_module_is_named(monkeypatch):
    def gone(name):
        raise ModuleNotFoundError("No module named 'google'", name="google")

    monkeypatch.setattr(requirements, "import_module", gone)
    with pytest.raises(AttendoError, match=r"^protobuf is not installed\. Run: pip install"):
        requirements.required("sentencepiece.sentencepiece_model_pb2")


@pytest.mark.parametrize(
    ("options", "clause"),
    [
        ({"value_dim": 4}, "value_dim=4 differs from the query head size 8"),
        ({"attention_norm": True}, "attention_norm=True is computed differently by CTranslate2"),
        ({"embedding_norm_eps": 1e-3}, "embedding_norm_eps=0.001 differs from norm_eps=1e-05"),
    ],
)
def test_a_shape_that_can_not_go(options, clause, tmp_path):
    config = ModelConfig(vocab_size=560, **{**SHAPE, **options})
    for target in ("ctranslate2", "argos"):
        assert clause in (exportable(config, "bpe", target) or "")
    assert f"to ctranslate2, argos: {clause}" in (not_exportable(config, "bpe") or "")


@pytest.mark.some(4)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("sizes", [{}, {"vocab_size": 9, "d_model": 6, "d_ff": 5, "n_heads": 3, "max_len": 1}])
def test_every_target_takes_the_usual_translator(sizes, kind, norm_first):
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 3} if sizes else {}
    config = ModelConfig(**{"vocab_size": 560, **sizes, **layers}, dropout=0.3, norm_first=norm_first)
    assert not_exportable(config, kind) is None
    assert [exportable(config, kind, target) for target in TRANSLATORS] == [None] * 4


def test_an_option_that_came_later_is_refused_until_it_is_known(monkeypatch):
    config = ModelConfig(vocab_size=11, activation="silu")
    monkeypatch.setattr(requirements, "KNOWN_OPTIONS", requirements.KNOWN_OPTIONS - {"activation"})
    assert exportable(config, "bpe", "ctranslate2") == (
        "activation='silu' is not supported by the export to CTranslate2"
    )


def test_training_says_at_its_start_where_the_model_can_not_go(tmp_path, monkeypatch):
    monkeypatch.setattr("attendo.cli.train.follow", lambda run: 0)  # said before the first step
    before, *_ = run_folder(tmp_path / "before", {**SHAPE, "value_dim": 4})
    train = ["--train", pairs_file(tmp_path), "--out", tmp_path / "run", "--init-from", before]
    outcome = attendo("train", "translation", "--threads", 1, *train, *settings({"training": SMALL["training"]}))
    (said,) = [line for line in outcome.err.splitlines() if line.startswith("export: ")]
    assert said.startswith("export: to onnx; not to ")
    assert "not to huggingface: no model of transformers supports value_dim=4" in said
    assert "not to ctranslate2, argos: value_dim=4 differs" in said
    said = refused("export", before, tmp_path / "out", "--to", "ctranslate2")
    assert "cannot be exported to ctranslate2: value_dim=4 differs" in said


def test_the_modules_load_without_the_packages(monkeypatch):
    packages = ("ctranslate2", "gguf", "onnx", "onnxruntime", "sentencepiece", "transformers")
    for name in [*sys.modules]:
        if name.split(".")[0] in packages or name.startswith("attendo.interop"):
            monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(attendo_package, "interop", None)  # imported again from here on
    loaded = importlib.import_module("attendo.interop.exporting")
    assert loaded.not_exportable(ModelConfig(vocab_size=11), tiny_tokenizer().kind) is None
