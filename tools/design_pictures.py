"""Draw docs/images/layers.svg and docs/images/sentence.svg from the code (make docs).

The first picture shows the layers of the layer contract in pyproject.toml, with the docstring and the imports of each
package. The second picture shows the calls that a translator makes for one sentence, with the file and the returned
shape of each call.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import grimp
import torch

from attendo.config import build
from attendo.data import forecasts
from attendo.data.batches import pad_rows
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import LearnedTokenizer, SpecialTokens
from attendo.decoding.beam import BeamSearch, best_tokens
from attendo.decoding.options import DecodingConfig
from attendo.decoding.searcher import Searcher, source_batches
from attendo.inference.translations import Sources, is_looping, sources_of
from attendo.inference.translator import Translator
from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder
from attendo.nn.attention import Attend, Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.cache import DecoderCache
from attendo.nn.layers import FeedForward, InputEmbedding
from attendo.nn.positions import FixedPositions

ROOT = Path(__file__).resolve().parent.parent
SOURCE, IMAGES = ROOT / "src" / "attendo", ROOT / "docs" / "images"
SENTENCE = "Tomorrow it will rain in Sapporo."
WIDTH = 1000
"""Width of both pictures in pixels."""
COLORS = {
    "inference": "#fde9d9",
    "data": "#e2efda",
    "decoding": "#dde8f7",
    "models": "#efe3f5",
    "nn": "#fff5cc",
}
"""Colors of the packages that a sentence passes."""


def text(x: float, y: float, words: str, size: int = 13, *, mono: bool = False, bold: bool = False) -> str:
    """Return a line of text with its left end at x and its baseline at y."""
    family = "ui-monospace, Menlo, Consolas, monospace" if mono else "system-ui, Helvetica, Arial, sans-serif"
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-family="{family}" font-size="{size}"{weight}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a box with a thin border. Its upper left corner is at (x, y)."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" stroke="#888"/>'


def svg(parts: Sequence[str], height: float, title: str) -> str:
    """Return the shapes as an SVG file with a white background, which is also readable on a dark page."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" fill="#222">'
    ground = f'<rect width="{WIDTH}" height="{height:g}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Package:
    """A module or package of `attendo`: its docstring, and the packages that it imports."""

    name: str
    says: str
    imports: tuple[str, ...]


@cache
def layers() -> list[list[Package]]:
    """Return the packages of each layer, highest layer first, as in the layer contract of pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (found,) = [contract["layers"] for contract in contracts["contracts"] if contract["id"] == "layers"]
    graph = grimp.build_graph("attendo")
    names = [[name.strip(" ()") for name in layer.split("|")] for layer in found]
    every = [name for layer in names for name in layer]

    def package(name: str) -> Package:
        path = SOURCE / name / "__init__.py"
        path = path if path.exists() else SOURCE / f"{name}.py"
        says = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        imports = (
            other
            for other in reversed(every)
            if other != name
            and graph.direct_import_exists(importer=f"attendo.{name}", imported=f"attendo.{other}", as_packages=True)
        )
        return Package(name, says.splitlines()[0], tuple(imports))

    return [[package(name) for name in layer] for layer in names]


def layers_picture() -> str:
    """Return the picture of all layers, one above the other, with their packages side by side."""
    parts: list[str] = []
    y, left, gap = 16.0, 56.0, 10.0
    all_layers = layers()
    for number, packages in zip(range(len(all_layers) - 1, -1, -1), all_layers, strict=True):
        width = (WIDTH - left - 16 - gap * (len(packages) - 1)) / len(packages)
        lines = [_package_lines(package, int(width / 6.8)) for package in packages]
        height = 38 + 17 * max(map(len, lines))
        parts.append(text(20, y + height / 2 + 6, str(number), 20, bold=True))
        for i, (package, said) in enumerate(zip(packages, lines, strict=True)):
            x = left + i * (width + gap)
            parts.append(box(x, y, width, height, COLORS.get(package.name, "#f2f2f2")))
            parts.append(text(x + 10, y + 22, package.name, 15, mono=True, bold=True))
            parts += [text(x + 10, y + 42 + 17 * n, line, 12) for n, line in enumerate(said)]
        y += height + gap
    return svg(parts, y + 6, "The layers of attendo: a package imports only packages below it")


def _package_lines(package: Package, characters: int) -> list[str]:
    imports = "imports " + (", ".join(package.imports) or "nothing of attendo")
    return [*textwrap.wrap(package.says, characters), *textwrap.wrap(imports, characters)]


@dataclass(frozen=True)
class Station:
    """An expected call: the called function, its purpose, and the number of loops around the call."""

    called: Callable[..., Any]
    does: str
    depth: int = 0


WAY = (
    Station(Translator.translate, "takes raw text; options left out are the run's"),
    Station(sources_of, "splits what is longer than the model reads"),
    Station(LearnedTokenizer.encode, "text to pieces, pieces to ids"),
    Station(SpecialTokens.source, "puts the end behind them"),
    Station(Searcher.search, "many sources: sorted by length, in batches of a token budget"),
    Station(source_batches, "which of them go together"),
    Station(pad_rows, "rows of ids become one tensor and its lengths"),
    Station(EncoderDecoder.encode, "reads the sources, once"),
    Station(InputEmbedding.forward, "a vector for each id, times √d, plus its position", 1),
    Station(FixedPositions.forward, "sines and cosines", 2),
    Station(Encoder.forward, "the stack", 1),
    Station(EncoderBlock.forward, "for each block", 2),
    Station(Residual.forward, "add & norm around each sub-layer", 3),
    Station(Attention.forward, "projects to queries, keys, values; heads apart and together", 3),
    Station(Attend.forward, "softmax(QKᵀ/√d)V, the one leaf that a recording replaces", 3),
    Station(FeedForward.forward, "position by position", 3),
    Station(Decoder.start, "keys and values of the memory, kept for all steps"),
    Station(BeamSearch.advance, "for each token, until every text has ended"),
    Station(EncoderDecoder.step, "one more token for each row", 1),
    Station(Decoder.step, "the stack", 2),
    Station(DecoderBlock.step, "for each block: the past, the memory, feed-forward", 3),
    Station(DecoderCache.append, "writes this token's keys and values", 3),
    Station(EncoderDecoder.output, "logits: a number for each word of the vocabulary", 2),
    Station(best_tokens, "the best next tokens with their log-probabilities", 1),
    Station(DecoderCache.reorder, "rows go on from the hypotheses that were chosen", 1),
    Station(is_looping, "one that goes round in circles is searched once more"),
    Station(Sources.translations, "joins the parts; scores beside the texts"),
    Station(LearnedTokenizer.decode, "ids to text"),
)
"""Calls in the order of their first use. `sentence` fails if the code has another order."""


@dataclass(frozen=True)
class Call:
    """A recorded call: its package, file and name, and its result."""

    station: Station
    file: str
    name: str
    returned: str


@cache
def sentence() -> list[Call]:
    """Return the calls of `WAY` in the order in which a translator makes them, with the first result of each call.

    Raises AssertionError if the code does not make all calls, or makes them in another order.
    """
    translator = _translator()
    order: list[Any] = []
    returned: dict[Any, str] = {}
    stations = {inspect.unwrap(station.called).__code__: station for station in WAY}

    def look(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if code not in stations:
            return
        if event == "call" and code not in order:
            order.append(code)
        elif event == "return" and code not in returned:
            returned[code] = _described(value, inspect.unwrap(stations[code].called))

    sys.setprofile(look)
    try:
        translator.translate([SENTENCE])
    finally:
        sys.setprofile(None)
    assert order == list(stations), [code.co_qualname for code in order]
    return [
        Call(
            stations[code],
            str(Path(code.co_filename).relative_to(SOURCE)),
            code.co_qualname.removesuffix(".forward").replace("_Model", "EncoderDecoder"),
            returned[code],
        )
        for code in order
    ]


def _translator() -> Translator:
    """Return an untrained translator of the preset `small`. Only its calls and shapes matter."""
    texts = [side for pair in forecasts.pairs(200, "train") for side in pair]
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=1000))
    preset = tomllib.loads((SOURCE / "presets" / "small.toml").read_text(encoding="utf-8"))["model"]
    torch.manual_seed(0)
    model = EncoderDecoder(build(ModelConfig, preset | {"vocab_size": tokenizer.vocab_size}, "small.toml"))
    return Translator(model.eval(), tokenizer, DecodingConfig(beam=4, max_length_extra=8, max_length_ratio=0.0))


def _described(value: Any, called: Callable[..., Any]) -> str:
    """Describe a result in a few words. A tensor has its shape, and the axis names of the function's signature."""
    match value:
        case torch.Tensor():
            named = re.search(r"""["']([^"']+)["']""", str(inspect.signature(called).return_annotation))
            names = named[1].replace("*", "").split() if named else []
            shape = " × ".join(map(str, value.shape))
            return f"[{' '.join(names)}] {shape}" if len(names) == value.dim() else f"[{shape}]"
        case list() if value and isinstance(value[0], int):
            return f"{len(value)} ids: {', '.join(map(str, value[:4]))} …"
        case tuple() if any(hasattr(part, "shape") for part in value):
            return ", ".join(f"[{' × '.join(map(str, part.shape))}]" for part in value if part is not None)
        case list() if value:
            return f"[{type(value[0]).__name__}]"
        case None:
            return ""
        case _:
            return type(value).__name__


def sentence_picture() -> str:
    """Return the picture of the calls, one below the other, indented by loop and colored by package."""
    row, y = 34.0, 58.0
    parts = [text(20, 34, f"“{SENTENCE}”", 17, bold=True)]
    for call in sentence():
        x = 20 + 26.0 * call.station.depth
        package = call.file.split("/")[0].removesuffix(".py")
        parts.append(box(x, y, WIDTH - 20 - x, row - 5, COLORS[package]))
        parts.append(text(x + 10, y + 19, call.name, 13, mono=True, bold=True))
        parts.append(text(330, y + 19, call.station.does, 13))
        parts.append(text(WIDTH - 232, y + 13, call.file, 11, mono=True))
        parts.append(text(WIDTH - 232, y + 25, call.returned, 11))
        y += row
    parts.append(text(20, y + 20, "and the text comes out", 17, bold=True))
    return svg(parts, y + 40, "A sentence's way through attendo, call by call")


def main() -> None:
    """Draw both pictures."""
    for name, picture in (("layers.svg", layers_picture()), ("sentence.svg", sentence_picture())):
        (IMAGES / name).write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
