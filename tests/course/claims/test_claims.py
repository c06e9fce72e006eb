"""The table of claims: all are there, each holds, and what holds with a condition only is shown to need it."""

import pytest
from claim_findings import BY_ID, failing, finding

from attendo.display.width import columns
from attendo_course.claims import all_claims
from attendo_course.pictures import picture_lines

IDS = [claim.id for claim in all_claims()]
TWICE = [name for name in IDS[:13] if name not in ("C07", "C10")] + ["C19", "C21", "C24"]
"""Those that are soon computed."""


def is_japanese(text: str) -> bool:
    return any("\u3040" <= c <= "\u30ff" for c in text)


def test_no_number_is_left_out():
    assert [f"C{number:02}" for number in range(1, len(IDS) + 1)] == IDS


@pytest.mark.parametrize("name", IDS)
def test_the_claim_holds_and_needs_its_condition(name):
    claim, found = BY_ID[name], finding(name)
    assert failing(found) == set()
    assert any(check.relation != "shown" for check in found.checks), "nothing is decided"
    assert (claim.verdict != "true") == any(check.counterexample for check in found.checks)
    assert (claim.verdict != "true") == (claim.limits is not None)
    if found.picture is not None:
        for language in ("en", "ja"):
            assert max(map(columns, picture_lines(found.picture, language))) <= 79
    texts = [check.name for check in found.checks] + [claim.statement, claim.derivation]
    texts += [words for words in (claim.limits, found.picture and found.picture.title) if words]
    assert all(words.en and words.ja for words in texts)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", TWICE)
def test_a_claim_finds_the_same_at_every_call(name):
    assert [check.value for check in BY_ID[name].compute().checks] == [check.value for check in finding(name).checks]


@pytest.mark.parametrize("name", IDS)
def test_the_claims_words_are_in_both_languages(name):
    claim = BY_ID[name]
    assert claim.source
    for words in (claim.statement, claim.derivation, claim.limits):
        assert words is None or (is_japanese(words.ja) and not is_japanese(words.en))
    for text in (claim.derivation.en, claim.derivation.ja) if name != "C27" else ():
        assert 4 <= len(text.splitlines()) <= 12
