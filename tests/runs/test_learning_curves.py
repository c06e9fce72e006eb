"""What a report is made of: curves and events from the lines of logs, axes with round numbers, a page that is safe."""

import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_log import ENTRIES, NASTY, log_folder

from attendo.errors import AttendoError
from attendo.microscope.curves import axis_of, report_page, short_names, tick_texts, write_picture
from attendo.runs.learning_curves import (
    Event,
    differing_settings,
    events,
    facts_of,
    panels,
    read_run,
    smoothed,
    thinned,
)


@pytest.fixture
def run(tmp_path):
    return read_run(log_folder(tmp_path / "run"))


def points(panel, style, number=0):
    (curve,) = [curve for curve in panel.curves if curve.style == style and curve.run == number]
    return list(zip(curve.xs.tolist(), curve.ys.tolist(), strict=True))


def test_curves_hold_what_the_lines_say(run):
    found = {panel.name: panel for panel in panels([run])}
    assert list(found) == ["loss", "bleu", "perplexity", "unheard_of", "rate", "gradient_norm", "speed"]
    assert points(found["loss"], "faint") == [(n, 8 / (1 + n / 40)) for n in (20, 40, 100)]  # no number, no point
    assert points(found["loss"], "dots") == [(40, 3.0), (80, 2.5), (90, 2.6)]
    assert points(found["bleu"], "dots") == [(40, 12.0), (80, 17.5), (90, 17.0)]
    assert points(found["unheard_of"], "dots") == [(40, 0.5)]
    minutes = {panel.name: panel for panel in panels([run], "minutes")}
    assert points(minutes["bleu"], "dots")[0] == (pytest.approx(9 / 60), 12.0)


def test_speed_leaves_out_the_time_of_evaluations(run):
    """Behind an evaluation at the same step the clock goes on from there; where one lies between, there is no point."""
    speed = next(panel for panel in panels([run]) if panel.name == "speed")
    assert points(speed, "line") == [
        (40, pytest.approx(1000)),
        (60, pytest.approx((11_000 - 4000) / (11 - 9))),
    ]


def test_what_happened_when(run):
    found = [(event.kind, event.x, event.step) for event in events([run])]
    assert found == [
        ("best", 80, 80),
        ("decay", 60, 60),
        ("checkpoint", 40, 40),
        ("skipped", 50, 50),
        ("advice", 70, 70),
        ("checkpoint", 90, 90),
    ]
    still_open = [entry for entry in ENTRIES if entry["step"] < 60]
    assert "decay" not in [event.kind for event in events([read_run(log_folder(Path(run.name), still_open))])]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(0, 9))
def test_smoothing_stays_between_the_values_and_does_not_lag(values, reach):
    found = smoothed(np.array(values), reach)
    assert found.min() >= min(values) - 1e-6 and found.max() <= max(values) + 1e-6
    line = np.arange(len(values), dtype=float)
    assert smoothed(line, reach) == pytest.approx(line)


@given(st.integers(1, 2000), st.integers(1, 50))
def test_thinned_curves_keep_their_mean(n, most):
    xs, ys = np.arange(n, dtype=float), np.sin(np.arange(n))
    fewer_xs, fewer_ys = thinned(xs, ys, most)
    assert len(fewer_xs) == min(n, most)
    if n % min(n, most) == 0:
        assert fewer_ys.mean() == pytest.approx(ys.mean())
    assert (np.diff(fewer_xs) > 0).all()


@given(st.lists(st.floats(-1e9, 1e9).map(lambda x: round(x, 5)), min_size=1, max_size=9), st.booleans())
def test_axes_hold_their_values_and_have_few_round_numbers(values, logarithmic):
    axis = axis_of(values, logarithmic)
    assert all(-1e-9 <= axis.place(value) <= 1 + 1e-9 for value in values)
    ticks = axis.ticks()
    assert len(ticks) <= 6 and ticks == sorted(set(ticks))
    assert all(axis.low - 1e-6 * abs(axis.low) <= tick <= axis.high + 1e-6 * abs(axis.high) for tick in ticks)
    assert len(set(tick_texts(ticks))) == len(ticks)


@settings(max_examples=60)
@given(st.floats(1e-12, 1e12), st.floats(1.0001, 1e9))
def test_every_range_has_a_round_number_in_it(low, ratio):
    assert axis_of([low, low * ratio], logarithmic=True).ticks()


class Page(HTMLParser):
    """Which tags there are, and all text outside of the style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.attributes = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.tags and self.tags[-1] != "style":
            self.text.append(data)


@pytest.mark.some(1)
@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_page_is_safe_and_stands_alone(tmp_path, language):
    runs = [read_run(log_folder(tmp_path / name)) for name in ("a", "<b>b</b>".replace("/", "∕"))]
    for chosen in (runs[:1], runs):
        text = report_page(chosen, "step", language)
        page = Page(text)
        assert not {"script", "link", "img", "iframe", "object", "b"} & set(page.tags)
        assert not [
            value for name, value in page.attributes if name.startswith("on") or name in ("src", "href", "style")
        ]
        assert "default-src 'none'" in text and not re.search(r"url\(|@import|https?://", text)
        assert page.tags.count("figure") == 7 and page.tags.count("svg") >= 7
        whole = "".join(page.text)
        assert f"{'advice' if language == 'en' else '助言'}: {escape(NASTY)}</td>" in text
        assert NASTY in whole and "1,234,567" in whole
        assert ("学習曲線" in whole) == (language == "ja")
        assert f'<html lang="{language}">' in text
        assert "nan" not in re.sub(r"<style>.*</style>", "", text, flags=re.S)


def test_the_facts_of_a_run(run):
    found = facts_of(run)
    assert found["model"] == "d_model 64, n_heads 4"
    assert found["best"] == "loss 2.5, BLEU 17.5, perplexity 12.2 (step 80)"
    assert found["so far"] == "step 100, epoch 1, 20,000 tokens"
    assert found["time"] == "0.2 minutes (0.2 CPU-minutes)"
    assert found["end"] == "all 100 steps done"
    assert facts_of(run, "ja")["training"] == "100 ステップ"


def test_runs_beside_one_another_name_own_parts_and_settings_that_differ(tmp_path, run):
    config = "[model]\nd_model = 32\nn_heads = 4\n[training]\nsteps = 100\nprecision = 'bfloat16'\n"
    other = read_run(log_folder(tmp_path / "other", card={"own_parts": "near.py:with_near"}, config=config))
    assert differing_settings([run, other]) == ["model.d_model 64 / 32", "training.precision – / bfloat16"]
    assert differing_settings([run]) == [] and facts_of(other)["own parts"] == "near.py:with_near"
    page = report_page([run, other], language="ja")
    assert "<td>near.py:with_near</td>" in page and "訓練の間で異なる設定: model.d_model 64 / 32; " in page


def test_a_run_without_card_and_config_has_curves_all_the_same(tmp_path):
    run = read_run(log_folder(tmp_path / "run", card=None, config=None))
    assert set(facts_of(run)) == {"so far", "time", "best", "end"}
    assert "<svg" in report_page([run])


def test_names_are_short_where_they_differ(tmp_path):
    a, b = (read_run(log_folder(tmp_path / part / "run")) for part in "ab")
    assert short_names([a]) == ["run"]
    assert short_names([a, b]) == [a.name, b.name]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metrics.jsonl", b'{"kind": "step", "step": 20}\nnothing\n', r"metrics.jsonl:2: damaged"),
        ("metrics.jsonl", b"", "has no entries to show yet"),
        ("card.json", b'{"task": "transl', "card.json is damaged"),
        ("card.json", b"[1]", "card.json is damaged"),
        ("config.toml", b"[model\n", "config.toml"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, said):
    folder = log_folder(tmp_path / "run")
    (folder / name).write_bytes(content)
    with pytest.raises(AttendoError, match=said):
        read_run(folder)


def test_the_picture_takes_any_note(tmp_path, monkeypatch):
    event = Event(0, "advice", 40.0, 40, "\x1b[31m\x00 & <b>")
    monkeypatch.setattr("attendo.microscope.curves.events", lambda runs, across: [event])
    write_picture([read_run(log_folder(tmp_path / "run"))], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
