"""The wheel and the sdist: what they hold, and that the wheel runs where nothing else of the project is."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

import noxfile
import pytest
from golden_runs import EXPECTED, GOLDEN, RUN, TEXTS

from attendo import __version__

ROOT = Path(__file__).resolve().parents[2]
SDIST_FOLDERS = ("benchmarks", "deploy", "docs", "notebooks", "recipes", "src", "tests", "tools")
SDIST_FILES = ("LICENSE", "Makefile", "*.lock", "*.md", "*.toml", "*.yml", "noxfile.py")
LEFT_OUT = re.compile(r"(^|/)(__pycache__|\..*_cache|\.hypothesis|node_modules|build|dist|site)(/|$)|\.(pyc|so|tmp)$")
"""What builds and tests leave in the tree, compiled things among them: it belongs in neither."""


def build(out, source=ROOT, kinds=("wheel", "sdist")):
    """Builds the distributions of these kinds with the backend that is installed here; gives their files."""
    before = set(out.glob("*"))
    targets = [part for kind in kinds for part in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *targets, "-d", str(out.resolve())]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    return sorted(set(out.glob("*")) - before)


def tree(folder):
    """The files of a folder of the project, by their names from the root, without what builds and tests leave."""
    names = {file.relative_to(ROOT).as_posix() for file in folder.rglob("*") if file.is_file()}
    return {name for name in names if not LEFT_OUT.search(name)}


def wheel_faults(wheel):
    """What a wheel lacks or has too much: all of src/, each file as it is there, and its own description."""
    with zipfile.ZipFile(wheel) as file:
        held = {name: file.read(name) for name in file.namelist()}
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    wanted = {name.removeprefix("src/") for name in tree(ROOT / "src")}
    described = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    faults = differences(set(held), wanted | described)
    faults += [f"{name} differs" for name in wanted & held.keys() if held[name] != (ROOT / "src" / name).read_bytes()]
    if b"Tag: py3-none-any" not in held.get(f"{info}/WHEEL", b""):
        faults.append("it is not for every system (py3-none-any)")
    return faults


def sdist_faults(sdist):
    """What an sdist lacks or has too much: all that builds, tests and explains the project, and nothing else."""
    with tarfile.open(sdist) as file:
        members = [PurePosixPath(member.name) for member in file.getmembers() if member.isfile()]
    held = {PurePosixPath(*member.parts[1:]).as_posix() for member in members}
    wanted = {file.name for pattern in SDIST_FILES for file in ROOT.glob(pattern)}
    wanted |= {name for folder in SDIST_FOLDERS for name in tree(ROOT / folder)}
    return differences(held - {"PKG-INFO", ".gitignore"}, wanted)


def wheel_files(wheel):
    """The files of a wheel by name, and their checksums."""
    with zipfile.ZipFile(wheel) as file:
        return {info.filename: info.CRC for info in file.infolist()}


def differences(held, wanted):
    return [f"{name} is missing" for name in sorted(wanted - held)] + [
        f"{name} does not belong there" for name in sorted(held - wanted)
    ]


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
    for language in ("en", "ja"):
        assert f"attendo_course/book/{language}/nyu.md" in names
    parts = "page.html look/main.js serve/main.js shared/base.css words/en.json words/ja.json"
    for part in parts.split():
        assert f"attendo/assets/{part}" in names


def test_the_sdist_holds_what_builds_tests_and_explains_the_package(built):
    assert sdist_faults(built[1]) == []


@pytest.mark.full
def test_the_wheel_made_from_the_sdist_is_the_same(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    (again,) = build(tmp_path, tmp_path / sdist.name.removesuffix(".tar.gz"), ("wheel",))
    assert wheel_files(again) == wheel_files(wheel)


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


@pytest.mark.full
def test_the_installed_command_says_its_version(python):
    assert run(python, "", "--version") == f"attendo {__version__}\n"
    assert run(python, "import attendo; print(attendo.__file__)").startswith(str(python.parent.parent))


@pytest.mark.full
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
    assert said.startswith(json.loads((run_folder.parent / EXPECTED).read_text(encoding="utf-8"))["answers"][0])
    assert "d_model = 128" in said


def test_this_version_has_its_changes_and_every_extra_is_tried():
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert noxfile.EXTRAS.keys() == noxfile.PROJECT["optional-dependencies"].keys() - {"dev"}


def test_checksums_are_as_sha256sum_reads_them(tmp_path):
    for name in ("b.whl", "a.tar.gz", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    lines = noxfile.sums(tmp_path).splitlines()
    assert [line.split("  ")[1] for line in lines] == ["a.tar.gz", "b.whl"]
    assert lines[1].startswith(hashlib.sha256(b"b.whl").hexdigest() + "  ")
