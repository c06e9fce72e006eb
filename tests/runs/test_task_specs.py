"""A kind of task is one value: all that is listed elsewhere by kind has the kinds of task_specs."""

from typing import get_args

from typer.main import get_command

from attendo import inference
from attendo.bundle import TaskName
from attendo.cli import build_app
from attendo.runs.task_specs import TASK_SPECS


def test_the_names_of_the_kinds_are_those_of_the_values():
    assert get_args(TaskName) == tuple(TASK_SPECS)


def test_each_kind_has_a_command_and_an_inference_class():
    train = get_command(build_app()).commands["train"]
    assert set(train.commands) == set(TASK_SPECS) == set(inference._KINDS)
