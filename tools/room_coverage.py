"""How many lines of each low room its own tests come past: a table, and an error below the share that is held.

    python tools/room_coverage.py [--missing]

The tests are those of these rooms, and the examples in their docstrings, not the whole suite: a line that only a
command far above happens to pass is not counted. Forks and other processes are (`[tool.coverage]` in pyproject.toml).
Lines of C++ are not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "attendo"
ROOMS = {
    "nn": ("nn/",),
    "models": ("models.py", "model_config.py"),
    "decoding": ("decoding/",),
    "data": ("data/",),
}
LEAST = 0.95
MORE_TESTS = ("properties", "inference/test_translator.py", "inference/test_generator.py", "course")
"""Tests of these rooms in other folders."""


def tests() -> list[str]:
    """The tests of the rooms, and the rooms themselves for the examples in their docstrings.

    >>> "tests/decoding" in tests(), "tests/cli" in tests()
    (True, False)
    """
    rooms = [name.rstrip("/") for parts in ROOMS.values() for name in parts]
    own = [name if not name.endswith(".py") else f"test_{name}" for name in rooms]
    return [*(f"tests/{name}" for name in (*own, *MORE_TESTS)), *(f"src/attendo/{name}" for name in rooms)]


def sources(room: str) -> list[Path]:
    """The Python files of a room."""
    places = [SOURCE / name for name in ROOMS[room]]
    return sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))


def measured() -> dict[Path, tuple[set[int], set[int]]]:
    """For each source the lines that hold statements, and those of them that no test came past."""
    import coverage

    data = coverage.Coverage(config_file=str(ROOT / "pyproject.toml"), data_file=str(ROOT / ".coverage"))
    data.load()
    lines = {}
    for room in ROOMS:
        for file in sources(room):
            _, statements, _, missing, _ = data.analysis2(str(file))
            lines[file] = set(statements), set(missing)
    return lines


def main() -> int:
    """Run the tests, print the table; 1 if a test fails or a room has too little."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--missing", action="store_true", help="name the lines that no test comes past")
    options = parser.parse_args()
    run = [sys.executable, "-m", "coverage"]
    subprocess.run([*run, "erase"], cwd=ROOT, check=True)
    failed = subprocess.run([*run, "run", "-m", "pytest", "-q", *tests()], cwd=ROOT, check=False).returncode
    subprocess.run([*run, "combine", "--quiet"], cwd=ROOT, check=True)
    lines = measured()
    short = False
    print(f"{'room':10}{'lines':>7}{'missed':>8}{'passed':>9}")
    for room in ROOMS:
        counts = [lines[file] for file in sources(room)]
        n, missed = (sum(len(some) for some in column) for column in zip(*counts, strict=True))
        short |= 1 - missed / n < LEAST
        print(f"{room:10}{n:7}{missed:8}{1 - missed / n:9.1%}")
    if options.missing:
        for file, (_, missing) in lines.items():
            if missing:
                print(f"{file.relative_to(SOURCE)}: {', '.join(map(str, sorted(missing)))}")
    if short:
        print(f"error: a room has less than {LEAST:.0%}; see which lines with --missing", file=sys.stderr)
    return int(bool(failed) or short)


if __name__ == "__main__":
    sys.exit(main())
