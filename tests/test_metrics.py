"""Metrics: sacreBLEU's own numbers, sums by hand, and what is refused."""

import math

import pytest
import sacrebleu

from attendo.errors import AttendoError
from attendo.metrics import bleu, chrf, exact_match, perplexity

HYPOTHESES = ["the sky is clear in the north today .", "rain will fall in Tokyo", "", "風 が 強い でしょ う"]
REFERENCES = [
    "the sky is clear in the north .",
    "rain will fall on Tokyo tomorrow",
    "snow",
    "風 が 強く なる でしょ う",
]


@pytest.mark.parametrize("tokenize", ["13a", "none", "char", "intl", "zh"])
def test_bleu_is_sacrebleus_and_its_signature_names_the_tokenizer(tokenize):
    score = bleu(HYPOTHESES, REFERENCES, tokenize)
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], tokenize=tokenize, force=True).score
    assert score.value == pytest.approx(expected, abs=1e-12)
    assert 0 < score.value < 100
    assert f"tok:{tokenize}|" in score.signature
    assert str(score) == f"BLEU {expected:.2f} {score.signature}"


def test_bleu_by_hand():
    # 4 of 5, 3 of 4, 2 of 3, 1 of 2 n-grams; no brevity penalty
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert bleu(["a b c d x"], ["a b c d e"], "none").value == pytest.approx(expected)


def test_bleu_says_nothing_about_tokenized_text(caplog):
    bleu(["it rains ."] * 200, ["it rains ."] * 200, "none")
    assert caplog.text == ""


def test_chrf_is_sacrebleus():
    score = chrf(HYPOTHESES, REFERENCES)
    assert score.value == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score, abs=1e-12)
    assert (score.name, "nc:6|nw:0" in score.signature) == ("chrF2", True)


def test_exact_match_counts_characters_not_looks():
    score = exact_match(["が", "が", "a ", ""], ["が", "か\u3099", "a", ""])
    assert str(score) == "exact match 50.00 2/4"


def test_perplexity():
    assert perplexity(-100 * math.log(7), 100) == pytest.approx(7)
    assert perplexity(0.0, 3) == 1.0
    assert perplexity(-1e9, 1) == math.inf
    with pytest.raises(AttendoError, match="0 tokens"):
        perplexity(0.0, 0)


@pytest.mark.parametrize("metric", [bleu, chrf, exact_match])
def test_unequal_empty_and_single_strings_are_refused(metric):
    with pytest.raises(AttendoError, match="2 hypotheses meet 1 references"):
        metric(["a", "b"], ["a"])
    with pytest.raises(AttendoError, match="nothing to score"):
        metric([], [])
    with pytest.raises(AttendoError, match="list"):
        metric("a b", "a b")


@pytest.mark.parametrize("tokenize", ["", "13b", "flores200"])
def test_unknown_tokenizers_and_those_that_download_are_refused(tokenize):
    with pytest.raises(AttendoError, match="13a, none, char"):
        bleu(["a"], ["a"], tokenize)
