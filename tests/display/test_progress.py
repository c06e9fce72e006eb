"""One line about long work: redrawn on a terminal, plain in a pipe."""

import sys

from attendo.cli.reporting import escaping
from attendo.display.progress import ProgressLine

ERASE = "\r\x1b[1A\x1b[2K"
"""The cursor is below the line: up, and the line is gone."""


def test_in_a_pipe_each_line_is_plain(capsys):
    line = ProgressLine()
    line.show("1 of 2")
    line.show("2 of 2")
    line.clear()
    assert capsys.readouterr().err == "1 of 2\n2 of 2\n"
    assert line.every == 10


def test_on_a_terminal_a_line_replaces_the_one_before_and_leaves_a_cursor(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with escaping():
        line = ProgressLine()
        line.show("1 of \x1b[31m2")
        begun = capsys.readouterr().err
        line.show("雨" * 60)
        line.clear()
        line.clear()
        line.show("again")
    drawn, again = capsys.readouterr().err.split(ERASE)
    assert begun.endswith("1 of \\u{1b}[31m2") and begun.rindex("\x1b[?25h") > begun.rindex("\x1b[?25l")
    assert drawn.startswith("\r\x1b[2K" + "雨" * 39)
    assert "雨" * 40 not in drawn
    assert again.endswith("again")
    assert line.every < 1
