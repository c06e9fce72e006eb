"""Without JAX, each way into it says in one line how to install it."""

import importlib
import sys

import pytest

from attendo.errors import AttendoError, install_command
from attendo_course.errata import all_errata
from attendo_course.grader.checker import check_file


@pytest.fixture(autouse=True)
def without_jax(monkeypatch):
    """An environment in which `import jax` and `import equinox` fail as if the packages were not there."""

    class Absent:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name in ("jax", "equinox"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    loaded = [name for name in sys.modules if f"{name}.".startswith(("jax.", "equinox.", "attendo_course.jax."))]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])


def test_the_package_an_erratum_and_a_file_name_the_remedy(tmp_path, monkeypatch):
    erratum = next(erratum for erratum in all_errata() if erratum.number == 21)
    outcome = erratum.wrong_code.outcome()
    assert outcome == f"No module named 'equinox'. Run: {install_command('jax')}" and not erratum.wrong_code.matches(
        outcome
    )
    (tmp_path / "mine.py").write_text("import jax\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttendoError) as caught:
        check_file("mine.py:attention")
    assert str(caught.value).startswith(
        f"mine.py:1: ModuleNotFoundError: No module named 'jax'. Run: {install_command('jax')}"
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AttendoError, match=r"^JAX and Equinox are not installed\. Run: pip install"):
        importlib.import_module("attendo_course.jax.attention")
