"""The kinds of tasks. A `TaskSpec` contains everything that training and the commands need for one kind."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Any, cast

from attendo.bundle import Bundle, TaskName
from attendo.config import build
from attendo.data.batches import TokenDataset
from attendo.data.chat_corpus import (
    ChatCorpus,
    ChatData,
    ChatDataset,
    PreferenceData,
    PreferenceDataset,
    PromptData,
    PromptDataset,
    RewardConfig,
    question,
    template_of,
)
from attendo.data.corpus_base import Corpus
from attendo.data.held_out import MOST, source_hash
from attendo.data.labelled_corpus import (
    LabelledCorpus,
    LabelledData,
    LabelledDataset,
    MultiLabelCorpus,
    MultiLabelData,
    NumberCorpus,
    NumberData,
)
from attendo.data.pair_corpus import PairCorpus, PairData, PairDataset
from attendo.data.tagged import TaggedCorpus, TaggedData, dictionary, spans_of
from attendo.data.text_corpus import TextCorpus, TextData, WindowDataset
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.sampling import SamplingConfig
from attendo.display.formats import Say, plural
from attendo.display.i18n import Localized
from attendo.errors import AttendoError
from attendo.inference.classifier import Classifier
from attendo.inference.embedder import Embedder
from attendo.inference.generator import Generator
from attendo.inference.label_model import TextClassifier
from attendo.inference.multi_label import MultiLabelClassifier, Regressor
from attendo.inference.tagger import Tagger
from attendo.inference.translator import Translator
from attendo.model_config import Architecture, ModelConfig
from attendo.runs.chat_tasks import ChatTask, PreferenceConfig, PreferenceTask, RewardTask
from attendo.runs.tasks import (
    MOST_EVALUATED,
    SHOWN_TOKENS,
    ClassificationTask,
    LanguageModelTask,
    MaskedDataset,
    MaskedTask,
    MaskingConfig,
    TaggingTask,
    TranslationTask,
)
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Task


@dataclass(frozen=True)
class Size:
    """Size of a model, and the number of rows that a corpus must have for this size (`least_rows`)."""

    d_model: int
    n_heads: int
    n_layers: int
    least_rows: int

    def table(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the given settings in [model], completed with the settings that a size determines.

        >>> Size(128, 4, 2, 0).table({})["d_ff"], Size(128, 4, 2, 0).table({"feed_forward_gated": True})["d_ff"]
        (512, 352)
        """
        # three matrices of 8/3 · d_model have as many parameters as two of 4 · d_model (Shazeer 2020)
        is_gated, d_model = settings.get("feed_forward_gated", False), settings.get("d_model", self.d_model)
        return {
            "d_model": d_model,
            "d_ff": 32 * math.ceil(d_model / 12) if is_gated else 4 * d_model,
            "n_heads": self.n_heads,
            "n_encoder_layers": self.n_layers,
            "n_decoder_layers": self.n_layers,
            "norm_first": True,
            **settings,
        }


LAYERS = {
    "norm": "rms",
    "positions": "rotary",
    "activation": "silu",
    "feed_forward_gated": True,
    "feed_forward_bias": False,
    "attention_bias": False,
}
"""Layers of Llama and EuroBERT. Hugging Face has classes for models with these layers."""

READ_WORDS = {"kind": "uncased", "vocab_size": 20_000, "min_count": 2}
"""Settings of the word tokenizer. Words that occur once teach nothing, and most words after the 20,000 are names."""


@dataclass(frozen=True)
class TaskSpec:
    """A kind of task, with everything that the training loop and the commands need.

    Attributes:
        model_name: The name of a model of this kind in messages, for example "translator".
        predicted: Description of the texts or labels to which the model assigns probabilities.
        model, training, data_keys: Settings in [model], [training] and [data] that differ from the general defaults.
        data: The dataclass of the section [data].
        extra: The dataclasses of additional sections, by section name.
        sizes: The model sizes, largest first.
        default_epochs: The number of epochs if the user sets no limit.
        most_epochs: The maximum number of epochs in a time budget. With a maximum, each epoch has an evaluation.
        open: A function that opens the corpus of a [data] section.
        material: A function that returns the tokenized training rows from the cache, or adds them to it.
        user: A function that builds the inference object for a model.
        task: A function that builds the batches and the evaluation for the training loop.
        texts: A function that returns validation texts of a corpus and its task, from which examples are chosen.
        tokenizers: Settings in [tokenizer] for texts without and with spaces between words.
        files: A function that returns further files of the model for the run folder, by name.
        adapt: A function that adds special tokens of the task to a tokenizer.
    """

    name: TaskName
    model_name: str
    predicted: Localized
    architecture: Architecture
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    data: type[Any]
    extra: Mapping[str, type[Any]]
    sizes: tuple[Size, ...]
    default_epochs: float
    open: Callable[[Any, Say], Corpus[Any]]
    material: Callable[[Any, Tokenizer, Mapping[str, Mapping[str, Any]]], TokenDataset]
    user: Callable[[Bundle, Any], Any]
    task: Callable[[Any, Any, Any, TrainingConfig], Task]
    texts: Callable[[Any, Any], Iterable[str]]
    data_keys: Mapping[str, Any] = field(default_factory=dict)
    most_epochs: float = math.inf
    tokenizers: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    files: Callable[[Any], Mapping[str, bytes]] = lambda task: {}
    adapt: Callable[[Tokenizer], Tokenizer] = lambda tokenizer: tokenizer

    @property
    def writes(self) -> bool:
        """Whether models of this kind generate text, which requires a decoder."""
        return self.architecture in ("encoder-decoder", "decoder")

    def defaults(self) -> dict[str, dict[str, Any]]:
        """Return the default settings of this kind, which a user's settings override."""
        model = {"architecture": self.architecture, **self.model}
        tables = {"model": model, "training": self.training, "data": self.data_keys}
        return {name: dict(table) for name, table in tables.items() if table}


_Tables = Mapping[str, Mapping[str, Any]]

# ---- translation


def _pairs(corpus: PairCorpus, tokenizer: Tokenizer, tables: _Tables) -> PairDataset:
    most = corpus.data.max_tokens
    if most:
        max_len = tables.get("model", {}).get("max_len", ModelConfig.max_len)
        most = min(most, max_len - tokenizer.specials.n_reserved)
    return PairDataset(corpus.store(tokenizer, most), tokenizer.specials, most)


def _translation_task(
    corpus: PairCorpus, material: PairDataset, translator: Translator, training: TrainingConfig
) -> TranslationTask:
    each, final = corpus.validation(training.evaluate_rows, translator.tokenizer, material.max_tokens)
    return TranslationTask(material, translator, each, training.batch_tokens, final)


TRANSLATION = TaskSpec(
    name="translation",
    model_name="translator",
    predicted=Localized("a row's translation", "1 行の訳文"),
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
    user=Translator.from_bundle,
    task=_translation_task,
    texts=lambda corpus, task: sorted((source for source, _ in task.validation), key=source_hash),
    data_keys={"max_tokens": 1000},
)

# ---- classification


def _classification_task(
    corpus: LabelledCorpus, material: LabelledDataset, classifier: TextClassifier, training: TrainingConfig
) -> ClassificationTask:
    each, final = corpus.validation(training.evaluate_rows)
    task = ClassificationTask(material, classifier, each, training.batch_tokens, corpus.validation_name, final)
    task.fit_ngrams(corpus.rows)
    corpus.say(task.what_to_beat)
    if not task.learns_head_only(training.frozen):
        return task
    task.fit_head()
    return replace(task, evaluate_first=True)


CLASSIFICATION = TaskSpec(
    name="classification",
    model_name="classifier",
    predicted=Localized("a row's label", "1 行のラベル"),
    architecture="classifier",
    model={"n_decoder_layers": 0, "dropout": 0.3, **LAYERS},
    training={"learning_rate": 1e-3, "label_smoothing": 0.0, "evaluate_rows": 2000, "patience": 10},
    data=LabelledData,
    extra={},
    sizes=(Size(256, 4, 4, 100_000), Size(128, 4, 2, 0)),
    default_epochs=6,
    open=LabelledCorpus,
    material=lambda corpus, tokenizer, tables: corpus.material(tokenizer),
    user=Classifier.from_bundle,
    task=_classification_task,
    # in the order of hashes, because a file may be sorted by label
    texts=lambda corpus, task: sorted((row.text for row in task.validation), key=source_hash),
    data_keys={"valid_share": 0.1},
    most_epochs=30,
    tokenizers=({}, READ_WORDS),
    files=ClassificationTask.files,
)

MULTI_LABEL = replace(
    CLASSIFICATION,
    name="multi-label",
    predicted=Localized("a row's labels", "1 行のラベル"),
    data=MultiLabelData,
    open=MultiLabelCorpus,
    user=MultiLabelClassifier.from_bundle,
)

REGRESSION = replace(
    CLASSIFICATION,
    name="regression",
    model_name="regressor",
    predicted=Localized("a row's number", "1 行の数値"),
    data=NumberData,
    open=NumberCorpus,
    user=Regressor.from_bundle,
)

# ---- tagging


def _tagging_task(
    corpus: TaggedCorpus, material: LabelledDataset, tagger: Tagger, training: TrainingConfig
) -> TaggingTask:
    each, final = corpus.validation(training.evaluate_rows)
    known = dictionary(corpus.rows())
    task = TaggingTask(material, tagger, each, training.batch_tokens, known, corpus.validation_name, final)
    n_spans = sum(map(len, map(spans_of, each)))
    corpus.say(
        f"baseline on {plural(len(each), 'validation text')} with {plural(n_spans, 'span')}: dictionary of the training"
        f" spans, span F1 {task.baseline:.1%}"
    )
    return task


TAGGING = TaskSpec(
    name="tagging",
    model_name="tagger",
    predicted=Localized("a row's tags", "1 行のタグ"),
    architecture="classifier",
    model={
        "n_decoder_layers": 0,
        "activation": "gelu",
        "dropout": 0.2,
        "positions": "rotary",
        "pooling": "none",
    },
    training={"learning_rate": 1e-3, "label_smoothing": 0.0, "evaluate_rows": 2000, "patience": 10},
    data=TaggedData,
    extra={},
    sizes=(Size(256, 4, 4, 50_000), Size(128, 4, 3, 0)),
    default_epochs=15,
    open=TaggedCorpus,
    material=lambda corpus, tokenizer, tables: corpus.material(tokenizer),
    user=Tagger.from_bundle,
    task=_tagging_task,
    texts=lambda corpus, task: sorted((row.text for row in task.validation), key=source_hash),
    data_keys={"valid_share": 0.1, "token_dropout": 0.3},
    most_epochs=60,
    # names require their case and their spelling
    tokenizers=({"kind": "character"}, {"kind": "bpe"}),
)

# ---- language modelling

FEWEST_EVALUATED = 10_000
"""The minimum number of validation tokens in an evaluation of a language model."""


def evaluated_tokens(training: TrainingConfig) -> int:
    """Return the validation tokens per evaluation: evaluations should take about a tenth of the time of the updates.

    The forward pass of an evaluation takes a third of the time of an update with as many tokens.

    >>> [evaluated_tokens(TrainingConfig(steps=1, batch_tokens=4096, evaluate_every=n)) for n in (1, 24, 400)]
    [10000, 29491, 100000]
    """
    tokens = int(0.1 * 3 * training.evaluate_every * training.batch_tokens * training.accumulation)
    return min(MOST_EVALUATED, max(FEWEST_EVALUATED, tokens))


def _language_task(
    corpus: TextCorpus, material: WindowDataset, generator: Generator, training: TrainingConfig
) -> LanguageModelTask:
    task = LanguageModelTask(
        material,
        corpus.stream(generator.tokenizer, "valid"),
        generator.tokenizer,
        training.batch_tokens,
        evaluated_tokens(training),
        go_on=lambda prompt: generator.generate(prompt, max_tokens=SHOWN_TOKENS, temperature=0.0).text,
    )
    n_scored, n_all = sum(d.n_targets for d in task.validation_documents), task.validation.n_positions
    if n_scored < n_all:
        corpus.say(f"{n_scored:,} of {n_all:,} validation tokens are used for each evaluation, also the last")
    return task


def _validation_lines(corpus: TextCorpus, task: Task) -> Iterator[str]:
    """Yield lines of the first validation chunks: the first line of each chunk, then the second lines, and so on."""
    chunks = islice(corpus.chunks("valid"), 50)
    lines = [[line for line in chunk.text.splitlines() if line.strip()][:50] for chunk in chunks]
    return (line for group in zip_longest(*lines, fillvalue="") for line in group)


LANGUAGE_MODEL = TaskSpec(
    name="language-model",
    model_name="language model",
    predicted=Localized("a row's text", "1 行のテキスト"),
    architecture="decoder",
    model={
        "n_encoder_layers": 0,
        "max_len": 256,
        "tie": "output",
        **LAYERS,
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
    material=lambda corpus, tokenizer, tables: corpus.windows(tokenizer, tables["model"]["max_len"]),
    user=Generator.from_bundle,
    task=_language_task,
    texts=_validation_lines,
)

# ---- assistants


def _questions(corpus: ChatCorpus, task: Any) -> Iterator[str]:
    return iter(sorted(map(question, task.rows), key=source_hash))


def _answer_task(corpus: ChatCorpus, material: ChatDataset, generator: Generator, training: TrainingConfig) -> Task:
    rows, _ = corpus.validation(training.evaluate_rows)
    valid = corpus.material(generator.tokenizer, material.context, rows)
    if isinstance(material, PreferenceDataset) and isinstance(valid, PreferenceDataset):
        task = PreferenceTask(material, generator, valid, rows[:64], training.batch_tokens)
        return task.with_reference()
    if isinstance(material, PromptDataset) and isinstance(valid, PromptDataset):
        task = RewardTask(material, generator, valid, rows[:64], training.batch_tokens)
        _ = task.function  # raises an error if it cannot be loaded
        return task
    return ChatTask(material, generator, valid, rows[:64], training.batch_tokens)


CHAT = replace(
    LANGUAGE_MODEL,
    name="chat",
    model_name="assistant",
    predicted=Localized("a row's answers", "1 行の回答"),
    data=ChatData,
    open=ChatCorpus,
    material=lambda corpus, tokenizer, tables: corpus.material(tokenizer, tables["model"]["max_len"]),
    task=_answer_task,
    texts=_questions,
    training={**LANGUAGE_MODEL.training, "evaluate_rows": MOST},
    default_epochs=3,
    adapt=lambda tokenizer: tokenizer.with_chat(),
)


def _preferences(corpus: ChatCorpus, tokenizer: Tokenizer, tables: _Tables) -> PreferenceDataset:
    config = build(PreferenceConfig, tables.get("preference", {}), "the settings [preference]")
    template_of(tokenizer)  # raises an error for a model that is not an assistant
    material = corpus.material(tokenizer, tables["model"]["max_len"])
    return replace(cast(PreferenceDataset, material), beta=config.beta)


PREFERENCE = replace(
    CHAT,
    name="preference",
    model={**CHAT.model, "dropout": 0.0},  # as of the reference
    training={**CHAT.training, "learning_rate": 5e-5},
    extra={**CHAT.extra, "preference": PreferenceConfig},
    data=PreferenceData,
    material=_preferences,
    default_epochs=1,
    files=PreferenceTask.files,
    adapt=lambda tokenizer: tokenizer,
)


def _prompts(corpus: ChatCorpus, tokenizer: Tokenizer, tables: _Tables) -> PromptDataset:
    config = build(RewardConfig, tables.get("reward", {}), "the settings [reward]")
    template_of(tokenizer)  # raises an error for a model that is not an assistant
    context = tables["model"]["max_len"]
    config = replace(config, max_tokens=min(config.max_tokens, context // 2))
    material = corpus.material(tokenizer, context - config.max_tokens)
    return replace(cast(PromptDataset, material), config=config)


REWARD = replace(
    PREFERENCE,
    name="reward",
    # not chosen by the pace, which is measured without the time for sampling
    training={
        **PREFERENCE.training,
        "batch_tokens": 8192,
        "evaluate_rows": 256,
        "warmup_steps": 10,
        "evaluate_every": 20,
    },
    extra={**CHAT.extra, "reward": RewardConfig},
    data=PromptData,
    material=_prompts,
    files=RewardTask.files,
)

# ---- masked language modelling


def _hidden(corpus: TextCorpus, tokenizer: Tokenizer, tables: _Tables) -> MaskedDataset:
    masking = build(MaskingConfig, tables.get("masking", {}), "the settings [masking]")
    stream = corpus.stream(tokenizer, "train")
    if tokenizer.mask_id < 0:
        raise AttendoError("the tokenizer of the initial run has no mask token. Start from a masked language model")
    text_ids = tokenizer.text_ids if tokenizer.kind == "imported" else None
    return MaskedDataset(
        stream, tables["model"]["max_len"], tokenizer.vocab_size, masking, tokenizer.specials, text_ids
    )


def _masked_task(
    corpus: TextCorpus, material: MaskedDataset, embedder: Embedder, training: TrainingConfig
) -> MaskedTask:
    validation = replace(material, store=corpus.stream(embedder.tokenizer, "valid"))
    return MaskedTask(material, validation, training.batch_tokens)


MASKED_LANGUAGE_MODEL = TaskSpec(
    name="masked-language-model",
    model_name="masked language model",
    predicted=Localized("a row's hidden tokens (15%)", "1 行で隠したトークン（15%）"),
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
    texts=_validation_lines,
    tokenizers=({}, READ_WORDS),
)


TASK_SPECS = {
    spec.name: spec
    for spec in (
        TRANSLATION,
        CLASSIFICATION,
        MULTI_LABEL,
        REGRESSION,
        TAGGING,
        LANGUAGE_MODEL,
        CHAT,
        PREFERENCE,
        REWARD,
        MASKED_LANGUAGE_MODEL,
    )
}


def family_of(name: str) -> TaskSpec:
    """Return the kind of task with this name, as in `attendo train NAME`. Raises AttendoError for an unknown name."""
    if name not in TASK_SPECS:
        raise AttendoError(f"unknown task {name!r} (expected {', '.join(TASK_SPECS)})")
    return TASK_SPECS[name]


def task_of(architecture: Architecture) -> TaskName:
    """Return the name of the task for which models of an architecture are trained.

    >>> task_of("decoder")
    'language-model'
    """
    return next(spec.name for spec in TASK_SPECS.values() if spec.architecture == architecture)
