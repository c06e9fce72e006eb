"""The options, the device choice and the file processing that several commands share."""

from __future__ import annotations

import dataclasses
import inspect
import io
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_type_hints

import typer

from attendo.cli.reporting import say
from attendo.data.data_files import TABLES, expanded, require_file, suffix
from attendo.decoding.options import Bits
from attendo.display.formats import duration
from attendo.display.i18n import Language, sentence
from attendo.display.progress import ProgressLine

if TYPE_CHECKING:
    from attendo.decoding.logit_filters import SamplingConfig
    from attendo.decoding.options import DecodingConfig
    from attendo.inference.batch_files import Ahead, Progress, Work
    from attendo.inference.generator import Generator
    from attendo.inference.translator import Translator


def option(metavar: str, help: str, *names: str, default: Any = None, **others: Any) -> Any:
    """Return a Typer option that has a value, such as `--beam 4`, with the placeholder `metavar` in the help.

    The default name is that of the parameter. The default `...` means that the option is required.
    """
    return typer.Option(default, *names, metavar=metavar, help=help, **others)


def shared(metavar: str, help: str, *names: str, **others: Any) -> Any:
    """Return a Typer option for an annotated type that several commands use, each with its own default."""
    return option(metavar, help, *names, default=..., **others)


def switch(name: str, help: str, default: Any = False) -> Any:
    """Return a Typer option without a value, such as `--json`."""
    return typer.Option(default, name, help=help)


def argument(metavar: str, help: str, default: Any = ...) -> Any:
    """Return a positional argument with the placeholder `metavar` in the help."""
    return typer.Argument(default, metavar=metavar, help=help)


def bits_option() -> Any:
    """Return the Typer option for the bits of each weight."""
    words = "Bits of each weight on the CPU: 32, 16, 8 or 4. Fewer are faster and less exact (default: as stored)."
    return option("N", words, "--bits")


def cache_bits_option() -> Any:
    """Return the Typer option for the bits of each key and value in the cache."""
    words = "Bits of keys and values in the cache: 32, 16 or 8 (default: 32 for weights of 32 bits, otherwise 16)."
    return option("N", words, "--cache-bits")


class OptionGroup:
    """A group of options: the base class of dataclasses that have one field per option.

    A command accepts a group as one parameter. `with_groups` presents the options to Typer.
    """

    def given(self) -> dict[str, Any]:
        """Return the options that are not None, as a dict by field name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # pyright: ignore[reportArgumentType]
        return {name: value for name, value in values.items() if value is not None}


def with_groups(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with each parameter of type OptionGroup replaced by the fields of the group, for Typer."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[OptionGroup], list[str]]] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        members = {name: (parameter.default, hints[name])}
        if isinstance(hints[name], type) and issubclass(hints[name], OptionGroup):
            types = get_type_hints(hints[name], include_extras=True)
            defaults = inspect.signature(hints[name]).parameters
            members = {field: (defaults[field].default, types[field]) for field in defaults}
            groups[name] = (hints[name], list(members))
        parameters += [
            inspect.Parameter(member, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for member, (default, hint) in members.items()
        ]

    @wraps(command)
    def called(**values: Any) -> int:
        for name, (group, members) in groups.items():
            values[name] = group(**{member: values.pop(member) for member in members})
        return command(**values)

    del called.__wrapped__  # otherwise Typer would read the annotations of the command
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return called


def flag(name: str) -> str:
    """Return the command-line option for the name of a parameter.

    >>> flag("length_penalty"), flag("set_")
    ('--length-penalty', '--set')
    """
    return "--" + name.strip("_").replace("_", "-")


def refuse_if(is_wrong: object, message: str) -> None:
    """Raise BadParameter with a message if `is_wrong` is true."""
    if is_wrong:
        raise typer.BadParameter(message)


BITS_ON_GPU = "--bits is for the CPU. Leave out --bits or --device"
BITS_WITH_COVERAGE = "--bits and decoding.coverage_penalty cannot be combined. Leave one of them out"
RUN_FILES = ("config.toml", "tokenizer.json", "card.json", "model.safetensors")


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The settings of a translation that are sent to the Ray workers, which load the translator themselves."""

    work: Any
    decoding: DecodingConfig
    n_runs: int
    shortlist: bool
    bits: Bits
    device: str
    threads: int

    def __call__(self, folder: Path) -> Any:
        """Return the work with a translator loaded from the subfolders 0, 1, ... of a folder."""
        import torch

        from attendo.decoding.shortlist import load_shortlist
        from attendo.inference import Translator

        torch.set_num_threads(self.threads)
        runs = [folder / str(number) for number in range(self.n_runs)]
        translator = Translator.load(runs[0], self.device, runs[1:], self.bits)
        translator.decoding = self.decoding
        if self.shortlist:
            translator.shortlist = load_shortlist(folder / "shortlist", translator.tokenizer)
        return dataclasses.replace(self.work, translator=translator.prepare())


@dataclasses.dataclass(frozen=True)
class RayOptions(OptionGroup):
    """The options for the translation of a file on a Ray cluster."""

    ray: bool = switch("--ray", "Translate a file on a Ray cluster, with 1 thread per worker by default.")
    ray_address: str | None = option(
        "A", "Address of a running Ray cluster, or auto (default: start Ray on this machine)."
    )
    ray_workers: int | None = option("N", "Number of Ray workers (default: as many as fit).", min=1)

    def check(self, in_files: bool, bits: Bits | None, device: str) -> None:
        """Raise BadParameter if options of the group cannot be combined."""
        has_cluster = self.ray_address is not None or self.ray_workers is not None
        refuse_if(has_cluster and not self.ray, "--ray-address and --ray-workers require --ray")
        refuse_if(self.ray and not in_files, "--ray requires --input and --output")
        refuse_if(self.ray and bits not in (None, 32) and device == "cuda", BITS_ON_GPU)

    @contextmanager
    def cluster(
        self, work: Any, runs: Sequence[Path], shortlist: Path | None, bits: Bits, machine: Machine
    ) -> Iterator[Ahead]:
        """Start or join a Ray cluster, and yield a function that does `work` on the Ray workers."""
        from attendo.inference.batch_ray import Cluster, on_ray

        say("connecting to the Ray cluster" if self.ray_address else "starting Ray on this machine")
        on_gpu = machine.device == "cuda"
        threads = machine.threads or 1
        make = Elsewhere(
            work=dataclasses.replace(work, translator=None),
            decoding=work.translator.decoding,
            n_runs=len(runs),
            shortlist=shortlist is not None,
            bits=bits,
            device="cuda" if on_gpu else "cpu",
            threads=threads,
        )
        files = {f"{number}/{name}": (run / name).read_bytes() for number, run in enumerate(runs) for name in RUN_FILES}
        if shortlist is not None:
            files["shortlist"] = shortlist.read_bytes()
        with on_ray(make, files, Cluster(self.ray_address, self.ray_workers, threads, int(on_gpu))) as ahead:
            yield ahead


Threads = Annotated[int | None, shared("N", "CPU threads (default: one per core).", min=1)]
Device = Annotated[str, typer.Option(help="Device: auto, cpu or cuda.")]
UsingDevice = Annotated[
    str, typer.Option("--device", help="Device: auto, cpu or cuda. The compiled search requires the CPU.")
]
Segmented = Annotated[
    Literal["sentence", "paragraph", "none"],
    shared("UNIT", "Unit of translation: sentence, paragraph (a line) or none (the whole text).", "--segment"),
]


@dataclasses.dataclass(frozen=True)
class Machine(OptionGroup):
    """The device and the number of CPU threads for a trained model."""

    device: UsingDevice = "cpu"
    threads: Threads = None

    def chosen(self, bits: Bits | None = None) -> str:
        """Set the number of threads and return the device. Raise an error if it does not exist or has other weights."""
        from attendo.bundle import pick_device

        use_threads(self.threads)
        device = str(pick_device(self.device))
        refuse_if(bits not in (None, 32) and device == "cuda", BITS_ON_GPU)
        return device


OneJson = Annotated[bool, switch("--json", "Print one JSON object.", default=...)]
Spoken = Annotated[Language, shared("en|ja", "Output language.")]


def use_threads(threads: int | None) -> None:
    """Set the number of CPU threads of torch. If `threads` is None, keep the current number."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


_LIMITS = ("max_length_ratio", "max_length_extra")
OF_DRAWS = (*_LIMITS, "length_penalty", "length_norm", "batch_tokens")
OF_STREAMS = (*_LIMITS, "min_length", "no_repeat_ngram")
"""The search settings that also apply to sampling, and those that also apply to streaming."""


@dataclasses.dataclass(frozen=True)
class Drawing:
    """The sampling settings for translations. If `alone` is true, the only text uses the seed of `config` unchanged."""

    config: SamplingConfig
    alone: bool

    def configs(self, number: int, n: int) -> list[SamplingConfig]:
        """Return the sampling settings of each of `n` lines, starting at line number `number`."""
        from attendo.decoding.sampling import configs_of_lines

        return [self.config] if self.alone else configs_of_lines(self.config, number, n)


@dataclasses.dataclass(frozen=True)
class DrawOptions(OptionGroup):
    """The sampling options of `attendo translate`, which are fields of SamplingConfig."""

    temperature: float | None = option("T", "Sample at temperature T instead of beam search; 0 is greedy.")
    top_k: int | None = option("K", "Sample only from the K most likely tokens.")
    top_p: float | None = option("P", "Sample from the smallest set of tokens with total probability P.")
    min_p: float | None = option("P", "Sample only tokens with at least P times the largest probability.")
    seed: int | None = option("N", "Random seed for sampling (default: random; 0 with --input).")


def drawing_of(given: Mapping[str, Any], n_texts: int, *, in_files: bool) -> tuple[Drawing | None, str]:
    """Return the sampling settings (None if no temperature is given), and a message to print at the end.

    For files, the seed defaults to 0, because resuming requires the same seed. Raises BadParameter if an option is out
    of range, or is given without a temperature.
    """
    if "temperature" not in given:
        for name in given:
            raise typer.BadParameter(
                f"{flag(name)} applies only to sampling. Add --temperature, for example --temperature 1"
            )
        return None, ""
    from attendo.decoding.logit_filters import SamplingConfig
    from attendo.decoding.sampling import fresh_seed

    try:
        config = SamplingConfig(**given, max_tokens=2**31)  # the length limit of the search applies
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    note = ""
    if config.seed is None:
        config = dataclasses.replace(config, seed=0 if in_files else fresh_seed())
        if not in_files and config.temperature > 0 and config.top_k != 1:  # the text was sampled
            note = f"(to sample the same translations again: --seed {config.seed})"
    return Drawing(config, alone=n_texts == 1), note


def refuse(way: str, others: Mapping[str, bool], settings: Sequence[str] = (), allowed: Sequence[str] = ()) -> None:
    """Raise BadParameter if another given option, or an assignment of --set, cannot be combined with the option `way`.

    `allowed` contains the decoding settings that can be combined with the option.
    """
    if wrong := [name for name, is_given in others.items() if is_given]:
        raise typer.BadParameter(f"{way} and {wrong[0]} cannot be combined. Leave one of them out")
    names = [assignment.partition("=")[0].removeprefix("decoding.") for assignment in settings]
    if wrong := [name for name in names if name not in allowed]:
        raise typer.BadParameter(
            f"{way} and --set decoding.{wrong[0]} cannot be combined (possible: {', '.join(allowed)})"
        )


def show(pieces: Iterator[str]) -> None:
    """Print the pieces of a text on one line as they arrive, with line breaks as spaces."""
    lines = io.IncrementalNewlineDecoder(None, translate=True)  # holds a CR until the next character
    for piece in pieces:
        sys.stdout.write(lines.decode(piece).replace("\n", " "))
        sys.stdout.flush()
    sys.stdout.write(lines.decode("", final=True).replace("\n", " ") + "\n")


Folder = Annotated[Path, argument("DIR", "Run folder.")]
Texts = Annotated[list[str] | None, argument("[TEXT]...", "Texts to process (default: the lines of stdin).")]
Beam = Annotated[int | None, shared("N", "Beam size; 1 is greedy search (default: as in the run, usually 4).")]
Penalty = Annotated[
    float | None,
    shared("A", "GNMT length penalty; 0 disables the penalty (default: as in the run)."),
]
Columns = Annotated[
    str | None,
    shared("C", "Columns, for example source=en,target=ja or 1,2 (default: as in training)."),
]
Header = Annotated[
    bool | None,
    switch("--header/--no-header", "Whether .tsv files have headers (default: as in training).", default=...),
]


@dataclasses.dataclass(frozen=True)
class DataFiles(OptionGroup):
    """The files of rows that a command reads. The default columns and header are those of training."""

    files: list[Path] = argument("F...", "Data: a file, a folder, 'a quoted/*.tsv' or two parallel files.")
    columns: Columns = None
    header: Header = None

    @property
    def are_parallel(self) -> bool:
        """Whether sources and targets are in two files."""
        return len(self.files) == 2


JsonLines = Annotated[bool, switch("--json", "Print one JSON object per line.", default=...)]
With = Annotated[
    list[Path] | None,
    shared("DIR", "Further run folder, for an ensemble of runs with the same tokenizer; repeatable.", "--with"),
]
Input = Annotated[Path | None, shared("F", "Input file, one text per line; can be .gz.", "--input")]
Output = Annotated[Path | None, shared("G", "Output file; to resume, run the same command again.", "--output")]


def make_ready(user: Translator | Generator) -> None:
    """Prepare a model for fast search. Print a message if preparing is slow or compiled search is unavailable."""
    from attendo.decoding.native.library import is_to_be_made

    on_cpu = user.device.type == "cpu"
    if on_cpu and is_to_be_made():
        say("compiling the search for this CPU (once, a few seconds)")
    user.prepare()
    if on_cpu and (why := user.why_not_compiled) is not None:
        say(f"note: the search runs on PyTorch only, which is slower: {why}")


def require_files(names: list[Path]) -> None:
    """Raise AttendoError if a file does not exist or a pattern matches no file."""
    for name in names:
        if not name.is_dir():
            for file in expanded(name, None):
                require_file(file)


def both_files(source: Path | None, out: Path | None, others: bool, has_rows: bool = False) -> tuple[Path, Path] | None:
    """Return the files of --input and --output, or None if both are missing.

    Raise BadParameter if only one of the two options is given, if `others` is true (texts are also given), or for a
    table if the command reads lines (not `has_rows`).
    """
    if source is None and out is None:
        return None
    if source is None or out is None:
        raise typer.BadParameter("--input and --output must be given together. Otherwise send lines on stdin")
    refuse_if(others, "TEXT and --input cannot be combined. Leave one of them out")
    if not has_rows and suffix(source) in TABLES:
        require_file(source)
        can_cut = source.suffix.lower() == ".tsv"  # not .tsv.gz
        column = f", for example: cut -f1 {shlex.quote(str(source))} > texts.txt" if can_cut else ""
        raise typer.BadParameter(
            f"--input {source} is a table, but each line is read as one text. Save its texts as a .txt file{column}"
        )
    return source, out


def file_done(source: Path, out: Path, work: Work, request: Mapping[str, Any], notes: Mapping[str, str]) -> int:
    """Process a file line by line, and return the exit code. After Ctrl-C or SIGTERM, the finished lines are kept.

    `request` contains the values on which the output depends, which must be the same when the command is resumed.
    `notes` contains the words of the summary at the end, by the names of `work`'s counts.
    """
    from attendo.inference.batch_files import through_file
    from attendo.training.run import stopping

    screen = FileScreen()
    counts = {}
    total = 0
    with stopping(_interrupt) as stopped:
        try:
            for progress in through_file(source, out, work, request):
                counts = progress.counts
                total = progress.total
                screen.show(progress)
        except KeyboardInterrupt:
            screen.line.clear()
            say(f"stopped; {screen.done} lines are done. Run the same command again to resume")
            return stopped.code or 130
        finally:
            screen.line.clear()
    say_notes(notes, counts, total)
    say(f"done: {total:,} lines in {duration(time.monotonic() - screen.began)}")
    return 0


def serve_page(run: Callable[[], None], stop: Callable[[], None], address: str, opens: bool, language: Language) -> int:
    """Print the address, serve a page until Ctrl-C (exit code 130) or SIGTERM (143), and return the exit code."""
    from attendo.training.run import stopping

    with stopping(stop) as stopped:
        print(address, flush=True)
        say(sentence("cli.stop").text(language))
        if opens:
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        run()
    return stopped.code or 0


def say_notes(notes: Mapping[str, str], counts: Mapping[str, int], n_lines: int) -> None:
    """Print how many of the lines have each property that `counts` names, in the words of `notes`."""
    for name, words in notes.items():
        if n := counts.get(name):
            say(f"{n:,} of {n_lines:,} {words}")


class FileScreen:
    """The progress output on stderr while a file is processed, with speed and remaining time.

    `what` is the sentence that names the processed rows.
    """

    def __init__(self, what: str = "cli.lines", language: Language = "en"):
        self.line = ProgressLine()
        self.what = sentence(what)
        self.language: Language = language
        self.began = self.shown = time.monotonic()
        self.done = "no"

    def show(self, progress: Progress) -> None:
        """Print the progress in the file if enough time has passed since the last line."""
        now = time.monotonic()
        self.done = f"{progress.done:,} of {progress.total:,}"
        if progress.done == progress.resumed:
            self.began = self.shown = now  # the time before was reading
            if progress.resumed:
                say(f"resuming: {self.done} lines are done")
        elif now - self.shown >= self.line.every:
            self.shown = now
            rate = (progress.done - progress.resumed) / (now - self.began)
            said = sentence(
                "cli.progress",
                share=progress.done / progress.total,
                done=progress.done,
                total=progress.total,
                what=self.what,
                rate=rate,
                left=duration((progress.total - progress.done) / rate),
            )
            self.line.show(said.text(self.language))


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt
