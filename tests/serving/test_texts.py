"""Given texts: labels, tokens, log-probabilities; the microscope's questions; models that are chosen and swapped."""

import asyncio
import dataclasses

import pytest
import torch
from asgi_client import ask
from hypothesis import given, settings
from hypothesis import strategies as st
from looked_models import looked_model
from served_models import TOKENIZER, client_of, every_family, serving
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.data.token_stream import TokenStream
from attendo.errors import AttendoError
from attendo.inference.perplexity import text_loss

STATE, APP = serving(look=True)
USERS = {served.name: served.user for served in STATE.models}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def told(path, body, app=APP):
    answer = ask(app, "POST", path, {}, body)
    assert answer.status == 200, answer.body
    return answer.json


def refused(path, body, app=APP):
    answer = ask(app, "POST", path, {}, body)
    return answer.status, answer.json["error"]


def test_another_method_is_told_the_one_to_send_it_by():
    answer = ask(APP, "GET", "/classify")
    assert answer.status == 405
    assert answer.error == "this path does not support that method; use POST"


@settings(max_examples=20)
@given(st.lists(texts, min_size=1, max_size=5))
def test_labels_are_those_of_classify(given_texts):
    found = told("/classify", {"texts": given_texts})["results"]
    for one, wanted in zip(found, USERS["rain"].classify(given_texts), strict=True):
        facts = dataclasses.asdict(wanted)
        assert one["probabilities"] == pytest.approx(facts["probabilities"], abs=1e-5)
        assert (one["label"], one["n_tokens"], one["cut"]) == (wanted.label, wanted.n_tokens, wanted.cut)
    assert told("/classify", {"text": given_texts[0]})["results"][0]["label"] == found[0]["label"]


@settings(max_examples=30)
@given(texts)
def test_tokens_spell_the_text_again(text):
    found = told("/tokenize", {"text": text, "model": "enja"})
    assert found["ids"] == TOKENIZER.encode(text)
    assert len(found["pieces"]) == len(found["spans"]) == len(found["ids"])
    assert told("/detokenize", {"ids": found["ids"], "model": "enja"})["text"] == text


def test_an_uncased_tokenizer_has_no_spans():
    classifier = looked_model("classification", tiny_tokenizer("uncased"))
    app = serving(("words", classifier, None, None))[1]
    assert told("/tokenize", {"text": "It RAINS."}, app)["spans"] is None


def test_spans_are_those_of_the_tagger():
    tagger = looked_model("tagging", TOKENIZER)
    app = serving(("names", tagger, None, None))[1]
    texts = ["  It will rain 🎉 in Rome.", "", "Snow"]
    found = told("/classify", {"texts": texts}, app)["results"]
    assert found == [one.as_json() for one in tagger.classify(texts)]
    assert any(one["spans"] for one in found)
    for text, one in zip(texts, found, strict=True):
        assert all(text[span["start"] : span["end"]] == span["text"] for span in one["spans"])


@pytest.mark.parametrize("penalty", [None, 1.5])
def test_pairs_have_the_scores_of_score(penalty):
    pairs = [("It will rain.", "雨"), ("", "雨"), ("Snow", "")] * 3
    body = {"pairs": [{"source": s, "target": t} for s, t in pairs], "top": 3}
    found = told("/score", body | ({} if penalty is None else {"length_penalty": penalty}))["results"]
    for one, wanted in zip(found, USERS["enja"].score(pairs, penalty), strict=True):
        assert one["log_prob"] == pytest.approx(wanted.log_prob, abs=1e-5)
        assert one["score"] == pytest.approx(wanted.score, abs=1e-5)
        assert [token["id"] for token in one["tokens"]] == [*wanted.token_ids, TOKENIZER.eos_id]
        for token in one["tokens"]:
            values = [other["log_prob"] for other in token["top"]]
            assert values == sorted(values, reverse=True)
            assert token["log_prob"] <= values[0] + 1e-4
    single = told("/score", {"source": "It will rain.", "target": "雨"})["results"][0]
    assert "top" not in single["tokens"][0]


@settings(max_examples=15)
@given(st.lists(texts.filter(bool), min_size=1, max_size=3), st.integers(0, 2))
def test_texts_have_the_loss_of_evaluate(given_texts, top):
    writer = USERS["writer"]
    results = told("/score", {"texts": given_texts, "top": top})["results"]
    for text, one in zip(given_texts, results, strict=True):
        stream = TokenStream.of([text], TOKENIZER)
        wanted = text_loss(writer.model, stream.documents(), writer.model.config.max_len)
        assert one["log_prob"] == pytest.approx(-wanted.nats, rel=1e-5)
        assert one["n_tokens"] == wanted.n_targets
        assert one["perplexity"] == pytest.approx(wanted.perplexity, rel=1e-4)
        assert one["bits_per_byte"] == pytest.approx(wanted.bits_per_byte, rel=1e-5)
        assert sum(token["log_prob"] for token in one["tokens"]) == pytest.approx(one["log_prob"])


def test_a_long_text_is_scored_in_windows():
    writer, text = USERS["writer"], "It will rain in Oslo tonight. " * 40
    wanted = text_loss(writer.model, TokenStream.of([text], TOKENIZER).documents(), 60)
    assert told("/score", {"text": text})["results"][0]["log_prob"] == pytest.approx(-wanted.nats, rel=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/classify", {}, 422, "the body: give text, or texts"),
        ("/classify", {"text": "a", "texts": ["b"]}, 422, "give text, or texts"),
        ("/classify", {"text": "a", "model": "enja"}, 400, "is a translator, not a classifier"),
        ("/classify", {"text": "a", "model": "none"}, 404, "no model has this name"),
        ("/classify", {"texts": ["a"] * 300}, 413, "300 texts (at most 256"),
        ("/classify", {"text": "a" * 60_000}, 413, "a text has 60,000 characters"),
        ("/tokenize", {"text": "a"}, 400, "set model to one of: enja, writer, rain, mask"),
        ("/tokenize", {"text": 5, "model": "enja"}, 422, "text: input should be a valid string"),
        ("/detokenize", {"ids": [70_000], "model": "enja"}, 400, "token id 70000 must be between"),
        ("/detokenize", {"ids": [True], "model": "enja"}, 422, "ids[0]: input should be a valid integer"),
        ("/score", {"source": "a"}, 422, "give source and target"),
        ("/score", {"text": "a", "source": "a", "target": "b"}, 422, "give source and target"),
        ("/score", {"pairs": [{"source": "a", "goal": "b"}]}, 422, "target is missing"),
        ("/score", {"source": "a " * 400, "target": "b"}, 400, "(at most 59); split it"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(path, body, status, said):
    code, message = refused(path, body)
    assert code == status, message
    assert said in message


BROKEN = [b'{"text":"\\ud800"}', b'{"text":"\xff"}', b'{"text":', b'{"text":NaN}']
BROKEN += [b'{"text":{"a":[-Infinity]}}', b'{"text":1e999}', b"[]", b"\x00", b"[" * 5000, b""]
ROUTES = ["/classify", "/tokenize", "/score", "/v1/completions", "/look/enja/api/look"]


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize("path", ROUTES)
def test_a_body_that_is_no_json_is_refused(path, data):
    assert ask(APP, "POST", path, {"Content-Type": "application/json"}, data).status == 422


def test_a_nul_is_a_character():
    assert told("/tokenize", {"text": "a\0b", "model": "enja"})["ids"] == TOKENIZER.encode("a\0b")
    assert told("/classify", {"text": "a\0b"})["results"][0]["label"] in ("rain", "snow", "sun")


def test_one_text_that_fails_spoils_no_other_request():
    """They go through the model together, and the one that can't be is refused alone."""
    classifier = looked_model("classification", TOKENIZER)
    real = classifier.classify

    def picky(some):
        if "bad" in some:
            raise AttendoError("that text is bad; send another")
        return real(some)

    classifier.classify = picky
    app = serving(("picky", classifier, None, None))[1]

    async def all_of_them():
        async with client_of(app) as client:
            bodies = [{"texts": ["rain", name]} for name in ("good", "bad", "good", "bad")]
            return await asyncio.gather(*(client.post("/classify", json=body) for body in bodies))

    answers = asyncio.run(all_of_them())
    assert [answer.status_code for answer in answers] == [200, 400, 200, 400]
    assert answers[1].json() == {"error": "that text is bad; send another"}


def test_a_model_that_computes_no_numbers_is_no_fault_of_the_server():
    classifier = looked_model("classification", TOKENIZER)
    with torch.no_grad():
        classifier.model.output_proj.weight.fill_(torch.nan)
    app = serving(("broken", classifier, None, None))[1]
    assert refused("/classify", {"text": "rain"}, app)[0] == 422
    assert "diverged" in refused("/classify", {"text": "rain"}, app)[1]


def test_a_swap_between_choosing_and_asking_is_no_error():
    """Texts are made tokens by the old model, which stops meanwhile: the new one does it once more."""
    state, app = serving(every_family()[0])
    new = tiny_translator(TOKENIZER, seed=9, max_len=60)
    body = {"q": "It will rain. " * 200, "source": "en", "target": "ja", "beam": 1}  # long: in another thread

    async def main():
        async with client_of(app) as client:
            asking = asyncio.ensure_future(client.post("/translate", json=body))
            await asyncio.sleep(0)
            state.models.put("enja", new, "en", "ja")
            return await asking

    answer = asyncio.run(main())
    assert answer.status_code == 200
    assert answer.json()["translatedText"] == new.translate([body["q"]], beam=1)[0].text


def test_the_microscope_answers_where_it_was_asked_for():
    page = ask(APP, "GET", "/look/enja/", {"Accept-Language": "ja,en"})
    assert b'<html lang="ja">' in page.body
    assert "frame-ancestors 'none'" in page["content-security-policy"]
    moved = ask(APP, "GET", "/look/enja")
    assert (moved.status, moved["location"]) == (307, "enja/")
    seen = told("/look/enja/api/look", {"text": "It will rain."})
    path = seen["stacks"][0]["layers"][0]["path"]
    numbers = ask(APP, "POST", "/look/enja/api/tensor", {}, {"key": seen["key"], "path": path})
    assert numbers["content-type"] == "application/octet-stream"
    assert told("/look/rain/api/model", {})["family"] == "classification"
    code, message = refused("/look/enja/api/look", {"tekst": "x"})
    assert (code, "text" in message) == (400, True)
    assert refused("/look/enja/api/nothing", {})[0] == 400
    assert refused("/look/nobody/api/model", {})[0] == 404
    assert ask(serving(every_family()[0])[1], "GET", "/look/enja/").status == 404


QUESTIONS = [
    "model", "look", "tensor", "matrices", "effects", "film", "lens", "influence", "next", "tree", "why",
    "positions", "tokens", "attribution", "nothing",
]  # fmt: skip
odd = st.one_of(
    st.text(max_size=5),
    st.integers(-3, 40),
    st.sampled_from([2**70, 1e300, "forced", "beam", "decoder", "encoder", "*", "\0", "雨"]),
    st.none(),
    st.booleans(),
    st.lists(st.integers(-1, 10**9), max_size=3),
    st.just([{"kind": "beta", "path": "*", "beta": "inf"}]),
)
FIELDS = [
    "text", "search", "beam", "target", "prefix_ids", "max_tokens", "edits", "path", "head", "stack",
    "position", "n", "side", "other",
]  # fmt: skip


@settings(max_examples=60)
@given(
    st.sampled_from(["enja", "writer", "rain", "mask"]),
    st.sampled_from(QUESTIONS),
    st.dictionaries(st.sampled_from(FIELDS), odd, max_size=4),
    st.booleans(),
)
def test_odd_questions_to_the_microscope_are_no_faults(model, name, fields, known):
    key = told(f"/look/{model}/api/look", {"text": "It will rain."})["key"]
    body = {"text": "rain"} | fields if name == "look" else {"key": key if known else "x"} | fields
    answer = ask(APP, "POST", f"/look/{model}/api/{name}", {}, body)
    assert answer.status in (200, 400), answer.body
