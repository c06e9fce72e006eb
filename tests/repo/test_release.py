"""The wheel and the sdist: what they hold, and that the wheel runs where nothing else of the project is."""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from golden_runs import EXPECTED, GOLDEN, RUN, TEXTS
from release_contents import build, sdist_faults, wheel_faults, wheel_files

from attendo import __version__


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist)"""
    sdist, wheel = sorted(build(tmp_path_factory.mktemp("dist")), key=lambda file: file.suffix)
    return wheel, sdist


def test_the_wheel_holds_the_package_to_the_byte_and_nothing_else(built):
    assert wheel_faults(built[0]) == []
    names = wheel_files(built[0]).keys()
    for part in ("py.typed", "presets/demo.toml", "decoding/native/decoder.cpp"):
        assert f"attendo/{part}" in names
    assert "attendo_course/formulas.toml" in names
    for part in ("microscope/assets/look/look.html", "serving/assets/page/page.html"):
        assert f"attendo/{part}" in names


def test_the_sdist_holds_what_builds_tests_and_explains_the_package(built):
    assert sdist_faults(built[1]) == []


def test_the_wheel_made_from_the_sdist_is_the_same(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    (again,) = build(tmp_path, tmp_path / sdist.name.removesuffix(".tar.gz"), ("wheel",))
    assert wheel_files(again) == wheel_files(wheel)


def test_what_is_missing_changed_or_too_much_is_found(built, tmp_path):
    wheel = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as whole, zipfile.ZipFile(wheel, "w") as other:
        for name in whole.namelist():
            if not name.endswith("py.typed"):
                other.writestr(name, b"" if name.endswith("look.css") else whole.read(name))
        other.writestr("attendo/left.tmp", b"")
    assert wheel_faults(wheel) == [
        "attendo/py.typed is missing",
        "attendo/left.tmp does not belong there",
        "attendo/microscope/assets/look/look.css differs",
    ]


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    """Python in an environment of its own that has the wheel, and sees the other packages of this one."""
    folder = tmp_path_factory.mktemp("bare") / "env"
    venv.create(folder)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-index", "--no-deps", "--no-compile", str(built[0])], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "others.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n", encoding="utf-8")
    return python


def run(python, code, *arguments):
    """What Python prints in an empty folder, where nothing points to the project."""
    folder = python.parent.parent.parent / "elsewhere"
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"ATTENDO_NATIVE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*([python, "-c", code] if code else [python.parent / "attendo"]), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_installed_command_says_its_version(python):
    assert run(python, "", "--version") == f"attendo {__version__}\n"
    assert run(python, "import attendo; print(attendo.__file__)").startswith(str(python.parent.parent))


def test_the_installed_command_finds_its_files(python):
    """The page's, the presets and the formulas, in one process; and a run of an earlier version is the same to it."""
    run_folder = GOLDEN / "format-1" / "translation" / RUN
    code = f"""
from pathlib import Path
from attendo.cli import main
assert main(["translate", {str(run_folder)!r}, {TEXTS[0]!r}]) == 0
assert main(["look", {str(run_folder)!r}, "Rain.", "--out", "look.html"]) == 0
assert Path("look.html").stat().st_size > 100_000
assert main(["claims", "C01"]) == 0
assert main(["train", "translation", "--preset", "tiny", "--train", "pairs.tsv", "--out", "run", "--print-config"]) == 0
"""
    said = run(python, code)
    assert said.startswith(
        json.loads((run_folder.parent / EXPECTED).read_text(encoding="utf-8"))["answers"][0]
    )
    assert "d_model = 128" in said
