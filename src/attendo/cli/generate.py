"""The command `attendo generate`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter as Counts
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli import options as opt
from attendo.cli.reporting import one_line, refuse_file_name, say, stdin_text
from attendo.decoding.options import Bits, CacheBits
from attendo.display.formats import plural

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
    repetition_penalty: float | None = opt.option(
        "R", "Repetition penalty; 1 disables the penalty (default: 1)."
    )
    stop: list[str] | None = opt.option("S", "Stop text, at which the output ends; repeatable.")
    seed: int | None = opt.option("N", "Random seed (default: random; 0 for a file).")


@opt.with_groups
def generate(
    *,
    context: typer.Context,
    folder: opt.Folder,
    prompt: str | None = opt.argument(
        "[PROMPT]", "Prompt in quotes; - reads stdin (default: empty).", default=None
    ),
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
