"""Completions by a language model: texts that it writes, their log-probabilities, and the pieces of a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from attendo.data.tokenizers import Tokenizer
from attendo.decoding.filters import SamplingConfig
from attendo.inference import Generator
from attendo.inference.generation import Generation, WrittenText
from attendo.inference.incremental_decode import Spelling
from attendo.serving.asking import asked, limits_of, off_loop, passed
from attendo.serving.completion_bodies import CompletionBody, choice, usage_of
from attendo.serving.engine import Done, News, Piece, Writes
from attendo.serving.logs import noted
from attendo.serving.scoring import Stretch, TokenScore, stretches, text_scores, token_text
from attendo.serving.served import Served


@dataclass(frozen=True)
class Prompted:
    """The texts that are to be written, n of each prompt.

    ids: of each prompt, without what the tokenizer puts before a text. read: as the model reads them.
    """

    generator: Generator
    body: CompletionBody
    ids: list[list[int]]
    read: list[list[int]]
    texts: list[WrittenText]
    n: int

    @property
    def cost(self) -> int:
        """Tokens that are read and written at most."""
        return sum(len(text.prompt_ids) + text.config.max_tokens for text in self.texts)

    def prompt_ids(self, index: int) -> list[int]:
        """Of the text with this number."""
        return self.ids[index // self.n]

    def usage(self, found: Sequence[Generation]) -> dict[str, int]:
        """Tokens read and drawn."""
        return usage_of(sum(map(len, self.ids)), sum(len(one.log_probs) for one in found))


async def prompted(
    request: Request, generator: Generator, prompts: Sequence[str | list[int]], body: CompletionBody
) -> Prompted:
    """The texts of a request. Raises Refused for a setting out of range, and for ids that are none of the model's."""
    n, limits, tokenizer = body.n or 1, limits_of(request), generator.tokenizer
    n_characters = n * sum(len(prompt) for prompt in prompts)

    def made() -> Prompted:
        config = _config(generator, body, limits.max_tokens)
        texts = [tokenizer.decode(prompt) if isinstance(prompt, list) else prompt for prompt in prompts]
        ids = [prompt if isinstance(prompt, list) else tokenizer.encode(prompt) for prompt in prompts]
        whole = tokenizer.specials.prompt  # ids are read as they are given
        read = [
            own if isinstance(prompt, list) else whole(own) for prompt, own in zip(prompts, ids, strict=True)
        ]
        most, written = generator.model.config.max_len, []
        for prompt, text, own in zip(prompts, texts, ids, strict=True):
            for number in range(n):
                seed = None if config.seed is None else config.seed + number
                one = generator.text(text, dataclasses.replace(config, seed=seed))
                if isinstance(prompt, list):  # those very ids, though the text may be spelled in others
                    one.prompt_ids = own[-most:]
                    one.cut = max(0, len(own) - most)
                written.append(one)
        return Prompted(generator, body, ids, read, written, n)

    found = await off_loop(n_characters, made)
    noted(request).tokens_in += sum(map(len, found.ids))
    return found


def _config(generator: Generator, body: CompletionBody, most: int) -> SamplingConfig:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    options = {name: getattr(body, name) for name in names}
    if body.stop is not None:
        options["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    given = body.max_tokens
    options["max_tokens"] = min(most, generator.decoding.max_tokens) if given is None else given
    return generator.config(options)


async def texts_answer(
    request: Request, served: Served, ready: Prompted
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The choices and the usage of an answer as a whole."""
    body = ready.body
    found: Sequence[Generation] = await asked(request, served, Writes(ready.texts), ready.cost)
    noted(request).tokens_out += sum(len(one.log_probs) for one in found)
    scores: list[list[TokenScore | None]] = [[] for _ in found]
    if body.logprobs is not None and (body.echo or body.logprobs):
        scores = await _scores(request, served, ready, found)
    choices = []
    for index, (one, scored) in enumerate(zip(found, scores, strict=True)):
        told = None if body.logprobs is None else _log_probs(ready, index, one, scored)
        text = one.prompt + one.text if body.echo else one.text
        choices.append(choice(index, text, reason_of(one), told))
    return choices, ready.usage(found)


def reason_of(found: Generation) -> str:
    """Why a text ended, in OpenAI's words."""
    return "length" if found.finished_by == "length" else "stop"


async def _scores(
    request: Request, served: Served, ready: Prompted, found: Sequence[Generation]
) -> list[list[TokenScore | None]]:
    """Every token of each prompt and its text, by one pass more; a context at a time where they are longer.

    Of a token that nothing stands before there is no score.
    """
    generator, n = ready.generator, ready.body.logprobs or 0
    context, specials = generator.model.config.max_len, generator.tokenizer.specials
    windows = []
    for index, one in enumerate(found):
        first, *rest = ready.read[index // ready.n]
        opened = dataclasses.replace(specials, before_prompt=(first,))
        windows.append(stretches([*rest, *_drawn(ready, one)], context, opened, ended=False))

    def run(some: Sequence[Stretch]) -> list[list[TokenScore]]:
        return text_scores(generator, some, n)

    every = [part for parts in windows for part in parts]
    cost = sum(len(part.source) for part in every)
    scored = iter(await passed(request, served, ("texts", n), every, run, cost, Stretch.characters))
    every_one = [[None, *(score for _ in parts for score in next(scored))] for parts in windows]
    n_before = [len(read) - len(own) for read, own in zip(ready.read, ready.ids, strict=True)]
    return [scores[n_before[index // ready.n] :] for index, scores in enumerate(every_one)]


def _drawn(ready: Prompted, found: Generation) -> list[int]:
    """All that was drawn, the end token included."""
    return [*found.token_ids, ready.generator.tokenizer.eos_id][: len(found.log_probs)]


def _log_probs(
    ready: Prompted, index: int, found: Generation, scores: Sequence[TokenScore | None]
) -> dict[str, Any]:
    """OpenAI's table. With echo the prompt's tokens come first; tokens that a stop took back are left out."""
    tokenizer, body = ready.generator.tokenizer, ready.body
    ids, values = _drawn(ready, found), list[float | None](found.log_probs)
    prompt = ready.prompt_ids(index)
    offsets = _offsets(tokenizer, ids, going_on=bool(prompt))
    if found.finished_by == "stop":
        n_kept = sum(offset < len(found.text) for offset in offsets)
        ids, offsets = ids[:n_kept], offsets[:n_kept]
    values, own = values[: len(ids)], list(scores[len(prompt) : len(prompt) + len(ids)])
    if body.echo:
        before = scores[: len(prompt)]
        offsets = [
            *_offsets(tokenizer, prompt, going_on=False),
            *(len(found.prompt) + offset for offset in offsets),
        ]
        ids, values, own = [*prompt, *ids], [*(s and s.log_prob for s in before), *values], [*before, *own]
    top = None
    if body.logprobs:
        told = [
            score and (*score.likeliest, (score.token_id, score.log_prob)) for score in own
        ]  # its own, too
        top = [each and {token_text(tokenizer, token): value for token, value in each} for each in told]
    texts = [token_text(tokenizer, token) for token in ids]
    return {"tokens": texts, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _offsets(tokenizer: Tokenizer, ids: Sequence[int], *, going_on: bool) -> list[int]:
    """Where each token begins in what they spell, in characters."""
    spelling, at, found = Spelling(tokenizer, going_on=going_on), 0, []
    for token in ids:
        found.append(at)
        at += len(spelling.add(token))
    return found


class Told:
    """The events of a stream of texts."""

    def __init__(self, ready: Prompted, head: dict[str, Any]) -> None:
        self._ready, self._head = ready, head
        self._usage = bool(ready.body.stream_options and ready.body.stream_options.include_usage)
        self._kept: list[list[tuple[int, float]]] = [[] for _ in ready.texts]  # tokens not told of yet
        self._ids: list[list[int]] = [[] for _ in ready.texts]
        self._begun = False

    def __call__(self, news: News) -> list[dict[str, Any]]:
        """The events of a piece, or of the end."""
        told: list[dict[str, Any]] = []
        if not self._begun and self._ready.body.echo:
            told += [self._chunk(choice(i, text.prompt, None)) for i, text in enumerate(self._ready.texts)]
        self._begun = True
        if isinstance(news, Piece):
            return told + self._piece(news)
        assert isinstance(news, Done)
        for i, one in enumerate(news.results):
            end = self._log_probs(i) if one.finished_by == "end" and self._kept[i] else None
            told.append(self._chunk(choice(i, "", reason_of(one), end)))
        if self._usage:
            told.append(self._head | {"choices": [], "usage": self._ready.usage(news.results)})
        return told

    def _piece(self, news: Piece) -> list[dict[str, Any]]:
        index, token = news.text, news.token
        if token is not None:
            self._kept[index].append((token.token_id, token.log_prob))
        if not news.piece:
            return []
        return [self._chunk(choice(index, news.piece, None, self._log_probs(index)))]

    def _log_probs(self, index: int) -> dict[str, Any] | None:
        kept, self._kept[index] = self._kept[index], []
        if self._ready.body.logprobs is None:
            return None
        tokenizer, before = self._ready.generator.tokenizer, self._ids[index]
        ids = [token for token, _ in kept]
        before += ids
        going_on = bool(self._ready.prompt_ids(index))
        offsets = _offsets(tokenizer, before, going_on=going_on)[len(before) - len(ids) :]
        texts, values = [token_text(tokenizer, token) for token in ids], [value for _, value in kept]
        return {"tokens": texts, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}

    def _chunk(self, own: dict[str, Any]) -> dict[str, Any]:
        return self._head | {"choices": [own]} | ({"usage": None} if self._usage else {})
