"""The command `attendo figure`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attendo.cli.options import Spoken
from attendo.cli.reporting import say, wrote

if TYPE_CHECKING:
    from attendo.display.i18n import Language


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the figure (default: list all names).")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="F.png|F.svg", help="File to write.")] = None,
    language: Spoken = "en",
    preset: Annotated[
        str | None,
        typer.Option(metavar="P", help="Figure model: a preset (base, gpt2_small …), a .toml file or a run."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="Figure model: set one setting, for example model.d_model=128."),
    ] = None,
) -> int:
    """Draw a figure of the theory as a PNG or an SVG file; without NAME, list the figures.

    Every number in a figure is computed. Equal commands write identical files. The figure named model shows the
    blocks of a preset, the shapes between the blocks, and the number of parameters of each part. --set changes the
    settings of the preset.

    Example: attendo figure model --preset base --out base.svg
    """
    from attendo_course.figures.catalogue import FIGURES, require_known

    if name is None:
        if out is not None or preset is not None or set_:
            raise typer.BadParameter("NAME, the figure to draw, is missing. To list the figures, run: attendo figure")
        for known, line in FIGURES.items():
            print(f"{known:<18} {line.text(language)}")
        return 0
    require_known(name)
    if out is None:
        raise typer.BadParameter("--out F.png or F.svg, the file to write, is missing")
    if name != "model" and (preset is not None or set_):
        raise typer.BadParameter(f"--preset and --set apply only to the figure model, not to {name}")
    return _draw(name, out, language, preset, set_ or [])


def _draw(name: str, out: Path, language: Language, preset: str | None, settings: list[str]) -> int:
    from attendo_course.figures.drawing import draw
    from attendo_course.figures.model_parts import chosen_model

    written = draw(name, out, language, chosen_model(preset, settings) if name == "model" else None)
    if written != language:
        say("日本語の文字がそろったフォントがないため、図の文字は英語です")
    say(wrote(out, language))
    return 0
