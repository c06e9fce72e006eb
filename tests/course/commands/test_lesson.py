"""attendo lesson: the list, a lesson's pieces in two languages and as JSON, and what is refused."""

import json
import sys
import time
from types import ModuleType

import numpy as np
import pytest
from command_line import attendo, refused

import attendo_course.lessons as lessons
from attendo.display.i18n import Localized
from attendo.display.width import columns
from attendo_course.book import translated
from attendo_course.commands import lesson
from attendo_course.lessons.lesson import Conclusion, Lesson, Options, Table
from attendo_course.pictures import Picture

W = Localized("word", "語")


def teach(options):
    yield Localized("What is asked.", "問い。")
    rows = ((Localized("linear", "線形"), 0.5), (Localized("deep", "深い"), f"{options.steps(100)} ± 1"))
    yield Table("losses", Localized("Losses", "損失"), (W, Localized("loss", "損失")), rows)
    yield Conclusion(Localized("It is so.", "そうである。"))
    yield Picture("curves", W, np.array([[1.0, 2.0]]), ("a",), ("1", "2"))


@pytest.fixture
def small(monkeypatch):
    """A lesson that takes no time, in the place of all."""
    module = ModuleType("attendo_course.lessons.small")
    module.LESSONS = (Lesson("small", "Vaswani et al. 2017, table 3", W, W, 4.6, teach, seeds=(1, 3)),)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(lessons, "_HOMES", {"small": "small"})
    monkeypatch.setattr(lessons, "NAMES", ("small",))


def test_the_list_has_every_lesson_with_its_time(small):
    outcome = attendo("lesson")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1].split() == ["small", "5", "1-3", "word"]


def test_pieces_are_printed_in_order(small):
    outcome = attendo("lesson", "small")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "word — Vaswani et al. 2017, table 3"
    start = lines.index("Losses")
    assert lines[start : start + 5] == [
        "Losses",
        "word       loss",
        "───────────────",
        "linear      0.5",
        "deep    100 ± 1",
    ]
    assert "this takes about 5 CPU-minutes" in outcome.err


def test_the_time_is_reckoned_with_the_seeds_that_are_given(small):
    assert "this takes about 9 CPU-minutes" in attendo("lesson", "small", "--seeds", "4").err
    assert "this takes about" not in attendo("lesson", "small", "--seeds", "1").err
    found = lessons.find_lesson("small")
    assert [found.minutes(Options(seeds)) for seeds in (None, 1, 2, 4)] == [4.6, 2.3, 4.6, 9.2]
    assert Lesson("one", "", W, W, 3.0, teach).minutes(Options(seeds=7)) == 3.0


def test_a_quick_look_warns_above_the_table_and_concludes_nothing(small):
    full, quick = attendo("lesson", "small").out, attendo("lesson", "small", "--effort", "0.05").out
    assert "It is so." in full and "--effort" not in full
    assert "It is so." not in quick and "leave --effort" in quick
    warning = "--effort 0.05: the models below are trained for 5% of the lesson's steps only."
    assert quick.index(warning) < quick.index("Losses")


def test_on_a_terminal_one_line_tells_the_time_while_a_piece_is_made(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("attendo.display.progress.LIVE_EVERY", 0.01)

    def slow():
        time.sleep(0.1)
        yield W

    assert list(lesson.waiting(slow(), 2.0)) == [W]
    shown = capsys.readouterr().err
    assert "of about 2:00 min of CPU time" in shown and shown.endswith("\x1b[1A\x1b[2K")


def test_in_japanese_the_columns_stay(small):
    lines = attendo("lesson", "small", "--language", "ja", "--effort", "0.1").out.splitlines()
    assert lines[0].endswith(" — Vaswani et al. 2017、表 3")
    start = lines.index("損失")
    assert len({columns(line) for line in lines[start + 1 : start + 5]}) == 1
    assert "10 ± 1" in lines[start + 4]


def test_as_json_each_piece_is_a_line(small):
    pieces = [json.loads(line) for line in attendo("lesson", "small", "--json").out.splitlines()]
    assert [next(iter(piece)) for piece in pieces] == ["text", "table", "text", "picture"]
    assert pieces[1]["table"]["rows"] == [["linear", 0.5], ["deep", "100 ± 1"]]
    assert pieces[3]["picture"]["values"] == [[1.0, 2.0]]


def test_what_is_wrong_is_said():
    assert refused("lesson", "revers") == "no lesson is called 'revers'; did you mean reverse?"
    assert refused("lesson", "sort", "--effort", "0").startswith("--effort 0.0: give a share")
    assert "the lesson sort, which makes its own data" in refused("lesson", "sort", "--train", __file__)
    assert refused("lesson", "sort", "--seeds", "0").startswith("--seeds 0: train at least one")


@pytest.mark.parametrize("name", lessons.NAMES)
def test_every_lesson_is_where_the_list_says_and_speaks_both_languages(name):
    found = lessons.find_lesson(name)
    assert found.name == name
    for words in (found.title, found.question):
        assert words.en.isascii() or "’" in words.en or "√" in words.en
        assert any("\u3040" <= c <= "\u30ff" for c in words.ja)
    assert translated(found.source).en == found.source
    assert found.cpu_minutes > 0


def test_options_are_checked():
    assert Options(effort=0.001).steps(10) == 1
