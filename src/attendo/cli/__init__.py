"""The command line: words only. Every command reads its options, calls the library, and prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from attendo.cli.data import add_data_commands
from attendo.cli.demo import add_demo
from attendo.cli.training import add_training_commands
from attendo.cli.using import add_using_commands


def build_app() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="attendo",
        help="Train, run and look inside your own Transformer.\n\nStart with: attendo demo",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    app.callback()(options)
    add_demo(app)
    add_training_commands(app)
    add_using_commands(app)
    add_data_commands(app)
    return app


def options(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
    debug: bool = typer.Option(False, "--debug", help="Show where an error came from."),
) -> None:
    """Train, run and look inside your own Transformer.

    Start with: attendo demo
    """
    if version:
        from attendo import __version__

        typer.echo(f"attendo {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; gives its exit code: 0 done, 1 failed or found something, 2 bad usage or input.

    Errors come out as one line on stderr, without a traceback unless --debug is among the arguments.
    """
    # threads that spin while they wait burn the CPU time that a budget counts; torch reads this when it is loaded
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = build_app()(args=arguments, standalone_mode=False, prog_name="attendo")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BrokenPipeError:  # the reader of our output has left: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except typer.Exit as leaving:
        return leaving.exit_code
    except Exception as error:  # the one place where every error becomes a line
        if "--debug" in arguments:
            raise
        return report(error)


def report(error: Exception) -> int:
    """Prints an error as one line on stderr and gives its exit code."""
    from attendo.errors import AttendoError

    match error:
        case AttendoError():
            text, code = str(error), 2
        case TyperException():
            text, code = f"{error.format_message().rstrip('.')}; see attendo --help", 2
        case OSError():
            text, code = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1
        case _:
            text, code = (
                f"{type(error).__name__}: {error}; run it again with --debug and report it, please",
                1,
            )
    print("error:", " ".join(text.split()), file=sys.stderr)
    return code
