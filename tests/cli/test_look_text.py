"""What `attendo look` prints of a text and its answer, above the map."""

from looked_models import hostile_tokenizer, looked_model

import attendo as library
from attendo.cli import look_text
from attendo.cli.look_text import text_lines
from attendo.microscope.effects import tokens_answer

TEXT = "Tomorrow it will rain ."


def test_a_label_comes_with_the_tokens_that_matter_most(monkeypatch):
    """They are those of the page's Classes, with the same signs: a token above 0 supports the label."""
    view = library.look(looked_model("classification", hostile_tokenizer()), TEXT)
    gained = tokens_answer(view.result)["left_out"]
    order = sorted(range(len(gained)), key=lambda i: -abs(gained[i]))
    printed = text_lines(view, None, None, None, "en", "answer")
    assert max(map(len, printed)) <= 80
    pieces = [piece.strip("▁") for piece in view.map().query_pieces]
    listed = ", ".join(f"{pieces[i]} {gained[i]:+.2f}" for i in order[: look_text.MOST_TOKENS])
    assert " ".join(line.strip() for line in printed).endswith(
        f" log-probability with minus without a token: {listed}"
    )
    monkeypatch.setattr(look_text, "MOST_WORK", 10)
    assert text_lines(view, None, None, None, "en", "answer") == printed[:3]


def test_other_models_have_no_such_line():
    view = library.look(looked_model("translation", hostile_tokenizer()), TEXT)
    assert not any("without" in line for line in text_lines(view, None, None, None, "en", "answer"))
