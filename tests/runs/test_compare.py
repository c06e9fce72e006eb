"""Scores of two models by rows: their sums are what each model's own evaluation gives."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_decoder import tiny_decoder
from tiny_texts import forecast_texts
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.bootstrap import ratio_sums
from attendo.data import forecasts
from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError
from attendo.inference.generator import Generator
from attendo.inference.perplexity import text_loss
from attendo.runs.compare import (
    TRANSLATION_METRICS,
    passages,
    target_losses,
    text_sums,
    token_sizes,
    translation_sums,
    verdicts,
)

KINDS = ("bpe", "unigram", "character", "byte", "word")


def tokenizer(kind):
    size = {"bpe": 400, "unigram": 400, "byte": 260}.get(kind, 10_000)
    return train_tokenizer(forecast_texts(60), TokenizerConfig(kind=kind, vocab_size=size))


def generator(kind="bpe", seed=0, max_len=16):
    own = tokenizer(kind)
    return Generator(tiny_decoder(own.vocab_size, max_len=max_len, seed=seed).eval(), own)


def whole(sums):
    return sums.score(sums.rows.sum(0))


@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_of_tokens_add_up_to_the_text(kind):
    own = tokenizer(kind)
    text = " ".join(forecast_texts(20)) + (" ☂ 雨 \u0301\n x" if kind != "word" else "")
    prefix = kind in ("bpe", "unigram", "word")  # the space before the first word
    assert token_sizes(own)[own.encode(text)].sum() == len(text.encode()) + prefix


@settings(max_examples=50)
@given(st.lists(st.integers(4, 6), max_size=30), st.booleans(), st.integers(1, 9))
def test_each_target_is_in_the_passage_of_its_last_byte(ids, ended, size):
    sizes = np.array([0, 0, 0, 0, 1, 2, 3])
    n_bytes = int(sizes[ids].sum())
    if not ids and not ended:
        return
    places = passages(Document(np.array(ids, np.int64), n_bytes, n_bytes, ended), sizes, size)
    n = max(1, round(n_bytes / size))
    ends = np.cumsum(sizes[ids])
    for place, end in zip(places, ends, strict=False):
        assert place * n_bytes / n < end <= (place + 1) * n_bytes / n + 1e-9
    assert len(places) == len(ids) + ended
    assert not ended or places[-1] == n - 1


def texts():
    lines = forecast_texts(60)
    return [" ".join(lines[:40]), lines[40], lines[41]]  # one long document, two short ones


def test_the_losses_of_targets_are_those_of_perplexity():
    user = generator()
    stream = TokenStream.of(texts(), user.tokenizer)
    for document, losses in zip(stream.documents(), target_losses(user, [*stream.documents()], 16), strict=True):
        assert len(losses) == document.n_targets
        assert losses.sum() == pytest.approx(text_loss(user.model, [document], 16).nats)
    [direct] = target_losses(user, [stream.document(1)], 16)
    apart = [text_loss(user.model, [stream.document(1).beginning(n, user.tokenizer)], 16).nats for n in (1, 2, 3)]
    assert direct[:3].cumsum() == pytest.approx(apart)


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_measures_of_texts_are_those_of_perplexity(kind):
    user = generator(kind)
    stream = TokenStream.of(texts(), user.tokenizer)
    found = text_loss(user.model, stream.documents(), 16)
    sums = text_sums(user, stream, ("loss", "perplexity", "bits-per-byte"))
    measures = [whole(one) for one in sums.values()]
    assert measures == pytest.approx([found.nats_per_token, found.perplexity, found.bits_per_byte])
    n_rows = round(len(texts()[0].encode()) / 1000) + 2
    assert all(len(one.rows) == n_rows > 3 for one in sums.values())


def test_models_of_two_tokenizers_meet_on_the_same_rows():
    users = generator("bpe"), generator("byte", seed=1)
    sums = [text_sums(user, TokenStream.of(texts(), user.tokenizer), ("bits-per-byte",)) for user in users]
    assert (sums[0]["bits-per-byte"].rows[:, 1] == sums[1]["bits-per-byte"].rows[:, 1]).all()  # bytes
    verdict = verdicts(*sums, n_samples=100)[0]
    assert verdict.signature == "context 16, stride 16"
    shorter = text_sums(users[0], TokenStream.of(["rain"], users[0].tokenizer), ("loss",), 8)
    assert shorter["loss"].signature.startswith("context 8, stride 8")
    with pytest.raises(AttendoError, match="there is no text"):
        text_sums(users[0], TokenStream.of([], users[0].tokenizer), ("loss",))


def test_measures_of_translations_are_those_of_evaluate():
    user = tiny_translator(tiny_tokenizer(), max_length_extra=30)
    pairs = forecasts.pairs(6, "test")
    found = user.evaluate(pairs, beam=2)
    sums = translation_sums(user, pairs, TRANSLATION_METRICS, beam=2)
    assert [whole(sums[name]) for name in ("bleu", "chrf", "exact")] == pytest.approx(
        [found.measures[name] for name in ("bleu", "chrf", "exact")]
    )
    assert sums["bleu"].signature == found.scores[0].signature
    guarded = [translation.text for translation in user.translate([source for source, _ in pairs], beam=2)]
    assert guarded != list(found.texts)  # what is measured are the model's own texts, loops and all
    with pytest.raises(AttendoError, match=r"metric 'loss' is unknown for this task \(expected bleu or chrf or exact"):
        translation_sums(user, pairs, ("loss",))


@pytest.mark.parametrize(("metric", "better"), [("accuracy", "second"), ("loss", "first")])
def test_more_is_better_or_less(metric, better):
    low, high = (ratio_sums("x", np.full(50, value), np.ones(50)) for value in (1.0, 2.0))
    verdict = verdicts({metric: low}, {metric: high}, 100)[0]
    assert verdict.better == better
    assert verdict.difference_interval == (1.0, 1.0)
    turned = verdicts({metric: high}, {metric: low}, 100)[0]
    assert {verdict.better, turned.better} == {"first", "second"}
    assert verdicts({metric: low}, {metric: low}, 100)[0].better is None
    other = dataclasses.replace(high, signature="b")
    assert verdicts({metric: low}, {metric: other}, 100)[0].signature == "A: ; B: b"
