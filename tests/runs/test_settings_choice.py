"""The automatic choice: the largest model that the data and the budget bear, and never over what the user set."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_corpus import pairs_file

from attendo.data.pair_corpus import PairCorpus, PairData, PairDataset
from attendo.runs import settings
from attendo.runs.settings import RunConfig, choose_tokenizer, choose_training, sizes_for, vocabulary_for
from attendo.runs.task_specs import TRANSLATION

CPU = torch.device("cpu")


class Lengths:
    """A store of which only the lengths are asked for: `n` pairs of ten tokens."""

    def __init__(self, n: int):
        self.n = n
        self.sources = self.targets = SimpleNamespace(lengths=np.full(n, 10))

    def __len__(self) -> int:
        return self.n


@pytest.fixture
def pace(monkeypatch):
    """Seconds an update takes by width; no model is built."""
    paces = {}
    monkeypatch.setattr(settings, "measured_pace", lambda model, *rest: paces[model["d_model"]])
    monkeypatch.setattr(settings, "fastest_precision", lambda device: "bfloat16")
    return paces


def chosen(n_pairs, training, model=None, family=TRANSLATION, say=lambda line: None):
    tables = {"model": {"vocab_size": 4000} | (model or {}), "training": dict(training)}
    found = choose_training(tables, family, PairDataset(Lengths(n_pairs)), CPU, say)
    RunConfig.from_tables(
        TRANSLATION, {**found, "data": {"train": ["x"]}}, "the settings"
    )  # complete, and in itself right
    return found["model"], found["training"]


def test_the_largest_size_that_makes_enough_epochs_is_taken(pace):
    pace.update({256: 1.0, 192: 0.5, 128: 0.2})
    steps_per_epoch = 50_000 * 11 / 2048
    for seconds, width in (
        (20 * steps_per_epoch, 256),
        (10 * steps_per_epoch, 192),
        (4 * steps_per_epoch, 128),
    ):
        model, _ = chosen(50_000, {"cpu_minutes": seconds / 60 / settings.UPDATING_SHARE})
        assert model["d_model"] == width and model["d_ff"] == 4 * width


def test_four_thousand_steps_are_enough_however_few_epochs(pace):
    pace.update({512: 1.0, 384: 1.0, 256: 1.0})
    model, training = chosen(2_000_000, {"cpu_minutes": 4001 / 60 / settings.UPDATING_SHARE})
    assert model["d_model"] == 512
    assert training["batch_tokens"] == 4096


def test_a_time_budget_ends_after_the_maximum_number_of_epochs(pace):
    pace.update({192: 0.001, 128: 0.001})
    limited, lines = replace(TRANSLATION, most_epochs=30), []
    budget = {"cpu_minutes": 10 / settings.UPDATING_SHARE}
    n_batches = len(PairDataset(Lengths(9_000)).batches(1024, 0, 0))
    _, training = chosen(9_000, budget, family=limited, say=lines.append)
    assert training["steps"] == 30 * n_batches > 1_000 and "cpu_minutes" not in training
    assert lines[0].startswith("the time is enough for ")
    assert f"but the run ends after {30 * n_batches:,} (30 epochs): more rarely help" in lines[0]
    assert training["evaluate_every"] == n_batches
    _, training = chosen(100, budget, family=limited)
    assert training["steps"] == settings.FEWEST_LIMITED
    _, training = chosen(3_000, {"steps": 100_000}, family=limited)
    assert training["steps"] == 100_000 and "epochs" not in training
    _, training = chosen(3_000, budget, say=lines.append)
    assert training["cpu_minutes"] == budget["cpu_minutes"]
    assert "warning: more than 100 epochs rarely help. Give more rows or a shorter run" in lines


def test_a_corpus_too_small_for_a_size_is_not_offered_it():
    assert [size.d_model for size in sizes_for(TRANSLATION.sizes, {}, 5_000)] == [192, 128]
    assert [size.d_model for size in sizes_for(TRANSLATION.sizes, {}, 100)] == [128]


def test_without_a_budget_of_time_nothing_is_measured(pace):
    model, training = chosen(50_000, {"steps": 700})
    assert model["d_model"] == 256 and training["warmup_steps"] == 70 and training["evaluate_every"] == 58
    _, training = chosen(50_000, {})
    assert training["epochs"] == TRANSLATION.default_epochs


def test_what_is_set_is_left_as_it_is(pace):
    pace.update({96: 1.0})
    own_model = {"d_model": 96, "n_heads": 3, "norm_first": False, "dropout": 0.05}
    own = {
        "minutes": 1.0,
        "batch_tokens": 777,
        "learning_rate": 0.5,
        "precision": "float32",
        "warmup_steps": 3,
    }
    model, training = chosen(50_000, own, own_model)
    assert own_model.items() <= model.items() and own.items() <= training.items()


def test_longer_training_forgets_more(pace):
    assert [chosen(50_000, {"epochs": n})[0]["dropout"] for n in (5, 25, 60)] == [0.1, 0.2, 0.3]


def test_the_pace_is_measured_by_real_updates(tmp_path):
    corpus = PairCorpus(PairData(train=(str(pairs_file(tmp_path)),)), lambda line: None)
    tables, tokenizer = choose_tokenizer({}, TRANSLATION, corpus, lambda line: None)
    material = TRANSLATION.material(corpus, tokenizer, tables)
    model = sizes_for(TRANSLATION.sizes, {}, material.n_rows)[0].table(tables["model"])
    training = {"precision": "float32", "batch_tokens": 256, "cpu_minutes": 1}
    assert 0 < settings.measured_pace(model, training, material.batches(256, 0, 0), CPU) < 60


def test_the_vocabulary_follows_the_pairs_and_grows_where_the_characters_need_more(tmp_path):
    assert [vocabulary_for(n) for n in (100, 20_000, 29_000, 200_000)] == [1000, 2000, 4000, 8000]
    rare = tmp_path / "rare.tsv"
    texts = ["".join(chr(0x4E00 + 30 * row + i) for i in range(30)) for row in range(60)]  # 1,800 characters
    rare.write_text("".join(f"{text}\t{text}\n" for text in texts), encoding="utf-8")
    corpus = PairCorpus(PairData(train=(str(rare),)), lambda line: None)
    tables, tokenizer = choose_tokenizer({}, TRANSLATION, corpus, lambda line: None)
    assert tables["tokenizer"]["vocab_size"] > vocabulary_for(60)
    assert tokenizer.decode(tokenizer.encode(texts[0])) == texts[0]
