"""What is not imported by `import attendo` and by help: benchmarks/commands.py has the times."""

import subprocess
import sys

import pytest

HEAVY = {
    "torch", "numpy", "safetensors", "tokenizers", "sacrebleu", "jaxtyping", "rich", "matplotlib",
    "fastapi", "pyarrow", "transformers",
}  # fmt: skip
"""None of them is needed to say what a command takes."""
LOADED = """
import contextlib, io, sys
from typer.main import get_command
from attendo.cli import build_app, main
wanted = [["--help"]]
if sys.argv[1] == "commands":
    train = get_command(build_app()).commands["train"]
    names = [[name] for name in get_command(build_app()).commands] + [["train", name] for name in train.commands]
    wanted = [[*name, "--help"] for name in names] + [["--version"]]
for arguments in wanted:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(arguments) == 0
    assert "attendo" in out.getvalue(), arguments
print(*{name.split(".")[0] for name in sys.modules}, *(name for name in sys.modules if name.startswith("attendo.")))
"""


def loaded(what):
    """The modules of a process: packages by their first name, those of attendo by the whole."""
    command = [sys.executable, "-c", LOADED, what]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_help_imports_typer_and_nothing_else_that_is_large():
    modules = loaded("help")
    assert "typer" in modules
    assert not modules & {*HEAVY, "pydantic"}


@pytest.fixture(scope="module")
def after_all_helps():
    return loaded("commands")


def test_the_help_of_each_command_imports_nothing_that_only_its_work_needs(after_all_helps):
    assert not after_all_helps & HEAVY


def test_of_the_library_help_imports_only_plain_values(after_all_helps):
    """No model, no loop, no server, no page."""
    of_the_library = {name for name in after_all_helps if name.startswith("attendo.")}
    plain = {"cli", "data", "decoding", "display", "errors", "lazy_imports"}
    assert {name.split(".")[1] for name in of_the_library} == plain
    assert {name for name in of_the_library if ".decoding." in name} == {"attendo.decoding.options"}
    assert {name for name in after_all_helps if name.startswith("attendo_course.")} <= {
        "attendo_course.commands",
        *(f"attendo_course.commands.{name}" for name in ("claims", "errata", "figure", "lesson", "terminal")),
    }
