"""The language modelling task in the training loop: it learns, it measures, it says what it was made of."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from tiny_decoder import tiny_decoder

from attendo.data.text_corpus import WindowDataset
from attendo.data.token_stream import TokenStream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.inference.perplexity import text_loss
from attendo.runs.tasks import LanguageModelTask
from attendo.training.checkpoints import CheckpointConfig
from attendo.training.loop import train
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Run

TRAIN = ["abcabcabcabc" * 20, "cabcab" * 10, "猫"]
VALID = ["bcabca" * 20, "abc"]


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(TRAIN, TokenizerConfig(kind="character"))


def task(context: int = 16, **options) -> LanguageModelTask:
    stream, validation = (TokenStream.of(texts, tokenizer()) for texts in (TRAIN, VALID))
    return LanguageModelTask(WindowDataset(stream, context), validation, tokenizer(), batch_tokens=64, **options)


def test_it_learns_through_the_loop() -> None:
    model = tiny_decoder(tokenizer().vocab_size)
    settings = TrainingConfig(steps=40, warmup_steps=2, learning_rate=0.02, label_smoothing=0, evaluate_every=10)
    run = Run(model, task(), settings, CheckpointConfig(), None)
    reports = [report.evaluation for report in train(run) if report.kind == "evaluation"]
    first, *_, last = (report.measures for report in reports if report)
    assert last["loss"] < 0.5  # less than knowing the letters alone, ln 3
    assert last["loss"] < first["loss"]
    assert last["perplexity"] == pytest.approx(torch.tensor(last["loss"]).exp().item())
    whole = text_loss(model, TokenStream.of(VALID, tokenizer()).documents(), 16, 16)
    assert last["bits_per_byte"] == pytest.approx(whole.bits_per_byte)
    assert run.task.better(last["loss"], first["loss"])
    assert not run.task.better(first["loss"], last["loss"])


def test_an_evaluation_is_bounded_by_its_tokens() -> None:
    short = task(evaluate_tokens=50)
    assert sum(one.n_targets for one in short.validation_documents) == 50
    assert short.describe()["validation_targets_scored"] == 50
    assert set(short.evaluate(tiny_decoder(tokenizer().vocab_size)).measures) == {
        "loss",
        "perplexity",
        "bits_per_byte",
    }


def test_it_says_what_it_is_made_of() -> None:
    facts = task().describe()
    n_tokens = sum(map(len, TRAIN))
    assert facts["documents"] == 3
    assert (facts["tokens"], facts["characters"]) == (n_tokens, n_tokens)
    assert facts["bytes"] == n_tokens + 2
    assert facts["windows_per_epoch"] in (-(-(n_tokens + 3) // 16), -(-(n_tokens + 3) // 16) + 1)
    assert facts["batches_per_epoch"] == -(-facts["windows_per_epoch"] // 4)
    assert (facts["validation_documents"], facts["validation_targets_scored"]) == (2, 125)


def test_a_sample_goes_on_from_a_validation_document() -> None:
    shown = task(go_on=lambda prompt: f"<{len(prompt)}>")
    ((prompt, wanted, given),) = shown.evaluate(tiny_decoder(tokenizer().vocab_size)).samples
    assert (prompt + wanted, given) == (VALID[0][:64], "<32>")
    assert task().evaluate(tiny_decoder(tokenizer().vocab_size)).samples == []


def test_texts_that_are_too_short_are_refused() -> None:
    with pytest.raises(AttendoError, match=r"book\.txt has 304 tokens"):
        task(context=400, name="book.txt")
    with pytest.raises(AttendoError, match="no validation document"):
        replace(task(), validation=TokenStream.of([], tokenizer()))
