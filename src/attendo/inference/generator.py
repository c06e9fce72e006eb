"""Text generation from raw text with a trained language model and its tokenizer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch import nn

from attendo.bundle import Bundle, TaskName, TextModel, load_as
from attendo.config import build
from attendo.data.chat import Messages, conversation, fitted
from attendo.data.tokenizers import Tokenizer, require_list
from attendo.decoding.backends import DecoderBackend, best_decoder, eager_decoder
from attendo.decoding.options import Bits, CacheBits
from attendo.decoding.prefix_cache import PrefixCache
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference.generation import Generation, Writing, WrittenText, all_written, written
from attendo.inference.perplexity import CompiledReader
from attendo.inspecting.recording import Recording, recording
from attendo.models import DecoderLM


class SamplingOptions(TypedDict, total=False):
    """The options of `Generator.generate`, as in `SamplingConfig`. None selects the default of the run."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    stop: Sequence[str] | None
    seed: int | None


class Stream(Iterator[str]):
    """An iterator over the non-empty pieces of a generated text.

    The concatenated pieces equal `generation.text`. `cut`, `dropped`, `unknown` and `seed` are set before the first
    piece. `dropped` is the number of oldest messages of a conversation that did not fit into the context.
    """

    def __init__(self, generator: Generator, text: WrittenText) -> None:
        self.prompt = text.prompt
        self.cut = text.cut
        self.dropped = text.dropped
        self.unknown = text.unknown
        self.seed = text.seed
        self._generation: Generation | None = None
        self._pieces = self._come(generator, text)

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The generated text with its tokens. Raises AttendoError if the last piece has not been generated yet."""
        if self._generation is None:
            raise AttendoError("the text is not complete yet. Read all pieces of the stream first")
        return self._generation

    def whole(self) -> Generation:
        """Generate all pieces that are left, and return the generated text."""
        for _ in self:
            pass
        return self.generation

    def _come(self, generator: Generator, text: WrittenText) -> Iterator[str]:
        for step in written(generator.writing(), [text], 1):
            if step.generation is not None:
                generator.record_pass(step.generation)
                self._generation = step.generation
            if step.piece:
                yield step.piece


def in_float32(model: DecoderLM) -> DecoderLM:
    """Return the model, or a copy in float32 if parameters are mapped in bfloat16, a type that NumPy does not have."""
    is_half = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    return copy.deepcopy(model).float() if is_half else model


@dataclass
class Generator(TextModel):
    """A trained language model and its tokenizer, which continue raw text.

    The model reads at most `max_len` tokens, its context length. A longer prompt is truncated from the left, and
    `Generation.cut` is the number of removed tokens. If a text becomes longer, its window slides (`Windows`).

    Attributes:
        model: The decoder-only model.
        tokenizer: The tokenizer of the model.
        decoding: The default sampling settings of `generate` and `stream`.
        card: The contents of the run's card.json.
        folder: Path of the run folder that the generator was loaded from.
        bits: Bits of each weight on a CPU: 32, 16, 8 or 4.
        cache_bits: Bits of each key and value in the cache: 32, 16 or 8 (None: 32 if `bits` is 32, otherwise 16).
    """

    task: ClassVar[TaskName] = "language-model"

    model: DecoderLM
    tokenizer: Tokenizer
    decoding: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    folder: Path | None = None
    bits: Bits = 32
    cache_bits: CacheBits | None = None
    _record: Recording[DecoderLM] | None = dataclasses.field(default=None, repr=False)
    _reader: DecoderBackend | None = dataclasses.field(default=None, repr=False)
    _prefixes: PrefixCache = dataclasses.field(default_factory=PrefixCache, repr=False)
    _final: bool = dataclasses.field(default=False, repr=False)  # the model is not trained any more

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", bits: Bits | None = None, cache_bits: CacheBits | None = None
    ) -> Generator:
        """Load and return the generator of a run folder.

        Args:
            folder: Path of the run folder.
            device: Device of the model, "cpu" or "cuda".
            bits: The bits of each weight on a CPU: 32, 16, 8 or 4. Fewer are faster and less exact, and need less
                memory, because the weights in the file are not copied as a whole (default: those of a quantized run,
                otherwise 32).
            cache_bits: The bits of each key and value in the cache (default: 32 if `bits` is 32, otherwise 16).

        Raises:
            AttendoError: A file is missing or damaged, or the run has another task.
        """
        bundle, model = load_as(DecoderLM, folder, device, bits=bits, mapped=True)
        generator = cls.from_bundle(bundle, model)
        generator._final = True
        generator.bits = bundle.chosen_bits(bits, device)
        generator.cache_bits = cache_bits
        return generator

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: DecoderLM) -> Generator:
        """Return a generator for a model that is already in memory.

        Args:
            bundle: The contents of the run folder.
            model: The trained model.
        """
        decoding = build(SamplingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card, bundle.folder)

    def prepare(self, bits: Bits | None = None, cache_bits: CacheBits | None = None) -> Generator:
        """Convert the model to its fastest form (`decoding.backends`) and return the generator.

        A loaded generator is prepared when it is first used. With 32 bits, the results differ from those of the
        original model only by rounding errors. After further training, prepare the generator again.

        Args:
            bits: The bits of each weight on a CPU: 32, 16, 8 or 4. Fewer are faster and less exact (default: those with
                which the generator was loaded).
            cache_bits: The bits of each key and value in the cache: 32, 16 or 8 (default: as loaded).

        Raises:
            AttendoError: `cache_bits` has another value, or is given although the model is not compiled.
        """
        self._reader = None  # its memory is free for the new one
        self.bits = bits or self.bits
        self.cache_bits = cache_bits or self.cache_bits
        self._reader = best_decoder(self.model, self.bits, self.cache_bits)
        self._prefixes = PrefixCache()
        return self

    def reader(self) -> DecoderBackend:
        """Return the backend that decodes token by token, in prepared form if the generator is prepared."""
        if self._reader is None and (self._final or self.bits < 32 or self.cache_bits):
            self.prepare()
        return eager_decoder(self.model) if self._reader is None else self._reader

    def scorer(self) -> nn.Module:
        """Return the model whose losses `text_loss` computes: the compiled one if it or its cache has chosen bits.

        Raises:
            AttendoError: The model has fewer than 32 bits and is not compiled.
        """
        if self.bits == 32 and self.cache_bits is None:
            return self.model
        reader = self.reader()
        if reader.compiled is None:
            raise AttendoError(f"`bits` {self.bits} cannot be measured without the compiled step: {reader.why}")
        return CompiledReader(reader.compiled, self.model.config)

    def writing(self) -> Writing:
        """Return an empty batch of texts. Texts can be added at any time, and a step generates one token per text."""
        return Writing(self.reader(), self.tokenizer)

    def text(self, prompt: str | Sequence[int], config: SamplingConfig) -> WrittenText:
        """Return a text to be generated, in the form that `Writing.add` accepts.

        Args:
            prompt: The text to continue, or the token ids that the model reads first.
            config: The sampling settings.
        """
        return WrittenText(self.tokenizer, self.model.config.max_len, prompt, config)

    @property
    def why_not_compiled(self) -> str | None:
        """The reason why the model is not compiled, in one line (None: the model is compiled or not yet prepared)."""
        return None if self._reader is None else self._reader.why

    def config(self, options: Mapping[str, Any]) -> SamplingConfig:
        """Return sampling settings: the given options, and the defaults of the run for all other options.

        Args:
            options: Fields of SamplingConfig. Missing options and the value None select the default of the run.

        Raises:
            AttendoError: An option is unknown or out of range.
        """
        chosen = {name: value for name, value in options.items() if value is not None}
        if not isinstance(stop := chosen.get("stop", ""), str):
            chosen["stop"] = tuple(stop)
        try:
            return dataclasses.replace(self.decoding, **chosen)
        except ValueError as error:
            raise AttendoError(str(error)) from None

    def generate(self, prompt: str = "", **options: Unpack[SamplingOptions]) -> Generation:
        """Continue a prompt, or write a new document if the prompt is empty.

        Args:
            prompt: The text to continue.
            **options: Fields of SamplingConfig. Missing options use the default of the run.

        Returns:
            The generated text with its tokens, log-probabilities and seed.

        Raises:
            AttendoError: An option is out of range.
        """
        return self.stream(prompt, **options).whole()

    def stream(self, prompt: str = "", **options: Unpack[SamplingOptions]) -> Stream:
        """Return an iterator over the pieces of the text that `generate` returns.

        A piece never ends within a character, and never contains the start of a stop text.

        Args:
            prompt: The text to continue.
            **options: Fields of SamplingConfig. Missing options use the default of the run.

        Raises:
            AttendoError: An option is out of range.
        """
        return Stream(self, self.text(prompt, self.config(options)))

    def chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Generation:
        """Answer the last message of a conversation. The model must have a chat template.

        If the conversation is longer than the context, its oldest turns are dropped. The system message is kept. Turns
        that are equal to those of an earlier call are not read again (`PrefixCache`).

        Args:
            messages: The messages of the conversation, for example `[{"role": "user", "content": "Hi"}]`. A system
                message can come first. Then, user and assistant alternate, and the last message is from the user.
            **options: Fields of SamplingConfig. Missing options use the default of the run.

        Returns:
            The reply.

        Raises:
            AttendoError: The model has no chat template, a message is invalid, or the last message is too long.
        """
        return self.stream_chat(messages, **options).whole()

    def stream_chat(self, messages: Messages, **options: Unpack[SamplingOptions]) -> Stream:
        """Return an iterator over the pieces of the reply that `chat` returns.

        Args:
            messages: The messages of the conversation, as in `chat`.
            **options: Fields of SamplingConfig. Missing options use the default of the run.

        Raises:
            AttendoError: The model has no chat template, a message is invalid, or the last message is too long.
        """
        return Stream(self, self.reply(messages, self.config(options)))

    def reply(self, messages: Messages, config: SamplingConfig) -> WrittenText:
        """Return the reply to a conversation as a text to be generated, in the form that `Writing.add` accepts.

        The reply ends at the end of the context.

        Args:
            messages: The messages of the conversation, as in `chat`.
            config: The sampling settings.

        Raises:
            AttendoError: The model has no chat template, a message is invalid, or the last message is too long.
        """
        template = self.tokenizer.chat
        if template is None:
            raise AttendoError(
                "this model has no chat template, so it cannot answer messages. Train it on "
                "conversations (attendo train chat), or continue a text (attendo generate)"
            )
        most = self.model.config.max_len
        talk = conversation(messages)
        ids, dropped, cut = fitted(self.tokenizer, template, talk, most, min(config.max_tokens, most // 4))
        config = dataclasses.replace(config, max_tokens=min(config.max_tokens, most + 1 - len(ids)))
        self.reader()  # a loaded generator is prepared when it is first used
        prefixes = None if self._reader is None else self._prefixes
        text = WrittenText(self.tokenizer, most, ids, config, template, prefixes)
        text.dropped = dropped
        text.cut = cut
        return text

    def generate_batch(
        self,
        prompts: Sequence[str],
        configs: SamplingConfig | Sequence[SamplingConfig] | None = None,
        *,
        rows: int = 32,
    ) -> list[Generation]:
        """Continue many prompts in one batch. A result depends only on its own prompt, settings and seed.

        Args:
            prompts: A list of prompts. For n texts of one prompt, repeat the prompt n times with n seeds.
            configs: Sampling settings, either for all prompts or one per prompt (default: the settings of the run).
            rows: Batch size: the largest number of texts that are generated at a time.

        Returns:
            One Generation per prompt, in the order of the prompts.

        Raises:
            AttendoError: The numbers of configs and prompts differ, or `prompts` is a single string.
        """
        require_list(prompts)
        config = self.decoding if configs is None else configs
        each = [config] * len(prompts) if isinstance(config, SamplingConfig) else config
        if len(each) != len(prompts) or rows < 1:
            raise AttendoError(
                f"{len(prompts)} prompts with {len(each)} configs and {rows} rows. Give one config, or one config"
                " per prompt, and at least 1 row"
            )
        texts = [self.text(*pair) for pair in zip(prompts, each, strict=True)]
        found = all_written(self.writing(), texts, rows)
        for generation in found:
            self.record_pass(generation)
        return found

    @contextmanager
    def recording(self) -> Iterator[Recording[DecoderLM]]:
        """Record the attention of every text that is generated within the `with` block.

        Generation itself is unchanged. After a text is complete, the model reads the tokens of `Generation.window` once
        more, and this pass is recorded. The window contains the begin id, the prompt and the text, up to the context
        length. With `max_tokens=0`, the window contains only the begin id and the prompt.

        Yields:
            Recorded values by module path, for example `record["decoder.blocks.0.self_attention"].weights`.

        Raises:
            AttendoError: A recording is already active.
        """
        if self._record is not None:
            raise AttendoError("recording() is already open on this generator. Close it first")
        with recording(in_float32(self.model)) as record:
            self._record = record
            try:
                yield record
            finally:
                self._record = None

    def record_pass(self, generation: Generation) -> None:
        """Record the attention for a finished text, if this call is within a `recording()` block.

        Args:
            generation: The result of the finished text.
        """
        if self._record is not None:
            with torch.inference_mode():
                self._record.model(torch.tensor([generation.window], device=self.device))
