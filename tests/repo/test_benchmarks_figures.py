"""The list of figures and the pages that are written from it: nothing is claimed that is not stored or logged."""

import doctest
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WANTS = ["corpora", "run", "minilm", "peers", "chromium", "llama"]
MODULES = ["figure_list", "figures", "page_tables", "page_tables_use", "pages"]


@pytest.fixture
def benchmark_module(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


@pytest.fixture
def listed(benchmark_module):
    return benchmark_module("figure_list").figures_and_jobs()


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(benchmark_module, name):
    assert doctest.testmod(benchmark_module(name)).failed == 0


def test_the_pages_say_what_is_stored(benchmark_module):
    pages = benchmark_module("pages")
    for path, language in pages.PAGES.items():
        text = path.read_text(encoding="utf-8")
        assert pages.MARKED.search(text), f"{path.name} has no table"
        assert pages.written(text, language) == text, f"{path} is not up to date: make docs"


def test_every_figure_comes_from_a_result_or_the_log(listed):
    log = (ROOT / "docs/log.md").read_text(encoding="utf-8")
    for figure in listed[0]:
        assert bool(figure.log) != bool(figure.stored), figure.name
        assert figure.log in log, f"{figure.name}: docs/log.md does not say: {figure.log}"
        assert figure.value is None or figure.log, figure.name
        figure.measured()


def test_every_job_is_of_some_figure_and_its_script_is_there(listed):
    figures, jobs = listed
    assert {figure.job for figure in figures} == {*jobs}
    assert len({figure.name for figure in figures}) == len(figures)
    for job in jobs.values():
        assert bool(job.commands) == bool(job.cpu) != bool(job.why), job.name
        for command in (job.repeat, *job.commands):
            scripts = [word for word in command.split() if word.startswith(("benchmarks/", "recipes/"))]
            assert all((ROOT / script).exists() for script in scripts), command


def test_jobs_are_taken_in_their_order_while_they_fit(benchmark_module, listed):
    figures, jobs = listed
    options = type("Options", (), {"only": None, "cpu_minutes": 1})
    running, left = benchmark_module("figures").chosen(figures, jobs, options, dict.fromkeys(WANTS, "there"))
    assert 0 < sum(jobs[name].cpu for name in running) <= 60
    assert [name for name in jobs if name in running] == [*running]
    assert left["ladder/signal"] == "over 1 CPU-minutes in all"
    assert {figure.name for of_job in running.values() for figure in of_job}.isdisjoint(left)
    assert {want for job in jobs.values() for want in job.wants} <= {*WANTS}


def test_a_job_gives_its_figures_and_one_that_fails_says_why(benchmark_module, tmp_path):
    figures, jobs = benchmark_module("figures"), benchmark_module("figure_list")
    script = tmp_path / "said.py"
    script.write_text("import json, sys; print(json.dumps({'rows': [{'n': 1, 'x': 2.5}, {'n': 8, 'x': 0.5}]}))")
    job = jobs.Job(name="a", repeat="", commands=(f"{{python}} {script}",), cpu=1)
    broken = jobs.Job(name="b", repeat="", commands=("{python} -c 'raise SystemExit(3)'",), cpu=1)
    figure = {"en": "", "ja": "", "job": "a", "at": ("rows", {"n": [8]}, "x")}
    good = jobs.Figure(name="a/good", **figure, most=1)
    short = jobs.Figure(name="a/short", **figure, least=1, form=".1f", unit=" ×")
    absent = jobs.Figure(name="a/absent", **(figure | {"at": ("peers", "x")}))
    running = {"a": [good, short, absent], "b": [jobs.Figure(name="b/one", en="", ja="", job="b")]}
    places = {"python": sys.executable, "corpora": None}
    values, spent, failed = figures.measured(running, {"a": job, "b": broken}, places)
    assert values == {"a/good": 0.5, "a/short": 0.5}
    assert {*spent} == {"a"}
    assert "stopped with status 3" in failed["b"]
    text = figures.told([good, short], values, spent, failed, {})
    assert "a/short  ≥ 1 ×  0.5 ×" in text
    assert text.endswith("2 figures, 1 fall short: a/short")


def test_what_is_wanted_and_not_given_is_said(benchmark_module, listed):
    options = type("Options", (), {"only": ["embeddings", "quality"], "cpu_minutes": 30})
    running, left = benchmark_module("figures").chosen(*listed, options, {})
    assert running == {}
    assert left["embeddings/speed"] == "wants --corpora, --minilm"
    assert left["quality/attendo"] == "40 CPU-minutes for each tool"


def test_a_later_run_replaces_the_figures_that_it_has(benchmark_module, tmp_path, monkeypatch):
    module = benchmark_module("figure_list")
    monkeypatch.setattr(module, "HERE", tmp_path)
    assert module.last_run() == {}
    (tmp_path / "results").mkdir()
    for name, day, commit, figures in (
        ("figures-2026-01-03.json", "2026-01-03", "b", {"one": 2, "two": 2}),
        ("figures-2026-01-03-2.json", "2026-01-03", "c", {"two": 3}),
        ("figures-2026-01-02.json", "2026-01-02", "a", {"one": 1, "three": 1}),
    ):
        run = {"date": day, "commit": commit, "figures": figures}
        (tmp_path / "results" / name).write_text(json.dumps(run))
    last = module.last_run()
    assert last["figures"] == {"one": 2, "two": 3, "three": 1} and last["commits"] == ["a", "b", "c"]
