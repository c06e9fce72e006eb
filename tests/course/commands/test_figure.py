"""attendo figure: what is drawn, that nothing overlaps, the same bytes every time, errors in one line."""

import builtins
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from unittest.mock import patch

import matplotlib
import numpy as np
import pytest
from command_line import attendo, refused
from example_counts import examples
from figure_models import CLASSIFIER, GPT2, MASKED, MIXED, encoding
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from attendo.display import fonts
from attendo.errors import install_command
from attendo_course.figures import arrays, drawing
from attendo_course.figures.catalogue import FIGURES
from attendo_course.figures.drawing import draw, painter
from attendo_course.figures.model_parts import chosen_model, model_diagram
from attendo_course.figures.style import FAINT, SETTINGS, VERMILION, texts_of

JAPANESE = fonts.fonts_for("層正規化ヘッドの重みアテンション")[1] >= set("層正規化ヘッドの重みアテンション")
TINY = ["model.d_model=16", "model.n_heads=2", "model.vocab_size=90"]


def drawn(paint, language="en"):
    """A matplotlib figure that a painter has drawn on."""
    figure = Figure()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context(SETTINGS):
        paint(figure, language)
    return figure


# ---- what is in the pictures


def test_heatmap_is_drawn_as_the_exercise_has_it():
    axes = drawn(painter("position-heatmap")).axes[0]
    assert axes.get_title() == "Sinusoidal Positional Encoding (max_len=64, d_model=128)"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Position", "Embedding Dimension")
    (image,) = axes.images
    np.testing.assert_allclose(image.get_array(), encoding(64, 128).T, rtol=0, atol=1e-10)
    assert (image.get_cmap().name, image.get_clim()) == ("viridis", (-1, 1))
    assert tuple(image.get_extent()) == (-0.5, 63.5, 127.5, -0.5)  # position 0-63, dimension 0 on top
    assert drawn(painter("position-heatmap")).axes[1].get_ylabel() == "Encoding Value"


def test_curves_side_by_side_without_the_undefined_row():
    axes = drawn(painter("position-curves")).axes
    left, right = axes[0::2], axes[1::2]
    for graphs, found in ((left, arrays.formula_curves()), (right, arrays.plotted_curves())):
        lines = [line for graph in graphs for line in graph.lines]
        np.testing.assert_array_equal([line.get_ydata() for line in lines], found.rows)
        assert all((line.get_xdata() == found.positions).all() for line in lines)
    assert not left[4].lines
    assert any("undefined" in text.get_text() for text in left[4].texts)


def test_marks_of_the_other_figures():
    for graph, k, d in zip(drawn(painter("position-products")).axes, (11, 43), (128, 512), strict=True):
        curve, mark = graph.lines
        np.testing.assert_array_equal(curve.get_ydata(), arrays.products(d).products)
        assert mark.get_xdata().tolist() == [k] and f"k = {k}\n" in graph.texts[0].get_text()
    assert "6.98771 × 10⁻⁴ at step 4,000" in written("noam")
    assert "1.97642 × 10⁻⁴" in written("noam")
    assert "β = 20: 0.99995" in written("temperature")
    assert "ln 16 = 2.7726" in written("entropy")


def test_the_curves_drawn_are_the_arrays():
    lines = drawn(painter("noam")).axes[0].lines
    found = arrays.rates()
    curves = {line.get_label(): line.get_ydata() for line in lines}
    for w, rates in zip(found.warmups, found.rates, strict=True):
        np.testing.assert_allclose(curves[f"w = {w:,}"], rates * 1e4, rtol=1e-12)
    entropies = arrays.entropies()
    means = [line.get_ydata() for line in drawn(painter("entropy")).axes[0].lines[:2]]
    np.testing.assert_allclose(means, [entropies.scaled.mean(1), entropies.unscaled.mean(1)], rtol=1e-12)
    curves = {line.get_label(): line.get_ydata() for line in drawn(painter("temperature")).axes[0].lines}
    np.testing.assert_array_equal(curves["s = 0.5"], arrays.temperature().weights[:, 1])


def written(name, config=None, language="en"):
    return texts_of(lambda figure: painter(name, config)(figure, language))


def test_every_count_stands_in_the_diagram():
    shown = texts(painter("model"))
    for text in ("63,045,632", "18,944,000", "6 × 3,150,336", "25,199,616", "1,048,576", "2,099,712"):
        assert text in shown
    assert shown.count("6 ×") == 2
    assert shown.count("LayerNorm") == 5
    assert shown.count("sinusoidal positions") == 2
    assert shown.count("shared") == 2
    assert "memory [batch, src_len, 512]" in shown
    assert shown.count("[batch, tgt_len, 512]") == 4
    diagram = model_diagram(MIXED)
    shown = texts(painter("model", MIXED))
    assert {f"{n:,}" for _, n in diagram.sums} | {f"{diagram.total:,}"} <= set(shown)
    assert "shared" not in shown


def texts(paint):
    return [text.get_text() for text in drawn(paint).findobj(Text) if text.get_text()]


def heights(paint, name):
    """How high the texts of this name stand, from below."""
    return sorted(text.get_position()[1] for text in drawn(paint).findobj(Text) if text.get_text() == name)


def test_norms_are_drawn_where_they_are():
    first = heights(painter("model", GPT2), "LayerNorm")
    (net,) = heights(painter("model", GPT2), "Feed-forward")
    (attend,) = heights(painter("model", GPT2), "Causal self-attention")
    assert first[0] < attend < first[1] < net < first[2]
    last = heights(painter("model", CLASSIFIER), "LayerNorm")
    (net,) = heights(painter("model", CLASSIFIER), "Feed-forward")
    (attend,) = heights(painter("model", CLASSIFIER), "Self-attention")
    assert last[0] < attend < last[1] < net < last[2]  # the lowest is of the embedding
    assert len(first) == len(last) == 3


def test_the_scale_is_drawn_and_its_absence_marked():
    for config, scale, color in (
        (None, "QKᵀ/√64", FAINT),
        (chosen_model("slides"), "QKᵀ without 1/√64", VERMILION),
        (chosen_model("base", ["model.attention_scale=0.25"]), "QKᵀ · 0.25", FAINT),
    ):
        drawing_of_all = drawn(painter("model", config)).findobj(Text)
        found = [text for text in drawing_of_all if text.get_text().startswith("QKᵀ")]
        assert [(text.get_text(), text.get_color()) for text in found] == [(scale, color)] * 3


# ---- nothing overlaps

LONGEST = chosen_model("big", ["model.positions=learned", "model.tie=output", "model.norm_first=true"])
MODELS = {"en": (None, CLASSIFIER, GPT2, MASKED, MIXED, LONGEST), "ja": (GPT2, LONGEST)}


@pytest.mark.some(1)
@pytest.mark.parametrize("language", ["en", "ja"])
def test_texts_overlap_neither_each_other_nor_the_edge(language):
    if language == "ja" and not JAPANESE:
        pytest.skip("no Japanese font is installed")
    others = [(name, None) for name in FIGURES if name != "model"]
    every = [*others, *(("model", config) for config in MODELS[language])]
    for name, config in every[:: examples(-6, -1)]:  # some of them, the last one too
        paint = painter(name, config)
        families = fonts.fonts_for("層正規化" if language == "ja" else "")[0]
        boxes = {}
        draw_text = Text.draw

        def noted(self, renderer, boxes=boxes, draw_text=draw_text):
            draw_text(self, renderer)
            if self.get_text() and self.get_visible():
                boxes[self] = Text.get_window_extent(self, renderer).extents.tolist()

        with patch.object(Text, "draw", noted), matplotlib.rc_context({**SETTINGS, "font.family": families}):
            figure = Figure(figsize=(9.6, 5.4), dpi=72)
            FigureCanvasAgg(figure)
            paint(figure, language)
            figure.draw_without_rendering()
        assert len(boxes) > 10
        shown = list(boxes)
        low, high = np.split(np.array(list(boxes.values())), 2, axis=1)  # pixels across, then up
        inside = (low >= 0).all(1) & (high <= figure.bbox.extents[2:]).all(1)
        assert inside.all(), (name, language, [shown[i].get_text() for i in np.flatnonzero(~inside)])
        common = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
        for i, j in np.argwhere(np.triu((common >= 1.0).all(-1), 1)):
            raise AssertionError((name, language, shown[i].get_text(), shown[j].get_text()))


# ---- files


def test_files_are_the_same_bytes_every_time(tmp_path):
    for suffix in ("svg", "png"):
        files = [tmp_path / f"{number}.{suffix}" for number in (1, 2)]
        for file in files:
            with patch.object(drawing, "DOTS_PER_INCH", 50):  # few, to be done soon
                assert draw("model", file, config=chosen_model("tiny", TINY)) == "en"
        assert files[0].read_bytes() == files[1].read_bytes()


def test_svg_has_text_and_no_date(tmp_path):
    draw("noam", tmp_path / "noam.svg")
    root = ElementTree.parse(tmp_path / "noam.svg").getroot()
    texts = {"".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "The learning rate of the Transformer" in texts
    assert not re.search(r"<dc:date|matplotlib\.org/?</|v3\.", (tmp_path / "noam.svg").read_text())


def test_png_fills_a_slide_and_tells_no_version(tmp_path):
    draw("temperature", tmp_path / "T.PNG")
    data = (tmp_path / "T.PNG").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1920, 1080)
    assert b"tEXt" not in data and b"tIME" not in data


def test_a_users_own_settings_change_nothing(tmp_path):
    draw("noam", tmp_path / "plain.svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linestyle": "--"}):
        draw("noam", tmp_path / "theirs.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "theirs.svg").read_bytes()


def test_english_where_no_font_has_japanese(tmp_path):
    def only_latin(text):
        return [fonts.BASE], {c for c in text if c < "\u2fff"}

    with patch.object(fonts, "fonts_for", only_latin):
        outcome = attendo("figure", "noam", "--out", tmp_path / "a.svg", "--language", "ja")
    assert outcome.code == 0
    notes = outcome.err.splitlines()
    assert len(notes) == 2 and "フォント" in notes[0] and "英語" in notes[0]
    draw("noam", tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# ---- the command


@pytest.mark.parametrize(("language", "word"), [("en", "learning rate"), ("ja", "学習率")])
def test_names_are_listed(language, word):
    outcome = attendo("figure", "--language", language)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert word in outcome.out


def test_listing_loads_nothing_heavy():
    code = (
        "import sys; from attendo.cli import main; main(['figure']);"
        "sys.exit(bool({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_model_by_preset_and_settings(tmp_path):
    out = tmp_path / "model.svg"
    options = [part for setting in TINY for part in ("--set", setting)]
    outcome = attendo("figure", "model", "--preset", "tiny", *options, "--out", out)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"wrote {out}\n")
    total = model_diagram(chosen_model("tiny", TINY)).total
    assert f">{total:,}<" in out.read_text()


@pytest.mark.skipif(not JAPANESE, reason="no Japanese font is installed")
def test_japanese(tmp_path):
    out = tmp_path / "model.svg"
    outcome = attendo("figure", "model", "--language", "ja", "--out", out)
    assert (outcome.code, outcome.err) == (0, f"保存：{out}\n")
    svg = out.read_text()
    assert ">クロスアテンション<" in svg and ">63,045,632<" in svg
    assert "Cross-attention" not in svg


def test_refusals(tmp_path):
    out = tmp_path / "a.svg"
    assert "position-heatmap" in refused("figure", "heatmap", "--out", out)
    assert "there are position-heatmap, " in refused("figure", "zzz", "--out", out)
    assert "--out" in refused("figure", "noam")
    assert "NAME, the figure to draw, is missing" in refused("figure", "--out", out)
    assert "a.png" in refused("figure", "noam", "--out", tmp_path / "a.jpg")
    assert "no folder" in refused("figure", "noam", "--out", tmp_path / "no" / "a.svg")
    assert "'en', 'ja'" in refused("figure", "noam", "--out", out, "--language", "fr")
    assert "figure model" in refused("figure", "noam", "--out", out, "--preset", "base")
    unknown = refused("figure", "model", "--out", out, "--preset", "attendo")
    assert all(name in unknown for name in ("there are base, ", "gpt2_small", "F.toml", "a run folder"))
    assert refused("figure", "model", "--out", out, "--preset", "smal").endswith("did you mean small?")
    assert "n_heads" in refused("figure", "model", "--out", out, "--set", "model.n_head=2")
    lecture = refused("figure", "model", "--out", out, "--preset", "lecture")
    assert all(text in lecture for text in ("nyu_classifier", "a run folder", "model.n_classes", "gpt2_small"))
    assert "lecture, " not in lecture and "lecture, " not in unknown
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib(tmp_path):
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    with patch.object(builtins, "__import__", without):
        line = refused("figure", "noam", "--out", tmp_path / "a.svg")
    assert install_command("plots") in line
