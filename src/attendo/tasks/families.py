"""The kinds of tasks there are."""

from __future__ import annotations

from typing import get_args

from attendo.bundle import Bundle
from attendo.decoding.beam import DecodingConfig
from attendo.errors import AttendoError
from attendo.models import EncoderDecoder, Model
from attendo.tasks.family import Family, Size, TaskName
from attendo.tasks.pair_corpus import PairCorpus, PairMaterial
from attendo.tasks.pair_data import PairData
from attendo.tasks.translation import TranslationTask
from attendo.tasks.translator import Translator
from attendo.training.optimizer import TrainingConfig


def _translator(bundle: Bundle, model: Model) -> Translator:
    assert isinstance(model, EncoderDecoder)
    return Translator.from_bundle(bundle, model)


def _translation_task(
    corpus: PairCorpus, material: PairMaterial, translator: Translator, training: TrainingConfig
) -> TranslationTask:
    validation = corpus.validation(training.evaluate_rows)
    return TranslationTask(material, translator, validation, training.batch_tokens)


TRANSLATION = Family(
    name="translation",
    architecture="encoder-decoder",
    model={},
    training={},
    tokenizer={},
    data=PairData,
    decoding=DecodingConfig,
    sizes=(
        Size(512, 8, 6, 1_000_000),
        Size(384, 6, 4, 200_000),
        Size(256, 4, 3, 10_000),
        Size(192, 4, 3, 3_000),
        Size(128, 4, 2, 0),
    ),
    default_epochs=25,
    open=PairCorpus,
    user=_translator,
    task=_translation_task,
)


def family_of(name: str) -> Family:
    """The family of this name, as `attendo train NAME` and a run's card have it. Raises AttendoError for another."""
    match name:
        case "translation":
            return TRANSLATION
        case _:
            raise AttendoError(f"no task is called {name!r}; there are {', '.join(get_args(TaskName))}")
