"""The notebooks are valid files without outputs, their cells run in order, and their links lead to files."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from tiny_corpus import SMALL

import attendo
from attendo.runs import train

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SLOW = {"weather-in-jax", "look-inside", "train-a-translator"}  # other tests have what these show
FIELDS = {"code": {"outputs": [], "execution_count": None}, "markdown": {}}


def cells(path):
    """(kind, text) of each cell; raises AssertionError for a file that is not as nbformat 4.5 has it."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["language"] == "python"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        rest = {key: value for key, value in cell.items() if key not in ("id", "cell_type", "source", "metadata")}
        assert rest == FIELDS[cell["cell_type"]], "remove the outputs before you commit"
        yield cell["cell_type"], "".join(cell["source"])


def run(code, names):
    """A cell as a notebook runs it: the value of a last expression is shown."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
        assert getattr(value, "_repr_html_", value.__repr__)() is not None


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.full] * (path.stem in SLOW)) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, monkeypatch):
    def quick(file, out, *, cpu_minutes, say=lambda line: None):
        assert cpu_minutes == 1
        return train(file, out, settings=SMALL, say=say)

    monkeypatch.setattr(attendo, "train", quick)
    names = {}
    try:
        for kind, text in cells(path):
            if kind == "code":
                run(text, names)
    finally:
        torch.set_printoptions(profile="default", sci_mode=None)  # a notebook sets its own
        pyplot.close("all")
    if path.stem == "weather-in-jax":
        above_law = {name: float(found - law) for name, (found, _, law) in names["rows"].items()}
        assert above_law["cross-entropy"] < 0.002 and 0.002 < above_law["squared error"] < 0.02
        assert abs(names["counts"] / names["counts"].sum(1, keepdims=True) - names["P"]).max() < 0.05
        assert (names["alpha"] * names["is_as_today"]).sum(1).mean() > 0.95


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_files(path):
    text = "".join(text for kind, text in cells(path) if kind == "markdown")
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links
    assert [link for link in links if not (path.parent / link).is_file()] == []


def test_the_tutorial_names_every_notebook():
    for page in ("docs/en/start.md", "docs/ja/start.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [path.name for path in NOTEBOOKS if f"(../../notebooks/{path.name})" not in text] == []
    assert len(NOTEBOOKS) == 5
