"""The ranges in pyproject.toml and the two locks agree."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lock(file):
    """The requirements of a lock by name; each must be one exact version."""
    rows = [row.split("#")[0].strip() for row in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    requirements = [Requirement(row) for row in rows if row]
    for requirement in requirements:
        assert [spec.operator for spec in requirement.specifier] == ["=="], str(requirement)
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def pinned(requirement):
    return next(iter(requirement.specifier)).version


@pytest.mark.parametrize(
    ("file", "tables"),
    [
        ("requirements.lock", ["dependencies"]),
        ("requirements-dev.lock", ["dependencies", "dev", "plots", "data"]),
    ],
)
def test_a_lock_pins_what_is_declared_to_an_allowed_version(file, tables):
    found = lock(file)
    for table in tables:
        declared = PROJECT["optional-dependencies"].get(table) or PROJECT[table]
        for requirement in map(Requirement, declared):
            if requirement.name != "attendo":
                assert pinned(found[canonicalize_name(requirement.name)]) in requirement.specifier


def test_the_locks_agree_and_hold_no_part_of_one_build_of_torch():
    run, dev = lock("requirements.lock"), lock("requirements-dev.lock")
    assert {name: pinned(requirement) for name, requirement in run.items()}.items() <= {
        name: pinned(requirement) for name, requirement in dev.items()
    }.items()
    assert pinned(run["torch"]) == "2.13.0"
    assert not [name for name in dev if name.startswith(("nvidia", "cuda", "triton"))]
