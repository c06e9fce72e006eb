"""What people do on the page of a server, by clicks and keys, and what they must then see."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from served_page import (
    READY,
    TOKENIZER,
    TYPING,
    WRITTEN,
    Site,
    answers_with,
    curl_of,
    percent,
    scripted,
    settled,
    shown,
    translator,
)

from attendo.serving import completions

# ---- translating


def test_what_is_typed_is_translated_line_by_line_and_only_what_changed_is_asked_again(at, site):
    visited = at()
    page = visited.until(TYPING)
    asked = []

    def note(request):
        if request.url.endswith("/translate") and "alternatives" not in request.post_data_json:
            asked.append(request.post_data_json["q"])

    page.on("request", note)
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


@pytest.mark.full
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
        assert title.startswith(f"{word}: {percent(share)} sure")
        assert kinds == ("word hardly" if share < 0.2 else "word unsure" if share < 0.5 else "word")
        assert (style == "dotted") == (share < 0.5)
    # by mouse, by keyboard, and the other way round
    words[0].hover()
    lit = page.evaluate("[...document.querySelectorAll('.mirror .lit')].map((mark) => mark.textContent)")
    assert lit and all(one in text.split() for one in lit)
    assert all(one in words[0].get_attribute("title") for one in lit)
    page.mouse.move(5, 5)
    visited.until("!document.querySelector('.mirror .lit')")
    words[0].focus()
    page.keyboard.press("ArrowRight")
    assert words[1].evaluate("(word) => word === document.activeElement")
    lit = page.text_content(".mirror")
    assert lit == text and page.query_selector(".mirror .lit")
    place = text.index(page.text_content(".mirror .lit >> nth=0"))
    page.focus("#source")
    page.keyboard.press("Control+Home")
    for _ in range(place):
        page.keyboard.press("ArrowRight")
    visited.until("document.querySelector('.word.lit')")
    visited.check()


@pytest.mark.full
def test_tokens_become_words_by_their_places_in_characters(at, site):
    source = "🐶 the dog barks"
    answer = scripted(
        "👍👍 der Hund bellt!",
        ((0, 2), math.log(0.01), (0, 1)),
        ((3, 6), math.log(0.9), (2, 5)),
        ((7, 9), math.log(0.7), (6, 9)),
        ((9, 11), math.log(0.6), (7, 9)),
        ((12, 17), None, (10, 15)),
        ((17, 18), math.log(0.1), (10, 15)),
    )
    visited = at(state={})
    page = visited.until(TYPING)
    answers_with(page, "translate", answer)
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
    assert page.text_content(".mirror .lit") == "dog"
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


@pytest.mark.full
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


@pytest.mark.full
def test_languages_are_swapped_the_search_is_widened_and_the_text_copied(at, site):
    visited = at(state={"text": "rain snow"})
    (there,) = site.translated("rain snow")
    page = shown(visited, [there])
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click(".desk .copy")
    page.wait_for_selector(".desk .copy:has-text('Copied')")
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


TWO = "Snow falls here. Rain follows later"
LOST = scripted("Schnee fällt.", ((0, 6), -0.1, (0, 4)), ((7, 13), -0.1, (5, 10)))


@pytest.mark.full
def test_words_that_may_be_missing_are_named_and_each_sentence_translated_by_itself(at, site):
    visited = at(state={"segment": "paragraph"})
    page, asked = visited.until(TYPING), []
    page.on("request", lambda one: one.url.endswith("/translate") and asked.append(one.post_data_json))
    answers_with(page, "translate", LOST)
    page.keyboard.type(TWO)
    shown(visited, ["Schnee fällt."])
    assert page.inner_text(".loss span") == "3 of 6 words may be missing from the translation."
    missing = "[...document.querySelectorAll('.mirror .missing')].map((mark) => mark.textContent)"
    assert page.evaluate(missing) == ["Rain", "follows", "later"]
    page.click("text=Translate sentence by sentence")
    visited.until("location.hash.includes('segment=sentence')")
    shown(visited, ["Schnee fällt."])
    assert [one["segment"] for one in asked if "alternatives" not in one] == ["paragraph", "sentence"]
    assert page.input_value("#segment") == "sentence"
    assert page.is_visible(".loss") and not page.is_visible(".loss .link")
    page.fill("#source", "Snow falls")
    shown(visited, ["Schnee fällt."])
    assert not page.is_visible(".loss") and page.evaluate(missing) == []
    visited.check()


@pytest.mark.full
def test_other_translations_are_offered_below_the_card(at, site):
    text = "rain tomorrow in the north"
    visited = at(state={"text": text})
    (best,) = site.translated(text)
    page = shown(visited, [best])
    page.wait_for_selector(".cards .whole b")
    found = site.user("enja").translate([text], beam=6, n_best=6)[0].candidates
    expected = list(dict.fromkeys(one.text for one in found if one.text != best))[:3]
    cards = page.query_selector_all(".cards .whole")
    assert [card.text_content() for card in cards] == expected
    cards[1].click()
    shown(visited, [expected[1]])
    page.wait_for_selector(f".cards .whole:has-text({json.dumps(best)})")  # the way back
    page.fill("#source", f"{text}\nsnow")
    visited.until(f"{READY} && document.querySelectorAll('.line').length === 2")
    assert not page.is_visible(".also")  # of several lines, each has its own button
    visited.check()


@pytest.mark.full
def test_an_empty_box_offers_texts_to_try(at, site):
    visited = at(state={})
    page = visited.until(TYPING)
    assert not page.is_visible(".tries")

    def with_examples(route):
        answer = route.fetch()
        body = answer.json()
        for one in body["data"]:
            one["examples"] = ["rain snow"]
        route.fulfill(response=answer, json=body)

    page.route("**/v1/models", with_examples)
    page.reload()
    page.click(".tries .pill")
    shown(visited, site.translated("rain snow"))
    assert not page.is_visible(".tries") and page.input_value("#source") == "rain snow"
    assert "enja" in page.inner_text(".extras .end") and "this machine" in page.inner_text(".extras .end")


@pytest.mark.full
def test_without_a_way_back_the_languages_say_why_they_are_not_swapped(at, stack):
    site = Site(stack, ("enja", translator(), "en", "ja"))
    visited = at({"text": "rain"}, site)
    page = shown(visited, site.translated("rain"))
    assert page.get_attribute("#swap", "aria-disabled") == "true"
    said = "This server has no model that translates from Japanese to English."
    assert page.get_attribute("#swap", "title") == page.get_attribute("#swap", "aria-label") == said
    page.click("#swap", force=True)
    assert page.input_value("#source") == "rain"
    assert not page.query_selector("[role=tab], #model")  # there is one task and one model
    assert page.is_hidden("a.look")  # this server has no microscope


def test_the_tabs_are_the_tasks_that_are_served(at, site):
    visited = at(state={"text": "rain"})
    page = settled(visited)
    tabs = page.query_selector_all("[role=tab]")
    assert [tab.inner_text() for tab in tabs] == ["Translate", "Classify", "Complete"]
    models = page.evaluate("[...document.getElementById('model').options].map((one) => one.value)")
    assert models == ["enja", "jaen"]
    page.focus("[aria-selected=true]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".best")
    assert page.evaluate("document.activeElement.id") == "tab-classification"
    assert page.get_attribute("[role=tabpanel]", "aria-labelledby") == "tab-classification"
    assert page.input_value("#source") == "rain"
    page.click("#tab-translation")
    shown(visited, site.translated("rain"))
    page.select_option("#model", "jaen")
    shown(visited, site.translated("rain", name="jaen"))
    visited.until("location.hash.includes('model=jaen')")
    visited.check()


# ---- classifying and completing


def test_a_text_is_classified_as_one_types(at, site):
    visited = at(state={"model": "rain"})
    page = visited.until(TYPING)
    page.keyboard.type("rain tomorrow")
    page.wait_for_selector(".bars .best")
    (found,) = site.user("rain").classify(["rain tomorrow"])
    rows = page.evaluate(
        "[...document.querySelectorAll('.bars .share-table tr')].map((row) => [row.cells[0].textContent,"
        " parseFloat(row.cells[1].querySelector('.track span').style.width)])"
    )
    assert [label for label, _ in rows] == list(found.probabilities)
    assert [width / 100 for _, width in rows] == pytest.approx(list(found.probabilities.values()), abs=1e-4)
    assert page.text_content(".bars .best th") == found.label
    page.click("#clear")
    visited.until("!document.querySelector('.bars table')")
    visited.check()


@pytest.mark.full
def test_the_words_that_decided_say_what_the_label_is_without_them(at, site):
    words = ["rain", "tomorrow", "in", "the", "north"]
    visited = at(state={"model": "rain", "text": " ".join(words)})
    page = visited.page
    page.wait_for_selector(".decided .note")
    classify = site.user("rain").classify
    (whole,) = classify([" ".join(words)])
    found = page.query_selector_all(".tinted")
    assert [word.inner_text() for word in found] == words
    colors = []
    for n, word in enumerate(found):
        (less,) = classify([" ".join(words[:n] + words[n + 1 :])])
        share = less.probabilities[whole.label]
        expected = f"{words[n]}: without this word, “{whole.label}” has {percent(share)}"
        assert word.get_attribute("title") == word.get_attribute("aria-label") == expected
        style = word.evaluate("(one) => one.style.backgroundColor")
        colors.append(math.log(whole.probability / share))
        assert ("--less" in style) == (colors[-1] < 0)
        weight = int(re.search(r"(\d+)%", style)[1])
        assert (weight == 45) == (abs(colors[-1]) == max(map(abs, colors[: n + 1]))) or n < 4
    assert f"“{whole.label}”" in page.inner_text(".decided .note")
    visited.check()


@pytest.mark.full
def test_a_text_below_its_threshold_has_no_label_and_says_why(at, site):
    user = site.user("rain")
    user.card = {**user.card, "thresholds": dict.fromkeys(user.labels.names, 2.0)}
    try:
        page = at(state={"model": "rain", "text": "hail tomorrow"}).page
        page.wait_for_selector(".detail .note")
        assert "below its threshold" in page.locator(".detail").inner_text()
        (found,) = user.classify(["hail tomorrow"], {})
        assert found.label in page.locator(".detail").inner_text()  # the bars show all labels
        assert page.locator(".best th").inner_text() == found.label
    finally:
        del user.card["thresholds"]


def test_each_line_is_a_row_with_its_own_bars_and_the_table_is_saved(at, site):
    lines = ["=rain(1)", "snow, in the north", "sun"]
    visited = at(state={"model": "rain", "text": "\n\n".join(lines)})
    page = visited.page
    page.wait_for_selector(".rows .row")
    found = site.user("rain").classify(lines)
    rows = page.evaluate(
        "[...document.querySelectorAll('.row')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    assert rows == [[line, one.label, percent(one.probability)] for line, one in zip(lines, found, strict=True)]
    with page.expect_download() as saving:
        page.click("#csv")
    saved = list(csv.reader(io.StringIO(saving.value.path().read_text("utf-8"), newline="")))
    labels = list(found[0].probabilities)
    assert saving.value.suggested_filename == "rain.csv"
    assert saved[0] == ["text", "label", *labels]
    assert [row[:2] for row in saved[1:]] == [
        [f"'{lines[0]}" if n == 0 else line, one.label] for n, (line, one) in enumerate(zip(lines, found, strict=True))
    ]
    for row, one in zip(saved[1:], found, strict=True):
        assert list(map(float, row[2:])) == pytest.approx([one.probabilities[name] for name in labels], 1e-5)
    page.click(".row >> nth=1")
    page.wait_for_selector(".inside .tinted")
    assert page.locator(".inside .best th").inner_text() == found[1].label
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("Enter")
    page.wait_for_selector(".inside", state="detached")
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


SETTINGS = {"max_tokens": "12", "temperature": "0.7", "top_p": "0.9", "seed": "3"}
NUMBERS = {"max_tokens": 12, "temperature": 0.7, "top_p": 0.9}


def written_by(at, act):
    """The visit and the page of a language model after it wrote a continuation of "rain"."""
    visited = at(state={"model": "writer", "live": "no", "text": "rain", **SETTINGS})
    page = visited.until('document.activeElement.id === "prompt"')
    act(page)
    visited.until(WRITTEN)
    return visited, page


def test_a_continuation_is_accepted_taken_back_typed_and_discarded(at, site):
    visited, page = written_by(at, lambda page: page.keyboard.press("Control+Enter"))
    written = page.text_content(".written")
    page.keyboard.press("Control+End")
    page.keyboard.press("Tab")
    assert page.input_value("#prompt") == f"rain{written}" and page.text_content(".written") == ""
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Control+z")
    assert page.input_value("#prompt") == "rain" and page.text_content(".written") == written
    page.keyboard.press("Control+End")
    page.keyboard.type(written[:3])  # what the model has written need not be written again
    assert page.input_value("#prompt") == f"rain{written[:3]}"
    assert page.text_content(".written") == written[3:]
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className").startswith("word")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id") == "prompt"
    page.keyboard.press("Escape")
    assert page.text_content(".written") == "" and not page.is_visible("#keep")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "prompt"  # without a continuation, Tab is Tab
    visited.check()


@pytest.mark.full
def test_the_continuation_is_drawn_exactly_behind_the_text(at, site):
    text = "rain tomorrow in the north\n" + "and snow " * 30
    visited = at(state={"model": "writer", "text": text, **SETTINGS})
    page = visited.until(WRITTEN)
    given, box = page.locator(".given").bounding_box(), page.locator("#prompt").bounding_box()
    assert given["x"] >= box["x"] and given["width"] <= box["width"]
    alone = page.evaluate(
        "(() => { const box = document.getElementById('prompt'), copy = box.cloneNode(); copy.value = box.value;"
        " box.parentNode.append(copy); copy.style.cssText = 'height: 0; align-self: start';"
        " const height = copy.scrollHeight; copy.remove(); return height; })()"
    )
    padding = page.evaluate("parseFloat(getComputedStyle(document.getElementById('prompt')).paddingBottom)")
    assert given["y"] + given["height"] - box["y"] == pytest.approx(alone - padding, abs=4)


@pytest.mark.full
def test_variants_are_written_side_by_side_and_one_is_taken(at, site):
    visited, page = written_by(at, lambda page: page.click("#several"))
    generate = site.user("writer").generate
    expected = [generate("rain", **NUMBERS, seed=seed).text.removeprefix("rain") for seed in (3, 4, 5)]
    cards = page.query_selector_all(".cards button")
    assert [card.text_content() for card in cards] == [text.lstrip() for text in expected]
    assert json.loads(curl_of(page).partition("-d '")[2].rstrip("'"))["n"] == 3
    assert page.text_content(".written") == expected[0]
    cards[1].click()
    assert page.text_content(".written") == expected[1]
    pressed = [card.get_attribute("aria-pressed") for card in page.query_selector_all(".cards button")]
    assert pressed == ["false", "true", "false"]
    page.click("#keep")
    assert page.input_value("#prompt") == f"rain{expected[1]}" and not page.is_visible(".cards")
    visited.check()


@pytest.mark.full
def test_other_words_in_a_continuation_are_listed_and_gone_on_from(at, site):
    visited, page = written_by(at, lambda page: page.keyboard.press("Control+Enter"))
    words = page.query_selector_all(".written .word")
    place = next(n for n, one in enumerate(words) if n > 1 and one.text_content().isalpha())
    word = words[place].text_content()
    written = page.text_content(".written")
    start = page.evaluate(
        "(n) => { const word = document.querySelectorAll('.written .word')[n]; const range = new Range();"
        " range.setStart(word.parentNode, 0); range.setEndBefore(word); return range.toString().length; }",
        place,
    )
    words[place].focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".choices li")
    prompt = f"rain{written[:start].rstrip(' ')}"
    asked = {"model": "writer", "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 5}
    top = httpx.post(f"{site.address}v1/completions", json=asked).json()["choices"][0]["logprobs"]["top_logprobs"][0]
    shares = sorted((math.exp(value) for value in top.values()), reverse=True)[:5]
    told = [one.inner_text() for one in page.query_selector_all(".choices .number")]
    rest = iter(map(percent, shares))
    assert all(one in rest for one in told) and len(told) >= 3  # in this order, without tokens that have no text
    rows = page.query_selector_all(".choices button")
    other = next(row for row in rows if row.get_attribute("aria-current") is None)
    head = other.query_selector(".head-word").inner_text()
    assert head != word
    other.click()
    visited.until(WRITTEN)
    assert page.text_content(".written .chosen") == head
    now = page.text_content(".written")
    assert now.startswith(written[:start].rstrip(" ")) and head in now and len(now) > start + len(head)
    visited.check()


# ---- the same for programs


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "state",
    [
        {"model": "enja", "text": 'rain snow\nit\'s "north" $HOME `x` \\', "beam": "2"},
        {"model": "rain", "text": "rain\nsnow"},
        {"model": "writer", "text": "rain 'n snow", **SETTINGS},
    ],
)
def test_the_request_gives_a_program_what_the_page_shows(at, state):
    visited = at(state=state)
    page = settled(visited)
    if state["model"] == "writer":
        visited.until(WRITTEN)
    command = curl_of(page)
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    done = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, check=True, timeout=30)
    answer = json.loads(done.stdout)
    if state["model"] == "enja":
        assert answer["translatedText"] == page.evaluate(
            "[...document.querySelectorAll('.line')].map((one) => one.textContent.replace(/⋯$/, '')).join('\\n')"
        )
    elif state["model"] == "rain":
        told = [(one["label"], percent(one["probability"])) for one in answer["results"]]
        rows = "[...document.querySelectorAll('.row')].map((row) => [1, 2].map((n) => row.cells[n].innerText.trim()))"
        assert told == list(map(tuple, page.evaluate(rows)))
    else:
        assert answer["choices"][0]["text"] == page.text_content(".written")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy-curl")
    page.wait_for_selector("#copy-curl:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == command
    visited.check()
