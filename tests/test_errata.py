"""The errata: all 50, and what each says its two forms give is what they give here."""

import pytest

from attendo.theory.errata import ERRATA

NUMBERS = range(1, 51)
BY_NUMBER = {erratum.number: erratum for erratum in ERRATA}


def is_japanese(text: str) -> bool:
    return any("\u3040" <= c <= "\u30ff" for c in text)


def test_all_50_are_there_in_order():
    assert [erratum.number for erratum in ERRATA] == list(NUMBERS)


def test_at_least_38_are_run():
    assert sum(erratum.mark == "run" for erratum in ERRATA) >= 38


@pytest.mark.parametrize("number", NUMBERS)
def test_both_forms_give_what_is_said_and_differ(number):
    erratum = BY_NUMBER[number]
    if erratum.mark == "words only":
        assert erratum.wrong_code is None and erratum.right_code is None
        return
    assert erratum.wrong_code is not None and erratum.right_code is not None
    wrong, right = erratum.wrong_code.outcome(), erratum.right_code.outcome()
    assert erratum.wrong_code.matches(wrong), wrong
    assert erratum.right_code.matches(right), right
    assert wrong != right
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
        assert snippet is None or max(map(len, snippet.code.splitlines())) <= 100


def test_the_package_has_no_other_lazy_names():
    import attendo.theory.errata as package

    with pytest.raises(AttributeError, match="has no attribute 'NONE'"):
        _ = package.NONE
