"""attendo report: what a real run leaves, drawn."""

import shutil
import sys

import pytest
from command_line import attendo, refused
from golden_runs import GOLDEN, RUN
from matplotlib.image import imread
from tiny_log import log_folder

from attendo.errors import install_command


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two logs, and a classifier that was really trained."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        log_folder(folder / name)
    shutil.copytree(GOLDEN / "format-1" / "classification" / RUN, folder / "real")
    return folder


def test_a_run_has_its_report_in_its_folder(place):
    folder = place / "real"
    outcome = attendo("report", folder)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines() == [f"wrote {folder / 'report.html'}", f"wrote {folder / 'curves.png'}"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    for said in ("Learning curves: real", "macro-F1", "learning rate", "all 12 steps done"):
        assert said in page
    height, width, _ = imread(folder / "curves.png").shape
    assert width > 1000 and height > 1000


def test_several_runs_on_the_same_axes(place, tmp_path):
    out = tmp_path / "a" / "b"
    outcome = attendo("report", place / "one", place / "two", "--out", out, "--by", "minutes", "--language", "ja")
    assert outcome.code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "学習曲線：one, two" in page and "経過時間（分）" in page and "run-1" in page
    assert (out / "curves.png").stat().st_size > 10_000


def test_a_log_cut_short_is_said(place, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    log = (place / "one" / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(log[:-9])
    outcome = attendo("report", folder)
    assert outcome.code == 0
    n = log.count(b"\n")
    assert f"{folder / 'metrics.jsonl'}:{n}: incomplete last line, skipped" in outcome.err
    assert "incomplete last line, skipped" in (folder / "report.html").read_text(encoding="utf-8")


def test_without_matplotlib_there_is_the_page_and_a_word(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "attendo.display.fonts", raising=False)
    outcome = attendo("report", place / "one", "--out", tmp_path / "out")
    assert outcome.code == 0
    assert "curves.png was not written" in outcome.err
    assert install_command("plots") in outcome.err
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["none"], "none: no such run folder"),
        (["."], "metrics.jsonl: no such file"),
        (["one", "--by", "hours"], "--by hours is unknown (expected step, minutes or cpu-minutes)"),
        (["one", "--language", "de"], "not one of 'en', 'ja'"),
        (
            ["one", "--out", "real/card.json"],
            "is not a folder (expected a folder for report.html and curves.png)",
        ),
        (["one", "--out", "rep.html"], "--out rep.html is not a folder"),
        ([], "Missing argument"),
    ],
    ids=str,
)
def test_wrong_input_is_one_line(place, monkeypatch, options, said):
    monkeypatch.chdir(place)
    assert said in refused("report", *options)
