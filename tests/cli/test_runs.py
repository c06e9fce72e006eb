"""attendo runs: every run below a folder, also damaged ones, and their notes."""

import json
import re
import shutil

from command_line import attendo, refused
from documented import ROOT

GOLDEN = ROOT / "tests" / "golden" / "format-1"


def test_all_runs_are_listed_by_date_and_damaged_ones_with_the_reason(tmp_path):
    for name, started in (
        ("a/second", "2026-03-02T10:00:00+00:00"),
        ("b/c/first", "2026-03-01T12:00:00+02:00"),
    ):
        run = shutil.copytree(GOLDEN / "classification" / "run", tmp_path / name)
        card = json.loads((run / "card.json").read_text())
        (run / "card.json").write_text(json.dumps(card | {"started": started, "deciding": "accuracy"}))
    for name, harm in (("no-card", "card.json"), ("no-weights", "model.safetensors"), ("cut", "config.toml")):
        run = shutil.copytree(GOLDEN / "translation" / "run", tmp_path / name)
        (run / harm).unlink() if name != "cut" else (run / harm).write_text("[model]\nd_model = 6")
    found = json.loads(attendo("runs", tmp_path, "--json").out)["runs"]
    assert [run["run"] for run in found[:2]] == [str(tmp_path / "b/c/first"), str(tmp_path / "a/second")]
    assert found[0] | {"run": ""} == found[1] | {"run": "", "started": found[0]["started"]}
    assert (found[0]["deciding"], found[0]["score"]) == ("accuracy", found[0]["validation"]["accuracy"])
    assert (found[0]["steps"], found[0]["rows"], found[0]["ended"]) == (12, 20, True)
    errors = {run["run"].rpartition("/")[2]: run["error"] for run in found[2:]}
    assert "has no card.json" in errors["no-card"]
    assert errors["no-weights"].startswith("model.safetensors is missing")
    assert "truncated" in errors["cut"]
    lines = attendo("runs", tmp_path).out.splitlines()
    assert re.fullmatch(rf"2026-03-01 \d\d:00  accuracy 90.0%     12  1 s   {tmp_path}/b/c/first", lines[2]), lines
    assert lines[3] == "    classification; data.tsv (20 rows)"
    assert sum("  damaged  " in line for line in lines) == 3


def test_notes(tmp_path):
    run = shutil.copytree(GOLDEN / "classification" / "run", tmp_path / "run")
    assert "note: first try, 晴れ" in attendo("runs", run, "--note", "first try, 晴れ").out
    assert (run / "note.txt").read_text(encoding="utf-8") == "first try, 晴れ\n"
    assert "note        first try, 晴れ" in attendo("info", run).out
    assert "note:" not in attendo("runs", run, "--note", "").out and not (run / "note.txt").exists()
    assert "is not a run folder" in refused("runs", tmp_path, "--note", "x")
    assert "no such folder" in refused("runs", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert attendo("runs", tmp_path / "empty").err == f"no runs in {tmp_path / 'empty'}\n"
