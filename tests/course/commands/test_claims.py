"""attendo claims and attendo errata as a user types them."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import attendo, refused

from attendo.display.charts import Picture
from attendo.display.i18n import Localized
from attendo.display.width import columns
from attendo_course.claims import all_claims
from attendo_course.claims.claim import Check, Claim, Finding, below, equals, shown
from attendo_course.commands.claims import _number
from attendo_course.commands.terminal import terminal_width
from attendo_course.errata import Erratum, Snippet, all_errata

SOURCE = Localized("a source", "a source")
W = Localized("word", "言葉")
LONG = Localized("a long statement " * 9, "長い文である。" * 15)


def claim(
    name: str, *checks: Check, condition: Localized | None = None, picture: Picture | None = None
) -> Claim:
    return Claim(name, SOURCE, LONG, W, lambda: Finding(checks, picture), condition)


FINE = claim("C01", equals(W, 2.0, 2.0), shown(Localized("time", "時間"), 0.25))
BAD = claim("C02", equals(W, 2.5, 2.0), below(W, 1.0, 3.0))
WITH_CONDITION = claim(
    "C03", equals(W, 1e-3, 0.0, 0.1, counterexample=True), below(W, 1.0, float("inf")), condition=W
)


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: (FINE, BAD, WITH_CONDITION))


@pytest.fixture
def lookup(monkeypatch):
    real = all_claims()[-1]
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: [real])


@pytest.fixture
def two(monkeypatch):
    right = Snippet("1 + 1", "2")
    erratum = Erratum(
        1, "S1", SOURCE, Localized("one", "一"), W, W, "run", Snippet("[][0]", "IndexError.*"), right
    )
    wrong_now = replace(erratum, number=2, right_code=Snippet("x = 1\nx + 1", "3"))
    in_words = Erratum(3, "S1", SOURCE, Localized("three", "三"), W, W, "words only")
    monkeypatch.setattr("attendo_course.errata.all_errata", lambda: (erratum, wrong_now, in_words))


def narrow(text: str) -> bool:
    return max(map(columns, text.splitlines())) <= 80


@pytest.mark.parametrize("command", ["claims", "errata"])
def test_help_fits_80_columns_and_has_an_example(command):
    outcome = attendo(command, "--help")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert f"Example: attendo {command} " in outcome.out
    assert "--language en|ja" in outcome.out


# ---- claims


def test_the_table_and_the_exit_code(three):
    outcome = attendo("claims")
    lines = outcome.out.splitlines()
    assert [line for line in lines if line.startswith("C")] == [
        "C01  holds                   a source",
        "C02  FAILS                   a source",
        "C03  holds with a condition  a source",
    ]
    first = lines[1 : lines.index("")]
    assert all(line.startswith("     ") for line in first)
    assert " ".join(line.strip() for line in first) == LONG.en.strip()  # wrapped, and whole
    assert outcome.out.count("     Condition: word\n") == 1
    assert lines.index("     Condition: word") > lines.index("C03  holds with a condition  a source")
    assert re.fullmatch(
        r"3 checked: 2 hold, 1 of them with a condition; 1 failed; \d+\.\d CPU-seconds", lines[-1]
    )
    assert (outcome.code, outcome.err, narrow(outcome.out), "…" in outcome.out) == (1, "", True, False)
    japanese = attendo("claims", "--language", "ja").out
    assert "C02  不成立                  a source" in japanese.splitlines()
    assert "C03  条件つきで成立          a source" in japanese.splitlines()
    assert "     条件：言葉" in japanese.splitlines()
    assert re.sub(r"\s", "", japanese).count(LONG.ja) == 3
    assert narrow(japanese)


@pytest.mark.parametrize(
    ("ids", "en", "ja"),
    [
        (["C01"], "1 checked: 1 holds; 0 failed;", "1 件を検証：成立 1 件、不成立 0 件、"),
        (["C02"], "1 checked: 0 hold; 1 failed;", "1 件を検証：成立 0 件、不成立 1 件、"),
        (
            ["C03"],
            "1 checked: 1 holds, with a condition; 0 failed;",
            "成立 1 件（うち条件つき 1 件）、不成立 0 件",
        ),
        (
            ["C01", "C03"],
            "2 checked: 2 hold, 1 of them with a condition; 0 failed;",
            "成立 2 件（うち条件つき 1 件）",
        ),
    ],
)
def test_the_last_line_counts(three, ids, en, ja):
    assert attendo("claims", *ids).out.splitlines()[-1].startswith(en)
    assert ja in attendo("claims", *ids, "--language", "ja").out.splitlines()[-1]


def test_lines_are_as_wide_as_the_terminal_up_to_100(monkeypatch):
    assert terminal_width() == 79  # nobody reads at a terminal here
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    for columns_there, wanted in ((60, 60), (80, 80), (200, 100), (10, 40)):
        monkeypatch.setenv("COLUMNS", str(columns_there))
        assert terminal_width() == wanted


def test_one_claim_in_full(three):
    outcome = attendo("claims", "c03", "C01", "c03")
    assert outcome.code == 0
    assert outcome.out.startswith("C03 holds with a condition — a source\n")
    for line in (
        "Condition: word",
        "Why: word",
        "✓ word: 0.001 = 0 ± 0.1 (counterexample)",
        "✓ word: 1 < inf",
        "✓ word: 2 = 2 ± 1e-10",
        "· time: 0.25",
    ):
        assert line in outcome.out.splitlines()
    assert outcome.out.count("C03") == 1  # asked for twice, shown once
    failing = attendo("claims", "C02")
    assert (failing.code, "✗ word: 2.5 = 2 ± 1e-10" in failing.out) == (1, True)


def test_a_narrow_difference_is_seen_and_lines_of_the_derivation_stay(monkeypatch):
    narrowly = replace(claim("C01", below(W, 1.0, 1 + 1e-15)), derivation=Localized("one\ntwo", "一\n二"))
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: (narrowly,))
    out = attendo("claims", "C01").out
    assert "Why: one\ntwo\n\n✓ word: 1 < 1.0000000000000011\n" in out


def test_a_real_claim_with_its_picture(lookup):
    outcome = attendo("claims", "C27", "--language", "ja")
    assert outcome.code == 0
    assert (
        "✓ 迷えば、破れる に対する最大の重み（β = 1000）：0.5 = 0.5 ± 1e-10（反例）"
        in outcome.out.splitlines()
    )
    assert "█" in outcome.out
    assert "条件：" in outcome.out and "導出：" in outcome.out
    assert narrow(outcome.out) and narrow(attendo("claims", "C27").out)


def test_claims_as_json(three, monkeypatch):
    values = np.array([[0.0, np.nan]])
    drawn = claim("C04", equals(W, 1, 1), picture=Picture("curves", W, values, ("row",), ("a", "b")))
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: (FINE, WITH_CONDITION, drawn))
    outcome = attendo("claims", "--json", "--language", "ja")
    facts = json.loads(outcome.out)
    assert list(facts) == ["claims", "n_claims", "n_failed", "cpu_seconds", "check", "checks"]
    assert (outcome.code, facts["n_claims"], facts["n_failed"], facts["check"]) == (0, 3, 0, None)
    first, second, third = facts["claims"]
    keys = "id source statement condition derivation verdict holds checks picture"
    assert " ".join(first) == keys
    assert (first["checks"][1]["relation"], first["checks"][1]["bound"]) == ("shown", None)
    assert (second["verdict"], second["condition"]) == ("条件つきで成立", "言葉")
    assert [check["counterexample"] for check in second["checks"]] == [True, False]
    assert second["checks"][1]["bound"] is None  # infinity
    assert third["picture"]["values"] == [[0.0, None]]
    assert attendo("claims", "--json", "C01").code == 0


def test_an_unknown_claim_is_refused_with_the_range(three):
    assert refused("claims", "C99") == "unknown claim C99 (expected C01 to C03)"
    assert refused("claims", "C01", "C4", "--json") == "unknown claim C4 (expected C01 to C03)"
    for given in ("C", "x", "C00", "CC1", "²", "9" * 5000):
        assert refused("claims", given) == f"unknown claim {given} (expected C01 to C03)"


@pytest.mark.parametrize("given", ["C3", "c3", "c03", "C03", "3", "C003"])
def test_a_claim_may_be_written_in_many_ways(three, given):
    assert attendo("claims", given, "C03").out.startswith("C03 holds with a condition")
    assert attendo("claims", given, "C03").out.count("C03") == 1


@pytest.mark.parametrize("command", ["claims", "errata"])
def test_other_languages_are_refused(command):
    wanted = f"Invalid value for '--language': 'fr' is not one of 'en', 'ja'; see attendo {command} --help"
    assert refused(command, "--language", "fr") == wanted


def test_numbers_are_short_and_exact():
    given = (3.0, 333639680.0, -2.0, 0.1234567891, 1e-300, float("nan"), 1e20)
    assert [_number(x) for x in given] == ["3", "333,639,680", "-2", "0.1234568", "1e-300", "nan", "1e+20"]


# ---- claims --check


@pytest.fixture
def student(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "print('loading')\n"
        "def unscaled(query, key, value):\n"
        "    print('called')\n"
        "    return (query @ key.mT).softmax(-1) @ value\n"
        "def right(query, key, value):\n"
        "    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value\n"
        "def two(query, key):\n"
        "    return key\n"
    )
    return path


def test_a_students_function_is_checked(student):
    outcome = attendo("claims", "--check", f"{student}:unscaled")
    assert outcome.code == 1
    assert outcome.out.startswith("unscaled: 6 of 10 properties hold, mask not offered\n")  # and no claim
    assert "hint      forgot the scale: multiply the scores by 1/√head_dim" in outcome.out
    assert narrow(outcome.out)
    assert outcome.out.endswith("! it prints, which is left out; what it returns is checked\n")
    assert "loading" not in outcome.out + outcome.err and "called" not in outcome.out + outcome.err
    right = attendo("claims", "--check", f"{student}:right", "--language", "ja")
    assert (right.code, "10 個の性質のうち 8 個が成り立つ" in right.out) == (0, True)


def test_a_check_beside_claims_and_as_json(student, three):
    both = attendo("claims", "C01", "--check", f"{student}:unscaled", "--json")
    facts = json.loads(both.out)
    assert (both.code, facts["n_claims"], facts["n_failed"]) == (1, 1, 0)
    assert facts["check"]["failed"] == ["scale", "agreement"]
    beside = attendo("claims", "C01", "--check", f"{student}:right")
    assert beside.code == 0
    assert beside.out.index("C01") < beside.out.index("right: 8 of 10 properties hold")
    assert attendo("claims", "C02", "--check", f"{student}:right").code == 1


def test_a_function_without_end_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("attendo_course.grader.loading.SECONDS", 0.2)
    path = tmp_path / "slow.py"
    path.write_text("def slow(query, key, value):\n    while True:\n        pass\n")
    outcome = attendo("claims", "--check", f"{path}:slow")
    assert (outcome.code, "got       no result after 0.2 s" in outcome.out) == (1, True)
    path.write_text("while True:\n    pass\n")
    assert "slow.py:" in refused("claims", "--check", f"{path}:slow")
    assert "A call without a result after 10 s fails" in re.sub(r"\s+", " ", attendo("claims", "--help").out)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("mine.py:two", "mine.py: two takes 2 arrays; write two(query, key, value)"),
        ("mine.py", "write FILE.py:FUNCTION"),
        ("no.py:f", "no.py: No such file or directory"),
        ("mine.py:f", "f is not a function in this file; it has: unscaled, right, two"),
    ],
)
def test_what_cannot_be_checked_is_one_line(student, monkeypatch, place, said):
    monkeypatch.chdir(student.parent)
    outcome = attendo("claims", "--check", place)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err.splitlines()[-1]


# ---- errata


def test_the_list_of_errata(two):
    outcome = attendo("errata")
    below = ["    a source", "    ✗ word", "    ✓ word", ""]
    assert outcome.out.splitlines() == [
        *(" 1  run               one", *below),
        *(" 2  run               one", *below),
        *(" 3  words only        three", *below),
        "3 errata: 2 run, 0 shown by analogy, 1 in words only",
    ]
    assert outcome.code == 0  # nothing is run for the list
    assert "文章のみ" in attendo("errata", "--language", "ja").out


def test_one_erratum_wrong_and_right(two):
    outcome = attendo("errata", "1")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "1 one — run",
        "a source",
        "",
        "Wrong: word",
        "",
        "    [][0]",
        "",
        "    → IndexError: list index out of range",
        "    ✓ as it must be",
        "",
        "Right: word",
        "",
        "    1 + 1",
        "",
        "    → 2",
        "    ✓ as it must be",
        "",
    ]
    assert "誤：言葉" in attendo("errata", "3", "--language", "ja").out


def test_an_outcome_that_is_not_as_it_must_be(two):
    outcome = attendo("errata", "2", "1")
    assert outcome.code == 1
    assert "    → 2\n    ✗ must be: 3\n" in outcome.out


def test_errata_as_json(two):
    outcome = attendo("errata", "2", "3", "--json")
    facts = json.loads(outcome.out)
    assert (outcome.code, facts["n_errata"], facts["n_unexpected"]) == (1, 2, 1)
    first, second = facts["errata"]
    assert first["right_code"] == {"code": "x = 1\nx + 1", "gives": "3", "outcome": "2", "as_expected": False}
    assert first["wrong_code"]["as_expected"] is True
    assert first["source"] == "S1 a source"
    assert (second["wrong_code"], second["mark"], second["title"]) == (None, "words only", "three")
    listed = json.loads(attendo("errata", "--json").out)
    assert (listed["n_errata"], listed["n_unexpected"]) == (3, 0)
    assert list(listed["errata"][0]["wrong_code"]) == ["code", "gives"]


def test_an_unknown_erratum_is_refused_with_the_range(two):
    assert refused("errata", "51") == "unknown erratum 51 (expected 1 to 3)"
    for given in ("one", "E", "0", "1.5", "C1"):
        assert refused("errata", given) == f"unknown erratum {given} (expected 1 to 3)"


@pytest.mark.parametrize("given", ["E1", "e1", "e01", "01", "1"])
def test_an_erratum_may_be_written_in_many_ways(two, given):
    assert attendo("errata", given).out.startswith("1 one — run\n")


# ---- all of them


def test_the_real_ranges():
    assert refused("claims", "C28").endswith("(expected C01 to C27)")
    assert refused("errata", "0").endswith("(expected 1 to 50)")


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_real_errata_are_listed_whole_and_fit_the_terminal(language):
    listed = attendo("errata", "--language", language)
    assert (listed.code, narrow(listed.out)) == (0, True)
    whole = re.sub(r"\s", "", listed.out)
    for erratum in all_errata():
        form = "✗" + erratum.wrong.text(language) + "✓" + erratum.right.text(language)
        assert re.sub(r"\s", "", erratum.source.text(language) + form) in whole
