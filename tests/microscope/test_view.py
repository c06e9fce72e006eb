"""attendo.look: text, numbers, files and what a notebook shows, for every family."""

import csv
import html
import io
import logging
import re

import numpy as np
import pytest
import torch
from looked_models import FAMILIES, HOSTILE, hostile_tokenizer
from tiny_translator import save_run, tiny_translator

import attendo
from attendo.errors import AttendoError
from attendo.inspecting.edits import Off, Patch, Temper
from attendo.inspecting.recording import recording
from attendo.microscope.protocol import EditRequest
from attendo.microscope.view import MOST_TOKENS, guarded, table_text

TEXT = "Tomorrow it will rain in Oslo ."
LAST = {
    "translation": "decoder.blocks.1.cross_attention",
    "language-model": "decoder.blocks.1.self_attention",
    "classification": "encoder.blocks.1.self_attention",
    "masked-language-model": "encoder.blocks.1.self_attention",
}


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_view_of_every_family(users, family):
    view = attendo.look(users[family], TEXT, max_tokens=4)
    assert str(view).splitlines()[0].startswith(view.map().caption())
    assert all(len(line) <= 80 for line in str(view).splitlines())
    assert repr(view).startswith(f"View('{TEXT}' → ")
    assert LAST[family] in view.paths
    rows = view.heads()
    assert sorted((row["path"], row["head"]) for row in rows) == [(p, h) for p in sorted(view.paths) for h in (0, 1)]
    weights = view.weights(LAST[family])
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean(-1)
    found = [row["entropy"] for row in rows if row["path"] == LAST[family]]
    np.testing.assert_allclose(found, entropy, atol=1e-5)
    assert view.change is None
    assert ("labels" in view.outcome) == (family == "classification")


def test_a_folder_is_as_good_as_a_model(tmp_path):
    translator = tiny_translator(hostile_tokenizer())
    folder = save_run(tmp_path / "run", translator)
    view = attendo.look(str(folder), TEXT)
    assert view.outcome["text"] == translator.translate([TEXT])[0].text
    assert view.result.folder == folder
    np.testing.assert_array_equal(
        view.weights("encoder.blocks.0.self_attention"),
        attendo.look(translator, TEXT).weights("encoder.blocks.0.self_attention"),
    )


def test_edits_and_what_they_change(users):
    user, path = users["translation"], "decoder.blocks.0.cross_attention"
    edits = [Off(path, (1,)), Temper("encoder.*", float("inf"))]
    view = attendo.look(user, TEXT, edits=edits, target="rain in Oslo")
    assert set(np.unique(view.weights("encoder.blocks.0.self_attention"))) == {0.0, 1.0}
    with recording(user.model, keep=(), edits=edits) as record, torch.inference_mode():
        logits = record.model(**view.result.inputs)[0]
    torch.testing.assert_close(view.result.logits, logits, atol=1e-5, rtol=0)
    change = view.change
    assert change is not None
    assert change["total"] == pytest.approx(view.outcome["log_prob"] - change["log_prob"], abs=1e-4)
    same = attendo.look(user, TEXT, target="rain in Oslo", edits=[EditRequest(kind="off", path=path, head=1)])
    assert same.change is not None
    assert same.result.edits == (Off(path, (1,)),)
    with pytest.raises(AttendoError, match=r"look supports only Off and Temper\. For Patch"):
        attendo.look(user, TEXT, edits=[Patch(path, torch.ones(1, 1), "weights")])
    with pytest.raises(AttendoError, match="matches no attention layer"):
        attendo.look(user, TEXT, edits=[Off("nowhere")])


def test_what_is_not_there(users, tmp_path):
    view = attendo.look(users["language-model"], TEXT, beam=2, max_tokens=2)
    with pytest.raises(AttendoError, match=r"unknown attention layer 'nowhere' \(expected decoder"):
        view.weights("nowhere")
    with pytest.raises(AttendoError, match=r"no cross attention \(expected decoder"):
        view.map("cross")
    with pytest.raises(AttendoError, match=r"map\.jpg must end in .*for example map\.html"):
        view.save(tmp_path / "map.jpg")
    with pytest.raises(AttendoError, match="beam=99 must be 1 to"):
        attendo.look(users["translation"], TEXT, beam=99)
    with pytest.raises(AttendoError, match="no head 9"):
        view.save(tmp_path / "map.csv", head=8)
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_weights(users):
    view = attendo.look(users["translation"], " ".join(HOSTILE), target="rain in Oslo")
    shown = view.map()
    rows = list(csv.reader(io.StringIO(table_text(shown), newline="")))
    assert rows[0] == ["layer", "head", "query", "key", "query_piece", "key_piece", "weight"]
    assert len(rows) == 1 + shown.weights.size
    for layer, head, query, key, query_piece, key_piece, weight in rows[1:]:
        at = tuple(int(number) - 1 for number in (layer, head, query, key))
        assert float(weight) == pytest.approx(float(shown.weights[at]), rel=1e-5)
        pieces = (shown.query_pieces[at[2]], shown.key_pieces[at[3]])
        assert (query_piece, key_piece) == tuple(map(guarded, pieces))
    one = list(csv.reader(io.StringIO(table_text(shown, 1, 0), newline="")))
    assert one[1:] == [row for row in rows[1:] if row[:2] == ["2", "1"]]


def test_pictures(users, tmp_path, caplog):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    caplog.set_level(logging.WARNING)
    view = attendo.look(users["translation"], " ".join(HOSTILE), target="rain")
    for name in ("map.png", "map.svg", "again.svg"):
        view.save(tmp_path / name, "cross", 1, 0)
    assert (tmp_path / "map.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert imread(tmp_path / "map.png").std() > 0.01
    assert "<img" not in (tmp_path / "map.svg").read_text(encoding="utf-8")
    figure = view.figure("decoder", 0, 1)
    assert figure.get_suptitle() == "Self-attention of the decoder, layer 1 of 2, head 2 of 2"
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), view.weights("decoder.blocks.0.self_attention")[1])
    assert caplog.records == []


def test_a_page_asks_the_model_once(users, monkeypatch):
    asked = []
    monkeypatch.setattr("attendo.microscope.session.look", lambda *given: asked.append(given))
    assert "<html" in attendo.look(users["translation"], "rain").page()
    assert asked == []


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing(users):
    view = attendo.look(users["classification"], " ".join(HOSTILE))
    shown = view._repr_html_()
    frame = re.fullmatch(r'<iframe sandbox="([^"]*)" [^<>]* srcdoc="([^"<>]*)"></iframe>', shown)
    assert frame is not None
    assert "allow-same-origin" not in frame[1]
    page = html.unescape(frame[2])
    assert re.sub(r'"seconds":[0-9.e-]+', "", page) == re.sub(r'"seconds":[0-9.e-]+', "", view.page())
    assert page.startswith("<!doctype html>")


def test_of_a_long_text_a_notebook_shows_the_map(users):
    view = attendo.look(users["masked-language-model"], "<b> " * (MOST_TOKENS + 1))
    shown = view._repr_html_()
    assert shown.startswith("<pre>View(")
    assert "\n\nSelf-attention of the encoder, " in shown
    assert "<b>" not in shown
    assert ".save('page.html') writes the page" in shown


def test_a_view_is_named_by_the_beginning_of_its_text(users):
    """Two of them in a notebook can be told apart, and none fills the screen."""
    rain, snow = (attendo.look(users["classification"], f"{word}\nin Oslo " * 30) for word in ("rain", "snow"))
    for view, word in ((rain, "rain"), (snow, "snow")):
        assert repr(view).startswith(f"View('{word}\\nin Oslo {word}\\n")
        assert len(repr(view)) < 250
        (title,) = re.findall(r'^<iframe [^<>]* title="([^"]*)"', view._repr_html_())
        assert title.startswith(f"attendo look: {word}\nin Oslo ")
        assert title.endswith("…")
