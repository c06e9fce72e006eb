"""Runs that earlier versions have written load, give what they gave, and go on; those of a later format are refused."""

import json
import shutil

import golden_runs
import pytest
from command_line import refused
from golden_runs import DATA, EXPECTED, FAMILIES, GOLDEN, RUN

from attendo.bundle import FORMAT, load_bundle, load_model
from attendo.errors import AttendoError

FOLDERS = sorted(GOLDEN.glob("format-*/*"))


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def golden(request):
    """A family's folder, and what its run gave when it was made."""
    return request.param, json.loads((request.param / EXPECTED).read_text(encoding="utf-8"))


def test_this_format_has_a_run_of_each_family_and_none_is_large():
    found = {folder.name: folder for folder in FOLDERS if folder.parent.name == f"format-{FORMAT}"}
    assert found.keys() == FAMILIES.keys()
    for folder in FOLDERS:
        assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 100_000


def test_a_run_gives_equal_logits(golden):
    """In float64 they do not depend on the machine: rounding is far below the digits that are written down."""
    folder, expected = golden
    bundle = load_bundle(folder / RUN)
    found = golden_runs.logits(load_model(folder / RUN, bundle), bundle.tokenizer)
    for row, wanted in zip(found, expected["logits"], strict=True):
        assert row == pytest.approx(wanted, rel=0, abs=2e-9)


def test_a_run_gives_equal_answers(golden):
    folder, expected = golden
    assert golden_runs.answers(folder / RUN) == expected["answers"]


def test_a_run_goes_on(golden, tmp_path, monkeypatch):
    """With the same rows, the same state of the optimizer and the same random numbers as when it was made."""
    folder, expected = golden
    shutil.copytree(folder / RUN, tmp_path / RUN)
    shutil.copy(folder / DATA, tmp_path)
    monkeypatch.chdir(tmp_path)
    found = golden_runs.loss_after_resuming(tmp_path / RUN)
    assert found == pytest.approx(expected["loss_after_resuming"], abs=1e-4)


def test_what_is_there_is_not_written_again(capsys):
    before = {file: file.stat().st_mtime_ns for file in GOLDEN.rglob("*")}
    assert golden_runs.main() == 1
    assert "is there, and stays as it is" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in GOLDEN.rglob("*")} == before


@pytest.fixture
def later(tmp_path):
    """A run of a later format, whose other files are not as they are now."""
    (tmp_path / "card.json").write_text(json.dumps({"format": FORMAT + 1, "model": {}}), encoding="utf-8")
    return tmp_path


def test_a_run_of_a_later_format_is_refused_whatever_else_it_holds(later):
    with pytest.raises(AttendoError, match=rf"card.json: format {FORMAT + 1} is unknown .* Upgrade attendo$"):
        load_bundle(later)


COMMANDS = {name: ["rain"] for name in ("translate", "generate", "classify", "embed", "look")} | {
    "info": [],
    "resume": ["--threads", "1"],
    "verify-resume": [],
    "export": ["out", "--to", "onnx"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_refuses_it_in_one_line(later, command, monkeypatch):
    monkeypatch.chdir(later.parent)
    said = refused(command, later, *COMMANDS[command])
    assert said.startswith(f"{later / 'card.json'}: format {FORMAT + 1} is unknown (this version")


@pytest.mark.parametrize("text", ["[]", "3", '"format"', "{"])
def test_a_card_that_is_no_table_is_damaged(later, text):
    (later / "card.json").write_text(text, encoding="utf-8")
    with pytest.raises(AttendoError, match=r"card.json is damaged .*Restore the file"):
        load_bundle(later)
