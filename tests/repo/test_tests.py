"""Where a test file stands: beside what it tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
OTHERS = {"browser", "golden", "learning", "parity", "properties", "reliability", "repo"}
"""Folders of tests that are about more than one module."""


def stems(folder):
    """What tests of a folder of src/ may be named for: its files and itself."""
    return {file.stem for file in folder.iterdir() if file.is_file()} | {folder.name}


def test_a_test_file_is_named_for_a_module_of_its_package():
    """tests/PACKAGE/test_MODULE.py, or test_MODULE_aspect.py; tests of attendo_course are in tests/course/."""
    lost = []
    for file in TESTS.rglob("test_*.py"):
        package = file.parent.relative_to(TESTS)
        if package.parts[:1] and package.parts[0] in OTHERS:
            continue
        is_course = package.parts[:1] == ("course",)
        inside = Path("attendo_course", *package.parts[1:]) if is_course else Path("attendo", package)
        folder, name = ROOT / "src" / inside, file.stem.removeprefix("test_")
        known = stems(folder) if folder.is_dir() else set()
        if not any(name == stem or name.startswith(f"{stem}_") for stem in known):
            lost.append(file.relative_to(ROOT).as_posix())
    assert lost == []


def test_support_holds_no_tests():
    assert [file.name for file in (TESTS / "support").glob("test_*.py")] == []
    assert [file.name for file in TESTS.glob("*.py") if not file.name.startswith("test_")] == ["conftest.py"]
