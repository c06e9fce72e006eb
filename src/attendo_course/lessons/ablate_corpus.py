"""Forecasts in few words, English to Japanese: so small a translation that dozens of models of it train quickly."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from attendo.data.batches import pad_rows
from attendo.data.forecasts import Clause, Forecast, Weather, english, japanese
from attendo.data.forecasts_grammar import Connective
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo_course.lessons.arrays import NO_TARGET, Examples

DATES = ("today", "tomorrow", "this weekend", "on Monday", "on Sunday")
PLACES = ("Sapporo", "Sendai", "Tokyo", "Kyoto", "Osaka", "Naha")
CERTAINTIES = ("will", "may")
TIMES = 5
"""Of the day, up to the evening."""
CONNECTIVES: tuple[Connective, ...] = ("although", "after", "because")
PHENOMENA = ("rain", "thunderstorms", "snow", "cloudy", "foggy", "sunny", "clear", "dry")
SPELLING_ROWS = 1000
"""Forecasts that the pieces are learned from: all words are in them many times."""
SPELLING_SIZE = 600


def small_forecast(rng: np.random.Generator) -> Forecast:
    """What one weather does, with another in a clause below it; each of 50,400 is equally likely.

    English says the main clause first, Japanese the clause below it.
    """
    main, below = rng.choice(len(PHENOMENA), 2, replace=False)
    return Forecast(
        date=DATES[rng.integers(len(DATES))],
        place=PLACES[rng.integers(len(PLACES))],
        certainty=CERTAINTIES[rng.integers(len(CERTAINTIES))],
        main=Clause(Weather(PHENOMENA[main]), int(rng.integers(TIMES))),
        below=((CONNECTIVES[rng.integers(len(CONNECTIVES))], Clause(Weather(PHENOMENA[below]))),),
    )


def small_forecasts(rng: np.random.Generator, n: int, without: Collection[Forecast] = ()) -> list[Forecast]:
    """So many different forecasts, none of them among the others."""
    found: dict[Forecast, None] = {}
    others = set(without)
    while len(found) < n:
        forecast = small_forecast(rng)
        if forecast not in others:
            found[forecast] = None
    return list(found)


def turned_round(forecast: Forecast) -> Forecast:
    """The forecast with the weather of its two clauses exchanged."""
    ((connective, below),) = forecast.below
    main = replace(forecast.main, event=below.event)
    return replace(forecast, main=main, below=((connective, replace(below, event=forecast.main.event)),))


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of the small corpus as ids without gaps: a tokenizer's own, of which most are bytes never used.

    ids: of the tokenizer, by our number. The first four are pad, unk, bos and eos, here and there.
    """

    tokenizer: Tokenizer
    ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Our ids of a text. Raises ValueError if it needs a piece that the small corpus does not."""
        return [self.ids.index(i) for i in self.tokenizer.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of our ids."""
        return self.tokenizer.decode([self.ids[i] for i in ids])

    def names(self, ids: Sequence[int]) -> list[str]:
        """What each id looks like."""
        return self.tokenizer.pieces([self.ids[i] for i in ids])

    def __len__(self) -> int:
        """Pieces, the four specials included."""
        return len(self.ids)


@cache
def small_pieces() -> Pieces:
    """Pieces that spell every small forecast, most of them a word each; BPE over both languages.

    >>> pieces = small_pieces()
    >>> pieces.names(pieces.encode("Today it will be foggy in Kyoto"))
    ['▁Today', '▁it', '▁will', '▁be', '▁foggy', '▁in', '▁Kyoto']
    """
    forecasts = small_forecasts(np.random.default_rng(0), SPELLING_ROWS)
    texts = [text for forecast in forecasts for text in (english(forecast), japanese(forecast))]
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=SPELLING_SIZE))
    used = {i for row in tokenizer.encode_batch(texts) for i in row}
    return Pieces(tokenizer, (*range(Tokenizer.eos_id + 1), *sorted(used)))


def translations(forecasts: Sequence[Forecast], pieces: Pieces) -> Examples:
    """Forecasts as an EncoderDecoder takes them, English to Japanese.

    src = source + eos, tgt = bos + target, targets = target + eos, padded behind.
    """
    sources = [pieces.encode(english(forecast)) for forecast in forecasts]
    targets = [pieces.encode(japanese(forecast)) for forecast in forecasts]
    src, lengths = pad_rows([[*ids, Tokenizer.eos_id] for ids in sources], Tokenizer.pad_id)
    tgt, _ = pad_rows([[Tokenizer.bos_id, *ids] for ids in targets], Tokenizer.pad_id)
    wanted, _ = pad_rows([[*ids, Tokenizer.eos_id] for ids in targets], NO_TARGET)
    inputs = {"src": src, "tgt": tgt} | ({} if lengths is None else {"src_lengths": lengths})
    return Examples(inputs, wanted)


def unordered_limit(forecasts: Sequence[Forecast], pieces: Pieces) -> tuple[float, float]:
    """(loss in nats a token, exact share) of the best translator that sees the pieces of a source without their order.

    "It will be clear, although it will be foggy" has the same pieces as its opposite, which is as likely: that costs
    ln 2 a sentence, and half of such sentences are wrong. No other two forecasts have the same pieces.
    """
    alike = [
        sorted(pieces.encode(english(forecast))) == sorted(pieces.encode(english(turned_round(forecast))))
        for forecast in forecasts
    ]
    n_targets = sum(len(pieces.encode(japanese(forecast))) + 1 for forecast in forecasts)
    return sum(alike) * math.log(2) / n_targets, 1 - 0.5 * sum(alike) / len(alike)
