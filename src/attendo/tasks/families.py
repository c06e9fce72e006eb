"""The kinds of tasks there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from attendo.bundle import Bundle
from attendo.config import build
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.model_config import Architecture, ModelConfig
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, Model
from attendo.tasks.classification import ClassificationTask, LabelledMaterial
from attendo.tasks.classifier import Classifier
from attendo.tasks.embedder import Embedder
from attendo.tasks.family import Family, Size, TaskName
from attendo.tasks.generator import Generator
from attendo.tasks.labelled_corpus import LabelledCorpus, LabelledData
from attendo.tasks.language import LanguageModelTask
from attendo.tasks.masked import MaskedMaterial, MaskedTask, MaskingConfig
from attendo.tasks.pair_corpus import PairCorpus, PairMaterial
from attendo.tasks.pair_data import PairData
from attendo.tasks.text_corpus import TextCorpus, TextData, WindowMaterial
from attendo.tasks.translation import TranslationTask
from attendo.tasks.translator import Translator
from attendo.training.optimizer import TrainingConfig

SAMPLE_TOKENS = 32
"""Shown of a continuation at each evaluation."""

_Tables = Mapping[str, Mapping[str, Any]]

# ---- translation


def _translator(bundle: Bundle, model: Model) -> Translator:
    assert isinstance(model, EncoderDecoder)
    return Translator.from_bundle(bundle, model)


def _pairs(corpus: PairCorpus, tokenizer: Tokenizer, tables: _Tables) -> PairMaterial:
    most = corpus.data.max_tokens
    if most:
        max_len = tables.get("model", {}).get("max_len", ModelConfig.max_len)
        most = min(most, max_len - tokenizer.specials.n_reserved)
    return PairMaterial(corpus.store(tokenizer, most), tokenizer.specials, most)


def _translation_task(
    corpus: PairCorpus, material: PairMaterial, translator: Translator, training: TrainingConfig
) -> TranslationTask:
    each, final = corpus.validation(training.evaluate_rows, translator.tokenizer, material.max_tokens)
    return TranslationTask(material, translator, each, training.batch_tokens, final)


TRANSLATION = Family(
    name="translation",
    architecture="encoder-decoder",
    model={},
    training={},
    data=PairData,
    extra={"decoding": DecodingConfig},
    sizes=(
        Size(512, 8, 6, 1_000_000),
        Size(384, 6, 4, 200_000),
        Size(256, 4, 3, 10_000),
        Size(192, 4, 3, 3_000),
        Size(128, 4, 2, 0),
    ),
    default_epochs=25,
    open=PairCorpus,
    material=_pairs,
    user=_translator,
    task=_translation_task,
    data_keys={"max_tokens": 1000},
)

# ---- classification


def _classifier(bundle: Bundle, model: Model) -> Classifier:
    assert isinstance(model, EncoderClassifier)
    return Classifier.from_bundle(bundle, model)


def _labelled(corpus: LabelledCorpus, tokenizer: Tokenizer, tables: _Tables) -> LabelledMaterial:
    return corpus.material(tokenizer)


def _classification_task(
    corpus: LabelledCorpus, material: LabelledMaterial, classifier: Classifier, training: TrainingConfig
) -> ClassificationTask:
    each, final = corpus.validation(training.evaluate_rows)
    name = corpus.validation_name
    task = ClassificationTask(material, classifier, each, training.batch_tokens, name, final)
    corpus.say(task.what_to_beat)
    return task


CLASSIFICATION = Family(
    name="classification",
    architecture="classifier",
    model={"n_decoder_layers": 0, "activation": "gelu", "dropout": 0.3},
    training={"learning_rate": 1e-3, "label_smoothing": 0.0, "evaluate_rows": 2000},
    data=LabelledData,
    extra={},
    sizes=(Size(256, 4, 4, 100_000), Size(128, 4, 2, 0)),
    default_epochs=6,
    open=LabelledCorpus,
    material=_labelled,
    user=_classifier,
    task=_classification_task,
    data_keys={"valid_share": 0.1},
)

# ---- language modelling


def _generator(bundle: Bundle, model: Model) -> Generator:
    assert isinstance(model, DecoderLM)
    return Generator.from_bundle(bundle, model)


def _windows(corpus: TextCorpus, tokenizer: Tokenizer, tables: _Tables) -> WindowMaterial:
    return corpus.windows(tokenizer, tables["model"]["max_len"])


def _language_task(
    corpus: TextCorpus, material: WindowMaterial, generator: Generator, training: TrainingConfig
) -> LanguageModelTask:
    task = LanguageModelTask(
        material.stream,
        corpus.stream(generator.tokenizer, "valid"),
        generator.tokenizer,
        material.context,
        training.batch_tokens,
        go_on=lambda prompt: generator.generate(prompt, max_tokens=SAMPLE_TOKENS, temperature=0.0).text,
    )
    n_scored, n_all = sum(d.n_targets for d in task.validation_documents), task.validation.n_positions
    if n_scored < n_all:
        corpus.say(f"{n_scored:,} of {n_all:,} validation tokens are used at each evaluation, at the end too")
    return task


LANGUAGE_MODEL = Family(
    name="language-model",
    architecture="decoder",
    model={
        "n_encoder_layers": 0,
        "max_len": 256,
        "positions": "rotary",
        "activation": "gelu",
        "tie": "output",
    },
    training={"label_smoothing": 0.0},
    data=TextData,
    extra={"decoding": SamplingConfig},
    sizes=(
        Size(512, 8, 8, 2_000_000),
        Size(384, 6, 6, 200_000),
        Size(256, 4, 4, 20_000),
        Size(128, 4, 4, 0),
    ),
    default_epochs=10,
    open=TextCorpus,
    material=_windows,
    user=_generator,
    task=_language_task,
)

# ---- masked language modelling


def _hidden(corpus: TextCorpus, tokenizer: Tokenizer, tables: _Tables) -> MaskedMaterial:
    masking = build(MaskingConfig, tables.get("masking", {}), "the settings [masking]")
    stream = corpus.stream(tokenizer, "train")
    if tokenizer.mask_id < 0:
        raise AttendoError(
            "the tokenizer that the run starts with has no mask token; start from a masked model"
        )
    size, own = tokenizer.vocab_size, tokenizer.kind != "imported"
    others = None if own else tokenizer.text_ids
    return MaskedMaterial(stream, tables["model"]["max_len"], size, masking, tokenizer.specials, others)


def _masked_task(
    corpus: TextCorpus, material: MaskedMaterial, embedder: Embedder, training: TrainingConfig
) -> MaskedTask:
    validation = replace(material, stream=corpus.stream(embedder.tokenizer, "valid"))
    return MaskedTask(material, validation, training.batch_tokens)


MASKED_LANGUAGE_MODEL = Family(
    name="masked-language-model",
    architecture="masked",
    model={"n_decoder_layers": 0, "max_len": 256, "activation": "gelu", "tie": "output", "output_bias": True},
    training={"label_smoothing": 0.0},
    data=TextData,
    extra={"masking": MaskingConfig},
    sizes=(Size(512, 8, 6, 2_000_000), Size(256, 4, 4, 100_000), Size(128, 4, 2, 0)),
    default_epochs=10,
    open=TextCorpus,
    material=_hidden,
    user=Embedder.from_bundle,
    task=_masked_task,
)


def family_of(name: str) -> Family:
    """The family of this name, as `attendo train NAME` and a run's card have it. Raises AttendoError for another."""
    match name:
        case "translation":
            return TRANSLATION
        case "classification":
            return CLASSIFICATION
        case "language-model":
            return LANGUAGE_MODEL
        case "masked-language-model":
            return MASKED_LANGUAGE_MODEL
        case _:
            raise AttendoError(f"no task is called {name!r}; there are {', '.join(get_args(TaskName))}")


def task_of(architecture: Architecture) -> TaskName:
    """The task that models of an architecture are trained for.

    >>> task_of("decoder")
    'language-model'
    """
    families = (TRANSLATION, CLASSIFICATION, LANGUAGE_MODEL, MASKED_LANGUAGE_MODEL)
    return next(family.name for family in families if family.architecture == architecture)
