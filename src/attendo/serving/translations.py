"""Translations for a request, and what there is to know of each: its tokens, how sure they are, and where they look."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from starlette.requests import Request

from attendo.data.segments import Segment
from attendo.decoding.options import DecodingConfig
from attendo.inference import Candidate, Translation, Translator
from attendo.inference.continuous_translation import Wanted
from attendo.inference.translations import Sources
from attendo.serving.asking import asked, check_most, check_texts, limits_of, off_loop, passed
from attendo.serving.faults import Refused
from attendo.serving.logs import noted
from attendo.serving.scoring import Stretch, TokenScore, pair_scores, token_text
from attendo.serving.served import Served

ALTERNATIVES = 5
"""Other tokens that are told of each place."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How texts are to be translated; what is left out is the run's own. n: candidates of each.

    prefixes: what each translation begins with. max_tokens: of each part of a translation. segment: what is one part.
    """

    beam: int | None = None
    n: int = 1
    prefixes: Sequence[str] | None = None
    alignments: bool = False
    max_tokens: int | None = None
    segment: Segment | None = None


@dataclass(frozen=True)
class Prepared:
    """A request's texts as they are searched; cost: source tokens and the most of the translations, times the beam."""

    translator: Translator
    texts: Sequence[str]
    sources: Sources
    config: DecodingConfig
    cost: int


async def prepared(request: Request, served: Served, texts: Sequence[str], how: How) -> Prepared:
    """Texts made ready for a search. Raises Refused where they, the beam or a prefix are not what the server takes."""
    translator: Translator = served.user
    limits = limits_of(request)
    check_texts(limits, texts, "q")
    check_texts(limits, how.prefixes or (), "prefix")
    check_most(how.beam, limits.max_beam, "beam")
    config = await off_loop(0, lambda: _config(translator, how))
    check_most(config.beam, max(limits.max_beam, translator.decoding.beam), "beam")
    n_characters = sum(map(len, texts))
    prefixes = None if how.prefixes is None or not any(how.prefixes) else how.prefixes
    sources = await off_loop(
        n_characters, lambda: translator.sources(texts, segment=how.segment, prefixes=prefixes)
    )
    if how.max_tokens is not None:
        config = _at_most(config, how.max_tokens, sources)
    bounds = [config.max_length(len(row), translator.longest + 1) for row in sources.rows]
    starts = sources.starts or [[] for _ in bounds]
    for start, bound in zip(starts, bounds, strict=True):
        if len(start) >= bound:
            said = f"a prefix has {len(start)} tokens, and that translation may have {bound - 1}; shorten it"
            raise Refused(400, said, param="prefix")
    cost = config.beam * sum(len(row) + bound for row, bound in zip(sources.rows, bounds, strict=True))
    noted(request).tokens_in += sum(map(len, sources.rows))
    return Prepared(translator, texts, sources, config, cost)


def _config(translator: Translator, how: How) -> DecodingConfig:
    """The run's own search, or one as wide as asked for, but never narrower than n; the beam fills its groups."""
    groups = translator.decoding.beam_groups
    beam = max(how.beam or translator.decoding.beam, how.n)
    return translator.config(beam=-(-beam // groups) * groups, n_best=how.n)


def _at_most(config: DecodingConfig, n: int, sources: Sources) -> DecodingConfig:
    """The same search with at most n tokens a text, where it would go on for longer."""
    if all(config.max_length(len(row), n + 1) <= n for row in sources.rows):
        return config
    return dataclasses.replace(config, max_length_ratio=0.0, max_length_extra=n)


async def translations(
    request: Request, served: Served, texts: Sequence[str], how: How
) -> tuple[Prepared, list[Translation]]:
    """A translation of each text, as `Translator.translate` finds it."""
    ready = await prepared(request, served, texts, how)
    if ready.config.coverage_penalty:
        found = await _by_itself(request, served, ready, how)
    else:
        wanted = Wanted(ready.sources, ready.config, alignments=how.alignments)
        found = await asked(request, served, wanted, ready.cost)
    noted(request).tokens_out += sum(len(one.candidates[0].token_log_probs) for one in found)
    return ready, list(found)


async def _by_itself(request: Request, served: Served, ready: Prepared, how: How) -> Sequence[Translation]:
    """A search that looks at its attention takes in no texts while it goes on: each request's texts go together."""

    def run(each: Sequence[Prepared]) -> list[list[Translation]]:
        return [
            ready.translator.translate_sources(ready.sources, ready.config, alignments=how.alignments)
            for ready in each
        ]

    kind = "translate", how.alignments
    (found,) = await passed(
        request, served, kind, [ready], run, ready.cost, lambda ready: sum(map(len, ready.texts))
    )
    return found


async def details(
    request: Request, served: Served, ready: Prepared, found: Sequence[Translation]
) -> list[dict[str, Any]]:
    """What the page shows of each translation: candidates, tokens, log-probabilities in nats, and alignment.

    Spans are of characters, (start, end). Of the best candidate each token has the likeliest other tokens of its place;
    `prefix` is what the translation begins with if that one is taken, as /translate takes it. It is null in all but the
    first part of a text that was translated in parts, and so is a log_prob that can't be told from another part's.
    """
    left = iter(ready.sources.rows)
    rows = [[next(left) for _ in segments.pieces] for segments in ready.sources.texts]
    translator = ready.translator
    pairs = [
        Stretch(row, ids)
        for one, own in zip(found, rows, strict=True)
        for row, ids in zip(own, _by_part(translator, one.candidates[0], own), strict=True)
    ]

    def run(some: Sequence[Stretch]) -> list[list[TokenScore]]:
        return pair_scores(translator, some, ALTERNATIVES + 1)

    cost = sum(map(_n_tokens, pairs))
    scores = iter(await passed(request, served, "likeliest", pairs, run, cost, Stretch.characters))
    told = []
    for one, own in zip(found, rows, strict=True):
        candidates = [_candidate(translator, candidate, own) for candidate in one.candidates]
        places = [score for _ in own for score in next(scores)[:-1]]  # without the end
        ids = one.candidates[0].token_ids
        n_first = len(_by_part(translator, one.candidates[0], own)[0]) if own else 0
        for at, (token, place) in enumerate(zip(candidates[0]["tokens"], places, strict=True)):
            before = ids[:at] if at < n_first else None
            token["alternatives"] = others(translator, place, before)
        told.append(
            {"candidates": candidates, "parts": one.parts, "loop": one.loop, "omission": one.omission}
        )
    return told


def text_of(found: Translation) -> str:
    """The best text; white space alone stays what it is."""
    return found.text or ("" if found.source.strip() else found.source)


def _n_tokens(pair: Stretch) -> int:
    return len(pair.source) + len(pair.target)


def others(translator: Translator, place: TokenScore, before: Sequence[int] | None) -> list[dict[str, Any]]:
    """The likeliest other tokens of a place, but for those that end the text or spell no whole character."""
    tokenizer = translator.tokenizer
    told = []
    for token, log_prob in place.likeliest:
        text = tokenizer.decode([*(before or ()), token])
        if token == place.token_id or token in tokenizer.not_text or text.endswith("\ufffd"):
            continue
        prefix = None if before is None else text
        told.append(
            {"id": token, "text": token_text(tokenizer, token), "log_prob": log_prob, "prefix": prefix}
        )
    return told[:ALTERNATIVES]


def _by_part(translator: Translator, candidate: Candidate, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """A candidate's ids by the parts of its text, whose ids are `rows`: a token looks at its own part."""
    if len(rows) < 2:
        return [list(candidate.token_ids)] * len(rows)
    around = translator.tokenizer.specials.n_around_source
    ends = list(accumulate(len(row) - around for row in rows))
    parts: list[list[int]] = [[] for _ in rows]
    for token, link in zip(candidate.token_ids, candidate.alignment or (), strict=True):
        parts[bisect_right(ends, link.source)].append(token)
    return parts


def _candidate(translator: Translator, candidate: Candidate, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """As JSON. Between the log-probabilities of two parts stands that of the first one's end."""
    own = list(candidate.token_log_probs)
    parts = _by_part(translator, candidate, rows)
    values: list[float | None] = []
    for part in parts:
        known = len(parts) == 1 or candidate.finished
        values += own[: len(part)] if known else [None] * len(part)
        own = own[len(part) + 1 :]
    links = candidate.alignment or ()
    tokens = [
        {"id": token, "text": link.target_text, "span": link.target_span, "log_prob": value}
        for token, link, value in zip(candidate.token_ids, links, values, strict=True)
    ]
    looks = [
        {"source": link.source, "target": link.target, "weight": link.weight}
        | {"source_span": link.source_span, "target_span": link.target_span}
        for link in links
    ]
    own_facts = {"text": candidate.text, "score": candidate.score, "log_prob": candidate.log_prob}
    return own_facts | {"finished": candidate.finished, "tokens": tokens, "alignment": looks}
