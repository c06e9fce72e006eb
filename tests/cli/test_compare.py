"""attendo compare: two models on one file, each kind of task, and what is refused."""

import json
import shutil

import pytest
from command_line import attendo, refused, settings
from tiny_corpus import pairs_file
from tiny_texts import SMALL, forecast_texts, labelled_file, text_file
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.bundle import Bundle, save_description, save_weights


def translator(folder, seed, reverse="false"):
    """An untrained one, as a run that was to learn from some file."""
    config = save_run(folder, tiny_translator(tiny_tokenizer(), seed=seed)) / "config.toml"
    config.write_text(f'[data]\ntrain = ["pairs.tsv"]\nreverse = {reverse}\n\n' + config.read_text())
    return folder


def masked(folder):
    """An untrained masked language model."""
    shape = {"d_model": 8, "d_ff": 8, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 0}
    tables = {"model": {"architecture": "masked", "vocab_size": 560, **shape}}
    bundle = Bundle(tables, tiny_tokenizer(), {"task": "masked-language-model"})
    save_description(folder, bundle)
    save_weights(folder, bundle.new_model(), bundle, step=0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two translators, two classifiers, language models of two tokenizers, a masked one, and files for them."""
    folder = tmp_path_factory.mktemp("compared")
    for seed, name in enumerate(("t1", "t2")):
        (folder / name).mkdir()
        translator(folder / name, seed)
    pairs_file(folder, 12)
    labelled, texts = labelled_file(folder, 60), text_file(folder, 40)
    small = [*settings(SMALL), "--threads", "1", "--steps", "1"]
    for name, seed in (("c1", 1), ("c2", 2)):
        options = ["--train", labelled, "--out", folder / name, *small, "--seed", seed]
        assert attendo("train", "classification", *options, "--set", "model.n_encoder_layers=1").code == 0
    shutil.copytree(folder / "c1", folder / "c3")
    card = (folder / "c1" / "card.json").read_text()
    (folder / "c3" / "card.json").write_text(card.replace('"other"', '"dry"'))
    window = ["--set", "model.max_len=24", "--set", "model.n_decoder_layers=1"]
    for name, kind, seed in (("l1", "character", 1), ("l2", "character", 2), ("l3", "byte", 1)):
        options = ["--train", texts, "--out", folder / name, *small, *window, "--seed", seed]
        assert attendo("train", "language-model", *options, "--set", f"tokenizer.kind={kind}").code == 0
    masked(folder / "m1")
    (folder / "long.txt").write_text(" ".join(forecast_texts(60)))
    return folder


def scores(place, first, second, file, *options):
    outcome = attendo("compare", place / first, place / second, place / file, "--json", *options)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def evaluated(place, name, file):
    return json.loads(attendo("evaluate", place / name, place / file, "--json").out)


@pytest.mark.parametrize(
    ("runs", "file", "metrics"),
    [
        (("t1", "t2"), "pairs.tsv", {"bleu": "bleu", "chrf": "chrf", "exact": "exact"}),
        (("c1", "c2"), "labelled.tsv", {"accuracy": "accuracy", "macro-f1": "macro_f1"}),
        (("l1", "l2"), "long.txt", {"perplexity": "perplexity", "bits-per-byte": "bits_per_byte"}),
        (("l1", "l3"), "long.txt", {"bits-per-byte": "bits_per_byte"}),
    ],
)
def test_the_scores_are_those_of_evaluate(place, runs, file, metrics):
    asked = [part for metric in metrics for part in ("--metric", metric)]
    found = scores(place, *runs, file, "--samples", "100", *asked)
    own = [evaluated(place, run, file) for run in runs]
    assert [score["metric"] for score in found["scores"]] == list(metrics)
    for score, name in zip(found["scores"], metrics.values(), strict=True):
        assert [score["a"], score["b"]] == pytest.approx([one[name] for one in own])
        assert score["difference"] == pytest.approx(score["b"] - score["a"])
        assert score["a_interval"][0] <= score["a_interval"][1]
        assert 0 < score["p"] <= 1


def test_what_a_person_reads(place, monkeypatch):
    monkeypatch.chdir(place)
    outcome = attendo("compare", "t1", "t2", "pairs.tsv", "--tokenize", "none")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[:4] == ["A  t1", "B  t2", "12 rows, 1,000 samples", ""]
    assert lines[4].startswith("BLEU  nrefs:1|") and "tok:none" in lines[4]
    assert [line[:8].strip() for line in lines[5:8]] == ["A", "B", "B − A"]
    assert "(probability if the models are equal: p = " in lines[8]
    assert max(map(len, lines)) <= 80
    assert "12 rows read, 12 used" in outcome.err and "translating with B" in outcome.err
    same = attendo("compare", "t1", "t1", "pair*.tsv").out  # one file, by a pattern
    assert "  no clear difference (probability if the models are equal: p = 1.00)" in same


def test_the_seed_is_that_of_the_samples(place):
    first, again, other = (scores(place, "c1", "c2", "labelled.tsv", "--seed", seed)["scores"] for seed in (1, 1, 2))
    assert first == again
    assert [score["a"] for score in first] == [score["a"] for score in other]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["t1", "c1", "pairs.tsv"],
            "t1 is for translation, c1 for classification. Compare models of one task",
        ),
        (["m1", "t1", "pairs.tsv"], "m1 is for masked-language-model, t1 for translation"),
        (["t1", "none", "pairs.tsv"], "none: no such run folder"),
        (["t1", "t2", "none.tsv"], "none.tsv"),
        (["t1", "t2", "none*.tsv"], "none*.tsv: no file matches this pattern"),
        (["t1", "t2"], "Missing argument"),
        (
            ["t1", "t2", "pairs.tsv", "--metric", "accuracy"],
            "--metric accuracy is unknown (expected bleu, chrf, exact)",
        ),
        (["t1", "t2", "pairs.tsv", "--context", "8"], "--context does not apply to this task"),
        (["t1", "t2", "pairs.tsv", "--tokenize", "13b"], "expected one of 13a"),
        (["t1", "t2", "pairs.tsv", "--samples", "9"], "'--samples'"),
        (["c1", "c3", "labelled.tsv"], "have different labels: only one of them has 'dry'"),
        (["l1", "l3", "long.txt", "--metric", "loss"], "the tokenizers differ"),
        (["m1", "m1", "long.txt"], "m1 computes vectors, for which there is no metric"),
    ],
    ids=str,
)
def test_wrong_input_is_one_line(place, monkeypatch, arguments, said):
    monkeypatch.chdir(place)
    assert said in refused("compare", *arguments)


def test_runs_that_read_a_file_differently_are_not_compared(place, tmp_path):
    (tmp_path / "turned").mkdir()
    folder = translator(tmp_path / "turned", 0, reverse="true")
    said = refused("compare", place / "t1", folder, place / "pairs.tsv")
    assert "read different columns. Choose them with --columns" in said
