"""Texts of a language model that are written side by side, taken in and given up between any two steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from attendo.data.tokenizers import Tokenizer
from attendo.decoding.backends import DecoderBackend
from attendo.decoding.sampling import Drawn, Sampling, SamplingConfig, fresh_seed
from attendo.decoding.step import SpecialIds
from attendo.inference.incremental_decode import Spelling, Stops
from attendo.inference.sliding_window import Row, Windows

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


class WrittenText:
    """One text as it is written: the pieces of what is drawn, and at the end all that there is to know."""

    def __init__(self, tokenizer: Tokenizer, most: int, prompt: str, config: SamplingConfig) -> None:
        """most: tokens that the model reads at once."""
        self.prompt, self.seed = prompt, fresh_seed() if config.seed is None else config.seed
        self.config = dataclasses.replace(config, seed=self.seed)
        ids = tokenizer.encode(prompt)
        self.unknown, self.cut = ids.count(tokenizer.unk_id), max(0, len(ids) - most)
        self.prompt_ids = tokenizer.specials.prompt(ids)[-most:]
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


@dataclass(frozen=True)
class Written:
    """A step of a text: its number, the piece that may be shown, perhaps none, and what was drawn.

    token: None for a text of which nothing is drawn. generation: the whole, where the text has come to its end.
    """

    number: int
    piece: str
    token: Drawn | None
    generation: Generation | None


class Writing:
    """Texts that are being written; each as it would be alone, whatever is written beside it."""

    def __init__(self, model: DecoderBackend, tokenizer: Tokenizer) -> None:
        self._model = model
        self._windows = Windows(model, [], [])
        self._sampling = Sampling(
            lambda ids, windows: windows.step(ids),
            self._windows,
            [],
            [],
            special_ids(tokenizer),
            model.device,
        )
        self._texts: dict[int, tuple[WrittenText, Row]] = {}

    @property
    def going_on(self) -> int:
        """How many texts have not been handed back as a whole."""
        return len(self._texts)

    def add(self, texts: Sequence[WrittenText]) -> list[int]:
        """Takes in texts; returns the numbers by which `advance` names them."""
        prompts, configs = [text.prompt_ids for text in texts], [text.config for text in texts]
        new = Windows(self._model, [ids[:-1] for ids in prompts], [config.max_tokens for config in configs])
        first = self._sampling.n_texts
        rows = list(new.rows)
        self._sampling.join(lambda windows: windows.join(new), prompts, configs)
        numbers = list(range(first, first + len(texts)))
        self._texts |= zip(numbers, zip(texts, rows, strict=True), strict=True)
        return numbers

    def advance(self) -> list[Written]:
        """One more token of every text, and those that have ended: one of no tokens does at once."""
        nothing = [number for number in self._texts if self._sampling.has_ended(number)]
        found = [self._whole(number, "", None) for number in nothing]
        for number, token in self._sampling.advance() if self._sampling.going_on else ():
            text, _ = self._texts[number]
            piece = text.add(token)
            if text.stopped:
                self._sampling.end(number)
            ended = self._sampling.has_ended(number)
            found.append(self._whole(number, piece, token) if ended else Written(number, piece, token, None))
        return found

    def leave(self, numbers: Collection[int]) -> None:
        """Gives up these texts: from the next step on nothing is computed for them."""
        for number in numbers:
            self._sampling.end(number)
            self._texts.pop(number, None)

    def _whole(self, number: int, piece: str, token: Drawn | None) -> Written:
        text, row = self._texts.pop(number)
        return Written(number, piece + text.end(), token, text.generation(self._windows, row))


def written(writing: Writing, texts: Sequence[WrittenText], n_rows: int) -> Iterator[Written]:
    """The steps of many texts, at most `n_rows` at a time: the place of one that has ended goes to the next.

    The numbers are those of the texts, where nothing was written before.
    """
    n_taken = 0
    while writing.going_on or n_taken < len(texts):
        if more := texts[n_taken : n_taken + n_rows - writing.going_on]:
            writing.add(more)
            n_taken += len(more)
        yield from writing.advance()


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """No text has pad or bos, and unk only where it is a word: else it would be a token that spells nothing.

    What an imported model may not write is said by its own settings.
    """
    nothing = () if tokenizer.kind in ("word", "imported") else (tokenizer.unk_id,)
    return SpecialIds(bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id, never=(*tokenizer.never, *nothing))
