"""The virtual environment of the Makefile: an existing one is used or named, and nothing of it is removed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")

MAKES = """#!/bin/sh
[ "$1" = -c ] && exit 0
mkdir -p "$3/bin" && ln -sf "{python}" "$3/bin/python" && touch "$3/pyvenv.cfg"
[ ! -e "{stop}" ]
"""
"""A Python that makes environments at once, and fails behind that where a file is there."""


@pytest.fixture
def made(tmp_path):
    """What `make` says when it sets up an environment in a folder."""
    fake, stop = tmp_path / "python", tmp_path / "stop"
    fake.write_text(MAKES.format(python=sys.executable, stop=stop))
    fake.chmod(0o755)

    def run(folder: Path) -> str:
        stamp = folder / "python.stamp"
        command = [
            "make",
            "--no-print-directory",
            "-C",
            str(ROOT),
            str(stamp),
            f"VENV={folder}",
            f"PYTHON={fake}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert stamp.exists() == (done.returncode == 0)
        return done.stderr

    return run


def test_a_new_environment_is_made_and_an_interrupted_one_again(made, tmp_path):
    venv, stop = tmp_path / "venv", tmp_path / "stop"
    stop.touch()
    made(venv)
    assert (venv / "making").exists()
    stop.unlink()
    assert made(venv) == ""
    assert sorted(path.name for path in venv.iterdir()) == ["bin", "python.stamp", "pyvenv.cfg"]


def test_an_environment_of_the_users_own_is_used_as_it_is(made, tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (venv / "bin" / "python").chmod(0o755)
    (venv / "mine").write_text("kept")
    assert made(venv) == ""
    assert (venv / "mine").read_text() == "kept"


def test_any_other_folder_is_named_and_left_alone(made, tmp_path):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "mine").write_text("kept")
    said = made(venv)
    assert f"error: {venv} is not a virtual environment of Python 3.11 to 3.13 with pip; move it away" in said
    assert [path.name for path in venv.iterdir()] == ["mine"]
