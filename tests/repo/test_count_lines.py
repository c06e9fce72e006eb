"""The line budget of the core counts code, and fails when it is exceeded."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "count_lines.py"


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("count_lines", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_over_the_budget_fails(tool, monkeypatch, capsys, tmp_path):
    (tmp_path / "nn").mkdir()
    (tmp_path / "nn" / "a.py").write_text("x = 1\ny = 2\n")
    (tmp_path / "models.py").write_text("z = 3\n")
    monkeypatch.setattr(tool, "CORE", tmp_path)
    monkeypatch.setattr(tool, "BUDGET", 3)
    assert tool.main() == 0
    monkeypatch.setattr(tool, "BUDGET", 2)
    assert tool.main() == 1
    assert "3  of 2 lines" in capsys.readouterr().out
