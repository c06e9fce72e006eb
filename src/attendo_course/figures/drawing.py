"""The function `draw`, which writes a figure as a PNG or SVG file. The same call always writes identical files."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attendo.display.i18n import Language
from attendo.errors import AttendoError, install_command
from attendo.files import write_atomic
from attendo.model_config import ModelConfig
from attendo_course.figures import (
    arrays,
    draw_attention,
    draw_curves,
    draw_gpt,
    draw_model,
    draw_networks,
    draw_positions,
)
from attendo_course.figures.catalogue import require_known
from attendo_course.figures.model_parts import chosen_model, model_diagram
from attendo_course.figures.next_word import next_word
from attendo_course.figures.style import DOTS_PER_INCH, HEIGHT, SETTINGS, WIDTH, texts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
ELSEWHERE = ("Hiragino Sans", "Yu Gothic", "Meiryo")
"""Japanese fonts of macOS and Windows."""
Painter = Callable[["Figure", Language], None]


def draw(name: str, path: Path, language: Language = "en", config: ModelConfig | None = None) -> Language:
    """Draw a figure into a .png or .svg file, and return the language of its text.

    The language is English if no installed font contains the Japanese characters. `config` is the configuration for
    the figure "model" (default: the base model of Vaswani et al. 2017).

    Raises AttendoError for an unknown name, another file suffix, a missing folder, a configuration for another
    figure, or missing matplotlib.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw("noam", Path(folder, "noam.svg"))
    'en'
    """
    require_known(name)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise AttendoError(f"{path} must end in .png or .svg; name it {path.with_suffix('.png').name}")
    if not path.absolute().parent.is_dir():
        raise AttendoError(f"{path}: there is no folder {path.parent}; create it first")
    if config is not None and name != "model":
        raise AttendoError(f"the figure {name!r} shows no model; leave the settings out, or draw 'model'")
    try:
        import matplotlib
    except ImportError:
        raise AttendoError(f"figures require matplotlib. Run: {install_command('plots')}") from None
    paint = painter(name, config)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        spoken, families = _fonts(paint, language)
        matplotlib.rcParams["font.family"] = [*families, "sans-serif"]
        if spoken == "ja":  # where an SVG is opened there may be other fonts than here
            matplotlib.rcParams["font.sans-serif"] = [*ELSEWHERE, *matplotlib.rcParams["font.sans-serif"]]
        write_atomic(path, _rendered(lambda figure: paint(figure, spoken), suffix))
    return spoken


def painter(name: str, config: ModelConfig | None = None) -> Painter:
    """Compute the arrays of a figure, and return a function that draws them on an empty matplotlib figure.

    Figures with a sentence compute their arrays when they are drawn, because the sentence depends on the language.

    >>> from matplotlib.figure import Figure
    >>> figure = Figure()
    >>> painter("position-heatmap")(figure, "en")
    >>> figure.axes[0].get_ylabel()
    'Embedding Dimension'
    """
    match name:
        case "position-heatmap":
            return partial(draw_positions.draw_heatmap, arrays.heatmap())
        case "position-curves":
            return partial(draw_positions.draw_curves, arrays.formula_curves(), arrays.plotted_curves())
        case "position-products":
            return partial(draw_positions.draw_products, [arrays.products(d) for d in (128, 512)])
        case "temperature":
            return partial(draw_curves.draw_temperature, arrays.temperature())
        case "entropy":
            return partial(draw_curves.draw_entropy, arrays.entropies())
        case "noam":
            return partial(draw_curves.draw_noam, arrays.rates())
        case "attention-flow":
            return draw_attention.draw_one_query
        case "heads":
            return draw_attention.draw_heads
        case "autoencoder":
            return partial(draw_networks.draw_autoencoder, 8, 3)
        case "translation":
            return draw_networks.draw_translation
        case "gpt":
            return partial(draw_gpt.draw_gpt, next_word())
        case _:
            return partial(draw_model.draw_model, model_diagram(config or chosen_model()))


def _fonts(paint: Painter, language: Language) -> tuple[Language, list[str]]:
    """Return the language that the installed fonts can write, and the font families for it."""
    from attendo.display.fonts import BASE as FAMILY
    from attendo.display.fonts import fonts_for

    if language == "en":
        return language, [FAMILY]
    wanted = set(texts_of(lambda figure: paint(figure, language))) - {"\n"}
    families, drawable = fonts_for("".join(sorted(wanted)))
    return (language, families) if wanted <= drawable else ("en", [FAMILY])


def _rendered(paint: Callable[[Figure], None], suffix: str) -> bytes:
    """Return the figure as the bytes of a file, without a date, a version or random ids."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT))
    FigureCanvasAgg(figure)
    paint(figure)
    file = io.BytesIO()
    metadata = {"Software": None} if suffix == ".png" else {"Date": None, "Creator": "attendo"}
    figure.savefig(file, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=metadata)
    return file.getvalue()
