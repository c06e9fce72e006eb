"""The command `attendo demo`: training, evaluation and inspection on the built-in corpus."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attendo.cli.options import Threads, option, switch, use_threads
from attendo.cli.reporting import follow, preparing, say
from attendo.cli.train import SettingOptions
from attendo.display.width import beside
from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo.inference import Translator
    from attendo.training.run import Clock

SHOWN = 3
SENTENCE = "Tomorrow it will rain in Sapporo in the afternoon if it snows in the morning."


def demo(
    out: Path = option("DIR", "Run folder; a finished demo in DIR is reused.", default=Path("runs/demo")),
    fresh: bool = switch("--fresh", "Remove the demo in DIR and train it again."),
    cpu_minutes: float | None = option("M", "CPU time to train for, in minutes (default: 4.5)."),
    test: int = option("N", "Number of held-out forecasts to translate.", min=1, max=5000, default=1000),
    set_: list[str] | None = option("K=V", "Training setting, for example training.seed=2; repeatable.", "--set"),
    threads: Threads = None,
) -> int:
    """Train a translator of weather forecasts, test it on held-out forecasts, and show its attention.

    The demo takes a few minutes. The data of the demo is part of attendo, so nothing is downloaded.

    Example: attendo demo
    """
    from attendo.training.run import Clock

    clock = Clock.of_process()
    from attendo.inference import load
    from attendo.runs.task_specs import family_of

    use_threads(threads)
    settings = SettingOptions(preset="demo", config=None, set_=set_, init_from=None)
    tables = settings.joined(family_of("translation"), {"training.cpu_minutes": cpu_minutes})
    if fresh or not _is_begun(out):
        code = _begin(out, tables, clock)
    elif cpu_minutes is not None or set_:
        raise typer.BadParameter(
            f"{out} already holds a demo. --cpu-minutes and --set require --fresh, which trains it again"
        )
    else:
        code = _go_on(out, clock)
    if code:
        return code
    translator = load(out)
    _test(translator, test)
    _show(translator, out)
    print("\nNext steps:")
    print(f'  attendo translate {out} "On Monday it will snow in Oslo."')
    print(f"  attendo look {out} --serve")
    print(f"  attendo info {out}")
    print("  attendo train translation --train pairs.tsv --out runs/mine --minutes 30")
    return 0


def _is_begun(out: Path) -> bool:
    """Return whether the folder contains a demo with checkpoints. Raise AttendoError for a run on other data."""
    from attendo.runs.settings import data_of
    from attendo.runs.training_run import require_no_run
    from attendo.training.checkpoints import checkpoints

    if (out / "config.toml").exists() and data_of("translation", out).embedded:
        return bool(checkpoints(out / "checkpoints"))
    require_no_run(out)
    return False


def _begin(out: Path, tables: dict[str, dict[str, Any]], clock: Clock) -> int:
    """Train a new demo, and replace an old demo in the folder."""
    from attendo.runs.task_specs import family_of
    from attendo.runs.training_run import new_run

    if _is_begun(out) or (out / "config.toml").exists():
        say(f"removing the demo in {out}")
        shutil.rmtree(out)
    say("Training a translator of weather forecasts from English into Japanese:")
    say("first a tokenizer on the built-in corpus, then a small Transformer.")
    with preparing():
        run = new_run(family_of("translation"), tables, out, say, clock)
    return follow(run)


def _go_on(out: Path, clock: Clock) -> int:
    """Use a finished demo, or resume an interrupted demo."""
    from attendo.runs.resume import resumed_run
    from attendo.runs.tracking import last_entry

    if last_entry(out / "metrics.jsonl").get("kind") == "end":
        say(f"using the finished demo in {out} (--fresh trains it again)")
        return 0
    run = resumed_run(out, None, say, clock=clock)
    return 0 if run.has_ended else follow(run)


def _test(translator: Translator, n_pairs: int) -> None:
    from attendo.data import forecasts
    from attendo.data.pair_corpus import FORECAST_PAIRS

    pairs = forecasts.pairs(n_pairs, "test")
    found = translator.evaluate(pairs)
    print(f"\n{n_pairs:,} held-out forecasts, none of them in the training data:")
    for (source, target), text in list(zip(pairs, found.texts, strict=True))[:SHOWN]:
        print("\n".join(_wrapped("  ", source) + _wrapped("→ ", text)))
        if text != target:
            print("\n".join(_wrapped("≠ ", target)))
    nearest = forecasts.nearest_neighbor_baseline(forecasts.pairs(FORECAST_PAIRS, "train"), pairs)
    print(f"\nexact match {found.measures['exact']:.1f}%")
    print(f"(baseline, the translation of the most similar training forecast: {100 * nearest:.1f}%)")


def _show(translator: Translator, out: Path) -> None:
    from attendo.microscope.run_model import look
    from attendo.microscope.view import View, ask_for

    view = View(look(translator, ask_for(translator, SENTENCE), out))
    print("\n".join(["", *_wrapped("  ", SENTENCE), *_wrapped("→ ", view.map().answer), "", str(view), ""]))
    view.save(out / "look.html")
    print(f"page with all views: {out / 'look.html'}")
    try:
        view.save(out / "map.png")
        print(f"picture of the map: {out / 'map.png'}")
    except AttendoError as error:  # matplotlib is an extra
        print(error)


def _wrapped(mark: str, text: str) -> list[str]:
    """Return the lines of a text after its mark, in 80 columns."""
    return beside(f"  {mark}", text, 78)
