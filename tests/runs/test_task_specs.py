"""A kind of task is one value: all that is listed elsewhere by kind has the kinds of task_specs."""

from typing import get_args

import pytest
from tiny_corpus import SMALL as PAIRS
from tiny_corpus import pairs_file
from tiny_talks import talks_file
from tiny_texts import SMALL, labelled_file, text_file
from typer.main import get_command

from attendo import inference
from attendo.bundle import TaskName, examples_of
from attendo.cli import build_app
from attendo.runs.settings import joined
from attendo.runs.task_specs import TASK_SPECS
from attendo.runs.training_run import new_run


def test_the_names_of_the_kinds_are_those_of_the_values():
    assert get_args(TaskName) == tuple(TASK_SPECS)


def test_each_kind_has_a_command_and_an_inference_class():
    train = get_command(build_app()).commands["train"]
    assert set(train.commands) == set(TASK_SPECS) == set(inference._KINDS)


def tagged_file(folder):
    """A CoNLL file with a sentence per day."""
    file = folder / "days.conll"
    file.write_text("\n".join(f"rain O\non O\nday B-DATE\n{n} I-DATE\n" for n in range(100)))
    return file


FILES = {
    "translation": (PAIRS, pairs_file, {}),
    "classification": (SMALL, labelled_file, {"model": {"n_encoder_layers": 1}}),
    "tagging": (SMALL, tagged_file, {"model": {"n_encoder_layers": 1}}),
    "language-model": (SMALL, text_file, {"model": {"n_decoder_layers": 1, "max_len": 24}}),
    "chat": (SMALL, talks_file, {"model": {"n_decoder_layers": 1, "max_len": 200}}),
    "masked-language-model": (SMALL, text_file, {"model": {"n_encoder_layers": 1, "max_len": 24}}),
}


@pytest.mark.parametrize("name", FILES)  # preferences start from an assistant: test_chat_tasks.py
def test_a_new_run_has_examples_of_its_validation_texts_alone(tmp_path, name):
    small, file, own = FILES[name]
    spec = TASK_SPECS[name]
    tables = joined(small, own, {"data": {"train": [str(file(tmp_path))]}})
    new_run(spec, tables, tmp_path / "run")
    found = examples_of(tmp_path / "run")
    assert len(found) == 3
    corpus = spec.open(spec.data(**tables["data"]), lambda line: None)
    if name.endswith("language-model"):
        held = "".join(chunk.text for chunk in corpus.chunks("valid"))
        trained = "".join(corpus.texts()).splitlines()
    else:
        held = "\n".join(corpus.text_of(row) for row in corpus._all_validation())
        trained = [corpus.text_of(row) for row in corpus.rows()]
    assert all(len(text) <= (30 if name == "language-model" else 80) for text in found)
    assert all(text in held for text in found)
    assert name == "language-model" or not {*found} & {*trained}
    new_run(spec, tables, tmp_path / "again")
    assert examples_of(tmp_path / "again") == found


def test_examples_of_texts_sorted_by_label_are_of_several_labels(tmp_path):
    file = tmp_path / "sorted.tsv"
    rows = [f"{label}\tthe {label} of day {n}\n" for label in ("rain", "snow") for n in range(100)]
    file.write_text("".join(rows), encoding="utf-8")
    tables = joined(SMALL, FILES["classification"][2], {"data": {"train": [str(file)]}})
    new_run(TASK_SPECS["classification"], tables, tmp_path / "run")
    assert len({"snow" in text for text in examples_of(tmp_path / "run")}) == 2


def test_prompts_are_the_first_lines_of_different_documents(tmp_path):
    for n in range(4):
        (tmp_path / f"{n}.txt").write_text(f"\n\tchapter number {n} of a long book\nits second line is this\n")
    tables = joined(SMALL, FILES["language-model"][2])
    tables["data"] = {"train": [str(text_file(tmp_path, name="t.text"))], "valid": [str(tmp_path / "*.txt")]}
    new_run(TASK_SPECS["language-model"], tables, tmp_path / "run")
    assert examples_of(tmp_path / "run") == [f"chapter number {n} of a long" for n in range(3)]
