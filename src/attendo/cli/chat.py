"""The command `attendo chat`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli import options as opt
from attendo.cli.generate import WritingOptions
from attendo.cli.reporting import numbered_chunks, say, stdin_bytes
from attendo.data.chat import Message
from attendo.decoding.options import Bits, CacheBits
from attendo.display.formats import plural
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.inference import Generator


@opt.with_groups
def chat(
    *,
    folder: opt.Folder,
    system: str | None = opt.option("TEXT", "System message, with instructions for the assistant."),
    writing: WritingOptions,
    bits: Bits | None = opt.bits_option(),
    cache_bits: CacheBits | None = opt.cache_bits_option(),
    machine: opt.Machine,
) -> int:
    """Talk to an assistant. Each line is a message, and the reply is printed while it is generated.

    The run must be an assistant, for example from `attendo train chat`. Ctrl-C stops a reply, and Ctrl-D ends the
    conversation. The line /again generates the last reply again, and /new starts a new conversation. If the
    conversation is longer than the context, its oldest turns are dropped. With --seed N, the first reply has the seed
    N, the second reply N + 1, and so on.

    Example: attendo chat runs/assistant --system "Answer in one sentence."

    Example: echo "Will it rain tomorrow?" | attendo chat runs/assistant --temperature 0
    """
    from attendo.inference import Generator

    generator = Generator.load(folder, machine.chosen(bits), bits, cache_bits)
    talk = [] if system is None else [Message("system", system)]
    generator.config(writing.given())
    opt.make_ready(generator)
    generator.reply([*talk, Message("user", "a")], generator.decoding)  # fails before the first line is typed
    _Talk(generator, talk, writing.given()).run()
    return 0


class _Talk:
    """A conversation in the terminal, with the messages so far."""

    def __init__(self, generator: Generator, system: list[Message], given: dict[str, Any]) -> None:
        self.generator = generator
        self.system = system
        self.messages = list(system)
        self.given = given
        self.seed: int | None = given.get("seed")

    def run(self) -> None:
        """Answer each line until the end of the input."""
        for line in _lines():
            if line == "/new":
                self.messages = list(self.system)
            elif line == "/again":
                if self.messages[-1:] and self.messages[-1].role == "assistant":
                    del self.messages[-1]
                    self._answer()
                else:
                    say("there is no reply to generate again")
            elif line.strip():
                self.messages.append(Message("user", line))
                self._answer()

    def _answer(self) -> None:
        """Print the reply to the messages, and append the reply to them. A message without a reply is removed."""
        if self.seed is not None:
            self.given["seed"] = self.seed
            self.seed += 1
        reply = ""
        try:
            stream = self.generator.stream_chat(self.messages, **self.given)
            if stream.dropped:
                say(
                    f"the conversation is too long: its oldest {plural(stream.dropped, 'message')} were dropped"
                )
            for piece in stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
                reply += piece
        except AttendoError as error:
            if not sys.stdin.isatty():
                raise
            say(f"error: {error}")
        except KeyboardInterrupt:
            say("\n(stopped)")
        print(flush=True)
        if reply.strip():
            self.messages.append(Message("assistant", reply))
        else:
            say("(no reply; the message was removed from the conversation)")
            del self.messages[-1]


def _lines() -> Iterator[str]:
    """Yield the lines of stdin without line breaks. In a terminal, a prompt is printed before each line."""
    if sys.stdin is None or not sys.stdin.isatty():
        for _, lines in numbered_chunks(stdin_bytes()):
            yield from lines
        return
    with suppress(ImportError):  # Windows has no readline
        import readline  # noqa: F401  (input() then has a history)
    while True:
        try:
            yield input("> ")
        except EOFError:
            typer.echo()
            return
