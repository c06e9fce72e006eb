"""The commands `attendo generate` and `attendo chat`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter as Counts
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli import options as opt
from attendo.cli.reporting import numbered_chunks, one_line, refuse_file_name, say, stdin_bytes, stdin_text
from attendo.data.chat import Message
from attendo.decoding.options import Bits, CacheBits
from attendo.display.formats import plural
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.decoding.logit_filters import SamplingConfig
    from attendo.inference import Generation, Generator


@dataclasses.dataclass(frozen=True)
class WritingOptions(opt.OptionGroup):
    """The sampling options of `attendo generate`, which are fields of SamplingConfig."""

    max_tokens: int | None = opt.option("N", "Maximum number of new tokens (default: 200).", min=1)
    temperature: float | None = opt.option("T", "Sampling temperature; 0 is greedy (default: 1).")
    top_k: int | None = opt.option("K", "Sample only from the K most likely tokens.")
    top_p: float | None = opt.option("P", "Sample from the smallest set of tokens with total probability P.")
    min_p: float | None = opt.option("P", "Sample only tokens with at least P times the largest probability.")
    repetition_penalty: float | None = opt.option("R", "Repetition penalty; 1 disables the penalty (default: 1).")
    stop: list[str] | None = opt.option("S", "Stop text, at which the output ends; repeatable.")
    seed: int | None = opt.option("N", "Random seed (default: random; 0 for a file).")


@opt.with_groups
def generate(
    *,
    context: typer.Context,
    folder: opt.Folder,
    prompt: str | None = opt.argument("[PROMPT]", "Prompt in quotes; - reads stdin (default: empty).", default=None),
    writing: WritingOptions,
    source: opt.Input = None,
    out: opt.Output = None,
    as_json: bool = opt.switch("--json", "Print one JSON object, or one per line with --input."),
    bits: Bits | None = opt.bits_option(),
    cache_bits: CacheBits | None = opt.cache_bits_option(),
    machine: opt.Machine,
) -> int:
    """Generate text that continues a prompt. The text is printed while it is generated.

    The defaults of the options are in the section [decoding] of the run's settings. If PROMPT is -, the prompt is the
    whole of stdin without the last line break. The option --json prints the fields prompt, text, token_ids, log_probs
    (nats), finished_by, cut, unknown, slides, seed and window (the final token ids).

    The option --input reads a file with one prompt per line. Each output line contains a prompt and its continuation,
    with line breaks written as spaces. The seed of a line depends on --seed (default: 0) and the line number. The input
    file can have any size. To resume an interrupted command, run the same command again.

    Example: attendo generate runs/mine "Once upon a time" --temperature 0.8

    Example: attendo generate runs/mine --input prompts.txt --output texts.txt --seed 7
    """
    from attendo.inference import Generator

    files = opt.both_files(source, out, prompt is not None)
    words = " ".join([prompt or "", *context.args])
    opt.refuse_if(context.args, f'put the prompt in quotes: attendo generate {folder} "{words}"')
    refuse_file_name([prompt] if prompt else None, "use --input FILE --output G", "PROMPT")
    text = stdin_text() if prompt == "-" else prompt or ""
    generator = Generator.load(folder, machine.chosen(bits), bits, cache_bits)
    opt.make_ready(generator)
    given = writing.given()
    if stop := given.pop("stop", None):
        given["stop"] = tuple(stop)
    if files:
        work = _Generating(generator, generator.config(given), as_json)
        facts: dict[str, Any] = {"bits": generator.bits}
        if cache_bits is not None:
            facts["cache_bits"] = cache_bits
        return opt.file_done(*files, work, work.request(folder) | facts, NOTES)
    return _generate(generator, text, given, as_json)


NOTES = {
    "cut": "prompts were longer than the context length; their beginnings were truncated",
    "unknown": "prompts contain words that are not in the vocabulary",
}


@dataclasses.dataclass(frozen=True)
class _Generating:
    """Turns chunks of prompts into output lines and counts."""

    generator: Generator
    config: SamplingConfig
    as_json: bool

    def __call__(self, number: int, prompts: list[str]) -> tuple[list[str], Counts[str]]:
        """Return the output line of each prompt, and the counts for NOTES."""
        from attendo.decoding.sampling import configs_of_lines

        found = self.generator.generate_batch(prompts, configs_of_lines(self.config, number, len(prompts)))
        counts = Counts(
            {"cut": sum(text.cut > 0 for text in found), "unknown": sum(text.unknown > 0 for text in found)}
        )
        return [self._line(line, text) for line, text in enumerate(found, number)], counts

    def request(self, folder: Path) -> dict[str, Any]:
        """Return the model hash and the options on which the generated texts depend."""
        from attendo.files import sha256_file

        model = {"model": sha256_file(folder / "model.safetensors")}
        return model | dataclasses.asdict(self.config) | {"json": self.as_json}

    def _line(self, number: int, found: Generation) -> str:
        if self.as_json:
            return json.dumps({"line": number} | dataclasses.asdict(found), ensure_ascii=False)
        return one_line(found.prompt + found.text)


def _generate(generator: Generator, prompt: str, given: dict[str, Any], as_json: bool) -> int:
    """Print the text while it is generated, or one JSON object at the end."""
    stream = generator.stream(prompt, **given)
    if stream.cut:
        say(
            f"the prompt is {plural(stream.cut, 'token')} longer than the context length of"
            f" {generator.model.config.max_len:,}; its beginning was truncated"
        )
    if stream.unknown:
        say(f"not in the vocabulary: {plural(stream.unknown, 'token')} of the prompt")
    if not as_json:
        sys.stdout.write(prompt)
    for piece in stream:
        if not as_json:
            sys.stdout.write(piece)
            sys.stdout.flush()
    print(json.dumps(dataclasses.asdict(stream.generation), ensure_ascii=False) if as_json else "")
    config = dataclasses.replace(generator.decoding, **given)
    if config.seed is None and config.temperature > 0 and config.top_k != 1:  # the text was sampled
        say(f"(to generate this text again: --seed {stream.seed})")
    return 0


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
                say(f"the conversation is too long: its oldest {plural(stream.dropped, 'message')} were dropped")
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
