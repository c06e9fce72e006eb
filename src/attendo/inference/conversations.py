"""The messages of a conversation, and the part of a conversation that fits into the context of a model."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import groupby

from attendo.data.chat import ChatTemplate, Message, check_messages, parse_messages
from attendo.data.row_report import RowError, refusal
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError

Messages = Sequence[Message | Mapping[str, str]]
"""The messages of a conversation, as tuples or as dictionaries with the keys role and content."""


def conversation(messages: Messages) -> list[Message]:
    """Return the messages of a conversation whose last message is from the user. Raises AttendoError for others.

    >>> conversation([{"role": "user", "content": "Hi"}])
    [Message(role='user', content='Hi')]
    """
    talk = parse_messages([one._asdict() if isinstance(one, Message) else dict(one) for one in messages])
    if isinstance(talk, RowError):
        raise refusal("messages", talk)
    check_messages(talk, "messages", reply=True)
    return talk


def fitted(
    tokenizer: Tokenizer, template: ChatTemplate, talk: Sequence[Message], most: int, room: int
) -> tuple[list[int], int, int]:
    """Return the token ids of the newest turns that fit, and the numbers of the dropped messages and their tokens.

    The context has `most` tokens, of which `room` tokens are left for the reply. The system message is kept. Raises
    AttendoError if the last message alone is too long.
    """
    n_system = int(talk[0].role == "system")

    def ids_without(n_dropped: int) -> list[int]:
        kept = [*talk[:n_system], *talk[n_system + n_dropped :]]
        return template.encode(tokenizer, kept, reply=True)[0]

    whole = ids_without(0)
    if len(whole) <= most - room:
        return whole, 0, 0
    choices = range(2, len(talk) - n_system, 2)
    best = bisect_left(choices, True, key=lambda n: len(ids_without(n)) <= most - room)
    if best == len(choices):
        n = len(ids_without(choices[-1] if choices else 0))
        raise AttendoError(
            f"messages: the last message has {n:,} tokens{' with the system message' * n_system} (expected at most "
            f"{most - room:,}, because the context length is {most:,}). Shorten the message"
        )
    ids = ids_without(choices[best])
    return ids, choices[best], len(whole) - len(ids)


def _marks(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the special tokens of the chat template by their texts, for example "<|user|>"."""
    chat = tokenizer.chat
    if chat is None:
        return {}
    parts = (chat.start, *(chat.system or ()), *chat.user, *chat.assistant, chat.reply)
    return {tokenizer.entries[piece]: piece for part in parts for piece in part if isinstance(piece, int)}


def is_talk(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Return whether token ids contain special tokens of the chat template."""
    return bool((set(_marks(tokenizer).values()) - set(tokenizer.specials.prompt([]))) & set(ids))


def marked_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of a conversation in which special tokens are written as text."""
    marks = {piece: mark for mark, piece in _marks(tokenizer).items()}
    runs = groupby(ids, key=marks.get)
    return "".join(tokenizer.decode(list(run)) if mark is None else mark * len([*run]) for mark, run in runs)


def marked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids that a language model reads for a text, with the special tokens before a prompt.

    In a model with a chat template, the special tokens of a conversation can be written as text, for example
    "<|user|>Hi<|end|><|assistant|>". A begin token is then added only if the template has one. Do not use this function
    for texts of strangers, which could contain the special tokens.
    """
    marks = _marks(tokenizer)
    parts = re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]
    if tokenizer.chat is None or len(parts) == 1:
        return tokenizer.specials.prompt(tokenizer.encode(text))
    ids: list[int] = []
    for part in parts:
        if part in marks:
            ids.append(marks[part])
        elif part:
            ids += (
                tokenizer.encode_on(part) if ids and not tokenizer.chat.prefixed else tokenizer.encode(part)
            )
    begin = tokenizer.specials.prompt([])
    has_begin = list(tokenizer.chat.start[: len(begin)]) == begin  # ChatML, for example, has no begin token
    return [*begin, *ids] if has_begin and ids[: len(begin)] != begin else ids
