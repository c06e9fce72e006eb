"""How good the output is: BLEU and chrF as sacreBLEU defines them, exact match, perplexity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from attendo.errors import AttendoError

BLEU_TOKENIZERS = ("13a", "none", "char", "intl", "zh", "ja-mecab", "ko-mecab")
"""sacreBLEU's tokenizers that need no download; the mecab ones need an extra package."""


@dataclass(frozen=True)
class Score:
    """A metric's value and how it was computed; `str` gives both in one line."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        """`BLEU 28.31 nrefs:1|case:mixed|…`."""
        return f"{self.name} {self.value:.2f} {self.signature}"


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Corpus BLEU in percent by sacreBLEU (Papineni et al. 2002; Post 2018), one reference per hypothesis.

    Raises AttendoError if the lists are empty or of different length, or the tokenizer cannot be used.

    >>> print(bleu(["rain in the north"], ["rain in the north"], tokenize="none"))  # doctest: +ELLIPSIS
    BLEU 100.00 nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:...
    """
    _check_pairs(hypotheses, references)
    if tokenize not in BLEU_TOKENIZERS:
        raise AttendoError(f"tokenize is {tokenize!r}; choose one of {', '.join(BLEU_TOKENIZERS)}")
    try:
        metric = BLEU(tokenize=tokenize, force=True)  # force: no warning about text tokenized already
    except RuntimeError as error:
        raise AttendoError(f"tokenize {tokenize!r} needs: pip install 'sacrebleu[{tokenize[:2]}]'") from error
    return _score("BLEU", metric, hypotheses, references)


def bleu_tokenizer(references: Sequence[str]) -> str:
    """sacreBLEU's tokenizer for these texts: "char" where words are not written apart, else its default, "13a".

    >>> bleu_tokenizer(["der Regen fällt"]), bleu_tokenizer(["明日の札幌は、雪が降るでしょう。"])
    ('13a', 'char')
    """
    n_words = sum(len(text.split()) for text in references)
    return "char" if sum(map(len, references)) > 15 * n_words else "13a"


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2 in percent by sacreBLEU (Popović 2015): F-score of character 1- to 6-grams.

    Raises AttendoError if the lists are empty or of different length.

    >>> chrf(["晴れ"], ["晴れ"]).value
    100.0
    """
    _check_pairs(hypotheses, references)
    return _score("chrF2", CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The share of hypotheses equal to their reference, character by character, in percent.

    >>> exact_match(["a", "b"], ["a", "c"]).value
    50.0
    """
    _check_pairs(hypotheses, references)
    equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score("exact match", 100 * equal / len(references), f"{equal}/{len(references)}")


def perplexity(log_prob: float, n_tokens: int) -> float:
    """exp(-log_prob / n_tokens): `log_prob` is the natural log-probability of all `n_tokens` tokens together.

    Infinite where it is too large for a float. Raises AttendoError if there are no tokens.

    >>> round(perplexity(10 * math.log(0.25), 10), 9)
    4.0
    """
    if n_tokens < 1:
        raise AttendoError(f"perplexity of {n_tokens} tokens is not defined; give at least one token")
    try:
        return math.exp(-log_prob / n_tokens)
    except OverflowError:
        return math.inf


def _score(name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, min(value, 100.0), str(metric.get_signature()))


def _check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise AttendoError("one string was given where a list of strings is needed; put it into a list")
    if len(hypotheses) != len(references):
        raise AttendoError(
            f"{len(hypotheses)} hypotheses meet {len(references)} references; give one reference for each"
        )
    if not references:
        raise AttendoError("there is nothing to score; give at least one hypothesis and its reference")
