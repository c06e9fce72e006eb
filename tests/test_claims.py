"""The table of claims: all are there, each holds, and what holds with a condition only is shown to need it."""

import pytest

from attendo.microscope.labels import columns
from attendo.microscope.terminal_pictures import picture_lines
from attendo.theory.claims import CLAIMS

IDS = [f"C{number:02}" for number in range(1, 28)]
BY_ID = {claim.id: claim for claim in CLAIMS}


def is_japanese(text: str) -> bool:
    return any("\u3040" <= c <= "\u30ff" for c in text)


def test_all_27_are_there_in_order():
    assert [claim.id for claim in CLAIMS] == IDS


@pytest.mark.parametrize("name", IDS)
def test_the_claim_holds_and_needs_its_condition(name):
    claim = BY_ID[name]
    finding = claim.compute()
    assert [(check.name.en, check.value) for check in finding.checks if not check.holds] == []
    assert any(check.relation != "shown" for check in finding.checks), "nothing is decided"
    assert (claim.condition is not None) == any(check.counterexample for check in finding.checks)
    if finding.picture is not None:
        for language in ("en", "ja"):
            assert max(map(columns, picture_lines(finding.picture, language))) <= 79
    texts = [check.name for check in finding.checks] + [claim.statement, claim.derivation]
    texts += [words for words in (claim.condition, finding.picture and finding.picture.title) if words]
    assert all(words.en and words.ja for words in texts)


@pytest.mark.parametrize("name", IDS)
def test_the_claims_words_are_in_both_languages(name):
    claim = BY_ID[name]
    assert claim.source
    for words in (claim.statement, claim.derivation, claim.condition):
        assert words is None or (is_japanese(words.ja) and not is_japanese(words.en))


def test_the_package_has_no_other_lazy_names():
    import attendo.theory.claims as package

    with pytest.raises(AttributeError, match="has no attribute 'NONE'"):
        _ = package.NONE
