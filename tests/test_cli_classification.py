"""Classifiers and masked language models from the command line: trained, used, measured, started from one another."""

import json

import pytest
from command_line import attendo, refused, settings
from tiny_texts import SMALL, forecast_texts, labelled_file, text_file

import attendo as library
from attendo.tasks import Classifier, Embedder

ONE_LAYER = ["--set", "model.n_encoder_layers=1"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return labelled_file(folder), text_file(folder)


@pytest.fixture(scope="module")
def masked(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("masked") / "run"
    options = ["--train", files[1], "--documents", "line", "--out", folder, *settings(SMALL), *ONE_LAYER]
    outcome = attendo("train", "masked-language-model", *options, "--set", "model.max_len=32")
    assert outcome.code == 0, outcome.err
    return folder, outcome


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files):
    folder = tmp_path_factory.mktemp("classifier") / "run"
    options = ["--train", files[0], "--out", folder, *settings(SMALL), *ONE_LAYER]
    outcome = attendo("train", "classification", *options)
    assert outcome.code == 0, outcome.err
    return folder, outcome


def test_what_was_read_and_found_is_said(trained, files):
    _, outcome = trained
    assert f"{files[0]}: 120 rows read, 120 used, 0 skipped" in outcome.err
    assert "24 of 120 texts are split off for validation" in outcome.err
    assert "2 labels: other " in outcome.err
    assert "accuracy" in outcome.err
    assert "calibration error" in outcome.err


def test_one_line_for_each_text(trained):
    folder, _ = trained
    outcome = attendo("classify", folder, stdin=b"it will snow .\n\nrain\n")
    lines = [line.split("\t") for line in outcome.out.splitlines()]
    assert len(lines) == 3
    assert all(label in ("snow", "other") and 0.5 <= float(p) <= 1 for label, p in lines)
    facts = [
        json.loads(line) for line in attendo("classify", folder, "it will snow .", "--json").out.splitlines()
    ]
    assert facts[0]["label"] == lines[0][0]
    assert sum(facts[0]["probabilities"].values()) == pytest.approx(1)


def test_a_text_of_a_million_characters_is_cut_with_a_word(trained):
    folder, _ = trained
    outcome = attendo("classify", folder, stdin=b"snow " * 200_000)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    assert "1 of 1 texts have more than 256 tokens" in outcome.err


def test_evaluation_prints_the_measures_and_the_matrix(trained, files):
    folder, _ = trained
    outcome = attendo("evaluate", folder, files[0])
    assert outcome.code == 0, outcome.err
    assert "accuracy" in outcome.out and "macro-F1" in outcome.out and "rows are labels" in outcome.out
    facts = json.loads(attendo("evaluate", folder, files[0], "--json").out)
    assert sum(map(sum, facts["confusion"])) == 120
    assert facts["accuracy"] == pytest.approx(sum(facts["confusion"][i][i] for i in range(2)) / 120)


def test_the_card_names_the_labels(trained):
    folder, _ = trained
    assert "labels      other (" in attendo("info", folder).out
    user = library.load(folder)
    assert isinstance(user, Classifier)
    assert user.temperature == library.load(folder).card["validation"]["temperature"]


def test_resuming_goes_on(trained):
    folder, _ = trained
    outcome = attendo("resume", folder, "--more-steps", "3")
    assert outcome.code == 0, outcome.err
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 15


def test_a_masked_model_finds_hidden_tokens_and_embeds(masked):
    folder, outcome = masked
    assert "120 documents" in outcome.err
    assert isinstance(library.load(folder), Embedder)
    lines = [json.loads(line) for line in attendo("embed", folder, "rain", "snow").out.splitlines()]
    assert [len(line["vector"]) for line in lines] == [16, 16]
    assert attendo("embed", folder, "rain", "--layer", "0", "--pooling", "max").code == 0


def test_the_nearest_lines_of_a_file(masked, tmp_path):
    folder, _ = masked
    texts = forecast_texts(30)
    near = tmp_path / "lines.txt"
    near.write_text("\n".join(texts) + "\n", encoding="utf-8")
    rows = [
        line.split("\t")
        for line in attendo("embed", folder, texts[4], "--nearest", near, "-n", "3").out.splitlines()
    ]
    assert rows[0] == ["1", "1.0000", texts[4]]
    assert rows[1] == ["5", "1.0000", texts[4]]
    cosines = [float(row[1]) for row in rows[1:]]
    assert len(rows) == 4 and cosines == sorted(cosines, reverse=True)


def test_a_classifier_starts_from_a_masked_model(masked, files, tmp_path):
    start, _ = masked
    run = tmp_path / "run"
    budget = ["--steps", "1", "--set", "training.learning_rate=1e-12", "--set", "training.precision=float32"]
    outcome = attendo(
        "train", "classification", "--train", files[0], "--out", run, "--init-from", start, *budget
    )
    assert outcome.code == 0, outcome.err
    assert f"tensors start from {start}; new: output_proj" in outcome.err
    theirs, own = Embedder.load(start), Embedder.load(run)
    assert own.tokenizer.sha256 == theirs.tokenizer.sha256
    assert abs(own.embed(["rain and snow"]) - theirs.embed(["rain and snow"])).max() < 1e-6
    assert "started from" in attendo("info", run).out


def test_another_shape_than_the_weights_have_is_refused(masked, files, tmp_path):
    start, _ = masked
    options = [
        "--train",
        files[0],
        "--out",
        tmp_path / "run",
        "--init-from",
        start,
        "--set",
        "model.d_model=64",
    ]
    assert refused("train", "classification", *options).startswith("model.d_model=64 differs from 16")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a\tx\n" * 30, "only one label, 'a', in 30 rows; a classifier needs at least two"),
        ("".join(f"l{i}\ttext {i}\n" for i in range(40)), "this is no column of labels"),
        ("", "is empty; give a file with at least one row"),
    ],
)
def test_what_no_classifier_learns_from_is_refused(rows, said, tmp_path):
    file = tmp_path / "bad.tsv"
    file.write_text(rows)
    assert said in refused("train", "classification", "--train", file, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_label_unseen_in_training_is_named_at_evaluation(trained, tmp_path):
    folder, _ = trained
    file = tmp_path / "test.tsv"
    file.write_text("snow\tit will snow .\nhail\tit will hail .\n")
    assert f"{file}:2: the label 'hail' was not seen in training" in refused("evaluate", folder, file)


def test_a_command_of_another_task_names_the_right_one(trained, masked):
    assert refused("translate", trained[0], "x").endswith("use it with `attendo classify`")
    assert refused("classify", masked[0], "x").endswith("use it with `attendo embed`")
    assert "--beam means nothing for this task" in refused("evaluate", trained[0], __file__, "--beam", "4")
