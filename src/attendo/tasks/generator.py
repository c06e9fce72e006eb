"""Generator: a trained language model, its tokenizer and its sampling, with raw text in and raw text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from attendo.bundle import Bundle, load_as
from attendo.config import build
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.members import Reader, fastest_reader, reader
from attendo.decoding.sampling import Drawn, Sampling, SamplingConfig, fresh_seed
from attendo.decoding.step import SpecialIds
from attendo.errors import AttendoError
from attendo.inspecting.recording import Recording, recording
from attendo.models import DecoderLM
from attendo.tasks.seeds import of_lines
from attendo.tasks.spelling import Spelling, Stops
from attendo.tasks.windows import Row, Window, Windows

__all__ = ["Generation", "Generator", "Stream", "Window", "of_lines"]

FinishedBy = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Generation:
    """How a prompt goes on: `prompt + text` is the whole.

    token_ids: what was drawn, the end token left out; with a stop, the tokens that spell it are among them. log_probs:
    of each in nats, as the model has it before any penalty or filter, that of the end token included where there is
    one. finished_by: "end" the model's end of a document, "stop" a stop text, "length" max_tokens. cut: tokens on the
    left of the prompt that were not read, since the model's context holds no more. unknown: words of the prompt that
    the tokenizer does not know. slides: how often the window slid. seed: gives this text again. window: the tokens
    from which the text would go on, those of a recording.
    """

    prompt: str
    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finished_by: FinishedBy
    cut: int
    unknown: int
    slides: int
    seed: int
    window: tuple[int, ...]

    @property
    def log_prob(self) -> float:
        """Of all that was drawn, in nats."""
        return sum(self.log_probs)


class _Text:
    """One text as it is written: the pieces of what is drawn, and at the end all that there is to know."""

    def __init__(self, generator: Generator, prompt: str, config: SamplingConfig) -> None:
        tokenizer, most = generator.tokenizer, generator.model.config.max_len
        self.prompt, self.seed = prompt, fresh_seed() if config.seed is None else config.seed
        self.config = dataclasses.replace(config, seed=self.seed)
        ids = tokenizer.encode(prompt)
        self.unknown, self.cut = ids.count(tokenizer.unk_id), max(0, len(ids) - most)
        self.prompt_ids = [tokenizer.bos_id, *ids][-most:]
        self._eos_id = tokenizer.eos_id
        self._spelling = Spelling(tokenizer, going_on=bool(ids))
        self._stops = Stops(config.stop)
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._log_probs: list[float] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop text has come."""
        return self._stops.found

    def add(self, token: Drawn) -> str:
        """The piece that may be shown once this token has come, perhaps none."""
        self._log_probs.append(token.log_prob)
        if token.token_id == self._eos_id:
            return ""
        self._token_ids.append(token.token_id)
        return self._kept(self._stops.add(self._spelling.add(token.token_id)))

    def end(self) -> str:
        """The last piece, now that no token comes any more: what was held back, half a character as U+FFFD."""
        return "" if self.stopped else self._kept(self._stops.add(self._spelling.end()) + self._stops.end())

    def _kept(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece

    def generation(self, windows: Windows, row: Row) -> Generation:
        """The whole, with the row of the windows that it was written on."""
        ended = len(self._log_probs) > len(self._token_ids)
        last = [] if ended else [*self.prompt_ids, *self._token_ids][-1:]  # was not read any more
        return Generation(
            prompt=self.prompt,
            text="".join(self._pieces),
            token_ids=tuple(self._token_ids),
            log_probs=tuple(self._log_probs),
            finished_by="stop" if self.stopped else "end" if ended else "length",
            cut=self.cut,
            unknown=self.unknown,
            slides=row.slides,
            seed=self.seed,
            window=tuple(windows.after(row, last)),
        )


def _written(
    generator: Generator, texts: Sequence[_Text], n_rows: int
) -> Iterator[tuple[int, str, Generation | None]]:
    """Texts written side by side: (number of the text, a piece that is not empty, None), at last with all of it.

    At most `n_rows` at a time; the place of one that has ended goes to the next. A text's last piece may be empty.
    """
    model = generator.reader()
    windows = Windows(model, [], [])
    sampling = Sampling(
        lambda ids, windows: windows.step(ids),
        windows,
        [],
        [],
        _special(generator.tokenizer),
        generator.device,
    )
    rows: list[Row] = []

    def ended(number: int, piece: str) -> tuple[int, str, Generation]:
        return number, piece + texts[number].end(), texts[number].generation(windows, rows[number])

    while sampling.going_on or len(rows) < len(texts):
        first = len(rows)
        if more := texts[first : first + n_rows - len(sampling.going_on)]:
            new = Windows(
                model, [text.prompt_ids[:-1] for text in more], [text.config.max_tokens for text in more]
            )
            rows += new.rows
            prompts, configs = [text.prompt_ids for text in more], [text.config for text in more]
            sampling.join(lambda windows, new=new: windows.join(new), prompts, configs)
            yield from (ended(n, "") for n in range(first, len(rows)) if sampling.has_ended(n))
        for number, token in sampling.advance() if sampling.going_on else ():
            piece = texts[number].add(token)
            if texts[number].stopped:
                sampling.end(number)
            if sampling.has_ended(number):
                yield ended(number, piece)
            elif piece:
                yield number, piece, None


class Stream(Iterator[str]):
    """The pieces of a text as they are written, none empty; together they are the text of `generation`.

    cut, unknown, seed are known before the first piece, as in Generation.
    """

    def __init__(self, generator: Generator, prompt: str, config: SamplingConfig) -> None:
        text = _Text(generator, prompt, config)
        self.prompt, self.cut, self.unknown, self.seed = prompt, text.cut, text.unknown, text.seed
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

    def _come(self, generator: Generator, text: _Text) -> Iterator[str]:
        for _, piece, generation in _written(generator, [text], 1):
            if generation is not None:
                generator.record_pass(generation)
                self._generation = generation
            if piece:
                yield piece


@dataclass
class Generator:
    """Continues raw text. `decoding` holds the defaults that `generate` and `stream` start from.

    The model reads at most `max_len` tokens at a time, its context. A prompt that has more is cut on the left, and
    `Generation.cut` says by how many tokens; where prompt and text together come to more, the window slides (`Window`).
    """

    model: DecoderLM
    tokenizer: Tokenizer
    decoding: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    _record: Recording[DecoderLM] | None = dataclasses.field(default=None, repr=False)
    _reader: Reader | None = dataclasses.field(default=None, repr=False)
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
        return cls(model, bundle.tokenizer, decoding, bundle.card)

    def prepare(self, *, int8: bool = False) -> Generator:
        """Brings its model into the fastest form for writing on this processor (`decoding.members`); gives itself back.

        One that was loaded does so by itself; int8 and the rest: as `Translator.prepare`.
        """
        self._reader = fastest_reader(self.model, int8=int8)
        return self

    def reader(self) -> Reader:
        """The model as it is read token by token, in the form that it was brought into."""
        if self._reader is None and self._final:
            self.prepare()
        return reader(self.model) if self._reader is None else self._reader

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

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Generation:
        """The prompt continued; without one, a new document. See SamplingConfig for the options.

        Options left out are the run's own. Raises AttendoError for one out of range.
        """
        stream = self.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            stop=stop,
            seed=seed,
        )
        for _ in stream:
            pass
        return stream.generation

    def stream(
        self,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop: Sequence[str] | None = None,
        seed: int | None = None,
    ) -> Stream:
        """As `generate`, piece by piece: never half a character, and nothing that a stop text might still take back."""
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "stop": stop if stop is None or isinstance(stop, str) else tuple(stop),
            "seed": seed,
        }
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
        not that of the prompts.
        """
        config = self.decoding if configs is None else configs
        each = [config] * len(prompts) if isinstance(config, SamplingConfig) else config
        if len(each) != len(prompts) or rows < 1:
            raise AttendoError(
                f"{len(prompts)} prompts with {len(each)} configs, {rows} rows; give one config, or one for each"
                " prompt, and at least 1 row"
            )
        texts = [_Text(self, *pair) for pair in zip(prompts, each, strict=True)]
        ended = {number: whole for number, _, whole in _written(self, texts, rows) if whole is not None}
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


def _special(tokenizer: Tokenizer) -> SpecialIds:
    """No text has pad or bos, and unk only where it is a word: else it would be a token that spells nothing."""
    nothing = () if tokenizer.kind == "word" else (tokenizer.unk_id,)
    return SpecialIds(
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        never=(tokenizer.pad_id, tokenizer.bos_id, *nothing),
    )
