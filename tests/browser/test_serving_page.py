"""What people do on the page of a server, by clicks and keys, and what they must then see."""

import json
import math
import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from served_page import TOKENIZER, TYPING, WRITTEN, settled, shown, until_ready

from attendo.serving import completions

# ---- translating


def test_what_is_typed_is_translated_line_by_line_and_only_what_changed_is_asked_again(at, site):
    visited = at()
    page = visited.until(TYPING)
    asked = []
    page.on("request", lambda one: one.url.endswith("/translate") and asked.append(one.post_data_json["q"]))
    page.keyboard.type("rain tomorrow")
    first, second = site.translated("rain tomorrow", "snow")
    shown(visited, [first])
    assert asked[-1] == ["rain tomorrow"]
    page.keyboard.type("\n\n  snow ")
    shown(visited, [first, "", f"  {second} "])
    assert asked[-1] == ["snow"]
    page.click("#clear")
    shown(visited, [""])
    assert page.evaluate("document.activeElement.id") == "source"
    visited.until('location.hash === ""')
    visited.check()


def test_a_newer_text_ends_the_question_of_an_older_one(at, site):
    visited = at()
    page, held, ended = visited.until(TYPING), [], []
    page.on("requestfailed", lambda request: ended.append(request.post_data_json["q"]))
    page.route("**/translate", lambda route: held.append(route), times=1)
    page.keyboard.type("rain")
    while not held:
        page.wait_for_timeout(20)
    page.keyboard.type(" snow")
    shown(visited, site.translated("rain snow"))
    assert ended == [["rain"]]
    visited.check()


def test_words_say_how_sure_the_model_is_and_where_they_are_from(at, site):
    text = "rain tomorrow in the north"
    page = settled(visited := at(state={"text": text}))
    words = page.query_selector_all(".word")
    told = page.evaluate(
        "[...document.querySelectorAll('.word')].map((word) => [word.textContent, word.title, word.classList.value,"
        " getComputedStyle(word).textDecorationStyle])"
    )
    (best,) = site.user("enja").translate([text])[0].candidates
    pieces = [TOKENIZER.pieces([token])[0].strip() for token in best.token_ids]
    shares = [math.exp(value) for value in best.token_log_probs]
    expected = [pair for pair in zip(pieces, shares, strict=False) if re.search(r"[^\W_]", pair[0])]
    assert [word for word, *_ in told] == [piece for piece, _ in expected]  # each token is a word here
    for (word, title, kinds, style), (_, share) in zip(told, expected, strict=True):
        percent = "< 1%" if share < 0.005 else f"{100 * share:.{int(share > 0.995)}f}%"
        assert title.startswith(f"{word}: {percent} sure")
        assert kinds == ("word hardly" if share < 0.2 else "word unsure" if share < 0.5 else "word")
        assert (style == "dotted") == (share < 0.5)
    # by mouse, by keyboard, and the other way round
    words[0].hover()
    lit = page.evaluate("[...document.querySelectorAll('.mirror mark')].map((mark) => mark.textContent)")
    assert lit and all(one in text.split() for one in lit)
    assert all(one in words[0].get_attribute("title") for one in lit)
    page.mouse.move(5, 5)
    visited.until("!document.querySelector('.mirror mark')")
    words[0].focus()
    page.keyboard.press("ArrowRight")
    assert words[1].evaluate("(word) => word === document.activeElement")
    lit = page.evaluate("document.querySelector('.mirror').textContent.trim()")
    assert lit == text and page.query_selector(".mirror mark")
    place = text.index(page.text_content(".mirror mark >> nth=0"))
    page.focus("#source")
    page.keyboard.press("Control+Home")
    for _ in range(place):
        page.keyboard.press("ArrowRight")
    visited.until("document.querySelector('.word.lit')")
    visited.check()


def scripted(text, source, *tokens):
    """An answer of /translate: (span, log-probability, source span) of each token."""
    rows = [{"span": span, "log_prob": value, "alternatives": []} for span, value, _ in tokens]
    links = [{"target": n, "source_span": span} for n, (_, _, span) in enumerate(tokens)]
    candidate = {"text": text, "tokens": rows, "alignment": links}
    return json.dumps({"translatedText": [text], "details": [{"candidates": [candidate], "parts": 1}]})


def test_tokens_become_words_by_their_places_in_characters(at, site):
    source = "🐶 the dog barks"
    answer = scripted(
        "👍👍 der Hund bellt!",
        source,
        ((0, 2), math.log(0.01), (0, 1)),
        ((3, 6), math.log(0.9), (2, 5)),
        ((7, 9), math.log(0.7), (6, 9)),
        ((9, 11), math.log(0.6), (7, 9)),
        ((12, 17), None, (10, 15)),
        ((17, 18), math.log(0.1), (10, 15)),
    )
    visited = at(state={})
    page = visited.until(TYPING)
    page.route("**/translate", lambda route: route.fulfill(body=answer, content_type="application/json"))
    page.keyboard.type(source)
    shown(visited, ["👍👍 der Hund bellt!"])
    words = page.evaluate(
        "[...document.querySelectorAll('.word')].map((one) => [one.textContent, one.className, one.title])"
    )
    assert words == [
        ["der", "word", "der: 90% sure; from: the"],
        ["Hund", "word unsure", "Hund: 42% sure; from: dog"],
        ["bellt", "word", "from: barks"],
    ]
    page.hover(".word:text('Hund')")
    assert page.text_content(".mirror mark") == "dog"
    visited.check()


def test_other_words_and_other_translations_are_opened_taken_and_given_back(at, site):
    text = "rain tomorrow in the north"
    visited = at(state={"text": text})
    (best,) = site.translated(text)
    page = shown(visited, [best])
    word = page.query_selector_all(".word")[1]
    word.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".choices .whole b")
    choices = page.locator(".choices li")
    wholes = [one.text_content() for one in page.query_selector_all(".choices .whole")]
    assert best not in wholes and len(set(wholes)) == len(wholes) >= 2
    beginning = best[: best.index(word.text_content())]
    assert all(whole.startswith(beginning.rstrip()) for whole in wholes)
    choices.nth(0).locator("button").click()
    shown(visited, [wholes[0]])
    assert page.query_selector(".word.chosen")
    assert "chosen" in page.evaluate("document.activeElement.className")
    # the microscope reads what was taken
    link = urlsplit(page.get_attribute("a.look", "href"))
    assert parse_qs(link.fragment) == {
        "text": [text],
        "language": ["en"],
        "search": ["forced"],
        "target": [wholes[0]],
    }
    page.click(".word.chosen >> nth=0")
    page.click("text=Restore the best translation")
    shown(visited, [best])
    page.click("#others")
    page.wait_for_selector(".choices .whole b")
    found = site.user("enja").translate([text], beam=6, n_best=6)[0].candidates
    expected = [one.text for one in found if one.text != best]
    wholes = [one.text_content() for one in page.query_selector_all(".choices .whole")]
    assert wholes == list(dict.fromkeys(expected))
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "others"
    assert not page.is_visible(".sheet")
    visited.check()


def test_a_word_of_ones_own_is_gone_on_with(at, site):
    visited = at(state={"text": "rain tomorrow"})
    page = settled(visited)
    page.click(".word >> nth=0")
    page.fill(".own input", "snow")
    page.press(".own input", "Enter")
    page.wait_for_selector(".sheet", state="hidden")
    expected = site.user("enja").translate(["rain tomorrow"], prefixes="snow")[0].text
    shown(visited, [expected])
    visited.check()


def test_languages_are_swapped_the_search_is_widened_and_the_text_copied(at, site):
    visited = at(state={"text": "rain snow"})
    (there,) = site.translated("rain snow")
    page = shown(visited, [there])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click(".copy")
    page.wait_for_selector(".copy:text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == there
    page.click("summary")
    page.select_option("#beam", "8")
    wide = site.user("enja").translate(["rain snow"], beam=8)[0].text
    shown(visited, [wide])
    page.click("#swap")
    assert page.input_value("#source") == wide
    wider = site.user("jaen").translate([wide], beam=8)[0].text
    shown(visited, [wider])
    assert (page.get_attribute("#source", "lang"), page.get_attribute("#target", "lang")) == ("ja", "en")
    visited.check()


def test_the_microscope_opens_with_the_text(at, visit, site):
    page = settled(at(state={"text": "rain snow"}))
    with page.context.expect_page() as opening:
        page.click("a.look")
    looked = opening.value
    until_ready(looked)
    assert looked.evaluate("window.attendo.app.look.ask.text") == "rain snow"
    assert urlsplit(looked.url).path == "/look/enja/"


# ---- classifying and completing


def test_a_text_is_classified_as_one_types(at, site):
    visited = at(state={"model": "rain"})
    page = visited.until(TYPING)
    page.keyboard.type("rain tomorrow")
    page.wait_for_selector(".bars .best")
    (found,) = site.user("rain").classify(["rain tomorrow"])
    rows = page.evaluate(
        "[...document.querySelectorAll('.bars tbody tr')].map((row) => [row.cells[0].textContent,"
        " parseFloat(row.cells[1].firstChild.style.width)])"
    )
    assert [label for label, _ in rows] == list(found.probabilities)
    assert [width / 100 for _, width in rows] == pytest.approx(list(found.probabilities.values()), abs=1e-4)
    assert page.text_content(".bars .best th") == found.label
    page.click("#clear")
    visited.until("!document.querySelector('.bars table')")
    visited.check()


def test_a_text_is_gone_on_with_by_the_settings(at, site):
    settings = {"max_tokens": "12", "temperature": "0.7", "top_p": "0.9", "seed": "3"}
    visited = at(state={"model": "writer", "text": "rain", **settings})
    page = visited.until(WRITTEN)
    options = {"max_tokens": 12, "temperature": 0.7, "top_p": 0.9, "seed": 3}
    expected = site.user("writer").generate("rain", **options)
    written = page.text_content(".written")
    assert written and page.text_content("#target") == f"rain{written}"
    assert written == expected.text.removeprefix("rain")
    page.click("#keep")
    visited.until(WRITTEN)
    assert page.input_value("#prompt") == f"rain{written}"
    page.click("summary")
    page.fill("#temperature", "warm")
    page.click("#write")
    assert page.text_content("#status") == "Temperature must be a number of at least 0."
    visited.check()


def test_a_stream_is_seen_as_it_comes_and_stopped(at, site, monkeypatch):
    sent = completions._message

    def slowly(value):
        time.sleep(0.01)
        return sent(value)

    monkeypatch.setattr(completions, "_message", slowly)
    visited = at(state={"model": "writer", "live": "no", "max_tokens": "500", "seed": "1"})
    page = visited.until('document.activeElement.id === "prompt"')
    page.keyboard.type("rain")
    page.keyboard.press("Control+Enter")
    lengths = set()
    while len(lengths) < 4:
        lengths.add(len(page.text_content("#target")))
    before = site.statuses("/v1/completions").count(499)
    page.click("#stop")
    assert page.text_content("#status") == "Stopped."
    length = len(page.text_content("#target"))
    for _ in range(200):
        if site.statuses("/v1/completions").count(499) > before:
            break
        page.wait_for_timeout(20)
    assert site.statuses("/v1/completions").count(499) == before + 1
    assert len(page.text_content("#target")) == length
    visited.check()
