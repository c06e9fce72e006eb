"""LibreTranslate's interface: /translate, /languages, /detect, /frontend/settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from attendo.data.language_names import UNKNOWN, name_of
from attendo.data.segments import Segment
from attendo.inference.translations import Omission
from attendo.serving.asking import chosen, limits_of, state_of, with_chosen
from attendo.serving.bodies import (
    FORM,
    JSON,
    UNREAD,
    WHOLE,
    Body,
    Name,
    answered_with,
    body_of,
    documented,
    form_of,
    media_type,
    parsed,
    seconds_asked,
)
from attendo.serving.faults import Refused
from attendo.serving.served import Served
from attendo.serving.state import State
from attendo.serving.translations import How, details, text_of, translations

router = APIRouter(tags=["LibreTranslate"])
FAMILY = ("translation",)
AUTO = "auto"
Code = Annotated[str, Field(max_length=50)]


class TranslateBody(Body):
    """What to translate. q: a text or a list of them; "" gives "". source: a code, or "auto" where there is one only.

    Ours: model, instead of source and target; beam; segment, what is translated as one piece; prefix, what the
    translation begins with, one for all texts or one for each; details. Other fields are ignored, as LibreTranslate
    does.
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
    """A text whose language is wanted."""

    model_config = ConfigDict(extra="ignore")

    q: str
    api_key: str | None = None


class Detected(BaseModel):
    """The language of the source; confidence 0: it was not detected, there is no other."""

    confidence: float
    language: str


class TranslateAnswer(BaseModel):
    """A text for a text, lists for a list. omission: only where text is probably missing in a translation."""

    translatedText: str | list[str]
    omission: Omission | list[Omission] | None = None
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None
    details: dict[str, Any] | list[dict[str, Any]] | None = None


class Language(BaseModel):
    """A language that texts are in, and those that they can be translated to."""

    code: str
    name: str
    targets: list[str]


@router.post(
    "/translate",
    responses={200: {"model": TranslateAnswer}} | UNREAD,
    openapi_extra=documented(TranslateBody, JSON, FORM),
)
async def translate(request: Request) -> Response:
    """Translate a text, or a list of texts, by sentences; line breaks and white space between them are kept."""
    asked = await _question(request)
    state = state_of(request)
    if asked.format == "html":
        raise Refused(400, "html format is not supported; send the plain text, with format text")
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    n = 1 + (asked.alternatives or 0)
    most = limits_of(request).max_beam
    if n > most:
        raise Refused(400, f"Invalid request: alternatives parameter must be <= {most - 1}")
    prefixes = [asked.prefix] * len(texts) if isinstance(asked.prefix, str) else asked.prefix
    if prefixes is not None and len(prefixes) != len(texts):
        raise Refused(400, f"{len(prefixes)} prefixes for {len(texts)} texts; give one, or one for each text")
    how = How(beam=asked.beam, n=n, prefixes=prefixes, alignments=asked.details, segment=asked.segment)

    async def work(served: Served) -> Response:
        ready, found = await translations(request, served, texts, how)
        told: dict[str, Any] = {"translatedText": [text_of(one) for one in found]}
        if any(one.omission != "none" for one in found):
            told["omission"] = [one.omission for one in found]
        if n > 1:
            told["alternatives"] = [[other.text for other in one.candidates[1:]] for one in found]
        if asked.source == AUTO:
            told["detectedLanguage"] = [{"confidence": 0.0, "language": _source(served)} for _ in texts]
        if asked.details:
            told["details"] = await details(request, served, ready, found)
        if isinstance(asked.q, str):
            told = {name: value[0] for name, value in told.items()}
        return answered_with(told)

    return await with_chosen(request, lambda: translator_for(state, asked), work)


async def _question(request: Request) -> TranslateBody:
    """The body, JSON or a form. Raises Refused, 400, as LibreTranslate says it."""
    seconds_asked(request)
    if media_type(request) == JSON:
        asked = parsed(await request.body(), TranslateBody, 400)
    else:
        asked = _from_form(await form_of(request))
    if asked.model is None:
        for name in ("source", "target"):
            if not getattr(asked, name):
                raise Refused(400, f"Invalid request: missing {name} parameter", param=name)
    return asked


def _from_form(fields: dict[str, str]) -> TranslateBody:
    if "q" not in fields:
        raise Refused(400, "Invalid request: missing q parameter", param="q")
    numbers: dict[str, int] = {}
    for name in ("alternatives", "beam"):
        if value := fields.get(name):
            if not (value.isascii() and value.isdigit() and len(value) < 9):
                raise Refused(400, f"Invalid request: {name} parameter is not a number", param=name)
            numbers[name] = int(value)
    texts = {name: value for name, value in fields.items() if name in TranslateBody.model_fields}
    told = {name: value for name, value in texts.items() if value or name == "q"}
    if "details" in told:
        if told["details"] not in ("true", "false"):
            raise Refused(400, "Invalid request: details parameter must be true or false", param="details")
        numbers["details"] = told["details"] == "true"
    return parsed(json.dumps(told | numbers).encode(), TranslateBody, 400)


def _source(served: Served) -> str:
    return served.source or UNKNOWN


def _target(served: Served) -> str:
    return served.target or UNKNOWN


def translator_for(state: State, asked: TranslateBody) -> Served:
    """The translator of this name, or the first from this language to that. Raises Refused saying what there is.

    A model whose languages nobody has told translates from "und" to "und" (undetermined).
    """
    source, target = asked.source, asked.target
    if asked.model is not None:
        served = chosen(state, asked.model, FAMILY)
        for given, known, which in ((source, served.source, "from"), (target, served.target, "to")):
            if given and known and given not in (AUTO, known):
                raise Refused(
                    400, f"{asked.model} translates {which} {known}, not {which} {given[:50]}; leave one out"
                )
        return served
    translators = state.models.of_family("translation")
    if not translators:
        raise Refused(404, "no translator is served here; GET /v1/models lists what is")
    sources = list(dict.fromkeys(map(_source, translators)))
    if source == AUTO:
        if len(sources) > 1:
            raise Refused(
                400,
                f"auto: languages are not detected here; give source, one of {', '.join(sources)}",
                param="source",
            )
        (source,) = sources
    fit = [served for served in translators if _source(served) == source]
    if not fit:
        raise Refused(400, f"{source} is not supported; {_there_is(translators)}", param="source")
    for served in fit:
        if _target(served) == target:
            return served
    said = f"{target} is not available as a target language from {source}; {_there_is(translators)}"
    raise Refused(400, said, param="target")


def _there_is(translators: Sequence[Served]) -> str:
    """The pairs, for a message."""
    pairs = ", ".join(dict.fromkeys(f"{_source(s)} to {_target(s)}" for s in translators))
    unknown = any(UNKNOWN in (_source(s), _target(s)) for s in translators)
    return f"there is {pairs}" + (
        " (und: nobody said which; serve it with --from and --to)" if unknown else ""
    )


@router.get("/languages", responses={200: {"model": list[Language]}})
async def languages(request: Request) -> Response:
    """The languages, each with those that it can be translated to."""
    return answered_with(languages_of(state_of(request)))


def languages_of(state: State) -> list[dict[str, Any]]:
    """As /languages tells them: sources first; a language that is a target alone has no targets."""
    targets: dict[str, list[str]] = {}
    translators = state.models.of_family("translation")
    for served in translators:
        own = targets.setdefault(_source(served), [])
        if _target(served) not in own:
            own.append(_target(served))
    for served in translators:
        targets.setdefault(_target(served), [])
    return [{"code": code, "name": name_of(code), "targets": own} for code, own in targets.items()]


@router.post(
    "/detect",
    responses=UNREAD,
    openapi_extra=documented(DetectBody, JSON, FORM, header=False),
    status_code=400,
)
async def detect(request: Request) -> Response:
    """Refused: no model here detects languages."""
    if media_type(request) == JSON:
        await body_of(request, DetectBody)
    raise Refused(
        400, "languages are not detected here; give source to /translate (GET /languages lists them)"
    )


@router.get("/frontend/settings", responses={200: {"model": dict[str, Any]}})
async def settings(request: Request) -> Response:
    """What a client of LibreTranslate asks of a server before it begins."""
    state = state_of(request)
    known = languages_of(state)
    first = state.models.of_family("translation")[:1]
    source, target = [
        {"code": code, "name": name_of(code)}
        for code in ([_source(first[0]), _target(first[0])] if first else [AUTO, UNKNOWN])
    ]
    return answered_with(
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
