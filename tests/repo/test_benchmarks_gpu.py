"""The figures of a GPU, rehearsed on the CPU with tiny sizes, so that they run at the first attempt on a GPU."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_corpus import pairs_file

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu")


@pytest.fixture
def options(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--tiny", "--folder", str(tmp_path)])
    return gpu.read_options()


@pytest.mark.full
def test_speeds_are_measured_for_each_contender(gpu, options):
    trained = gpu.training(options)["sizes"]["tiny"]
    assert [len(figures) for figures in trained.values()] == [3, 3, 2]
    assert all(share[1] > 0 for share in trained["share_of_peak"].values())
    assert gpu.decoding(options)["cases"]["1x1"]["ratio"][1] > 0
    speeds = gpu.language(options)["tokens_per_second"]["tiny, batch 1"]
    assert [len(figures) for figures in speeds.values()] == [3, 3]


def test_a_part_that_exceeds_its_limit_is_listed_and_one_that_was_measured_is_kept(gpu, options, monkeypatch):
    monkeypatch.setitem(gpu.LIMITS, "check", 0)
    assert gpu.measured("check", options)["not measured"].startswith("after 0 s")
    assert gpu.measured("multi30k", options) == {"not measured": "requires --corpora"}
    (options.folder / "check.json").write_text('{"torch": "2"}')
    assert gpu.measured("check", options) == {"torch": "2"}
    assert sum(gpu.LIMITS.values()) <= 25 * 60


@pytest.mark.full
def test_all_parts_run_on_the_cpu_as_they_will_on_a_gpu(tmp_path):
    pairs = pairs_file(tmp_path).read_text()
    for folder in ("multi30k_ende", "multi30k_ende/tok_lc", "tinyshakespeare"):
        (tmp_path / folder).mkdir()
        for name in ("train.tsv", "val.tsv", "test_2016_flickr.tsv", "train.txt", "val.txt"):
            (tmp_path / folder / name).write_text(pairs)
    out = tmp_path / "gpu.json"
    command = [sys.executable, BENCHMARKS / "gpu.py", "--device", "cpu", "--tiny", "--corpora", tmp_path]
    subprocess.run([*command, "--folder", tmp_path / "parts", "--out", out], check=True, timeout=1500)
    parts = json.loads(out.read_text())["parts"]
    assert [name for name, found in parts.items() if "not measured" in found] == []
    assert len(parts) == 8
    assert parts["resume"]["verify-resume"].startswith("bit-identical")
