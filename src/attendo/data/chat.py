"""Conversations as messages, the chat template that converts them to token ids, and the turns that fit into a context.

A template is a value in the tokenizer file: the special tokens and the text before and after each turn. Contents of
messages are always encoded as ordinary text, so a user cannot write a special token.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attendo.data.row_report import RowError, refusal
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.data.tokenizers import Tokenizer

ROLES: Final = ("system", "user", "assistant")
CHAT_TOKENS: Final = ("<|user|>", "<|assistant|>", "<|end|>")
"""The special tokens of attendo's own template, which follow the vocabulary of a tokenizer."""

Pieces = tuple[int | str, ...]
"""Consecutive special tokens (ids) and ordinary texts."""


class Message(NamedTuple):
    """A turn of a conversation. The role is "system", "user" or "assistant"."""

    role: str
    content: str


def parse_messages(value: Any) -> list[Message] | RowError:
    """Return the messages in a JSON value, a list of objects with `role` and `content`, or the reason for an error.

    >>> parse_messages([{"role": "user", "content": "Hi"}])
    [Message(role='user', content='Hi')]
    """
    if not isinstance(value, list) or not value:
        return RowError("invalid messages", f"{str(value)[:40]!r} is not a list of messages")
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict) or not isinstance(item.get("role"), str):
            return RowError("invalid messages", f"message {number} has no role")
        if item.get("tool_calls") or not isinstance(item.get("content") or "", str):
            return RowError("invalid messages", f"the content of message {number} is not text")
    return [Message(item["role"], item.get("content") or "") for item in value]


def message_error(messages: Sequence[Message], *, reply: bool = False) -> RowError | None:
    """Return the first reason why messages are not a conversation, or None.

    At most one system message comes first, then user and assistant alternate. With `reply`, the last message is from
    the user.

    >>> str(message_error([Message("user", "Hi"), Message("bot", "Hello")]))
    "unknown role (message 2: 'bot')"
    """
    if not messages:
        return RowError("invalid messages", "no message")
    for number, (role, content) in enumerate(messages, 1):
        if role not in ROLES:
            return RowError("unknown role", f"message {number}: {role[:30]!r}")
        if not content.strip():
            return RowError("empty content", f"message {number}")
    roles = [role for role, _ in messages]
    n_system = int(roles[0] == "system")
    found = ""
    if roles[n_system:][:1] != ["user"]:
        found = f"message {n_system + 1} must be from the user"
    for number, (one, following) in enumerate(pairwise(roles), 1):
        if following == "system":
            found = found or f"message {number + 1} is a system message, but not the first"
        elif one == following:
            found = found or f"messages {number} and {number + 1} are both from the {one}"
    if reply and roles[-1] != "user":
        found = found or f"message {len(roles)}, the last, must be from the user"
    return RowError("wrong order of turns", found) if found else None


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The special tokens and texts of a conversation.

    Attributes:
        start: The pieces before the first user turn, if there is no system message.
        system: The pieces before the system message, and between it and the first user turn. None: the model was
            trained without system messages.
        user: The pieces before and after a user turn. The first user turn follows `start` or `system` instead.
        assistant: The pieces before and after an assistant turn.
        reply: The pieces between the last user turn and a reply to be generated.
        end_id: The token that ends a reply, which is one of the pieces after an assistant turn.
        trims: The sides ("l", "r" or "lr") at which contents lose white space, by role. The key "first" is the user
            turn after a system message.
        prefixed: Whether text after a special token is encoded like the beginning of a text (`Tokenizer.encode`).

    >>> template = ChatTemplate.own((2,), 260)
    >>> template.start, template.assistant
    ((2, 260), ((261,), (262,)))
    """

    start: Pieces
    system: tuple[Pieces, Pieces] | None
    user: tuple[Pieces, Pieces]
    assistant: tuple[Pieces, Pieces]
    reply: Pieces
    end_id: int
    trims: Mapping[str, str] = field(default_factory=dict)
    prefixed: bool = True

    @classmethod
    def own(cls, begin: Sequence[int], first_id: int) -> ChatTemplate:
        """Return attendo's own template. A system message is a user turn before another user turn.

        `begin` are the ids at the beginning of the conversation. `first_id` is the id of the first of the three
        CHAT_TOKENS.
        """
        user, assistant, end = range(first_id, first_id + len(CHAT_TOKENS))
        return cls(
            start=(*begin, user),
            system=((*begin, user), (end, user)),
            user=((user,), (end,)),
            assistant=((assistant,), (end,)),
            reply=(assistant,),
            end_id=end,
        )

    def encode(
        self, tokenizer: Tokenizer, messages: Sequence[Message], reply: bool = False
    ) -> tuple[list[int], list[bool]]:
        """Return the token ids of a conversation, and whether each token belongs to an answer or its end mark.

        The conversation is valid (`message_error`). With `reply`, the ids of the beginning of a reply are added. Raises
        AttendoError for a system message if the template does not support it.
        """
        ids: list[int] = []
        mask: list[bool] = []
        for is_text, group in groupby(self.pieces(messages, reply), key=lambda one: isinstance(one[0], str)):
            pieces, counts = map(list, zip(*group, strict=True))
            if is_text:
                # texts between two special tokens are encoded together, as in a rendered template
                going_on, text = bool(ids) and not self.prefixed, "".join(map(str, pieces))
                if len(set(counts)) == 1:
                    pieces = tokenizer.encode_on(text) if going_on else tokenizer.encode(text)
                    counts = counts[:1] * len(pieces)
                else:
                    places = [counted for piece, counted in zip(pieces, counts, strict=True) for _ in str(piece)]
                    pieces, spans = tokenizer.encode_spans(text, going_on)
                    counts = [any(places[start:end]) for start, end in spans]
            ids += map(int, pieces)
            mask += counts
        return ids, mask

    def pieces(self, messages: Sequence[Message], reply: bool) -> list[tuple[int | str, bool]]:
        """Return all pieces of a conversation as in `encode`, and whether each piece belongs to an answer."""
        if messages[0].role == "system" and self.system is None:
            raise AttendoError(
                "the chat template of this model has no system message. Write the instructions into the first user turn"
            )
        frames = {"system": self.system or ((), ()), "user": self.user, "assistant": self.assistant}
        pieces: list[tuple[int | str, bool]] = []
        for number, (role, content) in enumerate(messages):
            before, after = frames[role]
            if role == "user" and number < 2:  # the first user turn
                before = () if number else self.start
            sides = self.trims.get("first" if role == "user" and number == 1 else role, "")
            content = content.lstrip() if "l" in sides else content
            content = content.rstrip() if "r" in sides else content
            is_answer = role == "assistant"
            pieces += [(piece, False) for piece in before]
            for piece in (content, *after):
                pieces.append((piece, is_answer))
                is_answer = is_answer and piece != self.end_id
        return [one for one in pieces if one[0] != ""] + [(piece, False) for piece in self.reply if reply]

    def as_table(self) -> dict[str, Any]:
        """Return the template as JSON values."""
        return asdict(self)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], vocab_size: int) -> ChatTemplate:
        """Return the template with these JSON values. Raises AttendoError if a value is invalid."""

        def frozen(value: Any) -> Any:
            if isinstance(value, list):
                return tuple(map(frozen, value))
            if not isinstance(value, dict | bool | str) and not (type(value) is int and 0 <= value < vocab_size):
                raise ValueError(f"{str(value)[:20]} is not a token id or text")
            return value

        try:
            values: dict[str, Any] = {"system": None}
            values |= {name: frozen(value) for name, value in table.items() if value is not None}
            template = cls(**values)
            if template.end_id not in template.assistant[1]:
                raise ValueError("the assistant's turn has no end mark")
        except (TypeError, ValueError) as error:
            raise AttendoError(f"the chat template is damaged ({str(error)[:80]}). Restore the file") from None
        return template


# ---- the conversation of a user


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
    if (error := message_error(talk, reply=True)) is not None:
        raise refusal("messages", error)
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
            ids += tokenizer.encode_on(part) if ids and not tokenizer.chat.prefixed else tokenizer.encode(part)
    begin = tokenizer.specials.prompt([])
    has_begin = list(tokenizer.chat.start[: len(begin)]) == begin  # ChatML, for example, has no begin token
    return [*begin, *ids] if has_begin and ids[: len(begin)] != begin else ids
