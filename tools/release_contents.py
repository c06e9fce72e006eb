"""What a wheel and an sdist of attendo must hold, and what they must not."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
SDIST_FOLDERS = ("benchmarks", "deploy", "docs", "recipes", "src", "tests", "tools")
SDIST_FILES = ("LICENSE", "Makefile", "*.lock", "*.md", "*.toml", "*.yml")
LEFT_OUT = re.compile(r"(^|/)(__pycache__|\..*_cache|\.hypothesis|build|dist|site)(/|$)|\.(pyc|so|tmp)$")
"""What builds and tests leave in the tree, compiled things among them: it belongs in neither."""


def build(out: Path, source: Path = ROOT, kinds: tuple[str, ...] = ("wheel", "sdist")) -> list[Path]:
    """Builds the distributions of these kinds with the backend that is installed here; gives their files."""
    before = set(out.glob("*"))
    targets = [part for kind in kinds for part in ("-t", kind)]
    command = [sys.executable, "-m", "hatchling", "build", *targets, "-d", str(out.resolve())]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    return sorted(set(out.glob("*")) - before)


def tree(folder: Path, root: Path = ROOT) -> set[str]:
    """The files of a folder of the project, by their names from the root, without what builds and tests leave."""
    names = {file.relative_to(root).as_posix() for file in folder.rglob("*") if file.is_file()}
    return {name for name in names if not LEFT_OUT.search(name)}


def wheel_faults(wheel: Path) -> list[str]:
    """What a wheel lacks or has too much: all of src/, each file as it is there, and its own description."""
    with zipfile.ZipFile(wheel) as file:
        held = {name: file.read(name) for name in file.namelist()}
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    wanted = {name.removeprefix("src/") for name in tree(ROOT / "src")}
    described = {
        f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    faults = _differences(set(held), wanted | described)
    faults += [
        f"{name} differs" for name in wanted & held.keys() if held[name] != (ROOT / "src" / name).read_bytes()
    ]
    if b"Tag: py3-none-any" not in held.get(f"{info}/WHEEL", b""):
        faults.append("it is not for every system (py3-none-any)")
    return faults


def sdist_faults(sdist: Path) -> list[str]:
    """What an sdist lacks or has too much: all that builds, tests and explains the project, and nothing else."""
    with tarfile.open(sdist) as file:
        members = [PurePosixPath(member.name) for member in file.getmembers() if member.isfile()]
    held = {PurePosixPath(*member.parts[1:]).as_posix() for member in members}
    wanted = {file.name for pattern in SDIST_FILES for file in ROOT.glob(pattern)}
    wanted |= {name for folder in SDIST_FOLDERS for name in tree(ROOT / folder)}
    return _differences(held - {"PKG-INFO", ".gitignore"}, wanted)


def wheel_files(wheel: Path) -> dict[str, int]:
    """The files of a wheel by name, and their checksums."""
    with zipfile.ZipFile(wheel) as file:
        return {info.filename: info.CRC for info in file.infolist()}


def _differences(held: set[str], wanted: set[str]) -> list[str]:
    return [f"{name} is missing" for name in sorted(wanted - held)] + [
        f"{name} does not belong there" for name in sorted(held - wanted)
    ]
