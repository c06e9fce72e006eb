"""The demo on few forecasts: start to finish, stopped, used again, begun anew."""

import shutil
import signal

from command_line import attendo, refused, settings, stopped_at
from tiny_corpus import SMALL, pairs_file

from attendo.data import pair_corpus
from attendo.microscope import view
from attendo.microscope.view import View


def test_the_demo_start_to_finish_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_corpus, "FORECAST_PAIRS", 200)
    monkeypatch.setattr(pair_corpus, "FORECAST_VALIDATION_PAIRS", 10)
    monkeypatch.setattr(view, "write_picture", lambda *arguments: None)  # test_look.py has pictures
    out = tmp_path / "demo"
    quick = [*settings(SMALL), "--set", "training.steps=2"]
    with stopped_at(1, signal.SIGINT):
        begun = attendo("demo", "--out", out, *quick)
    assert begun.code == 130
    said = begun.err.splitlines()[:2]
    assert said[0].startswith("Training") and all(len(line) <= 80 for line in said)
    first = attendo("demo", "--out", out, "--test", "5")  # goes on
    assert first.code == 0, first.err
    assert "resumed step-1" in first.err
    assert "exact match 0.0%" in first.out
    assert "most similar training forecast: 0.0%" in first.out
    assert "Cross-attention" in first.out
    assert all(len(line) <= 80 for line in first.out.splitlines() if str(out) not in line)
    assert "<html" in (out / "look.html").read_text(encoding="utf-8").lower()
    again = attendo("demo", "--out", out, "--test", "5")
    assert again.out == first.out
    assert "using the finished demo" in again.err
    assert "require --fresh" in refused("demo", "--out", out, "--cpu-minutes", "1")
    monkeypatch.setattr(View, "save", lambda self, path: None)  # enough of them
    shutil.rmtree(out / "checkpoints")
    (out / "metrics.jsonl").unlink()  # killed before its first checkpoint: it begins again
    assert attendo("demo", "--out", out, "--test", "5", *quick).code == 0
    assert attendo("demo", "--out", out, "--fresh", "--test", "5", *quick).code == 0


def test_the_demo_removes_nothing_else(tmp_path):
    run = tmp_path / "run"
    file = pairs_file(tmp_path)
    assert attendo("train", "translation", "--train", file, "--out", run, *settings(SMALL), "--steps", "1").code == 0
    before = sorted(tmp_path.rglob("*"))
    for folder, said in ((run, "already holds a run"), (tmp_path, "is not empty"), (file, "is a file")):
        assert said in refused("demo", "--out", folder, "--fresh")
        assert said in refused("demo", "--out", folder)
    assert sorted(tmp_path.rglob("*")) == before
