"""Each sentence of a text is translated, by every way in; a translation in which text is missing is marked."""

import asyncio
import json

import numpy as np
import pytest
from command_line import attendo
from served_models import client_of, serving
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

from attendo.data.segments import Usual, split_sentences, usual_of
from attendo.decoding.protocols import Hypothesis
from attendo.errors import AttendoError
from attendo.inference.translations import sources_of, usual_of_run

FIRST, SECOND = "On Monday it will snow in Oslo.", "It might rain in Sapporo tomorrow."
TEXT = f"{FIRST}  {SECOND}"
TOKENIZER = tiny_tokenizer()
USER = tiny_translator(TOKENIZER, max_len=200).prepare()


def both(beam=None, **options):
    """The sentences translated each by itself, joined as the text is."""
    alone = USER.translate([FIRST, SECOND], beam, segment="none", **options)
    return split_sentences(TEXT).joined([found.text for found in alone])


def test_both_sentences_are_translated_from_python():
    (found,) = USER.translate([TEXT])
    assert found.text == both() and found.parts == 2
    assert "".join(USER.stream(TEXT)) == both(beam=1, guard=False)
    (whole,) = USER.translate([TEXT], segment="none")
    assert whole.parts == 1 and whole.text != found.text
    (line,) = USER.translate([f"{TEXT}\n{FIRST}"], segment="paragraph")
    assert line.parts == 2


def test_both_sentences_are_translated_by_the_command(tmp_path):
    run = save_run(tmp_path / "run", USER)
    found = json.loads(attendo("translate", run, TEXT, "--json").out)
    assert found["translations"][0]["text"] == both() and found["parts"] == 2
    assert found["omission"] == "none"
    whole = json.loads(attendo("translate", run, TEXT, "--json", "--segment", "none").out)
    assert whole["parts"] == 1
    assert attendo("translate", run, TEXT, "--segment", "words").code == 2


def test_both_sentences_are_translated_by_the_server():
    _, app = serving(("own", USER, "en", "ja"))
    body = {"q": TEXT, "source": "en", "target": "ja", "details": True}
    sentences, whole, wrong = posted_to(app, body, body | {"segment": "none"}, body | {"segment": "x"})
    assert sentences.json()["translatedText"] == both()
    assert [answer.json()["details"]["parts"] for answer in (sentences, whole)] == [2, 1]
    assert wrong.status_code == 400 and "segment" in wrong.json()["error"]


def test_a_translation_far_shorter_than_usual_is_marked():
    sources = sources_of(TOKENIZER, [FIRST, "Snow."], 100, usual=Usual(100, fewest=0.5))
    n = len(TOKENIZER.encode(FIRST))

    def omissions(n_tokens, looks=None):
        found = [([hypothesis((5,) * size)], "none") for size in (n_tokens, 1)]
        return [one.omission for one in sources.translations(found, TOKENIZER, 1, looks)]

    assert omissions(n // 2 - 1) == ["short", "none"]  # "Snow." has too few tokens to tell
    assert omissions(n) == ["none", "none"]
    narrow, wide = ({(5,) * n: tuple((i % m, 1.0) for i in range(n))} for m in (n // 4, n))
    assert omissions(n, [narrow, {(5,): ((0, 1.0),)}]) == ["unaligned", "none"]
    assert omissions(n, [wide, {(5,): ((0, 1.0),)}]) == ["none", "none"]


def hypothesis(ids):
    return Hypothesis(ids, -1.0, -1.0, (-0.1,) * (len(ids) + 1), True)


def posted_to(app, *bodies):
    async def all_of_them():
        async with client_of(app) as client:
            return [await client.post("/translate", json=body) for body in bodies]

    return asyncio.run(all_of_them())


def test_a_mark_reaches_the_command_and_the_server(tmp_path):
    shy = tiny_translator(TOKENIZER, max_len=200)
    shy.card = {"task": "translation", "data": {"usual": {"longest": 50, "fewest": 9.0, "beginnings": []}}}
    run = save_run(tmp_path / "run", shy)
    card = json.loads((run / "card.json").read_text()) | shy.card
    (run / "card.json").write_text(json.dumps(card))
    outcome = attendo("translate", run, FIRST, "--json")
    assert json.loads(outcome.out)["omission"] == "short"
    assert "1 of 1 translations are far shorter than usual" in outcome.err
    _, app = serving(("own", shy.prepare(), "en", "ja"))
    (answer,) = posted_to(app, {"q": [FIRST], "source": "en", "target": "ja"})
    assert answer.json()["omission"] == ["short"]


def test_what_is_usual_is_counted_in_the_training_pairs():
    lengths = np.array([10] * 997 + [9000] * 2 + [9001]), np.array([10] * 999 + [20])
    texts = ["A dog saw Rome"] * 90 + ["Rome saw A dog"] * 2 + ["In a dog"] * 20
    usual = usual_of([lengths], texts)
    assert usual.longest == 9000 and usual.fewest == 0.0
    assert usual_of_run({"data": {"usual": usual._asdict()}}, None) == usual  # as the run in memory has it
    assert usual.beginnings == ("In",)  # "A" is inside a text, too, more often than once in a hundred


def test_a_word_that_only_begins_sources_begins_a_sentence():
    usual = Usual(100, beginnings=("A", "Two"))
    texts = ["a man in a shirt A woman sings Two dogs run", "to Two Harbors", "type A", "Rain\nTwo dogs run"]
    found = sources_of(TOKENIZER, texts, 100, segment="sentence", usual=usual)
    assert [text.pieces for text in found.texts] == [
        ("a man in a shirt", "A woman sings", "Two dogs run"),
        ("to Two Harbors",),
        ("type A",),
        ("Rain", "Two dogs run"),
    ]


@pytest.mark.parametrize("usual", [3, {"longest": -1}, {"longest": 5, "fewest": "x", "beginnings": []}])
def test_a_damaged_card_is_named(tmp_path, usual):
    with pytest.raises(AttendoError, match=r"invalid data\.usual"):
        usual_of_run({"data": {"usual": usual}}, tmp_path)
