"""The commands of the course: claims, errata, figure, lesson; attendo loads these commands through an entry point."""

import typer

from attendo_course.commands import claims, errata, figure, lesson


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the course to the application."""
    app.command("claims", short_help="Check the claims of the Transformer's sources.")(claims.claims)
    app.command("errata", short_help="Show mistakes of the sources with their corrections.")(errata.errata)
    app.command("figure", short_help="Draw a figure of the theory for a slide.")(figure.figure)
    app.command("lesson", short_help="Train and compare small models in a lesson.")(lesson.lesson)
