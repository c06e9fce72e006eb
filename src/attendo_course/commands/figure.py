"""attendo figure."""

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
        str | None, typer.Argument(metavar="NAME", help="Which; without it the names are listed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="F.png|F.svg", help="The file to write.")] = None,
    language: Spoken = "en",
    preset: Annotated[
        str | None, typer.Option(metavar="P", help="For model: base, gpt2_small …, F.toml, a run.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="K=V", help="For model: one setting, as model.d_model=128."),
    ] = None,
) -> int:
    """Draw a figure as a PNG or an SVG; without NAME, list the figures.

    Every number in it is computed. The same command writes the same bytes. The figure called model shows the
    blocks of a preset, changed by --set, with the shapes between them and the parameters of each part.

    Example: attendo figure model --preset base --out base.svg
    """
    from attendo_course.figures.catalogue import FIGURES, require_known

    if name is None:
        if out is not None or preset is not None or set_:
            raise typer.BadParameter("missing NAME, the figure to draw; attendo figure lists them")
        for known, line in FIGURES.items():
            print(f"{known:<18} {line.text(language)}")
        return 0
    require_known(name)
    if out is None:
        raise typer.BadParameter("missing --out F.png or F.svg, the file to write")
    if name != "model" and (preset is not None or set_):
        raise typer.BadParameter(f"--preset and --set are for the figure model; {name} has neither")
    return _draw(name, out, language, preset, set_ or [])


def _draw(name: str, out: Path, language: Language, preset: str | None, settings: list[str]) -> int:
    from attendo_course.figures.drawing import draw
    from attendo_course.figures.model_parts import chosen_model

    written = draw(name, out, language, chosen_model(preset, settings) if name == "model" else None)
    if written != language:
        say("no font installed here has all the Japanese characters; the words are in English")
    say(wrote(out, language))
    return 0
