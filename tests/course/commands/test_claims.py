"""attendo claims and attendo errata as a user types them."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import attendo, refused

from attendo.display.i18n import Localized
from attendo.display.width import columns
from attendo_course.book import sources
from attendo_course.claims import all_claims
from attendo_course.claims.claim import Check, Claim, Finding, above, below, equals, shown
from attendo_course.commands.claims import _number
from attendo_course.commands.terminal import terminal_width
from attendo_course.errata import Erratum, Snippet, all_errata
from attendo_course.pictures import Picture

SOURCE = Localized("a source", "a source")
W = Localized("word", "言葉")
LONG = Localized("a long statement " * 9, "長い文である。" * 15)


def facts_of(name: str, page: str = "bishop", topic: str = "heads", title: Localized = LONG) -> dict[str, Any]:
    quotations = (Localized("S2, line 1: “words”", "S2、1 行：「words」"),)
    return {
        "id": name,
        "page": page,
        "topic": topic,
        "title": title,
        "source": SOURCE,
        "quotations": quotations,
        "related": ("E41",),
        "cited": ("S2",),
    }


def claim(name: str, *checks: Check, limits: Localized | None = None, **others: Any) -> Claim:
    verdict = "true" if limits is None else "true under a condition"
    picture = others.pop("picture", None)
    facts = facts_of(name) | {"statement": LONG, "derivation": W, "verdict": verdict, "limits": limits} | others
    return Claim(**facts, compute=lambda: Finding(checks, picture))


FINE = claim("C01", equals(W, 2.0, 2.0), shown(Localized("time", "時間"), 0.25))
BAD = claim("C02", equals(W, 2.5, 2.0), below(W, 1.0, 3.0))
WITH_CONDITION = claim("C03", equals(W, 1e-3, 0.0, 0.1, counterexample=True), below(W, 1.0, float("inf")), limits=W)
UNTRUE = claim("C04", above(W, 1.0, 0.0, counterexample=True), limits=W, verdict="false", page="nyu", cited=("S1",))


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: (FINE, BAD, WITH_CONDITION, UNTRUE))


@pytest.fixture
def lookup(monkeypatch):
    real = next(claim for claim in all_claims() if claim.id == "C27")
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: [real])


@pytest.fixture
def two(monkeypatch):
    right = Snippet("1 + 1", "2")
    words = {"wrong": W, "right": W, "mark": "run"}
    code = {"wrong_code": Snippet("[][0]", "IndexError.*"), "right_code": right}
    erratum = Erratum(**facts_of("E01", title=Localized("one", "一")), **words, **code)
    wrong_now = replace(erratum, id="E02", page="nyu", right_code=Snippet("x = 1\nx + 1", "3"))
    facts = facts_of("E03", topic="masks", title=Localized("three", "三"))
    in_words = Erratum(**facts, **words | {"mark": "words only"})
    monkeypatch.setattr("attendo_course.errata.all_errata", lambda: (erratum, wrong_now, in_words))


def narrow(text: str) -> bool:
    return max(columns(line) for line in text.splitlines() if not line.startswith("    https://")) <= 80


# ---- claims


def test_the_index_names_sources_and_verdicts(four):
    outcome = attendo("claims")
    lines = outcome.out.splitlines()
    assert [line[:35] for line in lines if re.match(r"C\d", line)] == [
        "C01  true                    a long",
        "C02  NOT CONFIRMED           a long",
        "C03  true under a condition  a long",
        "C04  false                   a long",
    ]
    assert re.search(r"^S2  D. M. Konopatzki \(2024\)\. .*\n.*\n\nC01", outcome.out)
    assert "\n\nS1  " in outcome.out  # C04 is from another source
    assert lines[-2].startswith("4 checked: 1 true, 1 true under a condition, 1 false, 1 not confirmed; ")
    assert (outcome.code, outcome.err, narrow(outcome.out), "…" in outcome.out) == (1, "", True, False)
    japanese = attendo("claims", "--language", "ja").out
    assert re.search("^C02  確認できない +長い文", japanese, re.MULTILINE)
    assert re.search("^C03  条件つきで真 +長い文", japanese, re.MULTILINE)
    assert "4 件を検証：真 1 件、条件つきで真 1 件、偽 1 件、確認できない 1 件。" in japanese
    assert re.sub(r"\s", "", japanese).count(LONG.ja) == 4
    assert narrow(japanese)


def test_a_part_is_chosen_by_source_and_topic(four):
    assert re.findall(r"^C\d\d", attendo("claims", "--source", "nyu").out, re.MULTILINE) == ["C04"]
    assert re.findall(r"^C\d\d", attendo("claims", "--topic", "heads").out, re.MULTILINE) == [
        "C01",
        "C02",
        "C03",
        "C04",
    ]
    said = refused("claims", "--source", "nyu", "--topic", "masks")
    assert said == "no claim is from the source nyu about masks"
    assert refused("claims", "C01", "--topic", "masks") == "no claim is from the source of any name about masks"
    assert "'book' is not one of 'exercises', 'bishop', 'nyu'" in refused("claims", "--source", "book")


def test_lines_are_as_wide_as_the_terminal_up_to_100(monkeypatch):
    assert terminal_width() == 79  # nobody reads at a terminal here
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    for columns_there, wanted in ((60, 60), (80, 80), (200, 100), (10, 40)):
        monkeypatch.setenv("COLUMNS", str(columns_there))
        assert terminal_width() == wanted


def test_one_claim_in_full(four):
    outcome = attendo("claims", "c03", "C01", "c03")
    assert outcome.code == 0
    assert outcome.out.startswith("C03 true under a condition — a long statement")
    for line in (
        "a source",
        "S2, line 1: “words”",
        "See also: E41",
        "Condition: word",
        "Why: word",
        "✓ word: 0.001 = 0 ± 0.1 (counterexample)",
        "✓ word: 1 < inf",
        "✓ word: 2 = 2 ± 1e-10",
        "· time: 0.25",
    ):
        assert line in outcome.out.splitlines()
    assert "Konopatzki" in outcome.out
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
    assert "✓ 迷えば、破れる に対する最大の重み（β = 1000）：0.5 = 0.5 ± 1e-10（反例）" in outcome.out.splitlines()
    assert "█" in outcome.out
    assert "条件：" in outcome.out and "導出：" in outcome.out
    assert narrow(outcome.out) and narrow(attendo("claims", "C27").out)


def test_claims_as_json(four, monkeypatch):
    values = np.array([[0.0, np.nan]])
    drawn = claim("C04", equals(W, 1, 1), picture=Picture("curves", W, values, ("row",), ("a", "b")))
    monkeypatch.setattr("attendo_course.claims.all_claims", lambda: (FINE, WITH_CONDITION, drawn))
    outcome = attendo("claims", "--json", "--language", "ja")
    facts = json.loads(outcome.out)
    assert list(facts) == ["claims", "n_claims", "n_failed", "cpu_seconds", "check", "checks"]
    assert (outcome.code, facts["n_claims"], facts["n_failed"], facts["check"]) == (0, 3, 0, None)
    first, second, third = facts["claims"]
    keys = "id page topic title source quotations related statement verdict limits derivation confirmed"
    keys += " checks picture"
    assert " ".join(first) == keys
    assert (first["checks"][1]["relation"], first["checks"][1]["bound"]) == ("shown", None)
    assert (second["verdict"], second["limits"]) == ("true under a condition", "言葉")
    assert [check["counterexample"] for check in second["checks"]] == [True, False]
    assert second["checks"][1]["bound"] is None  # infinity
    assert third["picture"]["values"] == [[0.0, None]]
    assert attendo("claims", "--json", "C01").code == 0


@pytest.mark.parametrize("command", ["claims", "errata"])
def test_other_languages_are_refused(command):
    wanted = f"Invalid value for '--language': 'fr' is not one of 'en', 'ja'; see attendo {command} --help"
    assert refused(command, "--language", "fr") == wanted


def test_numbers_are_short_and_exact():
    given = (3.0, 333639680.0, -2.0, 0.1234567891, 1e-300, float("nan"), 1e20)
    assert [_number(x) for x in given] == ["3", "333,639,680", "-2", "0.1234568", "1e-300", "nan", "1e+20"]


@pytest.mark.parametrize("given", ["C3", "c3", "c03", "C03", "3", "C003"])
def test_a_claim_or_an_erratum_may_be_written_in_many_ways(four, two, given):
    out = attendo("claims", given, "C03").out
    assert out.startswith("C03 true under a condition") and out.count("C03") == 1
    assert attendo("errata", given.lower().replace("c", "e")).out.startswith("E03 words only")


@pytest.mark.parametrize("given", ["C99", "C", "x", "C00", "CC1", "²", "1.5", "9" * 5000])
def test_what_is_unknown_is_refused_with_the_range(four, two, given):
    assert refused("claims", "C01", given, "--json") == f"unknown claim {given} (expected C01 to C04)"
    assert refused("errata", given) == f"unknown erratum {given} (expected E01 to E03)"


# ---- errata


def test_the_index_of_errata(two):
    outcome = attendo("errata")
    index = [line for line in outcome.out.splitlines() if line.startswith(("E", "3"))]
    assert index == [
        "E01  run               one",
        "E03  words only        three",
        "E02  run               one",  # of the source that comes next
        "3 errata: 2 run, 0 shown by analogy, 1 in words only",
    ]
    assert outcome.code == 0  # nothing is run for the list
    assert "文章のみ" in attendo("errata", "--language", "ja").out
    assert re.findall("^E..", attendo("errata", "--topic", "masks").out, re.MULTILINE) == ["E03"]


def test_one_erratum_wrong_and_right(two):
    outcome = attendo("errata", "1")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[:2] == ["E01 run — one", "a source"]
    assert lines[lines.index("S2, line 1: “words”") :] == [
        "S2, line 1: “words”",
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
        "See also: E41",
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
    assert (first["id"], first["source"], first["page"]) == ("E02", "a source", "nyu")
    assert (second["wrong_code"], second["mark"], second["title"]) == (None, "words only", "three")
    listed = json.loads(attendo("errata", "--json").out)
    assert (listed["n_errata"], listed["n_unexpected"]) == (3, 0)
    assert list(listed["errata"][0]["wrong_code"]) == ["code", "gives"]


# ---- all of them


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_real_errata_are_listed_whole_and_fit_the_terminal(language):
    listed = attendo("errata", "--language", language)
    assert (listed.code, narrow(listed.out)) == (0, True)
    whole = re.sub(r"\s", "", listed.out)
    for erratum in all_errata():
        assert re.sub(r"\s", "", erratum.title.text(language)) in whole
    for source in {key for erratum in all_errata() for key in erratum.cited}:
        assert sources()[source].link in listed.out
