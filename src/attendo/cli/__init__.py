"""The command line. Each command reads its options, calls the library and prints the result."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points

import typer
from typer.exceptions import TyperException

from attendo.cli import (
    classify,
    compare,
    convert,
    demo,
    doctor,
    embed,
    evaluate,
    generate,
    look,
    plan,
    runs,
    score,
    serve,
    train,
    translate,
    trial,
)
from attendo.cli.reporting import escaping, say, with_flags

__all__ = ["build_app", "main"]

COMMANDS: tuple[tuple[str, Callable[..., int], str], ...] = (
    ("demo", demo.demo, "Train and try a small translator, in a few minutes."),
    ("resume", train.resume, "Resume a run from its newest checkpoint."),
    ("verify-resume", train.verify_resume, "Check that a resumed run produces identical results."),
    ("plan", plan.plan, "Predict model size, memory, time and cost of a training run."),
    ("translate", translate.translate, "Translate texts, stdin lines or a file."),
    ("score", score.score, "Print the log-probabilities of given translations."),
    ("info", runs.info, "Print a run's model, data, progress and scores."),
    ("shortlist", score.shortlist, "Write a shortlist of target tokens for faster translation."),
    ("evaluate", evaluate.evaluate, "Measure a model on a file: BLEU, accuracy or perplexity."),
    ("runs", runs.runs, "List runs with date, score, data and notes."),
    ("errors", classify.errors, "Find labels that are probably wrong."),
    ("label", classify.label, "Label texts on a local page, with suggestions of a model."),
    ("compare", compare.compare, "Test which of two models is better on a file."),
    ("trial", trial.trial, "Compare settings over several seeds at equal CPU time."),
    ("report", runs.report, "Draw the learning curves of runs as HTML and PNG."),
    ("look", look.look, "Look inside a model: attention, heads, beam search."),
    ("serve", serve.serve, "Serve models over HTTP, as an API and a web page."),
    ("export", convert.export, "Export a model to Hugging Face, CTranslate2, Argos or ONNX."),
    ("quantize", convert.quantize, "Write a copy of a run with weights of 16, 8 or 4 bits."),
    ("eject", convert.eject, "Write a model as one readable file of plain PyTorch."),
    ("classify", classify.classify, "Classify texts, stdin lines or the rows of a table."),
    ("thresholds", classify.thresholds, "Choose the probability from which a label is given."),
    ("generate", generate.generate, "Generate text that continues a prompt."),
    ("chat", generate.chat, "Talk to an assistant in the terminal."),
    ("embed", embed.embed, "Compute vectors of texts, or find the nearest lines."),
    ("import", convert.import_, "Import a Hugging Face model as a run folder."),
    ("doctor", doctor.doctor, "Check sentence pairs or labeled texts before training."),
)
"""The name, function and short help of each command, in the order of `attendo --help`."""


def build_app() -> typer.Typer:
    """Return the Typer application with all commands, including those of plugins."""
    app = typer.Typer(
        name="attendo",
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    app.callback()(root)
    for name, command, short_help in COMMANDS:
        # `generate` accepts further arguments, and then reports that the prompt must be in quotes
        settings = {"allow_extra_args": True} if name == "generate" else None
        app.command(name, short_help=short_help, context_settings=settings)(command)
    app.add_typer(train.train_app(), name="train")
    for plugin in entry_points(group="attendo.commands"):  # for example attendo_course
        try:
            plugin.load()(app)
        except (ImportError, AttributeError) as error:
            say(f"warning: the commands of {plugin.value} cannot be loaded: {error}")
    return app


@cache
def _command() -> Callable[..., object]:
    """Return the application as one command. It is cached, because building it is slow."""
    return typer.main.get_command(build_app())


def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error. Can be at any position."),
) -> None:
    """Train, run, inspect and serve your own Transformer.

    Start with: attendo demo
    """
    if version:
        from attendo import __version__

        print(f"attendo {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@escaping()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: The arguments after the program name (default: the arguments of the process).

    Returns:
        The exit code: 0 for success, 1 for failed checks or a system error (full disk, missing permission), 2 for
        invalid usage or input, and 130 or 143 if Ctrl-C or SIGTERM stopped the command after it saved its state. An
        error is printed as one line on stderr, and --debug adds the traceback.
    """
    # waiting threads that spin would use up a CPU time budget; torch reads this variable when it is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # batches have many shapes, and oneDNN would cache 1,024 compiled kernels
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    _speak_utf8()
    arguments, debug = _without_debug(list(sys.argv[1:] if arguments is None else arguments))
    try:
        result = _command()(args=arguments, standalone_mode=False, prog_name="attendo")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (typer.Abort, KeyboardInterrupt):
        say("stopped")
        return 130
    except SystemExit as leaving:  # a closed pipe is no error; any other exit has its own code
        return _leave_quietly() if isinstance(leaving.__context__, BrokenPipeError) else _code(leaving)
    except BrokenPipeError:
        return _leave_quietly()
    except Exception as error:  # noqa: BLE001  (the one place where every error becomes a line)
        if debug:
            import traceback

            traceback.print_exc()
        return print_error(error)


def print_error(error: Exception) -> int:
    """Print an error as one line on stderr and return its exit code."""
    from attendo.errors import AttendoError

    match error:
        case AttendoError():  # an error of the system is not invalid input
            text, code = str(error), 1 if isinstance(error.__cause__, OSError) else 2
        case TyperException():
            said = error.format_message().replace(": Value error, ", ": ").rstrip(".")  # pydantic's prefix
            context: typer.Context | None = getattr(error, "ctx", None)
            if context and context.command_path == "attendo train" and said.startswith("No such option"):
                said += ". Name the task before the options, for example attendo train translation"
            text, code = f"{said}; see {context.command_path if context else 'attendo'} --help", 2
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            text, code = f"{place}{error.strerror or error}", 1
        case MemoryError():
            text, code = "out of memory. Use shorter texts, a smaller batch or a smaller model", 1
        case _:
            text = f"{type(error).__name__}: {error}. This is a bug in attendo: run again with --debug, and report it"
            code = 1
    print("error:", " ".join(with_flags(text).split()), file=sys.stderr)
    return code


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without --debug before a `--`, and whether --debug was among them."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [argument for argument in arguments[:end] if argument != "--debug"]
    return kept + arguments[end:], len(kept) < end


def _speak_utf8() -> None:
    """Write UTF-8 and LF line endings on every system."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # tests and notebooks may replace the streams
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def _leave_quietly() -> int:
    """Exit without an error when the reader of stdout has closed the pipe, as `head` does."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _code(leaving: SystemExit) -> int:
    return leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
