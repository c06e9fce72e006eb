"""Write docs/reference/commands.md from the commands' `--help` texts: `python tools/command_docs.py [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from attendo.cli import build_app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "commands.md"
GROUPS = {
    "Get started": ("demo", "doctor", "plan"),
    "Train": ("train", "resume", "verify-resume"),
    "Use": ("translate", "classify", "generate", "chat", "embed", "score", "serve", "label"),
    "Measure": (
        "evaluate",
        "thresholds",
        "errors",
        "compare",
        "trial",
        "report",
        "runs",
        "info",
        "shortlist",
    ),
    "Inspect": ("look",),
    "Import and export": ("import", "export", "quantize", "eject"),
    "Theory": ("claims", "errata", "figure", "lesson"),
}
TOP = """\
# Commands

*This page is generated from `--help` by `make docs`. To change it, change the code.*

A command exits with one of these codes. Errors in the usage or the input print one line, `error: …`, which names the
file, line or field and what to do. `--debug` also prints the traceback.

| code | meaning |
|---|---|
| 0 | success |
| 1 | the command failed, or `doctor` or `claims` found a problem |
| 2 | wrong usage or wrong input |
| 130, 143 | stopped by Ctrl-C or SIGTERM after saving the state |
"""


def cell(text: str) -> str:
    """Escape a text for a cell of a table.

    >>> cell("a|b <c>")
    'a\\\\|b &lt;c&gt;'
    """
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|").replace("*", "\\*")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as Markdown, with its examples in one code block.

    >>> list(paragraphs("Says it.\\n\\nExample: a b\\n\\nExample: a c"))
    ['Says it.', '```sh\\na b\\na c\\n```']
    """
    parts = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    for is_example, group in groupby(parts, lambda part: part.startswith("Example: ")):
        if is_example:
            yield "\n".join(["```sh", *(part.removeprefix("Example: ") for part in group), "```"])
        else:
            yield from (cell(part) for part in group)


def table(context: Any, command: Any) -> Iterator[str]:
    """Yield the table of the arguments and options of a command, if any."""
    records = (parameter.get_help_record(context) for parameter in command.params)
    rows = [f"| `{name.replace('|', '/')}` | {cell(what)} |" for name, what in filter(None, records)]
    if rows:
        yield "\n".join(["| argument or option | meaning |", "|---|---|", *rows])


def sections(command: Any, context: Any, level: int) -> Iterator[str]:
    """Yield the help of a command and of its subcommands."""
    yield f"{'#' * level} {context.command_path}"
    yield from paragraphs(command.help or "")
    yield from table(context, command)
    for name, inner in getattr(command, "commands", {}).items():
        yield from sections(inner, inner.context_class(inner, info_name=name, parent=context), level + 1)


def page() -> str:
    """Return the page of all commands."""
    app = typer.main.get_command(build_app())
    top = app.context_class(app, info_name="attendo", **app.context_settings)
    commands: dict[str, Any] = dict(app.commands)  # pyright: ignore[reportAttributeAccessIssue]
    parts = [TOP.rstrip()]
    for title, names in GROUPS.items():
        parts.append(f"## {title}")
        for name in names:
            command = commands.pop(name)
            parts += sections(command, command.context_class(command, info_name=name, parent=top), 3)
    if commands:
        raise SystemExit(f"error: not in a group of {Path(__file__).name}: {', '.join(commands)}")
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with the file."""
    text = page()
    if "--check" in arguments:
        stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
        if stale:
            print(f"error: {PAGE} differs from the help of the commands; run: make docs")
        return int(stale)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
