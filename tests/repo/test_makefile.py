"""The virtual environment of the Makefile: an existing one is used or named, and torch comes from the fitting index."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch_index

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


# ---- the index of torch

RECORDS = """#!/bin/sh
[ "$1" = -m ] && echo "$@" >> "{log}" && exit 0
exec "{python}" "$@"
"""
"""A Python whose pip only writes down what it was asked to do."""
GPU = "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'"
NO_GPU = "echo 'NVIDIA-SMI has failed' >&2; exit 9"


class Page(http.server.BaseHTTPRequestHandler):
    """The index: a page of torch and nothing else."""

    def do_GET(self):
        self.send_response(200 if self.path == "/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def index():
    """The address of an index that answers."""
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/cpu"
        server.shutdown()


@pytest.fixture
def installed(tmp_path):
    """What `make` prints about torch, and the first thing that it asks of pip."""
    if sys.platform != "linux":
        pytest.skip("the choice is made on Linux only")
    log, python, smi = tmp_path / "log", tmp_path / "venv" / "bin" / "python", tmp_path / "nvidia-smi"
    python.parent.mkdir(parents=True)
    python.write_text(RECORDS.format(python=sys.executable, log=log))

    def run(index: str, tool: str, **variables: str) -> tuple[str, str]:
        smi.write_text(f"#!/bin/sh\n{tool}\n")
        for script in (python, smi):
            script.chmod(0o755)
        others = {key: value for key, value in os.environ.items() if key not in torch_index.OWN_CHOICE}
        folder = python.parent.parent
        done = subprocess.run(
            [
                "make",
                "-C",
                str(ROOT),
                str(folder / "run.stamp"),
                f"VENV={folder}",
                f"TORCH_CPU_INDEX={index}",
            ],
            capture_output=True,
            text=True,
            check=True,
            env=others | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "no_proxy": "*"} | variables,
        )
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("torch: ")]
        return said, log.read_text().splitlines()[0]

    return run


def test_without_a_gpu_torch_comes_from_the_cpu_index(installed, index):
    said, asked = installed(index, NO_GPU)
    assert said == f"torch: the CPU build from {index} (nvidia-smi lists no GPU)"
    assert asked == f"-m pip install --quiet --extra-index-url {index} -r requirements.lock"


@pytest.mark.parametrize(
    ("tool", "end", "variables", "reason"),
    [
        (GPU, "", {}, "the default index, with CUDA (nvidia-smi lists a GPU)"),
        (NO_GPU, "/no", {}, "the default index ({}/no did not answer within 5 seconds)"),
        (NO_GPU, "", {"PIP_INDEX_URL": "http://mine"}, "the index that PIP_INDEX_URL sets"),
        (NO_GPU, "", {"PIP_EXTRA_INDEX_URL": "http://mine"}, "the index that PIP_EXTRA_INDEX_URL sets"),
    ],
)
def test_otherwise_pip_uses_its_own_index(installed, index, tool, end, variables, reason):
    said, asked = installed(index + end, tool, **variables)
    assert said == f"torch: {reason.format(index)}"
    assert asked == "-m pip install --quiet -r requirements.lock"


def test_a_silent_or_closed_index_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(torch_index, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert not torch_index.answers(f"http://127.0.0.1:{port}/cpu")
    assert not torch_index.answers(f"http://127.0.0.1:{port}/cpu")
    assert not torch_index.answers("no address")
