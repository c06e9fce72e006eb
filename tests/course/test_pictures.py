"""A claim's picture in a terminal: what is dark, what is left out, how wide it is."""

import numpy as np
import pytest

from attendo.display.i18n import Localized
from attendo.display.width import columns, flowed
from attendo_course.pictures import Picture, picture_lines

TITLE = Localized("A title", "題")


def test_shades_of_a_matrix():
    values = np.array([[0.0, 0.2, 2.0], [1.0, 0.4, 0.0]])
    lines = picture_lines(Picture("matrix", TITLE, values, ("雨", "ab"), ("x", "yz", "雨")))
    assert lines == [
        "A title",
        "     y",
        "   x z 雨",
        "雨   ··██",
        "ab ▒▒░░",
        "Largest 2: · from 5%, ░ 15%, ▒ 35%, ▓ 60%, █ 80%.",
    ]


def test_negative_numbers_have_a_minus_and_zero_is_blank():
    lines = picture_lines(Picture("matrix", TITLE, np.array([[-4.0, 0.0, 4.0, -1.0]])))
    assert lines[1] == "-█  ██-░"
    assert lines[-1].endswith("A minus: negative.")


def test_a_wide_matrix_with_both_signs_runs_from_blank_to_black():
    values = np.tile(np.linspace(-1, 1, 60), (2, 1))
    lines = picture_lines(Picture("matrix", TITLE, values))
    assert lines[1] == " " * 12 + "░" * 12 + "▒" * 12 + "▓" * 12 + "█" * 12
    assert lines[-1] == "Blank is -1; ░▒▓█ show equal steps up to 1."


def test_curves_stand_on_one_scale():
    values = np.array([[0.0, 1.0, np.nan], [8.0, 4.0, 0.0]])
    lines = picture_lines(Picture("curves", TITLE, values, ("a", "bc"), ("0", "1", "2")))
    assert lines == [
        "A title",
        "",
        "",
        " a ▁▁▁▁▄▄▄▄",
        "   ████",
        "   ████▄▄▄▄",
        "bc ████████▁▁▁▁",
        "   0          2",
        "Bars from 0 to 8.",
    ]


@pytest.mark.some(4)
@pytest.mark.parametrize("kind", ["matrix", "curves"])
@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 300), (200, 200)])
def test_every_picture_fits(kind, language, shape):
    values = np.random.default_rng(0).normal(size=shape)
    names = [tuple(f"長い名前の{i}番目の行" for i in range(n)) for n in shape]
    for rows, across in (((), ()), (names[0], names[1])):
        for array in (values, np.abs(values), 0 * values, np.full(shape, np.nan)):
            lines = picture_lines(Picture(kind, TITLE, array, rows, across), language)
            assert max(map(columns, lines)) <= 79
            is_cut = shape[1] > 79 or (kind == "matrix" and shape[0] > 32)
            assert any("200" in line or "300" in line for line in lines[-2:]) == is_cut


def test_what_is_left_out_is_said():
    lines = picture_lines(Picture("matrix", TITLE, np.eye(100)))
    assert " ".join(lines[-2:]).endswith("Drawn: 25 of 100 rows, 50 of 100 columns.")
    assert "100 点のうち 50 点を表示。" in "".join(picture_lines(Picture("curves", TITLE, np.eye(100)), "ja"))


@pytest.mark.parametrize("width", [20, 33, 79])
def test_paragraphs_keep_every_character_and_break_where_they_may(width):
    text = "アテンションの重み a = softmax(-βd) は、距離が大きいほど小さい(β > 0 のとき)。「最も近いキー」を選ぶ。" * 3
    lines = flowed(text, width, "  ")
    assert max(map(columns, lines)) <= width
    assert "".join("".join(line.split()) for line in lines) == "".join(text.split())
    assert all(line.strip()[0] not in "、。)」" and line[-1] not in "(「" for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    assert flowed("", width) == [""]
    assert max(map(columns, flowed("x" * 200, width))) == width
