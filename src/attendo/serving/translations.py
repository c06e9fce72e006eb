"""The translations of a request, and the routes of the LibreTranslate API.

The routes are /translate, /languages, /detect and /frontend/settings.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from attendo.data.languages import UNKNOWN, name_of
from attendo.data.segments import Segment
from attendo.decoding.options import DecodingConfig
from attendo.inference import Candidate, Translation, Translator
from attendo.inference.continuous_translation import TranslationJob
from attendo.inference.translations import Omission, Sources
from attendo.serving.dependencies import ApiRequest, ApiRoute, check_most, choose_model, in_thread
from attendo.serving.errors import ApiError, Fault, documented_errors
from attendo.serving.registry import ServedModel
from attendo.serving.schemas import FORM, JSON, WHOLE, Body, Name, json_response, parse_json, reads
from attendo.serving.scoring import ScoringChunk, TokenScore, run_pair_scores, token_text
from attendo.serving.state import State

ALTERNATIVES = 5
"""The maximum number of alternatives that are listed for each token."""


@dataclass(frozen=True, kw_only=True)
class TranslateOptions:
    """The options of a translation request: `n` is the number of candidates per text.

    `prefixes` are the required beginnings, and `max_tokens` is the maximum number of tokens per translated unit. The
    default of each option is the setting of the run.
    """

    beam: int | None = None
    n: int = 1
    prefixes: Sequence[str] | None = None
    alignments: bool = False
    max_tokens: int | None = None
    segment: Segment | None = None


@dataclass(frozen=True)
class TranslationRequest:
    """The texts of a request, prepared for the search: `sources` are the units of translation as token ids.

    `cost` is the beam size times the sum of the source tokens and the maximum target tokens.
    """

    translator: Translator
    texts: Sequence[str]
    sources: Sources
    config: DecodingConfig
    cost: int


async def prepared(
    request: ApiRequest, served: ServedModel, texts: Sequence[str], how: TranslateOptions
) -> TranslationRequest:
    """Prepare texts for the search. Raise ApiError if the texts, the beam size or a prefix exceed a limit."""
    translator: Translator = served.user
    limits = request.limits
    request.check_texts(texts, "q")
    request.check_texts(how.prefixes or (), "prefix")
    check_most(how.beam, limits.max_beam, "beam")
    config = await in_thread(0, lambda: _config(translator, how))
    check_most(config.beam, max(limits.max_beam, translator.decoding.beam), "beam")
    n_characters = sum(map(len, texts))
    prefixes = None if how.prefixes is None or not any(how.prefixes) else how.prefixes
    sources = await in_thread(n_characters, lambda: translator.sources(texts, segment=how.segment, prefixes=prefixes))
    if how.max_tokens is not None:
        config = _at_most(config, how.max_tokens, sources)
    bounds = [config.max_length(len(row), translator.longest + 1) for row in sources.rows]
    starts = sources.starts or [[] for _ in bounds]
    for start, bound in zip(starts, bounds, strict=True):
        if len(start) >= bound:
            said = f"a prefix has {len(start)} tokens, but the translation may have {bound - 1}; shorten the prefix"
            raise ApiError(400, said, param="prefix")
    cost = config.beam * sum(len(row) + bound for row, bound in zip(sources.rows, bounds, strict=True))
    request.context.tokens_in += sum(map(len, sources.rows))
    return TranslationRequest(translator, texts, sources, config, cost)


def _config(translator: Translator, how: TranslateOptions) -> DecodingConfig:
    """Return the run's decoding settings with a beam size that is at least n and fills the beam groups."""
    groups = translator.decoding.beam_groups
    beam = max(how.beam or translator.decoding.beam, how.n)
    return translator.config(beam=-(-beam // groups) * groups, n_best=how.n)


def _at_most(config: DecodingConfig, n: int, sources: Sources) -> DecodingConfig:
    """Return the decoding settings with at most n tokens per text."""
    if all(config.max_length(len(row), n + 1) <= n for row in sources.rows):
        return config
    return dataclasses.replace(config, max_length_ratio=0.0, max_length_extra=n)


async def translations(
    request: ApiRequest, served: ServedModel, texts: Sequence[str], how: TranslateOptions
) -> tuple[TranslationRequest, list[Translation]]:
    """Return the prepared request, and the translation of each text as in `Translator.translate`."""
    ready = await prepared(request, served, texts, how)
    if ready.config.coverage_penalty:
        found = await _by_itself(request, served, ready, how)
    else:
        wanted = TranslationJob(ready.sources, ready.config, alignments=how.alignments)
        found = await request.run_job(served, wanted, ready.cost)
    request.context.tokens_out += sum(len(one.candidates[0].token_log_probs) for one in found)
    return ready, list(found)


async def _by_itself(
    request: ApiRequest, served: ServedModel, ready: TranslationRequest, how: TranslateOptions
) -> Sequence[Translation]:
    """Translate each request separately, because a search with a coverage penalty cannot add texts while it runs."""

    def run(each: Sequence[TranslationRequest]) -> list[list[Translation]]:
        return [
            ready.translator.translate_sources(ready.sources, ready.config, alignments=how.alignments) for ready in each
        ]

    kind = "translate", how.alignments
    (found,) = await request.run_forward(
        served, kind, [ready], run, ready.cost, lambda ready: sum(map(len, ready.texts))
    )
    return found


async def details(
    request: ApiRequest, served: ServedModel, ready: TranslationRequest, found: Sequence[Translation]
) -> list[dict[str, Any]]:
    """Return the details of each translation: candidates, tokens, log-probabilities in nats, alignments and spans.

    Each token of the best candidate has alternatives. The `prefix` of an alternative is the translation up to and
    including the alternative. Another request to /translate can use this prefix. After the first sentence (or other
    unit) of a text, `prefix` is null. A `log_prob` that several units share is also null.
    """
    left = iter(ready.sources.rows)
    rows = [[next(left) for _ in segments.pieces] for segments in ready.sources.texts]
    translator = ready.translator
    pairs = [
        ScoringChunk(row, ids)
        for one, own in zip(found, rows, strict=True)
        for row, ids in zip(own, _by_part(translator, one.candidates[0], own), strict=True)
    ]

    scores = iter(await run_pair_scores(request, served, pairs, ALTERNATIVES + 1))
    described = []
    for one, own in zip(found, rows, strict=True):
        candidates = [_candidate(translator, candidate, own) for candidate in one.candidates]
        places = [score for _ in own for score in next(scores)[:-1]]  # without the end
        ids = one.candidates[0].token_ids
        n_first = len(_by_part(translator, one.candidates[0], own)[0]) if own else 0
        for at, (token, place) in enumerate(zip(candidates[0]["tokens"], places, strict=True)):
            before = ids[:at] if at < n_first else None
            token["alternatives"] = other_tokens(translator, place, before)
        facts = {"parts": one.parts, "loop": one.loop, "omission": one.omission}
        described.append({"candidates": candidates} | facts)
    return described


def text_of(found: Translation) -> str:
    """Return the best translation of a text. A text that consists of whitespace is returned unchanged."""
    return found.text or ("" if found.source.strip() else found.source)


def other_tokens(translator: Translator, place: TokenScore, before: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return the most probable other tokens at a place, with whole characters and without special tokens.

    `before` are the token ids before the place, or None if the alternatives have no prefix.
    """
    tokenizer = translator.tokenizer
    others = []
    for token, log_prob in place.likeliest:
        text = tokenizer.decode([*(before or ()), token])
        if token == place.token_id or token in tokenizer.not_text or text.endswith("\ufffd"):
            continue
        other = {"id": token, "text": token_text(tokenizer, token), "log_prob": log_prob}
        others.append(other | {"prefix": None if before is None else text})
    return others[:ALTERNATIVES]


def _by_part(translator: Translator, candidate: Candidate, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Split the token ids of a candidate by the parts of the source to which the tokens are aligned."""
    if len(rows) < 2:
        return [list(candidate.token_ids)] * len(rows)
    around = translator.tokenizer.specials.n_around_source
    ends = list(accumulate(len(row) - around for row in rows))
    parts: list[list[int]] = [[] for _ in rows]
    for token, link in zip(candidate.token_ids, candidate.alignment or (), strict=True):
        parts[bisect_right(ends, link.source)].append(token)
    return parts


def _candidate(translator: Translator, candidate: Candidate, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a candidate as a JSON object.

    Between the log-probabilities of two parts is the log-probability of the end token of the first part.
    """
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


router = APIRouter(route_class=ApiRoute, tags=["LibreTranslate"], responses=documented_errors(Fault))
FAMILY = ("translation",)
AUTO = "auto"
Code = Annotated[str, Field(max_length=50)]


class TranslateBody(Body):
    """The body of a translation request. The field q is a text, or a list of texts.

    The field source is a language code, or "auto" if the target language has only one source language. Further fields
    extend the LibreTranslate API: model (instead of source and target), beam, segment (the unit of translation), prefix
    (the required beginning, one for all texts or one per text) and details. Unknown fields are ignored, as in
    LibreTranslate.
    """

    model_config = ConfigDict(extra="ignore")

    q: str | Annotated[list[str], Field(min_length=1, max_length=10_000)]
    source: Code | None = None
    target: Code | None = None
    format: Literal["text", "html"] | None = None
    alternatives: Annotated[int, Field(ge=0, le=1000), WHOLE] | None = None
    api_key: str | None = None
    model: Name | None = None
    beam: Annotated[int, Field(ge=1, le=1000), WHOLE] | None = None
    segment: Segment | None = None
    prefix: str | Annotated[list[str], Field(max_length=10_000)] | None = None
    details: bool = False


class DetectBody(Body):
    """The body of a language detection request, with the text."""

    model_config = ConfigDict(extra="ignore")

    q: str
    api_key: str | None = None


class Detected(BaseModel):
    """The only source language of the target language. The confidence is 0, because the language is not detected."""

    confidence: float
    language: str


class TranslateAnswer(BaseModel):
    """The response to a translation request. Each field is a single value for a text, or a list for a list of texts.

    The field omission is present if text is probably missing in a translation.
    """

    translatedText: str | list[str]
    omission: Omission | list[Omission] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None
    details: dict[str, Any] | list[dict[str, Any]] | None = None


class Language(BaseModel):
    """A source language and the target languages into which it can be translated."""

    code: str
    name: str
    targets: list[str]


@router.post("/translate", **reads(TranslateBody, TranslateAnswer, JSON, FORM))
async def translate(request: ApiRequest) -> Response:
    """Translate a text or a list of texts, sentence by sentence. Line breaks and whitespace are preserved."""
    asked = await _question(request)
    state = request.server
    if asked.format == "html":
        raise ApiError(400, "format html is not supported; send plain text with format text")
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    n = 1 + (asked.alternatives or 0)
    most = request.limits.max_beam
    if n > most:
        raise ApiError(400, f"Invalid request: alternatives parameter must be <= {most - 1}")
    prefixes = [asked.prefix] * len(texts) if isinstance(asked.prefix, str) else asked.prefix
    if prefixes is not None and len(prefixes) != len(texts):
        raise ApiError(400, f"{len(prefixes)} prefixes for {len(texts)} texts (expected one prefix, or one per text)")
    how = TranslateOptions(beam=asked.beam, n=n, prefixes=prefixes, alignments=asked.details, segment=asked.segment)

    async def work(served: ServedModel) -> Response:
        ready, found = await translations(request, served, texts, how)
        answer: dict[str, Any] = {"translatedText": [text_of(one) for one in found]}
        if any(one.omission != "none" for one in found):
            answer["omission"] = [one.omission for one in found]
        if n > 1:
            answer["alternatives"] = [[other.text for other in one.candidates[1:]] for one in found]
        if asked.source == AUTO:
            answer["detectedLanguage"] = [{"confidence": 0.0, "language": _source(served)} for _ in texts]
        if asked.details:
            answer["details"] = await details(request, served, ready, found)
        if isinstance(asked.q, str):
            answer = {name: value[0] for name, value in answer.items()}
        return json_response(answer)

    return await request.with_choice(lambda: translator_for(state, asked), work)


async def _question(request: ApiRequest) -> TranslateBody:
    """Return the parsed JSON or form body. Raise ApiError with status 400 in LibreTranslate's format."""
    request.timeout()  # raises for an invalid header
    if request.media_type == JSON:
        asked = parse_json(await request.body(), TranslateBody, 400)
    else:
        asked = _from_form(await request.read_form())
    if asked.model is None:
        for name in ("source", "target"):
            if not getattr(asked, name):
                raise ApiError(400, f"Invalid request: missing {name} parameter", param=name)
    return asked


def _from_form(fields: dict[str, str]) -> TranslateBody:
    if "q" not in fields:
        raise ApiError(400, "Invalid request: missing q parameter", param="q")
    numbers: dict[str, int] = {}
    for name in ("alternatives", "beam"):
        if value := fields.get(name):
            if not (value.isascii() and value.isdigit() and len(value) < 9):
                raise ApiError(400, f"Invalid request: {name} parameter is not a number", param=name)
            numbers[name] = int(value)
    texts = {name: value for name, value in fields.items() if name in TranslateBody.model_fields}
    given = {name: value for name, value in texts.items() if value or name == "q"}
    if "details" in given:
        if given["details"] not in ("true", "false"):
            raise ApiError(400, "Invalid request: details parameter must be true or false", param="details")
        numbers["details"] = given["details"] == "true"
    return parse_json(json.dumps(given | numbers).encode(), TranslateBody, 400)


def _source(served: ServedModel) -> str:
    return served.source or UNKNOWN


def _target(served: ServedModel) -> str:
    return served.target or UNKNOWN


def translator_for(state: State, asked: TranslateBody) -> ServedModel:
    """Return the translator with the requested name or language pair. A model without languages has the pair "und",
    "und".

    Raise ApiError with the available language pairs if no translator fits the request.
    """
    source, target = asked.source, asked.target
    if asked.model is not None:
        served = choose_model(state, asked.model, FAMILY)
        for given, known, which in ((source, served.source, "from"), (target, served.target, "to")):
            if given and known and given not in (AUTO, known):
                raise ApiError(
                    400,
                    f"{asked.model} translates {which} {known}, not {given[:50]}; remove one of the fields",
                )
        return served
    translators = state.models.of_family("translation")
    if not translators:
        raise ApiError(404, "no translator is served; GET /v1/models lists the models")
    if source == AUTO:
        sources = list(dict.fromkeys(_source(served) for served in translators if _target(served) == target))
        if len(sources) > 1:
            raise ApiError(
                400,
                f"auto requires a single source language for {target}; set source to one of {', '.join(sources)}",
                param="source",
            )
        source = sources[0] if sources else _source(translators[0])
    fit = [served for served in translators if _source(served) == source]
    if not fit:
        raise ApiError(400, f"{source} is not supported; {_there_is(translators)}", param="source")
    for served in fit:
        if _target(served) == target:
            return served
    said = f"{target} is not available as a target language from {source}; {_there_is(translators)}"
    raise ApiError(400, said, param="target")


def _there_is(translators: Sequence[ServedModel]) -> str:
    """Return the available language pairs, for a message."""
    pairs = ", ".join(dict.fromkeys(f"{_source(s)} to {_target(s)}" for s in translators))
    unknown = any(UNKNOWN in (_source(s), _target(s)) for s in translators)
    remedy = " (und: undetermined; set the languages of the server with --from and --to)"
    return f"available: {pairs}{remedy if unknown else ''}"


@router.get("/languages", responses={200: {"model": list[Language]}})
async def languages(request: ApiRequest) -> Response:
    """List all languages of the server, each with its target languages."""
    return json_response(languages_of(request.server))


def languages_of(state: State) -> list[dict[str, Any]]:
    """Return the languages for /languages, with source languages first.

    A language that is only a target language has no targets.
    """
    targets: dict[str, list[str]] = {}
    translators = state.models.of_family("translation")
    for served in translators:
        own = targets.setdefault(_source(served), [])
        if _target(served) not in own:
            own.append(_target(served))
    for served in translators:
        targets.setdefault(_target(served), [])
    return [{"code": code, "name": name_of(code), "targets": own} for code, own in targets.items()]


@router.post("/detect", **reads(DetectBody, None, JSON, FORM, timeout=False), status_code=400)
async def detect(request: ApiRequest) -> Response:
    """Return status 400, because language detection is not supported."""
    if request.media_type == JSON:
        await request.read_json(DetectBody)
    raise ApiError(400, "languages are not detected; set source in /translate (GET /languages lists the languages)")


@router.get("/frontend/settings", responses={200: {"model": dict[str, Any]}})
async def settings(request: ApiRequest) -> Response:
    """Return the server settings that clients of LibreTranslate read when they start."""
    state = request.server
    known = languages_of(state)
    first = state.models.of_family("translation")[:1]
    codes = (_source(first[0]), _target(first[0])) if first else (AUTO, UNKNOWN)
    source, target = ({"code": code, "name": name_of(code)} for code in codes)
    return json_response(
        {
            "apiKeys": bool(state.keys),
            "charLimit": state.config.max_characters,
            "filesTranslation": False,
            "frontendTimeout": 500,
            "keyRequired": bool(state.keys),
            "language": {"source": source, "target": target},
            "suggestions": False,
            "supportedFilesFormat": [],
            "languages": len(known),
        }
    )
