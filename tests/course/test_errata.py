"""The errata: all 47, and what each says its two forms give is what they give here; what some say in words."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo_course.book import Section
from attendo_course.errata import _snippet, all_errata
from attendo_course.presets import distinct_sums, scalar_embedding
from attendo_course.weather_chain import generate

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
    with pytest.raises(LookupError, match=r"^book/en/nyu\.md, E01: the code after \*\*Wrong:\*\* does not end with"):
        _snippet(part, "**Wrong:**")


def test_a_form_in_words_only_has_no_code():
    assert _snippet(Section("", "", "title", ("**Wrong:** words", "Run it: `attendo`")), "**Wrong:**") is None


# ---- in words


PRINTED = {"valid": 0.8609349593495935, "test": 0.8047465589787477}
"""Accuracies that the notebook of erratum 20 prints."""


@pytest.mark.parametrize(
    ("name", "n_texts", "by_batches", "least", "most"),
    [("valid", 2500, 0.8071, 0.7988, 0.8360), ("test", 25000, 0.7995, 0.7988, 0.8016)],
)
def test_printed_accuracies_were_divided_by_one_batch_too_few(name, n_texts, by_batches, least, most):
    """Erratum 20: only so are they sums of right answers over whole batches and a short one."""
    n_batches = -(-n_texts // 164)
    full, last = 164 * (n_batches - 1), n_texts - 164 * (n_batches - 1)
    total = PRINTED[name] * (n_batches - 1)
    possible = [
        (round(a) + b) / n_texts
        for b in range(last + 1)
        if abs((a := 164 * (total - b / last)) - round(a)) < 1e-6 and 0 <= a <= full
    ]
    assert (min(possible), max(possible)) == pytest.approx((least, most), abs=5e-5)
    assert total / n_batches == pytest.approx(by_batches, abs=5e-5)
    as_they_stand = PRINTED[name] * n_batches
    off = [abs((a := 164 * (as_they_stand - b / last)) - round(a)) for b in range(last + 1)]
    assert min(off) > 1e-3


@given(st.integers(1, 30), st.integers(1, 40))
def test_a_ramp_keeps_apart_what_fits_its_length(length, n_days):
    """Erratum 29: (w, t) and (w', t') collide where w·L + t = w'·L + t'; never where t ≤ L."""
    torch.set_default_dtype(torch.float64)  # in float32, equal sums above 8 differ in the sixth decimal
    try:
        kept = distinct_sums(scalar_embedding("ramp", length=length), n_days)
    finally:
        torch.set_default_dtype(torch.float32)
    assert kept == len({code * length + t for code in (-1, 0, 1) for t in range(1, n_days + 1)})
    assert (kept == 3 * n_days) == (n_days <= length)


def test_the_windows_of_the_post_are_the_days_it_draws():
    """Erratum 34: the right form's first row and targets are the 20 days of the post's seed."""
    days = generate(20, np.random.Generator(np.random.PCG64(11111))).tolist()
    right = BY_NUMBER[34].right_code
    assert right is not None
    assert right.outcome() == f"((10, 10), {days[:10]}, {days[10:]})"
