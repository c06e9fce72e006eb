"""The attention map: what was recorded, drawn in a terminal and as a PNG."""

import logging
import sys
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looked_models import FAMILIES, HOSTILE, looked_model

from attendo.errors import AttendoError
from attendo.inspecting.recording import recording
from attendo.microscope.answers import MANY
from attendo.microscope.attention_map import AttentionMap, map_of, map_text
from attendo.microscope.protocol import LookRequest
from attendo.microscope.run_model import look

TEXT = "Tomorrow it will rain in Oslo ."
STACKS = {
    "translation": ["encoder", "decoder", "cross"],
    "language-model": ["decoder"],
    "classification": ["encoder"],
    "masked-language-model": ["encoder"],
}


def one_hot(sources: list[str], targets: list[str], columns: list[int]) -> AttentionMap:
    """A map of two layers and heads: the first looks everywhere, in the second row t looks at columns[t]."""
    weights = np.full((2, 2, len(targets), len(sources)), 1 / len(sources))
    weights[1] = np.eye(len(sources))[columns]
    return AttentionMap("cross", tuple(targets), tuple(sources), weights, " ".join(sources))


def on_screen(line: str) -> int:
    """Columns in a terminal, counted apart from the code under test."""
    wide = sum(unicodedata.east_asian_width(c) in ("W", "F") for c in line)
    return len(line) + wide - sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in line)


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_a_look(family, tokenizer):
    user = looked_model(family, tokenizer)
    seen = look(user, LookRequest(text=TEXT, search="beam", beam=2, max_tokens=4))
    with recording(user.model) as record, torch.inference_mode():
        record.model(**seen.inputs)
    hidden = {"<unk>": "<mask>"} if family == "masked-language-model" else {}
    read = {"encoder": seen.source, "decoder": seen.target, "cross": seen.source}

    def pieces(ids):
        return [hidden.get(piece, piece) for piece in tokenizer.pieces(ids)]

    for stack in STACKS[family]:
        found = map_of(seen, stack)
        assert found.text == TEXT
        assert found.key_pieces == tuple(pieces(list(read[stack])))
        if stack == "cross":  # row t is the step that gave piece t, the last of which is the end
            assert found.query_pieces == (*pieces(list(seen.target[1:])), "</s>" if seen.finished else "…")
        else:
            assert found.query_pieces == found.key_pieces
        assert found.weights.shape[:2] == (2, 2)
        np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)
        part = "cross_attention" if stack == "cross" else "self_attention"
        side = "encoder" if stack == "encoder" else "decoder"
        for layer, weights in enumerate(found.weights):
            expected = record[f"{side}.blocks.{layer}.{part}"].weights[0].numpy()
            np.testing.assert_allclose(weights, expected, atol=1e-6)
    last = map_of(seen)
    assert last.stack == STACKS[family][-1]
    if missing := {"encoder", "decoder", "cross"} - set(STACKS[family]):
        with pytest.raises(AttendoError, match=f"expected {', '.join(STACKS[family])}"):
            map_of(seen, missing.pop())
    answers = {
        "translation": lambda: user.translate([TEXT], beam=2)[0].text,
        "language-model": lambda: tokenizer.decode([i for i in seen.wanted[seen.prompt_tokens - 1 :] if i is not None]),
        "classification": lambda: f"{user.classify([TEXT])[0].label} ({user.classify([TEXT])[0].probability:.1%})",
        "masked-language-model": lambda: tokenizer.decode(
            [
                best if token == tokenizer.unk_id else token  # unknown words are hidden ones
                for token, best in zip(seen.source, seen.logits.argmax(-1).tolist(), strict=True)
            ]
        ),
    }
    assert last.answer == answers[family]()


def test_the_sharpest_layer_is_shown():
    seen = one_hot(["a", "b"], ["c", "d"], [1, 0])
    assert seen.sharpest_layer == 1
    assert map_text(seen).startswith("Cross-attention, layer 2 of 2 (the sharpest), mean of 2 heads\n")
    assert map_text(seen, layer=0).startswith("Cross-attention, layer 1 of 2, mean of 2 heads\n")
    assert map_text(seen, layer=1, head=0).startswith("Cross-attention, layer 2 of 2, head 1 of 2\n")
    assert map_text(seen, layer=1, head=1, language="ja").startswith(
        "クロスアテンション、第 2 層（全 2 層）、ヘッド 2（全 2）\n"
    )
    for wrong, said in (
        ({"layer": 2}, "no layer 3; cross has 1 to 2"),
        ({"head": 2}, "no head 3"),
        ({"layer": -1}, "no layer 0"),
    ):
        with pytest.raises(AttendoError, match=said):
            map_text(seen, **wrong)


def test_one_head_or_the_mean_of_all():
    weights = np.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    seen = AttentionMap("encoder", ("c",), ("a", "b"), weights)
    np.testing.assert_array_equal(seen.shown(0), [[0.5, 0.5]])
    np.testing.assert_array_equal(seen.shown(0, 1), [[0.0, 1.0]])


def test_weights_must_fit_the_pieces():
    with pytest.raises(AttendoError, match="do not fit 1 query and 3 key pieces"):
        AttentionMap("cross", ("d",), ("a", "b", "c"), np.ones((1, 1, 1, 2)))


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
    headings, standing, sizes = [], [], []
    for block in text.split("\n\n")[1:]:
        heading, *lines = block.splitlines()
        headings.append(heading)
        assert len(lines) == 3 + n
        sizes.append(len(lines[0].split()))
        standing += zip(*("".join(line.split()) for line in lines[:3]), strict=True)
    assert ["".join(label) for label in standing] == sources
    assert headings[0].startswith("key pieces 1 to ")
    assert len(sizes) > 1 and sizes[0] - sizes[-1] < len(sizes)  # blocks of nearly equal width
    assert headings[-1].endswith(f" to {n} of {n}")
    assert text.count("██") == n + 1  # one a row and one in the explanation
    assert text.count("100%") == n
    for target, source in zip(targets, reversed(sources), strict=True):
        row = [line for line in text.splitlines() if line.lstrip().startswith(f"{target} ") and "██" in line]
        assert len(row) == 1
        assert row[0].endswith(f" {source} 100%")


def test_of_very_many_keys_neighbors_share_a_cell():
    n = 400
    weights = np.full((1, 1, 2, n), 0.001)
    weights[0, 0, 0, 123] = 0.601
    weights[0, 0, 1] = 1 / n
    seen = AttentionMap("cross", ("first", "even"), tuple(f"w{i}" for i in range(n)), weights)
    text, _, drawn = map_text(seen).partition("\n\n")
    assert text.endswith("Each cell: the largest weight of 8 neighboring key pieces, 400 in all.")
    ruler, first, even = drawn.splitlines()
    assert ruler == "      1" + "400".rjust(n // 8 - 1)
    assert first == "first " + "█".rjust(123 // 8 + 1) + " " * (49 - 123 // 8) + " w123 60% no. 124"
    assert not {"░", "▒", "▓", "█"} & set(even)  # even attention is pale, however many keys share a cell


def test_a_long_row_has_a_scale_of_its_own():
    weights = np.zeros((1, 1, 1, MANY + 1))
    weights[..., :2] = [0.125, 0.1]
    text = map_text(AttentionMap("cross", ("a",), ("b",) * (MANY + 1), weights))
    assert "░░ 1.9%, ▒▒ 4.4%, ▓▓ 7.5%, ██ 10%" in text
    assert "a ████" in text


printable = st.characters(exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp", "Zs"))
pieces = st.lists(
    st.text(printable, min_size=1, max_size=20)
    | st.sampled_from(["雨" * 30, "مطر", "e\u0301" * 30, "👍🏽", "", " ", "\n\t", "\x1b[31m", "\u202e", *HOSTILE]),
    min_size=1,
    max_size=60,
)


@settings(max_examples=40)
@given(
    sources=pieces,
    targets=pieces,
    width=st.integers(40, 120),
    language=st.sampled_from(["en", "ja"]),
    stack=st.sampled_from(["encoder", "decoder", "cross"]),
    data=st.data(),
)
def test_no_line_is_wider_than_asked_and_no_piece_commands_the_terminal(sources, targets, width, language, stack, data):
    columns = data.draw(st.lists(st.integers(0, len(sources) - 1), min_size=len(targets), max_size=len(targets)))
    weights = one_hot(sources, targets, columns).weights
    seen = AttentionMap(stack, tuple(targets), tuple(sources), weights)
    text = map_text(seen, width, head=data.draw(st.sampled_from([None, 1])), language=language)
    assert max(map(on_screen, text.split("\n"))) <= width
    assert {c for c in text if unicodedata.category(c) in ("Cc", "Zl", "Zp")} <= {"\n"}
    assert not {c for c in text if unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE")}
    opened = [text.count(mark) for mark in ("\u2068", "\u2069")]
    assert opened[0] == opened[1]


def test_too_narrow_a_terminal():
    with pytest.raises(AttendoError, match="does not fit into 39 columns"):
        map_text(one_hot(["a"], ["b"], [0]), width=39)


def test_png(tmp_path, caplog):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    from attendo.microscope.attention_map import write_picture

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
    write_picture(seen, tmp_path / "sharp.png")
    write_picture(seen, tmp_path / "flat.png", layer=0)
    assert caplog.records == []
    # the darkest blue of the scale fills six cells in one and is only on the scale in the other
    dark = np.array([8, 64, 129]) / 255
    shares = [
        (np.abs(imread(tmp_path / name)[..., :3] - dark).max(-1) < 0.01).mean() for name in ("sharp.png", "flat.png")
    ]
    assert shares[0] > 0.05 > 0.005 > shares[1]


def test_no_font_has_a_character(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from attendo.display import fonts
    from attendo.microscope import attention_map as pictures

    monkeypatch.setattr(fonts, "_others", lambda: iter(()))
    families, drawable = fonts.fonts_for("aé雨")
    assert families == [fonts.BASE]
    assert drawable == set("aé")
    assert fonts.drawn("aé雨", drawable) == "aé?"
    # drawn all the same; a box in place of a character would be a warning, and so an error
    pictures.write_picture(one_hot(["aé", "雨"], ["雨"], [1]), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_no_matplotlib(tmp_path, monkeypatch):
    from attendo.microscope.attention_map import write_picture

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "attendo.display.fonts", raising=False)
    with pytest.raises(AttendoError, match=r'pip install ".*\[plots\]"'):
        write_picture(one_hot(["a"], ["b"], [0]), tmp_path / "map.png")
    assert list(tmp_path.iterdir()) == []


def test_no_layer_is_called_the_sharpest_where_several_are():
    even = np.full((2, 1, 3, 3), 1 / 3)
    pieces = ("a", "b", "c")
    assert "sharpest" not in AttentionMap("encoder", pieces, pieces, even).caption()
    even[1, 0] += np.random.default_rng(0).normal(0, 1e-9, (3, 3))  # rounding decides nothing
    assert "sharpest" not in AttentionMap("encoder", pieces, pieces, even).caption()
    even[1, 0] = np.eye(3)
    shown = AttentionMap("encoder", pieces, pieces, even)
    assert "layer 2 of 2 (the sharpest)" in shown.caption() and "sharpest" not in shown.caption(0)
