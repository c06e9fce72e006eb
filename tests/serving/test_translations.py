"""LibreTranslate's interface: its client unchanged, lists as Weblate sends them, and what is ours beside it."""

import asyncio
import json
import urllib.error

import pytest
import torch
from asgi_client import ask
from hypothesis import given, settings
from hypothesis import strategies as st
from libretranslatepy import LibreTranslateAPI
from served_models import TOKENIZER, client_of, live, serving
from tiny_translator import tiny_translator

USER = tiny_translator(TOKENIZER, max_len=60).prepare()
STATE, APP = serving(("enja", USER, "en", "ja"))
PAIR = {"source": "en", "target": "ja"}
WORDS = ["rain", "snow", "it", "will", ".", "Oslo", " ", "雨"]
texts = st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join).map(str.strip)
gaps = st.sampled_from(["\n", "\n\n", "  \r\n\t", "\u2028", "\n \n\v "])

_covered = tiny_translator(TOKENIZER, max_len=60, coverage_penalty=0.2)
COVERED = _covered, serving(("covered", _covered, "en", "ja"))[1]


def posted(*bodies, app=APP, path="/translate", **options):
    """The answers to JSON bodies that are sent at one time."""

    async def all_of_them():
        async with client_of(app) as client:
            return await asyncio.gather(*(client.post(path, json=body, **options) for body in bodies))

    return asyncio.run(all_of_them())


def refused(app=APP, **body):
    (answer,) = posted(body, app=app)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.fixture(scope="module")
def pairs():
    """A server of three translators: en-ja, en-de, and one whose languages nobody told."""
    german = tiny_translator(TOKENIZER, seed=1, max_len=60)
    return serving(("enja", USER, "en", "ja"), ("ende", german, "en", "de"), ("own", german, None, None))[1]


def test_its_client_asks_unchanged():
    app = serving(("enja", USER, "en", "ja"), keys=["secret"])[1]
    with live(app) as address:
        client = LibreTranslateAPI(address, api_key="secret")
        found = USER.translate(["It will rain.", "Snow."])
        text = client.translate("It will rain.\n\nSnow.", "en", "ja")
        assert text == "\n\n".join(one.text for one in found)
        assert client.languages()[0] == {"code": "en", "name": "English", "targets": ["ja"]}
        with pytest.raises(urllib.error.HTTPError, match="400") as wrong:
            client.detect("It will rain.")
        assert "set source" in json.loads(wrong.value.read())["error"]
        wrong.value.close()
        with pytest.raises(urllib.error.HTTPError, match="401") as wrong:
            LibreTranslateAPI(address, api_key="wrong").translate("rain", "en", "ja")
        wrong.value.close()


@settings(max_examples=15)
@given(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), st.integers(0, 3)), min_size=1, max_size=4))
def test_lists_and_alternatives_are_what_the_search_finds(requests):
    bodies = [PAIR | {"q": q, "alternatives": n, "format": "text"} for q, n in requests]
    for (q, n), answer in zip(requests, posted(*bodies), strict=True):
        assert answer.status_code == 200
        found = USER.translate(q, beam=max(USER.decoding.beam, 1 + n), n_best=1 + n)
        told = answer.json()
        others = [[candidate.text for candidate in one.candidates[1:]] for one in found]
        assert told["translatedText"] == [one.text for one in found]
        assert told.get("alternatives", [[]] * len(q)) == others


def test_forms_say_the_same_as_json():
    wanted = posted(PAIR | {"q": "rain & snow", "alternatives": 1})[0].json()
    fields = PAIR | {"q": "rain & snow", "alternatives": "1", "api_key": ""}

    async def forms():
        async with client_of(APP) as client:
            parts = {name: (None, value) for name, value in fields.items()}
            return [
                await client.post("/translate", data=fields),
                await client.post("/translate", files=parts),
            ]

    assert [answer.json() for answer in asyncio.run(forms())] == [wanted, wanted]


@pytest.mark.parametrize(
    ("kind", "data", "status"),
    [
        ("application/x-www-form-urlencoded", b"q=%ff&source=en&target=ja", 400),
        ("application/x-www-form-urlencoded", b"&".join([b"a=b"] * 2000), 400),
        ("multipart/form-data", b"--x", 400),
        ("multipart/form-data; boundary=x", b"--x\r\nrain\r\n--x--", 400),
        ("text/plain", b"rain", 415),
    ],
)
def test_a_broken_form_is_refused(kind, data, status):
    assert ask(APP, "POST", "/translate", {"Content-Type": kind}, data).status == status


def test_an_empty_text_is_empty_and_white_space_stays():
    (answer,) = posted(PAIR | {"q": ["", " \n", "  rain\t"]})
    rain = USER.translate(["rain"])[0].text
    assert answer.json()["translatedText"] == ["", " \n", f"  {rain}\t"]


@settings(max_examples=15)
@given(st.lists(st.tuples(texts.filter(bool), gaps), min_size=1, max_size=4), st.booleans())
def test_lines_are_translated_by_themselves_and_put_together(lines, covered):
    q = "".join(text + gap for text, gap in lines)
    (answer,) = posted(PAIR | {"q": q, "details": True}, app=COVERED[1] if covered else APP)
    (found,) = (COVERED[0] if covered else USER).translate([q])
    best = answer.json()["details"]["candidates"][0]
    assert answer.json()["translatedText"] == found.text
    texts_alone = "\n".join(text for text, _ in lines)
    assert all(q[slice(*link["source_span"])] in texts_alone for link in best["alignment"])
    assert best["log_prob"] == pytest.approx(found.candidates[0].log_prob)


def test_the_pair_chooses_the_model(pairs):
    asked = [PAIR, {"source": "en", "target": "de"}, {"model": "own"}, {"source": "und", "target": "und"}]
    ja, de, named, unknown = (answer.json() for answer in posted(*({"q": "rain"} | one for one in asked), app=pairs))
    assert de == named == unknown != ja
    languages = ask(pairs, "GET", "/languages").json
    targets = {"en": ["ja", "de"], "und": ["und"], "ja": [], "de": []}
    assert {one["code"]: one["targets"] for one in languages} == targets


def test_auto_is_the_only_source_of_the_target_or_refused(pairs):
    for app in (APP, pairs):
        (answer,) = posted({"q": ["rain", "snow"], "source": "auto", "target": "ja"}, app=app)
        assert answer.json()["detectedLanguage"] == [{"confidence": 0.0, "language": "en"}] * 2
    assert "fr is not available as a target language" in refused(app=pairs, q="a", source="auto", target="fr")
    _, two = serving(("enja", USER, "en", "ja"), ("frja", USER, "fr", "ja"))
    said = refused(app=two, q="rain", source="auto", target="ja")
    assert said == "auto requires a single source language for ja; set source to one of en, fr"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"source": "en", "target": "ja"}, "q is missing"),
        ({"q": "rain", "target": "ja"}, "Invalid request: missing source parameter"),
        ({"q": "rain", "source": "en", "target": ""}, "Invalid request: missing target parameter"),
        (PAIR | {"q": "rain", "source": "fr"}, "fr is not supported; available: en to ja"),
        (PAIR | {"q": "rain", "target": "fr"}, "fr is not available as a target language from en"),
        (PAIR | {"q": "rain", "format": "html"}, "format html is not supported"),
        (PAIR | {"q": "rain", "alternatives": 16}, "alternatives parameter must be <= 15"),
        (PAIR | {"q": "rain", "alternatives": "1"}, "alternatives: input should be a valid integer"),
        (PAIR | {"q": 5}, "q: input should be a valid string, or input should be a valid array"),
        (PAIR | {"q": []}, "q: list should have at least 1 item"),
        (PAIR | {"q": ["rain", 5]}, "q[1]: input should be a valid string"),
        (PAIR | {"q": "rain", "beam": 17}, "beam=17 must be at most 16"),
        (PAIR | {"q": "rain", "prefix": ["a", "b"]}, "2 prefixes for 1 texts"),
        (PAIR | {"q": "rain", "prefix": "雨" * 50}, "shorten the prefix"),
        ({"q": "rain", "model": "enja", "target": "de"}, "enja translates to ja, not de"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(body, said):
    assert said in refused(**body)


def test_texts_beyond_the_limits_are_too_large():
    _, app = serving(("enja", USER, "en", "ja"), max_texts=2, max_characters=10)
    for q in (["a"] * 3, "a" * 11):
        (answer,) = posted(PAIR | {"q": q}, app=app)
        assert answer.status_code == 413, answer.text


def test_a_bad_prefix_spoils_no_other_request():
    good, bad = PAIR | {"q": "It will rain."}, PAIR | {"q": "It will rain.", "prefix": "雨" * 60}
    answers = posted(*[good, bad] * 4)
    assert [answer.status_code for answer in answers] == [200, 400] * 4


def test_details_say_how_sure_each_token_is_and_where_it_looks():
    text = "It will rain in Oslo. " * 12  # more than the model reads at once
    for q in ("It will rain.", text, ""):
        (answer,) = posted(PAIR | {"q": q, "details": True, "alternatives": 1})
        told, (found,) = answer.json(), USER.translate([q], beam=2, n_best=2, alignments=True)
        assert told["translatedText"] == found.text
        assert told["details"]["parts"] == found.parts
        for candidate, wanted in zip(told["details"]["candidates"], found.candidates, strict=True):
            tokens, links = candidate["tokens"], candidate["alignment"]
            assert [token["id"] for token in tokens] == list(wanted.token_ids)
            spans = [list(link.source_span) for link in wanted.alignment]
            assert [link["source_span"] for link in links] == spans
            assert all(wanted.text[slice(*t["span"])] == t["text"] for t in tokens)
            values = [token["log_prob"] for token in tokens]
            if found.parts == 1:
                assert values == list(wanted.token_log_probs)[: len(tokens)]
            elif not wanted.finished:
                assert values == [None] * len(tokens)


def test_log_probabilities_of_a_text_in_parts_are_their_own_tokens():
    """The ends of the parts stand between them, and are no token's."""
    user = tiny_translator(TOKENIZER, max_len=60, seed=3, max_length_extra=40)
    with torch.no_grad():
        user.model.output_proj.weight[3] *= 2  # it comes to its end
    user.prepare()
    app = serving(("ends", user, "en", "ja"))[1]
    q = "It will rain in Oslo. Snow tonight in the north. Sun. " * 4
    (answer,) = posted(PAIR | {"q": q, "details": True, "beam": 1}, app=app)
    told = answer.json()["details"]
    best = told["candidates"][0]
    assert best["finished"]
    assert told["parts"] > 2
    left = list(user.translate([q], beam=1)[0].candidates[0].token_log_probs)
    values = [token["log_prob"] for token in best["tokens"]]
    assert len(left) == len(values) + told["parts"]
    rest = iter(left)
    assert all(any(value == other for other in rest) for value in values)  # in the same order
    assert sum(left) == pytest.approx(best["log_prob"])
    for token in best["tokens"]:  # a greedy search takes the likeliest: no other is likelier than it
        assert all(other["log_prob"] <= token["log_prob"] + 1e-4 for other in token["alternatives"])


def test_another_word_is_chosen_by_its_prefix():
    (answer,) = posted(PAIR | {"q": "It will rain.", "details": True})
    tokens = answer.json()["details"]["candidates"][0]["tokens"]
    prefixes = [one["prefix"] for token in tokens[:3] for one in token["alternatives"]]
    assert len(prefixes) > 5
    (answer,) = posted(PAIR | {"q": ["It will rain."] * len(prefixes), "prefix": prefixes, "beam": 1})
    found = USER.translate(["It will rain."] * len(prefixes), beam=1, prefixes=prefixes)
    assert answer.json()["translatedText"] == [one.text for one in found]
    assert all(one.text.startswith(prefix) for one, prefix in zip(found, prefixes, strict=True))


def test_a_search_with_a_coverage_penalty_is_served_too():
    user, app = COVERED
    q = ["It will rain.", "", "Snow in Oslo tonight."]
    bodies = PAIR | {"q": q, "details": True, "prefix": "雨"}, PAIR | {"q": q, "alternatives": 1}
    answers = posted(*bodies, app=app)
    assert answers[0].json()["translatedText"] == [one.text for one in user.translate(q, prefixes="雨")]
    found = user.translate(q, beam=2, n_best=2)
    assert answers[1].json()["alternatives"] == [[c.text for c in one.candidates[1:]] for one in found]


def test_settings_say_whether_a_key_is_needed():
    told = ask(APP, "GET", "/frontend/settings").json
    assert told["keyRequired"] is False
    assert told["language"]["source"] == {"code": "en", "name": "English"}
