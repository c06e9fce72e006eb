"""What a command shows of a run while it trains."""

import ast
import re
import sys

import pytest
import typer
from source_trees import files_of, nodes

from attendo.cli import build_app, print_error
from attendo.cli.reporting import FLAGS, Screen, say
from attendo.display.width import columns
from attendo.errors import AttendoError
from attendo.training.checkpoints import Progress
from attendo.training.run import Report

NAMED = re.compile(r"`([a-z_]+)`")


@pytest.mark.parametrize(
    ("step_seconds", "told_from"),
    [(0.125, 81), (2.0, 21), (30.0, 3)],
    ids=["10 seconds", "20 steps", "a minute"],
)
def test_the_time_left_is_told_once_it_rests_on_enough(monkeypatch, capsys, step_seconds, told_from):
    monkeypatch.setattr("attendo.display.progress.PLAIN_EVERY", 0.0)
    screen, told = Screen(), []
    for step in range(1, 111):
        now = Progress(step=500 + step, tokens=100 * step, wall_seconds=1000 + step_seconds * step)
        screen.show(Report("step", now, loss=1.0, done=step / 200))
        line = capsys.readouterr().err
        assert f"step {500 + step}" in line
        if " left" in line:
            told.append(step)
    assert told == list(range(told_from, 111))


def named_in_messages():
    """The arguments that texts below the command line name in backticks, docstrings left out."""
    for file in files_of("attendo"):
        if "cli" not in file.parts:
            docstrings = {id(node.value) for node in nodes(file) if isinstance(node, ast.Expr)}
            every = [node for node in nodes(file) if isinstance(node, ast.Constant)]
            texts = [node.value for node in every if id(node) not in docstrings]
            yield from (name for text in texts if isinstance(text, str) for name in NAMED.findall(text))


def test_each_argument_that_a_message_names_is_an_option_of_a_command():
    commands = typer.main.get_command(build_app()).commands
    commands = [*commands.values(), *commands["train"].commands.values()]
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    assert set(FLAGS.values()) <= options
    assert {*named_in_messages()} - {"begin", "labels"} <= FLAGS.keys()  # those two are of onnx.json


@pytest.mark.parametrize("print_text", [say, lambda text: print_error(AttendoError(text))])
def test_arguments_are_printed_as_options(capsys, print_text):
    print_text("`labels`: give `valid`, or `training.seed=3`; `attendo doctor`")
    assert "`labels`: give --valid, or --set training.seed=3; `attendo doctor`\n" in capsys.readouterr().err


def test_advice_is_cut_to_lines_with_its_options(capsys):
    note = f"{'the loss is high ' * 4}; `training.learning_rate=0.001` helps"
    Screen().show(Report("advice", Progress(), note=note))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "    --set training.learning_rate=0.001 helps"
    assert max(map(len, lines)) <= 79


@pytest.mark.parametrize(
    ("line", "last"),
    [
        (f"{'it diverged ' * 6}: attendo resume {'long ' * 9}name", f"    attendo resume {'long ' * 9}name"),
        (f"{'check the data ' * 5}with `attendo doctor a.tsv` before", "    `attendo doctor a.tsv` before"),
        (f"always '{'雨' * 40}'", "    雨雨雨雨雨'"),
    ],
)
def test_lines_are_wrapped_in_a_terminal_and_commands_are_not(capsys, monkeypatch, line, last):
    say(line)
    assert capsys.readouterr().err == f"{line}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    say(line)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == last and max(map(columns, lines)) <= 79
