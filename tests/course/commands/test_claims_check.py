"""attendo claims --check: what is required, a folder, several files, and the table of grades."""

import codecs
import csv
import json

import pytest
from command_line import attendo, refused

from attendo.display.width import columns

MINE = """print('loading')
def unscaled(query, key, value):
    print('called')
    return (query @ key.mT).softmax(-1) @ value
def right(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
"""


@pytest.fixture
def student(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_a_students_function_is_checked_beside_claims_and_as_json(student):
    outcome = attendo("claims", "--check", f"{student}:unscaled")
    assert outcome.code == 1
    assert outcome.out.startswith("unscaled: 6 of 10 properties hold, mask not offered\n")  # and no claim
    assert "hint      forgot the scale: multiply the scores by 1/√head_dim" in outcome.out
    assert max(map(columns, outcome.out.splitlines())) <= 80
    assert outcome.out.endswith("! it prints, which is left out; what it returns is checked\n")
    assert "loading" not in outcome.out + outcome.err and "called" not in outcome.out + outcome.err
    both = attendo("claims", "C05", "--check", f"{student}:unscaled", "--json")
    facts = json.loads(both.out)
    assert (both.code, facts["n_claims"], facts["n_failed"]) == (1, 1, 0)
    assert facts["check"]["failed"] == ["scale", "agreement"]
    beside = attendo("claims", "C05", "--check", f"{student}:right", "--language", "ja")
    assert beside.code == 0
    assert beside.out.index("C05") < beside.out.index("10 個の性質のうち 8 個が成り立つ")


def test_what_is_required_fails_where_it_is_not_offered(student):
    outcome = attendo("claims", "--check", f"{student}:right", "--require", "mask")
    assert outcome.code == 1
    assert outcome.out.startswith("right: 8 of 10 properties hold\n")
    assert "✗ mask        required, not offered: no parameter with `mask` in its name\n" in outcome.out
    assert refused("claims", "--check", f"{student}:right", "--require", "dropout").startswith("'dropout' can")
    assert refused("claims", "--require", "mask").startswith("--require and --out require --check")


@pytest.fixture
def folder(tmp_path, student):
    """A right answer, one that does not parse, and attendo's own function."""
    folder = tmp_path / "handed-in"
    folder.mkdir()
    (folder / "aoi.py").write_text(student.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "ben.py").write_text("\ndef right(query:\n", encoding="utf-8")
    (folder / "chie.py").write_text("from attendo.nn.attention import attention as right\n", encoding="utf-8")
    return folder


def test_a_folder_and_several_files_have_a_line_each(folder, student, monkeypatch):
    monkeypatch.chdir(folder.parent)
    outcome = attendo("claims", "--check", "handed-in:right", "--check", "mine.py:unscaled", "--out", "g.csv")
    prints = "    ! it prints, which is left out; what it returns is checked"
    assert (outcome.code, outcome.out.splitlines()) == (
        1,
        [
            "handed-in/aoi.py: passes (8 of 10 hold); mask not offered",
            prints,
            "handed-in/ben.py: can't be run: line 2: syntax error: '(' was never closed",
            "handed-in/chie.py: passes (10 of 10 hold)",
            "    ! this is attendo's own function",
            "mine.py: fails scale, agreement (6 of 10 hold); mask not offered",
            "    hint: forgot the scale: multiply the scores by 1/√head_dim",
            prints,
            "wrote g.csv",
        ],
    )
    assert (folder.parent / "g.csv").read_bytes().startswith(codecs.BOM_UTF8)
    rows = read(folder.parent / "g.csv")
    assert [row["verdict"] for row in rows] == ["passes", "can't be run", "passes", "fails"]
    assert [(row["student"], row["score"], row["out of"]) for row in rows] == [
        ("aoi", "8", "10"),
        ("ben", "0", "10"),
        ("chie", "10", "10"),
        ("mine", "6", "10"),
    ]
    assert (rows[3]["failed"], rows[3]["not tried"]) == ("scale, agreement", "mask, empty row")
    assert rows[3]["hint"] == "forgot the scale: multiply the scores by 1/√head_dim"
    assert rows[1]["hint"] == "line 2: syntax error: '(' was never closed"


def read(path):
    """The rows of a table of grades."""
    return list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))


def test_in_japanese_words_and_table_are_japanese(folder, student, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder / "dan.py").write_text("x = 1\n", encoding="utf-8")
    checks = ["--check", "handed-in:right", "--check", "mine.py:unscaled"]
    outcome = attendo("claims", *checks, "--out", "g.csv", "--language", "ja")
    assert outcome.out.splitlines() == [
        "handed-in/aoi.py：合格（8/10）。対象外：mask",
        "    ! print の出力は無視した。採点するのは戻り値だけ",
        "handed-in/ben.py：実行できない：2 行目：構文エラー：'(' was never closed",
        "handed-in/chie.py：合格（10/10）",
        "    ! attendo の関数をそのまま提出している",
        "handed-in/dan.py：実行できない：right という関数がない。ある関数：なし",
        "mine.py：不合格（6/10）：scale、agreement。対象外：mask",
        "    ヒント：スケールを忘れている。スコアに 1/√head_dim を掛けること",
        "    ! print の出力は無視した。採点するのは戻り値だけ",
        "保存：g.csv",
    ]
    rows = read(folder.parent / "g.csv")
    assert rows[1]["hint"] == "2 行目：構文エラー：'(' was never closed"
    assert rows[4]["hint"] == "スケールを忘れている。スコアに 1/√head_dim を掛けること"
    assert rows[4]["remarks"] == "print の出力は無視した。採点するのは戻り値だけ"
    assert [row["verdict"] for row in rows[:3]] == ["passes", "can't be run", "passes"]


def test_what_is_not_written_yet_says_so_in_the_line_and_in_the_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dan.py").write_text("def f(query, key, value):\n    raise NotImplementedError\n")
    outcome = attendo("claims", "--check", "dan.py:f", "--out", "g.csv", "--language", "ja")
    assert outcome.out.splitlines()[0].startswith("dan.py：不合格（0/10）：shapes。9 個は未検査")
    [row] = read(tmp_path / "g.csv")
    assert row["hint"] == "NotImplementedError が発生：まだ実装されていない"
    assert (row["score"], row["not tried"].count(",")) == ("0", 8)
    said = attendo("claims", "--check", "dan.py:f").out
    assert said.startswith("f: 0 of 10 properties hold\n")
    assert "got       the function raises NotImplementedError: it is not written yet" in said
    (tmp_path / "dan.py").write_text("def f(query, key, value):\n    raise ValueError\n")
    assert "got       ValueError\n" in attendo("claims", "--check", "dan.py:f").out


def test_several_files_as_json_and_what_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = json.loads(attendo("claims", "--check", "handed-in:right", "--json").out)
    assert facts["check"] is None
    assert [answer["verdict"] for answer in facts["checks"]] == ["passes", "can't be run", "passes"]
    (tmp_path / "empty").mkdir()
    assert refused("claims", "--check", "no.py:f").startswith("no.py: No such file or directory")
    assert refused("claims", "--check", "empty:f").startswith("empty: no Python file in it")
    assert refused("claims", "--check", "handed-in").startswith("handed-in: write handed-in:FUNCTION")
    assert "Write --check before each file" in refused("claims", "--check", "mine.py:right", "mine.py:right")
    assert "must end in .csv" in refused("claims", "--check", "mine.py:right", "--out", "g.xlsx")
