"""The attention map: what was recorded, drawn in a terminal and as a PNG."""

import logging
import sys
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError
from attendo.inspecting.recording import recording
from attendo.microscope.attention_map import AttentionMap, attention_map
from attendo.microscope.terminal import map_text
from attendo.models import EncoderDecoder, ModelConfig
from attendo.tasks.translator import Translator

TEXT = "it will rain in Oslo tomorrow"


@pytest.fixture(scope="module")
def translator():
    torch.manual_seed(0)
    tokenizer = train_tokenizer([TEXT, "明日のオスロは雨"], TokenizerConfig(kind="word"))
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        d_ff=24,
        n_heads=4,
        n_encoder_layers=1,
        n_decoder_layers=3,
    )
    return Translator(EncoderDecoder(config).eval(), tokenizer)


def one_hot(sources: list[str], targets: list[str], columns: list[int]) -> AttentionMap:
    """A map of two layers and heads: the first looks everywhere, in the second row t looks at columns[t]."""
    weights = np.full((2, 2, len(targets), len(sources)), 1 / len(sources))
    weights[1] = np.eye(len(sources))[columns]
    return AttentionMap(" ".join(sources), " ".join(targets), tuple(sources), tuple(targets), weights)


def on_screen(line: str) -> int:
    """Columns in a terminal, counted apart from the code under test."""
    wide = sum(unicodedata.east_asian_width(c) in ("W", "F") for c in line)
    return len(line) + wide - sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in line)


def test_map_of_a_translator(translator):
    seen = attention_map(translator, TEXT, beam=2)
    ids = translator.tokenizer.encode(TEXT)
    found = translator.translate([TEXT], beam=2)[0]
    assert seen.source == TEXT
    assert seen.target == found.text
    assert seen.source_pieces == ("it", "will", "rain", "in", "Oslo", "tomorrow", "</s>")
    assert seen.target_pieces[-1] == "</s>"
    assert len(seen.target_pieces) == len(found.candidates[0].token_ids) + 1
    assert seen.weights.shape == (3, 4, len(seen.target_pieces), len(seen.source_pieces))
    np.testing.assert_allclose(seen.weights.sum(-1), 1, atol=1e-6)
    # row t is what the step that gave target piece t looked at: forced, with bos before the found pieces
    tokenizer = translator.tokenizer
    src = torch.tensor([[*ids, tokenizer.eos_id]])
    tgt = torch.tensor([[tokenizer.bos_id, *found.candidates[0].token_ids]])
    with recording(translator.model) as record, torch.inference_mode():
        record.model(src, tgt)
    for layer, weights in enumerate(seen.weights):
        expected = record[f"decoder.blocks.{layer}.cross_attention"].weights[0].numpy()
        np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_text(translator, text):
    with pytest.raises(AttendoError, match="empty text"):
        attention_map(translator, text)


def test_the_sharpest_layer_is_shown():
    seen = one_hot(["a", "b"], ["c", "d"], [1, 0])
    assert seen.sharpest_layer == 1
    assert map_text(seen).startswith("Cross-attention, layer 2 of 2 (the sharpest), mean of 2 heads\n")
    assert map_text(seen, layer=0).startswith("Cross-attention, layer 1 of 2, mean of 2 heads\n")
    with pytest.raises(AttendoError, match="layer 2 is not one of 0 to 1"):
        map_text(seen, layer=2)


def test_mean_is_over_heads():
    weights = np.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    np.testing.assert_array_equal(AttentionMap("", "", ("a", "b"), ("c",), weights).mean(0), [[0.5, 0.5]])


def test_weights_must_fit_the_pieces():
    with pytest.raises(AttendoError, match="do not fit 1 target and 3 source pieces"):
        AttentionMap("", "", ("a", "b", "c"), ("d",), np.ones((1, 1, 1, 2)))


def test_drawing():
    seen = one_hot(["▁Rain", "in", "大阪", "</s>"], ["大阪", "の", "雨", "</s>"], [2, 1, 0, 3])
    seen.weights[1, :, 1] = [0.1, 0.4, 0.2, 0.3]
    assert map_text(seen).split("\n\n")[1].splitlines() == [
        "     ▁",
        "     R     <",
        "     a     /",
        "     i i 大s",
        "     n n 阪>",
        "大阪     ██   大阪 100%",
        "  の ··▒▒░░░░ in 40%",
        "  雨 ██       ▁Rain 100%",
        "</s>       ██ </s> 100%",
    ]


def test_blocks_of_columns_hold_every_source_piece_once():
    n = 70
    sources = [f"w{number:02}" for number in range(n)]
    targets = [f"目標{number}" for number in range(n)]
    text = map_text(one_hot(sources, targets, list(range(n))[::-1]))
    headings, standing = [], []
    for block in text.split("\n\n")[1:]:
        heading, *lines = block.splitlines()
        headings.append(heading)
        assert len(lines) == 3 + n
        standing += zip(*("".join(line.split()) for line in lines[:3]), strict=True)
    assert ["".join(label) for label in standing] == sources
    assert headings[0].startswith("source pieces 1 to ")
    assert headings[-1].endswith(f" to {n} of {n}")
    assert text.count("██") == n + 1  # one a row and one in the explanation
    assert text.count("100%") == n
    for target, source in zip(targets, reversed(sources), strict=True):
        row = [line for line in text.splitlines() if line.lstrip().startswith(f"{target} ") and "██" in line]
        assert len(row) == 1
        assert row[0].endswith(f" {source} 100%")


printable = st.characters(exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp", "Zs"))
pieces = st.lists(
    st.text(printable, min_size=1, max_size=20) | st.sampled_from(["雨" * 30, "مطر", "e\u0301" * 30, "👍🏽"]),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40)
@given(sources=pieces, targets=pieces, width=st.integers(40, 120), data=st.data())
def test_no_line_is_wider_than_asked(sources, targets, width, data):
    columns = data.draw(
        st.lists(st.integers(0, len(sources) - 1), min_size=len(targets), max_size=len(targets))
    )
    text = map_text(one_hot(sources, targets, columns), width)
    assert max(map(on_screen, text.split("\n"))) <= width


def test_too_narrow_a_terminal():
    with pytest.raises(AttendoError, match="does not fit 39 columns"):
        map_text(one_hot(["a"], ["b"], [0]), width=39)


def test_png(tmp_path, caplog):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from attendo.microscope.pictures import write_png

    caplog.set_level(logging.WARNING)
    sources = ["▁rain", "$\\frac$", "_", "مطر", "<b>", "</s>"]
    targets = [
        "雨",
        "が",
        "\U000e0041",
        "한국",
        "a" * 2000,
        "</s>",
    ]  # a glyph that is missing would be a warning
    seen = one_hot(sources, targets, [0, 1, 2, 3, 4, 5])
    write_png(seen, tmp_path / "sharp.png")
    write_png(seen, tmp_path / "flat.png", layer=0)
    assert caplog.records == []
    # the darkest blue of the scale fills six cells in one and is only on the scale in the other
    dark = np.array([8, 64, 129]) / 255
    shares = [
        (np.abs(imread(tmp_path / name)[..., :3] - dark).max(-1) < 0.01).mean()
        for name in ("sharp.png", "flat.png")
    ]
    assert shares[0] > 0.05 > 0.005 > shares[1]


def test_no_font_has_a_character(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from attendo.microscope import fonts, pictures

    monkeypatch.setattr(fonts, "_others", lambda: iter(()))
    families, drawable = fonts.fonts_for("aé雨")
    assert families == [fonts.BASE]
    assert drawable == set("aé")
    assert pictures.labels_for(("aé", "雨"), drawable) == ["aé", "no. 2"]
    # drawn all the same; a box in place of a character would be a warning, and so an error
    pictures.write_png(one_hot(["aé", "雨"], ["雨"], [1]), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_no_matplotlib(tmp_path, monkeypatch):
    from attendo.microscope.pictures import write_png

    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(AttendoError, match=r'pip install "attendo\[plots\]"'):
        write_png(one_hot(["a"], ["b"], [0]), tmp_path / "map.png")
    assert list(tmp_path.iterdir()) == []
