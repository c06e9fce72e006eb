"""attendo demo: the whole main job on the embedded corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attendo.cli.reporting import follow, say

if TYPE_CHECKING:
    from attendo.tasks import Translator

HELD_OUT = 1000
SHOWN = 3
SENTENCE = "Tomorrow it will rain in Sapporo in the afternoon if it snows in the morning."


def add_demo(app: typer.Typer) -> None:
    """Adds `demo`."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")] = Path("runs/demo"),
    cpu_minutes: Annotated[float | None, typer.Option(metavar="M", help="CPU time to train for.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of the processor; else one a core.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train anew although DIR holds a finished demo.")
    ] = False,
) -> int:
    """Train a translator of weather forecasts, test it on held-out ones, and show where it looks.

    Everything it needs comes with attendo; it takes a few minutes.

    Example: attendo demo
    """
    import shutil

    from attendo.tasks import load

    if fresh and out.exists():
        shutil.rmtree(out)
    if (out / "model.safetensors").is_file() and (out / "metrics.jsonl").is_file():
        say(f"{out} holds a finished demo: using it (--fresh trains anew)")
    elif code := _train(out, cpu_minutes, threads):
        return code
    translator = load(out)
    _test(translator)
    _show(translator, out)
    return 0


def _train(out: Path, cpu_minutes: float | None, threads: int | None) -> int:
    import torch

    from attendo.tasks.runs import new_translation_run
    from attendo.tasks.settings import preset_tables
    from attendo.training.clock import Clock

    if threads is not None:
        torch.set_num_threads(max(1, threads))
    say("Learning to translate weather forecasts from English into Japanese.")
    tables = preset_tables("demo")
    if cpu_minutes is not None:
        tables["training"]["cpu_minutes"] = cpu_minutes
    return follow(new_translation_run(tables, out, say, Clock(cpu_start=0.0)))


def _test(translator: Translator) -> None:
    from attendo.data import forecasts
    from attendo.tasks.corpus import FORECAST_PAIRS

    pairs = forecasts.pairs(HELD_OUT, "test")
    found = translator.evaluate(pairs)
    print(f"\n{HELD_OUT:,} held-out forecasts, none of them in the training data:")
    for (source, target), text in list(zip(pairs, found.texts, strict=True))[:SHOWN]:
        print(f"  {source}\n  → {text}{'' if text == target else f'  (should be {target})'}")
    nearest = forecasts.nearest_neighbor_baseline(forecasts.pairs(FORECAST_PAIRS, "train"), pairs)
    print(f"\nexact match {found.measures['exact']:.1f} %")
    print(f"(taking the translation of the most similar training forecast: {nearest:.1f} %)")


def _show(translator: Translator, out: Path) -> None:
    from attendo.errors import AttendoError
    from attendo.microscope.attention_map import attention_map
    from attendo.microscope.page import write_html
    from attendo.microscope.pictures import write_png
    from attendo.microscope.terminal import map_text

    seen = attention_map(translator, SENTENCE)
    print(f"\n{map_text(seen)}\n")
    write_html(seen, out / "map.html")
    print(f"the same as a page: {out / 'map.html'}")
    try:
        write_png(seen, out / "map.png")
        print(f"the same as a picture: {out / 'map.png'}")
    except AttendoError as error:
        print(error)
    print(f'\nnow you: attendo translate {out} "On Monday it will snow in Oslo."')
    print("your own: attendo train translation --train pairs.tsv --out runs/mine --minutes 30")
