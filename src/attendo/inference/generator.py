"""Generator: a trained language model, its tokenizer and its sampling, with raw text in and raw text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import torch

from attendo.bundle import Bundle, TaskName, load_as
from attendo.config import build
from attendo.data.tokenizers import Tokenizer, require_list
from attendo.decoding.backends import DecoderBackend, best_decoder, eager_decoder
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference.generation import Generation, Writing, WrittenText, written
from attendo.inspecting.recording import Recording, recording
from attendo.models import DecoderLM


class SamplingOptions(TypedDict, total=False):
    """The options of `Generator.generate`, those of `SamplingConfig`; None and what is left out are the run's own."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    stop: Sequence[str] | None
    seed: int | None


class Stream(Iterator[str]):
    """The pieces of a text as they are written, none empty; together they are the text of `generation`.

    cut, unknown, seed are known before the first piece, as in Generation.
    """

    def __init__(self, generator: Generator, prompt: str, config: SamplingConfig) -> None:
        text = generator.text(prompt, config)
        self.prompt = prompt
        self.cut = text.cut
        self.unknown = text.unknown
        self.seed = text.seed
        self._generation: Generation | None = None
        self._pieces = self._come(generator, text)

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """All that there is to know, once the last piece has come. Raises AttendoError before."""
        if self._generation is None:
            raise AttendoError("the text is still being written; take all pieces of the stream first")
        return self._generation

    def _come(self, generator: Generator, text: WrittenText) -> Iterator[str]:
        for step in written(generator.writing(), [text], 1):
            if step.generation is not None:
                generator.record_pass(step.generation)
                self._generation = step.generation
            if step.piece:
                yield step.piece


@dataclass
class Generator:
    """Continues raw text. `decoding` holds the defaults that `generate` and `stream` start from.

    The model reads at most `max_len` tokens at a time, its context. A prompt that has more is cut on the left, and
    `Generation.cut` says by how many tokens; where prompt and text together come to more, the window slides (`Window`).
    folder: that it was loaded from.
    """

    task: ClassVar[TaskName] = "language-model"

    model: DecoderLM
    tokenizer: Tokenizer
    decoding: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    folder: Path | None = None
    _record: Recording[DecoderLM] | None = dataclasses.field(default=None, repr=False)
    _reader: DecoderBackend | None = dataclasses.field(default=None, repr=False)
    _final: bool = dataclasses.field(default=False, repr=False)  # the model is not trained any more

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Generator:
        """The generator of a run folder. Raises AttendoError naming what is missing, damaged or for another task."""
        generator = cls.from_bundle(*load_as(DecoderLM, folder, device))
        generator._final = True
        return generator

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: DecoderLM) -> Generator:
        """A generator around a model that is in memory already."""
        decoding = build(SamplingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card, bundle.folder)

    def prepare(self, *, int8: bool = False) -> Generator:
        """Bring its model into the fastest form for writing on this processor (`decoding.backends`); return itself.

        One that was loaded does so by itself; int8 and the rest: as `Translator.prepare`.
        """
        self._reader = best_decoder(self.model, int8=int8)
        return self

    def reader(self) -> DecoderBackend:
        """The model as it is read token by token, in the form that it was brought into."""
        if self._reader is None and self._final:
            self.prepare()
        return eager_decoder(self.model) if self._reader is None else self._reader

    def writing(self) -> Writing:
        """Texts that this model writes side by side, none yet; what `generate` gives, step by step."""
        return Writing(self.reader(), self.tokenizer)

    def text(self, prompt: str, config: SamplingConfig) -> WrittenText:
        """A text of which nothing is written yet, as `Writing` takes it in."""
        return WrittenText(self.tokenizer, self.model.config.max_len, prompt, config)

    @property
    def why_not_compiled(self) -> str | None:
        """In a line, why its steps are not compiled; None where they are, or where it was not prepared."""
        return None if self._reader is None else self._reader.why

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.output_proj.weight.device

    def config(self, options: Mapping[str, Any]) -> SamplingConfig:
        """How to sample with these options of SamplingConfig; those that are None or left out are the run's own.

        Raises AttendoError for one out of range.
        """
        chosen = {name: value for name, value in options.items() if value is not None}
        try:
            return dataclasses.replace(self.decoding, **chosen)
        except ValueError as error:
            raise AttendoError(str(error)) from None

    def generate(self, prompt: str = "", **options: Unpack[SamplingOptions]) -> Generation:
        """The prompt continued; without one, a new document. See SamplingConfig for the options.

        Options left out are the run's own. Raises AttendoError for one out of range.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.generation

    def stream(self, prompt: str = "", **options: Unpack[SamplingOptions]) -> Stream:
        """As `generate`, piece by piece: never half a character, and nothing that a stop text might still take back."""
        stop = options.get("stop")
        if stop is not None and not isinstance(stop, str):
            options["stop"] = tuple(stop)
        return Stream(self, prompt, self.config(options))

    def generate_batch(
        self,
        prompts: Sequence[str],
        configs: SamplingConfig | Sequence[SamplingConfig] | None = None,
        *,
        rows: int = 32,
    ) -> list[Generation]:
        """Many prompts continued side by side, each as by itself: its text depends on its own config and seed alone.

        configs: one for all (the run's own, if left out) or one for each prompt; n texts of one prompt are n times the
        prompt and n seeds. rows: how many are written at a time. Raises AttendoError for a number of configs that is
        not that of the prompts, and for a bare prompt.
        """
        require_list(prompts)
        config = self.decoding if configs is None else configs
        each = [config] * len(prompts) if isinstance(config, SamplingConfig) else config
        if len(each) != len(prompts) or rows < 1:
            raise AttendoError(
                f"{len(prompts)} prompts with {len(each)} configs, {rows} rows; give one config, or one for each"
                " prompt, and at least 1 row"
            )
        texts = [self.text(*pair) for pair in zip(prompts, each, strict=True)]
        steps = written(self.writing(), texts, rows)
        ended = {step.number: step.generation for step in steps if step.generation is not None}
        found = [ended[number] for number in range(len(texts))]
        for generation in found:
            self.record_pass(generation)
        return found

    @contextmanager
    def recording(self) -> Iterator[Recording[DecoderLM]]:
        """Within it, each text that is finished is also recorded: every attention layer, by module path.

        The text is written as always; then one pass over `Generation.window`, which is the begin id, prompt and text if
        the context holds them, is recorded on a view of the model: `record["decoder.blocks.0.self_attention"].weights`.
        With max_tokens=0 it is the prompt alone.
        """
        if self._record is not None:
            raise AttendoError("recording() is already open on this generator; leave it first")
        with recording(self.model) as record:
            self._record = record
            try:
                yield record
            finally:
                self._record = None

    def record_pass(self, generation: Generation) -> None:
        """Records the attention over a finished text, within `recording()`."""
        if self._record is not None:
            with torch.inference_mode():
                self._record.model(torch.tensor([generation.window], device=self.device))
