"""The errata: all 47, and what each says its two forms give is what they give here."""

import re

import pytest
import torch

from attendo_course.book import Section
from attendo_course.errata import _snippet, all_errata

NUMBERS = [number for number in range(1, 51) if number not in (39, 40, 43)]  # withdrawn
ERRATA = all_errata()
BY_NUMBER = {erratum.number: erratum for erratum in ERRATA}


def is_japanese(text: str) -> bool:
    return any("\u3040" <= c <= "\u30ff" for c in text)


def outcome(snippet):
    """What a snippet gives, whatever torch's own generator would draw. JAX has no such generator."""
    found = set()
    for seed in (1, 2) if "torch" in snippet.code or "jax" not in snippet.code else (1,):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found.add(snippet.outcome())
    assert len(found) == 1
    return found.pop()


def test_all_47_are_there_in_order():
    assert [erratum.number for erratum in ERRATA] == NUMBERS


def test_at_least_38_are_run():
    assert sum(erratum.mark == "run" for erratum in ERRATA) >= 38


@pytest.mark.parametrize("number", NUMBERS)
def test_both_forms_give_what_is_said_and_differ(number):
    erratum = BY_NUMBER[number]
    assert erratum.wrong_code is not None and erratum.right_code is not None
    wrong, right = outcome(erratum.wrong_code), outcome(erratum.right_code)
    assert erratum.wrong_code.matches(wrong), wrong
    assert erratum.right_code.matches(right), right
    assert wrong != right and "Error: " not in right
    assert (
        re.search(r"attendo(_course)?\.", erratum.right_code.code) or number == 37
    )  # whose right form is torch's own optimizer
    # neither pattern is so wide that the other form would pass for it
    assert not erratum.wrong_code.matches(right)
    assert not erratum.right_code.matches(wrong)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_words_are_in_both_languages_and_the_code_fits_a_terminal(number):
    erratum = BY_NUMBER[number]
    assert erratum.source
    for words in (erratum.title, erratum.wrong, erratum.right):
        assert words.en
        assert not is_japanese(words.en) or number == 18  # whose subject is Japanese words
        assert is_japanese(words.ja)
    for snippet in (erratum.wrong_code, erratum.right_code):
        lines = snippet.code.splitlines()
        assert 3 <= len(lines) <= 20
        assert max(map(len, lines)) <= 76


def test_the_errata_whose_code_imitates_the_source_are_marked():
    assert {erratum.number for erratum in ERRATA if erratum.mark != "run"} == {18, 28, 37}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_page_says_what_each_form_gives(number):
    for snippet in (BY_NUMBER[number].wrong_code, BY_NUMBER[number].right_code):
        shown = re.sub(r"\\(.)", r"\1", snippet.gives.replace(".*", "…"))
        assert snippet.matches(shown)


def test_code_without_its_outcome_is_named():
    part = Section("nyu", "book/en/nyu.md, E01", "title", ("**Wrong:** words", "```python\n1 + 1\n```"))
    with pytest.raises(
        LookupError, match=r"^book/en/nyu\.md, E01: the code after \*\*Wrong:\*\* does not end with"
    ):
        _snippet(part, "**Wrong:**")


def test_a_form_in_words_only_has_no_code():
    assert _snippet(Section("", "", "title", ("**Wrong:** words", "Run it: `attendo`")), "**Wrong:**") is None
