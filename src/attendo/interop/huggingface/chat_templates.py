"""The import of the Jinja chat template in a Hugging Face folder as a `ChatTemplate`, and the export.

The template is rendered on probe conversations. The texts between the contents of the messages are the frames of the
turns. The result is accepted only if it reproduces further probes exactly, as text and as token ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as LibraryTokenizer

from attendo.data.chat import ChatTemplate, Message, Pieces
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.interop.huggingface.tokenizers import NAMES, TokenizerFacts, library_file

Render = Callable[[Sequence[Message], bool], str]
"""A function that renders messages as text, with or without the beginning of a reply."""

_NOT_SUPPORTED = {"strftime_now": "today's date", "think": "reasoning blocks", "tool": "tool calls"}
"""Names of template parts that a `ChatTemplate` cannot express, by a word in the template."""
_BY_POSITION = "its turns depend on more than their role"


def with_chat_template(
    folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer, say: Callable[[str], None]
) -> Tokenizer:
    """Return the tokenizer with the chat template of a Hugging Face folder, if there is one.

    If the template is not supported, the reason is printed and the tokenizer is returned unchanged.

    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> tokenizer = train_tokenizer(["rain"], TokenizerConfig(kind="byte"))
    >>> with_chat_template(Path("no template here"), {}, tokenizer, print) is tokenizer
    True
    """
    facts = TokenizerFacts(folder, config)
    path = folder / "chat_template.jinja"
    source = path.read_text("utf-8") if path.is_file() else facts.own.get("chat_template")
    if isinstance(source, list):  # several templates by name
        source = next((one.get("template") for one in source if one.get("name") == "default"), None)
    if not isinstance(source, str):
        return tokenizer
    try:
        render = renderer(source, {f"{name}_token": facts.name(name) for name in NAMES})
        tokenizer = _imported(render, library_file(facts), tokenizer)
    except AttendoError as error:
        named = next((part for word, part in _NOT_SUPPORTED.items() if word in source), "")
        say(
            f"the chat template is not imported: {f'it writes {named}' if named else error}. The model continues"
            " texts, and `attendo train chat` gives it a template of its own"
        )
    else:
        if "strftime_now" in source:
            say("the chat template contains today's date: attendo writes the template's default date instead")
    return tokenizer


def renderer(source: str, special: Mapping[str, str | None]) -> Render:
    """Return a function that renders a template as `transformers` does. `special` contains the special tokens by name.

    Raises AttendoError if the template is not valid.

    >>> render = renderer("{% for m in messages %}{{ bos_token + m.content }}{% endfor %}", {"bos_token": "<s>"})
    >>> render([Message("user", "Hi")], False)
    '<s>Hi'
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    # marks of trainable text, which transformers reads in an extension of Jinja
    source = re.sub(r"(\{%-?\s*)generation(\s*-?%\})", r"\1if true\2", source)
    source = re.sub(r"(\{%-?\s*)endgeneration(\s*-?%\})", r"\1endif\2", source)
    try:
        template = environment.from_string(source)
    except jinja2.TemplateError as error:
        raise AttendoError(f"it is not valid ({str(error)[:80]})") from None
    known = {name: token for name, token in special.items() if token is not None}

    def render(messages: Sequence[Message], reply: bool) -> str:
        talk = [message._asdict() for message in messages]
        try:
            return template.render(messages=talk, tools=None, add_generation_prompt=reply, **known)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise AttendoError(f"it rejects a conversation ({str(error)[:80]})") from None

    return render


def jinja_of(template: ChatTemplate, entries: Sequence[str]) -> str:
    """Return a Jinja template that renders conversations as a chat template does.

    `entries` is the vocabulary, in the order of the ids.

    >>> names = ["<pad>", "<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
    >>> renderer(jinja_of(ChatTemplate.own((2,), 4), names), {})([Message("user", "Hi")], True)
    '<s><|user|>Hi<|end|><|assistant|>'
    """

    def text(pieces: Pieces) -> str:
        return json.dumps("".join(entries[one] if isinstance(one, int) else one for one in pieces))

    def turn(role: str, before: Pieces, after: Pieces) -> str:
        strip = {"l": ".lstrip()", "r": ".rstrip()", "lr": ".strip()"}.get(template.trims.get(role, ""), "")
        return f"{{{{ {text(before)} + m.content{strip} + {text(after)} }}}}"

    if template.system is None:
        system = "{{ raise_exception('this model has no system message') }}"
    else:
        system = turn("system", *template.system)
    before, after = template.user
    turns = {
        "m.role == 'assistant'": turn("assistant", *template.assistant),
        "m.role == 'user' and loop.first": turn("user", (), after),
        "m.role == 'user' and loop.index == 2": turn("first", (), after),  # after a system message
        "m.role == 'user' and loop.index > 2": turn("user", before, after),
    }
    parts = {
        "messages[0].role == 'system'": f"{{% set m = messages[0] %}}{system}",
        "messages[0].role != 'system'": f"{{{{ {text(template.start)} }}}}",
    }
    opening, body = (
        "".join(f"{{%if {when}%}}{said}{{%endif%}}" for when, said in one.items()) for one in (parts, turns)
    )
    reply = f"{{%if add_generation_prompt%}}{{{{ {text(template.reply)} }}}}{{%endif%}}"
    return f"{opening}{{%for m in messages%}}{body}{{%endfor%}}{reply}"


def _imported(render: Render, document: Mapping[str, Any], tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer with the template that `render` applies.

    `document` is the document of the `tokenizers` library with all added tokens. Raises AttendoError if the template
    cannot be expressed as a `ChatTemplate`.
    """
    text = _text_template(render)
    library = LibraryTokenizer.from_str(json.dumps({**document, "truncation": None, "padding": None}))
    special = {token["content"]: token["id"] for token in document.get("added_tokens") or ()}
    special = {mark: i for mark, i in special.items() if i in tokenizer.not_text}
    marks = "|".join(re.escape(mark) for mark in sorted(special, key=len, reverse=True))

    def split(pieces: Pieces) -> Pieces:
        parts = [part for piece in pieces for part in re.split(f"({marks})" if marks else "$", str(piece))]
        return tuple(special.get(part, part) for part in parts if part)

    user, assistant = (tuple(map(split, frame)) for frame in (text.user, text.assistant))
    ends = [piece for piece in assistant[1] if isinstance(piece, int)]
    if not ends:
        raise AttendoError("no special token ends an answer")
    for prefixed in (True, False):
        template = replace(
            text,
            start=split(text.start),
            system=text.system and tuple(map(split, text.system)),
            user=user,
            assistant=assistant,
            reply=split(text.reply),
            end_id=ends[0],
            prefixed=prefixed,
        )
        if all(
            template.encode(tokenizer, talk, reply)[0]
            == library.encode(render(talk, reply), add_special_tokens=False).ids
            for talk, reply in _probes(text.system is not None)
        ):
            return tokenizer.with_chat(template)
    raise AttendoError("the tokens of its texts differ from those of the tokenizer")


def _text_template(render: Render) -> ChatTemplate:
    """Return the template as texts without special tokens. Raises AttendoError if probes are not reproduced."""
    talk = [Message(("user", "assistant")[n % 2], f"zq{n}qz") for n in range(5)]
    start, middle, again, *_ = _between(render(talk, False), talk)
    user_end = _between(render(talk[:1], False), talk[:1])[-1]
    assistant_end = _between(render(talk[:2], False), talk[:2])[-1]
    template = ChatTemplate(
        start=(start,),
        system=None,
        user=((_without(again, assistant_end),), (user_end,)),
        assistant=((_without(middle, user_end),), (assistant_end,)),
        reply=(_without(render(talk[:1], True), render(talk[:1], False)),),
        end_id=-1,
    )
    template = _trimmed(render, template, ("user", "assistant"))
    asked = [Message("system", "zqsqz"), talk[0]]
    try:
        before, after, _ = _between(render(asked, False), asked)
        return _trimmed(render, replace(template, system=((before,), (after,))), ("system", "first"))
    except AttendoError:  # for example Mistral and Gemma, which were trained without
        return template


def _trimmed(render: Render, template: ChatTemplate, slots: tuple[str, str]) -> ChatTemplate:
    """Return the template with the sides at which contents lose white space. Raises AttendoError if none fits."""
    for sides in product(("", "lr", "l", "r"), repeat=2):
        trims = {**template.trims, **dict(zip(slots, sides, strict=True))}
        found = replace(template, trims={slot: side for slot, side in trims.items() if side})
        if all(
            "".join(str(piece) for piece, _ in found.pieces(*probe)) == render(*probe)
            for probe in _probes(template.system is not None)
        ):
            return found
    raise AttendoError(_BY_POSITION)


def _between(text: str, messages: Sequence[Message]) -> list[str]:
    """Return the texts before, between and after the contents, each of which occurs once and in order."""
    contents = [content for _, content in messages]
    parts = re.split(f"({'|'.join(contents)})", text)
    if parts[1::2] != contents:
        raise AttendoError("it moves, repeats or leaves out contents")
    return parts[::2]


def _without(text: str, beginning: str) -> str:
    if not text.startswith(beginning):
        raise AttendoError(_BY_POSITION)
    return text.removeprefix(beginning)


_CONTENTS = ("It rains", " a\n", "\n\nb  c ", "{{x}} [a] <b>", "東京 is naïve.", "\t3.5% 😀", "A\n\nB")


def _probes(system: bool) -> Iterator[tuple[list[Message], bool]]:
    """Yield conversations, and whether a reply begins after each of them."""
    for n in range(35):
        roles = ["system"] * (system and n % 3 > 0)
        roles += ["user", "assistant"] * 3
        roles = roles[: len(roles) - 5 + n % 5]
        talk = [Message(role, _CONTENTS[(n + i * i) % 7]) for i, role in enumerate(roles)]
        yield talk, roles[-1] == "user" and n % 2 == 0
