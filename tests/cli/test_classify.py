"""Classifiers and masked language models from the command line: trained, used, measured, started from one another."""

import csv
import json
import re
import shutil

import pytest
from command_line import attendo, refused, settings
from tiny_texts import SMALL, forecast_texts, labelled_file, text_file

import attendo as library
from attendo.config import build, read_toml
from attendo.data.held_out import source_hash
from attendo.data.labelled_corpus import LabelledData
from attendo.inference import Classifier, Embedder
from attendo.inference.ngram_classifier import NGRAMS
from attendo.microscope.session import Session

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
    assert "24 of 120 texts are held out for validation" in outcome.err
    assert "2 labels: other " in outcome.err
    assert "accuracy" in outcome.err
    assert "calibration error" in outcome.err
    assert re.search(r"^baselines on 24 validation texts: always '\w+', .*; n-grams, .*", outcome.err, re.M)
    assert re.search(r"^kept: step \d+, ", outcome.err, re.M)


def test_one_line_for_each_text(trained):
    folder, _ = trained
    outcome = attendo("classify", folder, stdin=b"it will snow .\n\nrain\n")
    lines = [line.split("\t") for line in outcome.out.splitlines()]
    assert len(lines) == 3
    assert lines.pop(1) == ["", ""]  # no text, no label
    assert all(label in ("snow", "other") and 0.5 <= float(p) <= 1 for label, p in lines)
    facts = [json.loads(line) for line in attendo("classify", folder, "it will snow .", "--json").out.splitlines()]
    assert facts[0]["label"] == lines[0][0]
    assert sum(facts[0]["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize("command", ["classify", "embed", "translate", "look", "generate"])
def test_the_name_of_a_file_is_no_text(command, files):
    remedies = {"look": "give one of them in quotes", "generate": "use --input FILE"}
    what = f"{'PROMPT' if command == 'generate' else 'TEXT'} must be a text"
    said = refused(command, "no-run", files[1])
    assert said.startswith(
        f"Invalid value: '{files[1]}' is a file, but {what}. For its lines, {remedies.get(command, 'use < FILE')}"
    )


def test_a_table_with_the_columns_of_training_and_lines_without(trained, files, tmp_path):
    folder, _ = trained
    lines, out = tmp_path / "new.txt", tmp_path / "labels.jsonl"
    lines.write_text("it will snow .\n\nrain\tand wind\n")
    assert attendo("classify", folder, "--input", lines, "--output", out).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["line"], row["text"]) for row in rows] == [
        (1, "it will snow ."),
        (2, ""),
        (3, "rain\tand wind"),
    ]
    assert [row["label"] is None and row["probability"] is None for row in rows] == [False, True, False]
    out = tmp_path / "labels.tsv"
    assert attendo("classify", folder, "--input", files[0], "--output", out, "--columns", "1,2").code == 0
    assert len(out.read_text().splitlines()) == 121
    assert refused("classify", folder, "rain", "--columns", "2").endswith(
        "require --input; see attendo classify --help"
    )


def test_a_text_of_a_million_characters_is_cut_with_a_word(trained):
    folder, _ = trained
    outcome = attendo("classify", folder, stdin=b"snow " * 200_000)
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    assert "1 of 1 texts have more than 256 tokens" in outcome.err


def test_evaluation_prints_the_measures_and_the_matrix(trained, files, tmp_path):
    folder, _ = trained
    alone = tmp_path / "snow.tsv"
    alone.write_text("snow\tit will snow .\n")
    outcome = attendo("evaluate", folder, files[0])
    assert outcome.code == 0, outcome.err
    assert "accuracy" in outcome.out and "macro-F1" in outcome.out and "rows: label, columns: prediction" in outcome.out
    assert "120 of 120 texts are also in the training file" in outcome.err
    facts = json.loads(attendo("evaluate", folder, files[0], "--json").out)
    assert sum(map(sum, facts["confusion"])) == 120
    counts = {one["label"]: one["support"] for one in facts["classes"]}
    [common] = [label for label in counts if counts[label] == max(counts.values())]
    error = 100 * facts["accuracy_error"]
    always = f"most frequent label ('{common}'): {counts[common] / 120:.2%}"
    assert f"standard error of the accuracy: {error:.2f} points  {always}" in outcome.out
    snow = attendo("evaluate", folder, alone).out
    assert re.search(r"^other +– +– +– +0$", snow, re.M) and "–: the data has no rows with this label" in snow
    assert facts["accuracy"] == pytest.approx(sum(facts["confusion"][i][i] for i in range(2)) / 120)


def test_an_evaluation_keeps_what_was_found_with_its_line(trained, tmp_path):
    folder, _ = trained
    file, out = tmp_path / "test.tsv", tmp_path / "found.csv"
    file.write_text("snow\tit will snow .\nsnow\t\nother\train\n")
    assert attendo("evaluate", folder, file, "--out", out).code == 0
    with out.open(newline="") as kept:
        rows = list(csv.DictReader(kept))
    found = library.load(folder).classify(["it will snow .", "rain"])
    assert [tuple(row.values()) for row in rows] == [
        ("1", "snow", found[0].label, f"{found[0].probability:.4f}", "it will snow ."),
        ("3", "other", found[1].label, f"{found[1].probability:.4f}", "rain"),
    ]
    assert refused("evaluate", folder, file, "--out", out).startswith(f"{out} already exists. Choose another")
    for name in ("found.html", "found.txt"):
        assert "must end in .csv, .tsv, .jsonl, .parquet, .xlsx" in refused(
            "evaluate", folder, file, "--out", tmp_path / name
        )


def test_a_new_run_validates_on_a_tenth_and_one_without_that_word_as_before(trained, files, tmp_path):
    folder, _ = trained
    data = read_toml(folder / "config.toml")["data"]
    assert (data.pop("valid_share"), data["train"]) == (0.1, [str(files[0])])
    assert build(LabelledData, data, "[data]").valid_share == 0.01
    said = refused("train", "classification", "--train", files[0], "--set", "data.valid_share=0.5", "--out", tmp_path)
    assert "valid_share=0.5 must be above 0 and at most 0.2" in said


def test_files_are_named_as_they_are_typed(tmp_path, monkeypatch):
    (tmp_path / "one.tsv").write_text("mail\tlate\nmail\twrong\n")
    monkeypatch.chdir(tmp_path)
    said = refused("train", "classification", "--train", "one.tsv", "--out", "run")
    assert said.startswith("one.tsv: only one label, 'mail', in 2 rows")


def test_the_card_names_the_labels(trained):
    folder, _ = trained
    card = attendo("info", folder).out
    assert "labels      other (" in card and "accuracy of the n-grams alone" in " ".join(card.split())
    user = library.load(folder)
    assert isinstance(user, Classifier)
    assert user.temperature == library.load(folder).card["validation"]["temperature"]


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
        line.split("\t") for line in attendo("embed", folder, texts[4], "--nearest", near, "-n", "3").out.splitlines()
    ]
    assert rows[0] == [f"> {texts[4]}"]
    assert rows[1] == ["5", "1.0000", texts[4]]
    cosines = [float(row[1]) for row in rows[1:]]
    assert len(rows) == 4 and cosines == sorted(cosines, reverse=True)
    both = attendo("embed", folder, texts[4], texts[5], "--nearest", near, "-n", "1").out.splitlines()
    assert [both[0], both[2]] == [f"> {texts[4]}", f"> {texts[5]}"]


def test_the_nearest_rows_of_a_table(masked, tmp_path):
    folder, _ = masked
    near = tmp_path / "rows.tsv"
    near.write_text("a\train\nb\tsnow\n")
    options = ["embed", folder, "snow", "--nearest", near, "-n", "1"]
    assert attendo(*options, "--column", "2").out.splitlines()[1] == "2\t1.0000\tsnow"
    assert "choose columns with --column" in refused(*options)


def test_a_classifier_starts_from_a_masked_model(masked, files, tmp_path):
    start, _ = masked
    run = tmp_path / "run"
    budget = ["--steps", "1", "--set", "training.learning_rate=1e-12", "--set", "training.precision=float32"]
    outcome = attendo("train", "classification", "--train", files[0], "--out", run, "--init-from", start, *budget)
    assert outcome.code == 0, outcome.err
    assert f"tensors are initialized from {start}: embedding, encoder" in outcome.err
    assert "; new: output_proj" in outcome.err
    theirs, own = Embedder.load(start), Embedder.load(run)
    assert own.tokenizer.sha256 == theirs.tokenizer.sha256
    assert abs(own.embed(["rain and snow"]) - theirs.embed(["rain and snow"])).max() < 1e-6
    assert "began with" in attendo("info", run).out


def test_another_shape_than_the_weights_have_is_refused(masked, files, tmp_path):
    start, _ = masked
    options = ["--train", files[0], "--out", tmp_path / "run", "--init-from", start]
    options += ["--set", "model.d_model=64"]
    assert refused("train", "classification", *options).startswith("model.d_model=64 differs from 16")


def test_a_header_at_evaluation_is_taken_for_one(trained, files, tmp_path):
    folder, _ = trained
    rows = files[0].read_text()
    file, lines = tmp_path / "test.tsv", tmp_path / "test.jsonl"
    file.write_text("label\ttext\n" + rows)
    said = refused("evaluate", folder, file)
    assert f"{file}:1: label 'label' was not in the training data. If this line is a header, give" in said
    assert attendo("evaluate", folder, file, "--header").code == 0
    file.write_text("hail\tit will hail .\nhail\tmore hail .\n" + rows)  # no header has its like below
    lines.write_text('{"label": "hail", "text": "it will hail ."}\n')  # nor is it an object
    for path in (file, lines):
        said = refused("evaluate", folder, path)
        assert f"{path}:1: the label 'hail' was not seen" in said and "--header" not in said


def test_a_label_unseen_in_training_is_told_before_training_and_the_folder_stays_free(files, tmp_path):
    strange = tmp_path / "strange.tsv"
    strange.write_text("snew\tit will snow .\n")
    options = ["--train", files[0], "--out", tmp_path / "run", "--steps", "1"]
    said = refused("train", "classification", *options, "--valid", strange)
    assert said.startswith(f"{strange}:1: the label 'snew' was not seen in training (did you mean 'snow'?).")
    outcome = attendo("train", "classification", *options, "--valid", files[0])
    assert outcome.code == 0, outcome.err
    assert "120 of 120 validation texts are training texts" in outcome.err


@pytest.mark.parametrize("task", ["classification", "translation"])
@pytest.mark.parametrize("name", ["--train", "--valid"])
def test_a_second_file_is_refused_and_not_left_out(task, name, files, tmp_path):
    rest = ["--train", files[0]] if name == "--valid" else []
    said = refused("train", task, name, files[0], name, files[0], *rest, "--out", tmp_path / "run")
    assert "names 2 files" in said


def test_what_reads_words_without_case_starts_nothing_that_writes(trained, files, tmp_path):
    options = ["--train", files[1], "--init-from", trained[0], "--out", tmp_path / "run"]
    assert "has an uncased tokenizer" in refused("train", "language-model", *options)


def test_words_that_a_tokenizer_does_not_know_are_told_of(trained, tmp_path):
    strange = tmp_path / "strange.tsv"
    strange.write_text("".join(f"{'ab'[i % 2]}\tqwx{i} zzv{i} vvq{i}\n" for i in range(60)))
    options = ["--train", strange, "--init-from", trained[0], "--out", tmp_path / "run", "--steps", "1"]
    outcome = attendo("train", "classification", *options)
    assert "% of the words are not in the vocabulary" in outcome.err


def test_a_command_of_another_task_names_the_right_one(trained, masked):
    assert refused("translate", trained[0], "x").endswith("use it with `attendo classify`")
    assert refused("classify", masked[0], "x").endswith("use it with `attendo embed`")
    assert "--beam does not apply to this task" in refused("evaluate", trained[0], __file__, "--beam", "4")


def test_the_doctor_reads_labelled_texts_too(tmp_path):
    table, test = tmp_path / "tickets.csv", tmp_path / "test.csv"
    rows = ["1,bill,rain", "2,bill,rain", "3,door,rain", '4,door,"a long\ntext"', "5,,x", "6,odd,snow"]
    table.write_text("id,kind,body\n" + "\n".join(rows) + "\n")
    test.write_text("id,kind,body\n1,bill,snow\n2,bill,hail\n")
    asked = ["doctor", table, "--columns", "label=kind,text=body"]
    outcome = attendo(*asked, "--against", test)
    assert outcome.code == 1, outcome.err
    assert "6 rows read, 5 used, 1 skipped" in outcome.out and "--drop" not in outcome.out
    assert "lines 2, 3, 4, …\n             (fix a wrong label, add rows" in outcome.out
    report = json.loads(attendo(*asked, "--against", test, "--json").out)
    assert {name: (found["count"], found["lines"]) for name, found in report["findings"].items()} == {
        "duplicates": (1, [3]),
        "several-labels": (1, [4]),
        "leaks": (1, [8]),
        "rare-labels": (5, [2, 3, 4]),
    }
    assert report["labels"] == {"bill": 2, "door": 2, "odd": 1}
    assert "leaks: not checked" in attendo(*asked).out
    assert "Give only one" in refused(*asked, test)
    assert "label=NAME,text=NAME" in refused("doctor", table, "--columns", "label=kind,body")
    assert "'text' would be the label. Write label=NAME" in refused("doctor", table, "--columns", "text,kind")
    table.write_text("labels,text\n" + "".join(f"bill,rain {n}\n" for n in range(10)) + "bil|bill,snow\n")
    said = attendo("doctor", table, "--columns", "labels,text").out
    assert "1  bil  did you mean 'bill'?" in said and "11  bill\n" in said
    assert "1  rare-labels: a label has fewer than 10 rows\n             line 12\n" in said
    table.write_text("number,text\n4,rain\n5,rain\n")  # two ratings of a text
    assert (
        "several-labels" not in (said := attendo("doctor", table, "--columns", "number,text").out) and "2 rows" in said
    )
    (tmp_path / "chat.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 2)
    assert "-labels" not in (said := attendo("doctor", tmp_path / "chat.jsonl").out) and "1  dupl" in said


def test_copies_and_contradictions_are_said_before_training(tmp_path):
    table = tmp_path / "rows.tsv"
    texts = [("ab"[i % 2], f"text {i}") for i in range(40)]
    lines = [f"{label}\t{text}\n" for label, text in [*texts, ("a", "text 0"), ("b", "text 2"), ("b", "text 2")]]
    table.write_text("".join(lines))
    said = attendo("plan", "classification", "--train", table, *settings(SMALL), *ONE_LAYER, "--threads", "1").err
    assert "exact copies of an earlier row: 2 (lines 41, 43)" in said
    assert "texts have a different label in an earlier row: 1 (line 42)" in said


@pytest.mark.parametrize("is_held_out", [False, True])
def test_a_label_with_one_row_is_said_with_its_line_and_a_similar_label(tmp_path, is_held_out):
    texts = sorted((f"text {i}" for i in range(60)), key=source_hash, reverse=not is_held_out)
    lines = [f"{'account' if n % 2 else 'billing'},{text}" for n, text in enumerate(texts[1:])]
    (tmp_path / "rows.csv").write_text("\n".join(["label,text", *lines, f"Biling,{texts[0]}"]))
    said = attendo("plan", "classification", "--train", tmp_path / "rows.csv", "--threads", "1", *ONE_LAYER)
    what = "no row is left for training with" if is_held_out else "only 1 training row has"
    assert f"rows.csv:61: {what} the label 'Biling' (did you mean 'billing'?). Fix the label" in said.err
    assert ("the rarest, 'Biling', has 1 row" in said.err) == (not is_held_out) == (not said.code)


def test_the_ngrams_belong_to_the_run(trained, tmp_path):
    folder, _ = trained
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    user = Classifier.load(copy)
    assert user.ngrams is not None and 0.0 <= user.share <= 1.0
    user.share = 0.4
    session = Session(user)
    (text,) = ("it will snow and rain .",)
    found = session.answer("look", {"text": text, "search": "greedy"})["outcome"]
    (row,) = user.classify([text])
    assert {each["label"]: each["probability"] for each in found["labels"]} == pytest.approx(row.probabilities)
    reasons = user.ngrams.reasons(text, user.labels.names.index(row.label))
    assert found["ngrams_share"] == pytest.approx(0.6)
    assert [each["ngram"] for each in found["ngrams"]] == [ngram for ngram, _ in reasons]
    user.share = 1.0
    assert "ngrams" not in Session(user).answer("look", {"text": text, "search": "greedy"})["outcome"]
    (copy / NGRAMS).unlink()
    outcome = attendo("classify", copy, "it will snow")
    assert outcome.code == 2 and f"{copy / NGRAMS} cannot be read" in outcome.err


def test_look_names_the_ngrams(trained):
    folder, _ = trained
    card = json.loads((folder / "card.json").read_text())
    share = card["validation"]["share"]
    out = attendo("look", folder, "it will snow .").out
    assert (f"n-grams ({1 - share:.0%} of the decision):" in out) == (share < 1.0)


def test_thresholds_are_chosen_stored_used_and_removed(trained, files, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "run")
    plain = attendo("classify", folder, "it will snow .").out
    assert refused("thresholds", folder, "--abstain", "0.5", "--remove").startswith("Invalid value: --precision,")
    assert "threshold 'hail=0.5': unknown label 'hail'" in refused("thresholds", folder, "--threshold", "hail=0.5")
    chosen = attendo("thresholds", folder, "--abstain", "0.5")
    assert chosen.code == 0, chosen.err
    assert "50.00% of the texts have a label" in chosen.out
    assert attendo("thresholds", folder).out == chosen.out
    card = json.loads((folder / "card.json").read_text())
    assert card["thresholds_from"].startswith("0.5 without a label, chosen from 24 texts of ")
    assert "thresholds of the run: " in attendo("evaluate", folder, files[0]).out
    always = attendo("thresholds", folder, files[0], "--precision", "0.999")
    assert "snow: a precision of 0.999 cannot be shown with 120 texts" in always.err.replace("other, ", "")
    undo = f"To remove the thresholds, run: attendo thresholds {folder} --remove\n"
    assert always.err.endswith(f"warning: no text has a label with these thresholds. {undo}")
    assert undo in chosen.err and "warning" not in chosen.err and ", of which" not in always.out
    assert attendo("classify", folder, "it will snow .").out == f"\t{plain.split()[-1]}\n"
    assert attendo("classify", folder, "it will snow .", "--threshold", "0").out == plain
    out = tmp_path / "labels.csv"
    attendo("classify", folder, "--input", files[0], "--output", out, "--columns", "1,2")
    assert {row["label"] for row in csv.DictReader(out.read_text().splitlines())} == {""}
    assert attendo("thresholds", folder, "--remove").code == 0
    assert attendo("classify", folder, "it will snow .").out == plain


def test_the_curves_of_an_evaluation_are_written(trained, files, tmp_path):
    folder, _ = trained
    for name in ("curves.json", "curves.png"):
        assert attendo("evaluate", folder, files[0], "--curves", tmp_path / name).code == 0
    facts = json.loads((tmp_path / "curves.json").read_text())
    assert sum(map(sum, facts["confusion"])) == 120
    assert set(facts["labels"]) == {"snow", "other"}
    assert "must end in .json, .png or .svg" in refused(
        "evaluate", folder, files[0], "--curves", tmp_path / "curves.gif"
    )
