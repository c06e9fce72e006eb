"""Batched text generation with a language model. Texts can be added and canceled between any two steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.data.chat import ChatTemplate
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.backends import DecoderBackend
from attendo.decoding.options import SpecialIds
from attendo.decoding.prefix_cache import PrefixCache, fill_row, row_state
from attendo.decoding.protocols import Cache, TokenRows, join_rows
from attendo.decoding.sampling import SampledToken, Sampling, SamplingConfig, fresh_seed
from attendo.inference.incremental_decode import Spelling, Stops


@dataclass(eq=False)
class Row:
    """The context window of one text: its token `ids`, `unread` token ids, and at most `n_steps` further tokens.

    The first `n_together` ids were not read one by one. If `prefixes` is given, the row uses its keys and values.
    """

    unread: list[int]
    n_steps: int
    ids: list[int] = field(default_factory=list)
    slides: int = 0
    n_together: int = 0
    prefixes: PrefixCache | None = None


class Windows:
    """The context windows of several texts, with at most `max_len` tokens each, and their keys and values.

    When a window is full, it slides: the model reads the last half of the window again, from position 0 and without the
    begin id. Training windows that start within a document have no begin id either. New and sliding rows are read
    separately, so results do not depend on other rows.

    Args:
        model: The functions that run the model.
        prompts: Token ids that each row reads before the first token of `step`.
        n_steps: Largest number of tokens that `step` feeds to each row.

    >>> from attendo.decoding.backends import eager_decoder
    >>> from attendo.models import DecoderLM, ModelConfig
    >>> sizes = dict(d_model=8, d_ff=16, n_heads=2, n_encoder_layers=0, n_decoder_layers=1, max_len=4)
    >>> model = DecoderLM(ModelConfig(architecture="decoder", vocab_size=9, **sizes))
    >>> windows = Windows(eager_decoder(model), [[2], [2, 5, 6]], [2, 2])
    >>> [windows.step(torch.tensor([[7], [8]])).shape for _ in range(2)]
    [torch.Size([2, 9]), torch.Size([2, 9])]
    >>> [row.ids for row in windows.rows]  # the second has slid
    [[2, 7, 7], [8, 8]]
    """

    def __init__(self, model: DecoderBackend, prompts: TokenRows, n_steps: Sequence[int]) -> None:
        self.model = model
        self.rows = [Row(list(prompt), n) for prompt, n in zip(prompts, n_steps, strict=True)]
        self._cache: Cache | None = None
        self._cached: list[Row] = []

    def after(self, row: Row, new_ids: Sequence[int]) -> list[int]:
        """Return the token ids in the window of a row after the row has read the new ids."""
        ids = [*row.ids, *row.unread, *new_ids]
        most = self.model.max_len
        return ids if len(ids) <= most else ids[-max(1, most // 2) :]

    def step(self, token_ids: Int[Tensor, "rows 1"]) -> Float[Tensor, "rows vocab"]:
        """Feed one token to each row, and return the logits of the next token."""
        cached = set(map(id, self._cached))
        going_on = set[int]()
        apart = list[Row]()
        for row, new_ids in zip(self.rows, token_ids.tolist(), strict=True):
            window = self.after(row, new_ids)
            if id(row) in cached and len(window) == len(row.ids) + 1:
                going_on.add(id(row))
            else:
                row.slides += id(row) in cached and len(window) <= len(row.ids)
                apart.append(row)
            row.ids = window
            row.unread = []
            row.n_steps -= 1
        self._keep(going_on)
        last = [row.ids[-1:] for row in self._cached]
        parts = [] if self._cache is None else [self._read(last, self._cache)]
        starts = sorted(map(self._known, apart), key=itemgetter(0))
        for (length, n, kept), group in groupby(starts, key=itemgetter(0)):
            parts.append(self._start(list(group), length, n, self.model.block if kept else None))
        place = {id(row): number for number, row in enumerate(self._cached)}
        order = [place[id(row)] for row in self.rows]
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        return logits if order == list(range(len(order))) else logits[order]

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Select rows: new row `i` continues old row `rows[i]`, which can be selected only once."""
        self.rows = [self.rows[row] for row in rows.tolist()]

    def join(self, other: Windows) -> None:
        """Append the rows of another `Windows` object, none of which has read a token yet."""
        assert not other._cached
        self.rows += other.rows

    def _keep(self, rows: set[int]) -> None:
        places = [place for place, row in enumerate(self._cached) if id(row) in rows]
        if self._cache is not None and len(places) < len(self._cached):
            if places:
                self._cache.keep(torch.tensor(places, device=self.model.device))
            else:
                self._cache = None
            self._cached = [self._cached[place] for place in places]

    def remember(self, row: Row) -> None:
        """Store the keys and values of a row, if its text has a prefix cache.

        A backend with blocks stores only whole blocks of the prompt. Later texts read these tokens in the same blocks.
        """
        place = next((place for place, other in enumerate(self._cached) if other is row), None)
        if row.prefixes is not None and place is not None:
            block = self.model.block
            n = len(row.ids) if block is None else row.n_together // block * block
            row.prefixes.add(row.ids[:n], row_state(self._cache, place, n))

    def _known(self, row: Row) -> tuple[tuple[int, int, bool], Row, list[Tensor]]:
        """Return the length of a row, the number of its known positions, and their keys and values."""
        length = len(row.ids)
        n, state = (0, []) if row.prefixes is None else row.prefixes.find(row.ids[:-1])
        n -= n % (self.model.block or 1)
        return (length, n, row.prefixes is not None), row, state

    def _start(
        self, group: Sequence[tuple[Any, Row, list[Tensor]]], length: int, n_known: int, block: int | None
    ) -> Float[Tensor, "rows vocab"]:
        """Read rows of equal length after their known positions, and append the rows to the cache."""
        rows = [row for _, row, _ in group]
        capacity = max(min(self.model.max_len, length + max(0, row.n_steps)) for row in rows)
        cache = self.model.start(len(rows), capacity)
        for place, (_, row, state) in enumerate(group):
            row.n_together = length
            if n_known:
                fill_row(cache, place, state, n_known)
        if n_known:
            cache.advance(n_known)
        logits = torch.empty(0)
        for first in range(n_known, length, block or length):
            logits = self._read([row.ids[first : first + (block or length)] for row in rows], cache)
        if self._cache is None:
            self._cache = cache
        else:
            join_rows(self._cache, cache)
        self._cached = self._cached + rows
        return logits

    def _read(self, ids: list[list[int]], cache: Cache) -> Float[Tensor, "rows vocab"]:
        """Feed the ids to their rows, and return the logits after the last id of each row."""
        return self.model.step(torch.tensor(ids, device=self.model.device), cache)


FinishedBy = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Generation:
    """The continuation of a prompt: `prompt + text` is the whole text.

    Attributes:
        token_ids: Generated token ids without the end token, but with the tokens of a stop text.
        log_probs: Log-probability of each token in nats, before penalties and filters, including the end token.
        finished_by: Reason for the end of the text: "end" (end token), "stop" (stop text) or "length" (`max_tokens`).
        cut: Number of prompt tokens that were truncated on the left because of the context length. For a reply, it is
            the number of tokens of the dropped messages.
        unknown: Number of unknown tokens in the prompt.
        slides: Number of times that the context window was moved.
        seed: Random seed that reproduces this text.
        window: Token ids in the context window after the last step. A recording covers these tokens.
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
        """The log-probability of the generated text in nats, including the end token."""
        return sum(self.log_probs)


class WrittenText:
    """A text that is being generated, for a model with a context length of `most` tokens.

    Args:
        tokenizer: The tokenizer of the model.
        most: The context length.
        prompt: The text to continue, or the token ids that the model reads first.
        config: The sampling settings.
        chat: The chat template, if the text is a reply. The end token of the template then also ends the text.
        prefixes: The keys and values of earlier texts, which the text uses and extends (default: none).

    Attributes:
        dropped: Number of oldest messages of a conversation that `prompt` does not contain.
        drawn_ids: Generated token ids with the end token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        most: int,
        prompt: str | Sequence[int],
        config: SamplingConfig,
        chat: ChatTemplate | None = None,
        prefixes: PrefixCache | None = None,
    ) -> None:
        is_text = isinstance(prompt, str)
        self.prompt = prompt if is_text else tokenizer.decode(prompt)
        self.seed = fresh_seed() if config.seed is None else config.seed
        self.config = dataclasses.replace(config, seed=self.seed)
        self.prefixes = prefixes
        ids = tokenizer.encode(prompt) if is_text else list(prompt)
        self.unknown = ids.count(tokenizer.unk_id)
        self.cut = max(0, len(ids) - most)
        self.dropped = 0
        self.prompt_ids = (tokenizer.specials.prompt(ids) if is_text else ids)[-most:]
        self._end_ids = {tokenizer.eos_id, tokenizer.eos_id if chat is None else chat.end_id}
        self._spelling = Spelling(tokenizer, going_on=bool(ids) if chat is None else not chat.prefixed)
        self._stops = Stops(config.stop)
        self._pieces: list[str] = []
        self.drawn_ids: list[int] = []
        self._log_probs: list[float] = []

    @property
    def finished_by(self) -> FinishedBy:
        """The reason for the end of the text. For an unfinished text, the reason is "length"."""
        ended = self.drawn_ids[-1:] and self.drawn_ids[-1] in self._end_ids
        return "stop" if self._stops.found else "end" if ended else "length"

    def add(self, token: SampledToken) -> str:
        """Add a token, and return the new text that can be shown (possibly none)."""
        self._log_probs.append(token.log_prob)
        self.drawn_ids.append(token.token_id)
        if token.token_id in self._end_ids:
            return ""
        return self._kept(self._stops.add(self._spelling.add(token.token_id)))

    def end(self) -> str:
        """End the text, and return the text that was held back. An incomplete character becomes U+FFFD."""
        return "" if self._stops.found else self._kept(self._stops.add(self._spelling.end()) + self._stops.end())

    def _kept(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece

    def generation(self, windows: Windows, row: Row) -> Generation:
        """Return the finished text. `row` is the row of `windows` on which the text was generated."""
        ended = self.finished_by == "end"
        last = [] if ended else [*self.prompt_ids, *self.drawn_ids][-1:]  # a last token is never read
        return Generation(
            prompt=self.prompt,
            text="".join(self._pieces),
            token_ids=tuple(self.drawn_ids[:-1] if ended else self.drawn_ids),
            log_probs=tuple(self._log_probs),
            finished_by=self.finished_by,
            cut=self.cut,
            unknown=self.unknown,
            slides=row.slides,
            seed=self.seed,
            window=tuple(windows.after(row, last)),
        )


@dataclass(frozen=True)
class Written:
    """A generation step of text `number`: the new piece of text, the token, and at the end the `Generation`."""

    number: int
    piece: str
    token: SampledToken | None
    generation: Generation | None


class Writing:
    """A batch of texts that are being generated. Each text is independent of the other texts."""

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
        """The number of unfinished texts."""
        return len(self._texts)

    def add(self, texts: Sequence[WrittenText]) -> list[int]:
        """Add texts and return their numbers, by which `advance` identifies the texts."""
        prompts = [text.prompt_ids for text in texts]
        configs = [text.config for text in texts]
        new = Windows(self._model, [ids[:-1] for ids in prompts], [config.max_tokens for config in configs])
        first = self._sampling.n_texts
        rows = list(new.rows)
        for row, text in zip(rows, texts, strict=True):
            row.prefixes = text.prefixes
        self._sampling.join(lambda windows: windows.join(new), prompts, configs)
        numbers = list(range(first, first + len(texts)))
        self._texts |= zip(numbers, zip(texts, rows, strict=True), strict=True)
        return numbers

    def advance(self) -> list[Written]:
        """Generate one token of every text, and return one `Written` per text."""
        nothing = [number for number in self._texts if self._sampling.has_ended(number)]
        found = [self._whole(number, "", None) for number in nothing]
        for number, token in self._sampling.advance() if self._sampling.going_on else ():
            text, _ = self._texts[number]
            piece = text.add(token)
            if text.finished_by != "length":
                self._sampling.end(number)
            ended = self._sampling.has_ended(number)
            found.append(self._whole(number, piece, token) if ended else Written(number, piece, token, None))
        return found

    def leave(self, numbers: Collection[int]) -> None:
        """Cancel the texts with the given numbers. The next steps compute nothing for these texts."""
        for number in numbers:
            self._sampling.end(number)
            if number in self._texts:
                self._windows.remember(self._texts.pop(number)[1])

    def _whole(self, number: int, piece: str, token: SampledToken | None) -> Written:
        text, row = self._texts.pop(number)
        self._windows.remember(row)
        return Written(number, piece + text.end(), token, text.generation(self._windows, row))


def written(writing: Writing, texts: Sequence[WrittenText], n_rows: int) -> Iterator[Written]:
    """Generate many texts, at most `n_rows` at a time, and yield every generation step.

    When a text is finished, the next text starts.
    """
    n_taken = 0
    while writing.going_on or n_taken < len(texts):
        if more := texts[n_taken : n_taken + n_rows - writing.going_on]:
            writing.add(more)
            n_taken += len(more)
        yield from writing.advance()


def all_written(writing: Writing, texts: Sequence[WrittenText], n_rows: int) -> list[Generation]:
    """Generate many texts, at most `n_rows` at a time, and return them in their order."""
    steps = written(writing, texts, n_rows)
    ended = {step.number: step.generation for step in steps if step.generation is not None}
    return [ended[number] for number in range(len(texts))]


def special_ids(tokenizer: Tokenizer) -> SpecialIds:
    """Return the special token ids, including the ids that are never generated.

    The unknown token can only be generated by word tokenizers and imported tokenizers.
    """
    nothing = () if tokenizer.kind in ("word", "imported") else (tokenizer.unk_id,)
    return SpecialIds(bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id, banned_ids=(*tokenizer.never, *nothing))
