"""How the page behaves around its features: what it begins with, goes back to, and leaves out."""

import json
import re
from urllib.parse import quote

import pytest
from browser_looking import Looking, address_of
from looked_models import looked_model, text_of

from attendo.cli.look import HARD, _beta
from attendo.microscope.protocol import LookRequest
from attendo.microscope.run_model import look
from attendo.microscope.session import Session
from attendo.microscope.view import ask_for

full = pytest.mark.full


# ---- what it begins with


@pytest.mark.full
@pytest.mark.parametrize(("family", "search"), [("translation", "beam"), ("language-model", "greedy")])
def test_live_and_saved_page_begin_with_the_search_of_the_command(live, saved, tokenizer, family, search):
    text = text_of(tokenizer, 8)
    at, file = live(family, text=text), saved(family, text)
    (asked, outcome), held = (
        at.js("[app.look.ask, app.look.outcome]"),
        file.js("[app.look.ask, app.look.outcome]"),
    )
    assert [asked, outcome] == held
    assert asked["search"] == search
    name = f"beam {at.js('app.model.beam')}" if search == "beam" else "greedy search"
    assert at.page.text_content("#search-button") == f"{name} ▾"
    other = "greedy" if search == "beam" else "beam"
    told = live(family, text=text, search=other).js("app.look.ask")
    assert told["search"] == other  # the address decides
    at.page.wait_for_timeout(500)
    assert "search" not in at.page.url
    at.visit.check()


@pytest.mark.full
def test_a_run_that_searches_greedily_begins_so(visit, served, tokenizer):
    user = looked_model("translation", tokenizer)
    user = type(user)(user.model, tokenizer, type(user.decoding)(beam=1))
    at = Looking(visit(address_of(served(Session(user)), text="snow rain")), Session(user))
    assert at.js("app.look.ask.search") == "greedy" == ask_for(user, "snow").search


@pytest.mark.full
def test_only_a_language_model_begins_with_nothing(live, saved, sessions):
    at = live("language-model", max_tokens=5)
    plain = look(sessions["language-model"].user, LookRequest(text="", max_tokens=5))
    assert [token["id"] for token in at.js("app.look.target")] == list(plain.target)
    held = saved("language-model", "", "#layer=decoder.blocks.0.self_attention&head=1", max_tokens=5)
    assert [token["id"] for token in held.js("app.look.target")] == list(plain.target)
    assert (held.state("layer"), held.state("head")) == ("decoder.blocks.0.self_attention", 1)
    for family in ("translation", "classification"):
        at = live(family, text="  ")
        assert at.js("app.look") is None
        assert at.page.text_content("#status") == "Type a text first."
        at.visit.check()


# ---- where it goes back to


@pytest.mark.full
def test_after_a_reload_tree_why_and_film_are_there_again(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    panel = at.open_tab("search")
    at.page.select_option("#tree-beam", "2")
    at.page.click("#tree-go")
    runs = "[...document.querySelectorAll('.folded-tree .run')].map(one => one.innerText).join()"
    at.until(f"window.attendo.drawn.tree && {runs}")
    panel.locator("#why-text").fill("snow rain wind")
    panel.locator("#why-go").click()
    rows = "document.querySelectorAll('#view-why table tbody tr').length"
    at.until(f"{rows} >= 3")
    label = at.js(runs)
    n_rows = at.js(rows)
    at.page.wait_for_timeout(500)
    at.page.reload()
    at.visit.ready()
    at.until(f"{runs} === {json.dumps(label)}")
    at.until(f"{rows} === {n_rows}")
    assert at.page.input_value("#why-text") == "snow rain wind"
    panel = at.open_tab("training")
    panel.locator("#film-go").click()
    at.drawn("film")
    panel.locator("#film-frame").focus()
    at.page.keyboard.press("Home")
    step = at.page.text_content(".film-step")
    at.page.wait_for_timeout(500)
    at.page.reload()
    at.visit.ready()
    at.until(f"document.querySelector('.film-step').textContent === {json.dumps(step)}")
    at.visit.check()


@pytest.mark.full
def test_back_and_forward_go_over_what_the_reader_did(live, tokenizer):
    texts = [text_of(tokenizer, 8), text_of(tokenizer, 12)]
    at = live("translation", text=texts[0])
    page, rest = at.page, lambda: at.page.wait_for_timeout(500)
    rest()
    entries = at.js("history.length")
    chosen = "app.state.get('layer') + app.state.get('head')"
    first = at.js(chosen)
    page.hover('canvas[data-name="heat"]')
    page.hover("#ribbons .tokens >> nth=1 >> .chip >> nth=2")
    rest()
    assert at.js("history.length") == entries
    at.open_tab("layers")
    rest()
    page.locator("button.head").nth(0).click()
    rest()
    page.fill("#text", texts[1])
    at.after(lambda: page.press("#text", "Enter"))
    rest()
    at.after(lambda: page.locator("button.head").nth(1).dblclick())
    rest()
    at.after(page.go_back)
    assert (at.js("app.look.ask.text"), at.js("app.look.ask.edits")) == (texts[1], [])
    while at.state("text") != texts[0]:
        page.go_back()
        rest()
    at.until(f"app.look.ask.text === {json.dumps(texts[0])}")
    assert page.input_value("#text") == texts[0]
    page.go_back()
    at.until(f"{chosen} === {json.dumps(first)}")
    assert page.is_visible("#view-layers")
    page.go_back()
    at.until("!document.getElementById('view-attention').hidden")
    page.go_forward()
    at.until("!document.getElementById('view-layers').hidden")
    at.visit.check()


# ---- what it says first


def test_it_opens_with_an_example_and_a_sentence_about_the_picture(visit, served, tokenizer, tmp_path):
    """Also if the address has no text: the first example of the run, and chips for all of them."""
    user, texts = looked_model("translation", tokenizer), [text_of(tokenizer, 8), text_of(tokenizer, 5)]
    (tmp_path / "examples.json").write_text(json.dumps(texts), encoding="utf-8")
    session = Session(user, tmp_path)
    at = Looking(visit(served(session), viewport={"width": 1440, "height": 900}), session)
    assert at.js("document.getElementById('ribbons').getBoundingClientRect().top") <= 260
    assert at.js("app.look.ask.text") == texts[0] == at.page.input_value("#text")
    assert [at.state("layer"), at.state("head")] == at.js("[app.look.opens.layer, app.look.opens.head]")
    words = at.page.inner_text("#sentence")
    spot = at.js("app.spot()")
    piece = at.js(f"app.tokensOf('source')[{spot['key']}].piece")
    share = float(at.weights()[spot["query"], spot["key"]])
    assert (
        words.startswith("To write ")
        and piece in words
        and words.endswith("of its attention" if share >= 0.3 else piece)
    )
    told = at.after(lambda: at.page.locator(".tries .pill").nth(1).click())
    assert told["ask"]["text"] == texts[1]
    at.visit.check()


@pytest.mark.full
def test_the_picture_stays_when_the_effect_of_the_head_arrives(live):
    at = live("translation", viewport={"width": 1200, "height": 900})
    at.until("app.effects.done === app.effects.total")
    top = "document.getElementById('ribbons').getBoundingClientRect().top"
    whole = at.js(top)
    line = at.page.inner_text("#head-line")
    assert "without it" in line or "does not need it" in line
    at.js("document.getElementById('head-line').textContent = 'x'")
    assert at.js(top) == whole
    at.visit.check()


def test_it_looks_while_one_types_and_marks_what_is_out_of_date(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    page, stale = at.page, "document.getElementById('page').classList.contains('stale')"
    text = text_of(tokenizer, 6)
    page.focus("#text")
    page.keyboard.press("Control+A")
    at.after(lambda: (page.keyboard.type(text), at.until(stale)))
    assert at.js("app.look.ask.text") == text and not at.js(stale)
    page.keyboard.press("Shift+Enter")
    assert page.input_value("#text") == f"{text}\n"
    at.js("Object.assign(app.look, { seconds: 9, quick: false })")
    page.keyboard.type("snow")
    at.until(stale)
    assert page.is_visible("#enter-hint")
    told = at.after(lambda: page.keyboard.press("Enter"))
    assert told["ask"]["text"] == f"{text}\nsnow" and not page.is_visible("#enter-hint")
    at.visit.check()


@pytest.mark.full
def test_a_sink_is_named_and_a_term_explains_itself(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    at.js("app.layers().forEach((layer) => layer.sinks.fill({ key: 2, share: 0.9 })) || app.emit('map')")
    piece = at.js("app.tokensOf(app.openLayer().keys)[2].piece")
    said = f"this head rests on “{piece}”, an attention sink"
    at.until(f"document.querySelector('#head-line').textContent.includes({json.dumps(said)})")
    at.page.click("#head-line .term:text('attention sink')")
    assert "Many heads look at one fixed token" in at.page.inner_text(".sheet:popover-open")
    at.page.keyboard.press("Escape")
    at.until("document.activeElement.textContent === 'attention sink'")
    at.visit.check()


@pytest.mark.full
def test_a_guide_explains_the_page_once(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    page = at.page
    page.evaluate("localStorage.clear()")
    page.reload()
    at.visit.ready()
    page.click("#guide-start")
    for n in range(4):
        assert f"{n + 1} / 4" in page.inner_text(".bubble")
        page.keyboard.press("Enter")
    assert not page.locator(".bubble").count()
    page.reload()
    at.visit.ready()
    assert not page.locator("#guide-start").count()
    page.keyboard.press("?")
    assert "switch the head off or on" in page.inner_text(".sheet:popover-open")
    at.visit.check()


@pytest.mark.full
def test_a_busy_server_is_asked_again(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    body = json.dumps({"error": "the server is full"})
    at.page.route(
        "**/api/look",
        lambda route: route.fulfill(status=429, body=body, headers={"retry-after": "1"}),
        times=1,
    )
    at.page.fill("#text", "snow rain")
    at.page.keyboard.press("Enter")
    at.until("document.getElementById('status').textContent === 'The server is busy. Retrying in 1 s.'")
    at.until("app.look.ask.text === 'snow rain'")
    assert len(at.visit.complaints) == 1 and "429" in at.visit.complaints[0]


@pytest.mark.full
def test_the_matrix_is_that_of_the_open_head_wherever_it_was_opened(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    heat, other = at.page.locator('canvas[data-name="heat"]'), 1 - at.state("head")
    for leave, back in (("#tab-off", "#tab-attention"), ("#picture-ribbons", "#picture-both")):
        at.page.click(leave)
        at.js(f"app.choose(app.state.get('layer'), {other})")
        at.page.click(back)
        at.until(f"document.querySelector('canvas[data-name=heat]').ariaLabel.includes('head {other + 1}.')")
        assert heat.is_visible()
        other = 1 - other
    at.visit.check()


@pytest.mark.full
def test_a_change_of_language_keeps_what_is_being_typed(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8))
    at.js("Object.assign(app.look, { seconds: 9, quick: false })")
    at.page.fill("#text", "snow in Oslo")
    at.page.click("#language")
    at.until("document.documentElement.lang === 'ja'")
    assert at.page.input_value("#text") == "snow in Oslo" and at.page.is_visible("#enter-hint")
    assert at.page.evaluate("document.activeElement.id") == "language"
    assert at.page.evaluate("document.getElementById('page').classList.contains('stale')")
    at.visit.check()


@pytest.mark.full
def test_a_head_without_its_layer_has_no_switch_of_its_own(live, tokenizer):
    layer = "decoder.blocks.1.cross_attention"
    edits = [{"kind": "off", "path": layer, "how": "zero"}]
    at = live("translation", text=text_of(tokenizer, 8), layer=layer, edits=edits)
    assert at.page.is_disabled("#head-on") and not at.page.is_checked("#head-on")
    at.visit.check()


@pytest.mark.full
def test_letters_of_several_bytes_and_the_ends_of_a_text_have_names(live):
    at = live("translation", text="snow rain")
    pieces = ["<s>", "<F0>", "<9F>", "<8C>", "<A7>", "<mask>", "</s>"]
    shown = json.dumps([{"piece": piece, "text": ""} for piece in pieces])
    at.js(f"Object.assign(app.look, {{ source: {shown}.map((token, id) => ({{ id, ...token }})) }})")
    at.js("app.layers().forEach((layer) => layer.keys === 'source' && Object.assign(layer, { path: layer.path }))")
    at.js("app.emit('numbers')")
    at.until("document.querySelectorAll('#ribbons .tokens')[0].children.length > 0")
    told = at.page.evaluate(
        """async (shown) => {
          const script = document.querySelector('script[src$="/main.js"]').src;
          return (await import(script.replace("main.js", "shown.js"))).labelsOf(shown);
        }""",
        json.loads(shown),
    )
    assert told == ["start", "🌧", "·", "·", "·", "<mask>", "end"]


# ---- tokens


def test_a_row_of_tokens_points_and_is_walked_by_keys(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8), layer="decoder.blocks.0.cross_attention")
    page = at.page
    at.until("app.numbersNow(app.state.get('layer')) && window.attendo.drawn.ribbons")
    source, target = (page.locator(f"#ribbons .tokens >> nth={n} >> .chip") for n in (0, 1))
    target.nth(2).hover()
    weights = at.weights()
    assert at.js("app.pointed()") == {"query": 2, "key": int(weights[2].argmax())}
    assert page.text_content("#value") == f"{weights[2].max():.4f}"
    assert "here" in target.nth(2).get_attribute("class")
    target.nth(1).click()
    assert (at.state("query"), at.state("locked")) == (1, True)
    page.keyboard.press("Escape")
    page.mouse.move(5, 5)
    source.nth(0).focus()
    assert at.js("app.pointed().key") == 0
    page.keyboard.press("ArrowRight")
    assert at.js("[app.pointed().query, app.pointed().key]") == [1, 1]
    assert page.text_content("#value") == f"{weights[1, 1]:.4f}"
    page.keyboard.press("End")
    assert at.js("app.pointed().key") == source.count() - 1
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert (at.state("key"), at.state("locked")) == (0, True)
    stops = "document.querySelectorAll('#ribbons .tokens [tabindex=\"0\"]').length"
    assert at.js(stops) == 2  # one per row
    ids = [str(token["id"]) for token in at.js("app.look.source")]
    assert [title.split()[-1] for title in source.evaluate_all("all => all.map(one => one.title)")] == ids
    at.visit.check()


# ---- addresses


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("family", "address", "unfit"),
    [
        ("translation", "layer=nowhere&head=99&query=900&beta=-3", {"layer", "head", "query", "beta"}),
        pytest.param(
            "translation", "beam=abc&search=magic&max_tokens=-1", {"beam", "search", "max_tokens"}, marks=full
        ),
        ("translation", "edits=[{]&prefix=[99999]&view=none", {"edits", "prefix", "view"}),
        pytest.param(
            "language-model",
            "head=2&beam=17&nonsense=1&measure=alignment",
            {"head", "beam", "nonsense", "measure"},
            marks=full,
        ),
        (
            "classification",
            'edits=[{"kind":"off","path":"decoder.blocks.0.self_attention","head":0}]',
            {"edits"},
        ),
        pytest.param(
            "classification",
            "lensStack=cross&position=7000&language=fr",
            {"lensStack", "position", "language"},
            marks=full,
        ),
    ],
)
def test_what_an_address_says_in_vain_is_left_out_and_told_once(live, family, address, unfit):
    at = live(family)
    at.page.goto(at.page.url.partition("#")[0] + "#text=snow+rain&" + address)
    at.until("app?.look?.ask.text === 'snow rain'")
    at.until("document.getElementById('status').textContent.includes('left out of the address')")
    told = at.page.text_content("#status").partition(": ")[2]
    assert set(re.findall(r"(\S+) \([^)]+\)", told)) == unfit
    at.page.fill("#text", "snow in Oslo")
    at.after(lambda: at.page.press("#text", "Enter"))
    assert "left out" not in at.page.text_content("#status")
    at.page.wait_for_timeout(500)
    assert not [
        name for name in unfit - {"head", "query", "layer", "language"} if f"{name}=" in at.page.url.partition("#")[2]
    ]
    at.visit.check()  # no question was refused


@pytest.mark.full
def test_edits_that_fit_stay_and_patterns_do_too(live):
    fit = [
        {"kind": "off", "path": "encoder.*.self_attention", "head": 1},
        {"kind": "beta", "path": "*", "beta": "inf"},
    ]
    wrong = [
        {"kind": "off", "path": "encoder.blocks.9.self_attention"},
        {"kind": "beta", "path": "*", "beta": -1},
        7,
    ]
    wrong.append({"kind": "off", "path": "encoder.blocks.0.feed_forward", "head": 0})
    at = live("translation", text="snow rain", edits=[fit[0], *wrong, fit[1]])
    assert [edit["path"] for edit in at.js("app.look.ask.edits")] == [edit["path"] for edit in fit]
    assert "left out of the address: edits (not in this look)" in at.page.text_content("#status")
    assert ring(at) == "turn"
    at.visit.check()


def ring(at):
    """What moves beside the status while the page is busy."""
    return at.page.evaluate(
        """() => {
          document.getElementById("page").setAttribute("aria-busy", "true");
          return getComputedStyle(document.getElementById("status"), "::before").animationName;
        }"""
    )


def test_a_file_answers_its_own_question_whatever_its_address_says(saved, tokenizer):
    text = text_of(tokenizer, 8)
    at = saved("translation", text, "#text=another&search=greedy&view=layers&measure=none")
    assert at.js("app.look.ask.text") == text and at.state("view") == "layers"
    told = at.page.text_content("#status")
    names = re.findall(r"(\w+) \(not in this look\)", told.partition("left out of the address: ")[2])
    assert names == ["text", "search", "measure"]
    assert ring(at) == "none"  # a file waits for nothing
    at.visit.check()


@pytest.mark.full
def test_tokens_count_from_1_where_they_are_read(saved, tokenizer):
    """And from 0 in the address; of the matrix's labels, short ones stand upright."""
    address = "#layer=encoder.blocks.0.self_attention&head=1&query=2&key=0&view=arithmetic&numbers=true"
    at = saved("translation", text_of(tokenizer, 8), address)
    heads = "[...document.querySelectorAll('#view-arithmetic tbody th')].map(one => one.innerText)"
    at.until(f"{heads}.length")
    assert [name.split()[-1] for name in at.js(heads)][:3] == ["1", "2", "3"]
    assert at.page.text_content("#view-arithmetic .bar .note").strip() == "3"
    names = at.page.locator("#view-arithmetic thead th .formula").all_text_contents()
    assert "s" not in names  # a line of its own above the formula
    at.open_tab("attention")
    at.until("window.attendo.drawn.heat")
    assert at.page.text_content("#readout").startswith("3 → 1 · α ")
    labels = at.saved("save-heat-svg").decode().split("<text")[1:]
    slanted = {"rotate" in label for label in labels if re.search(r">\w{9,}<", label) and "end" not in label}
    upright = {"middle" in label for label in labels if re.search(r">\w\w<", label) and '"end"' not in label}
    assert slanted == {True} == upright
    beta_as_the_command_has_it(at)
    at.visit.check()


def beta_as_the_command_has_it(at):
    """The address takes every β that --beta takes, and writes hard attention in one way."""
    for word in (*HARD, "Hard", '"inf"', "0.5", "-3", "x"):
        at.page.evaluate("hash => { location.hash = hash; }", f"beta={quote(word)}")
        at.page.wait_for_timeout(30)
        fits = word not in ("-3", "x")
        assert at.state("beta") == (0.5 if word == "0.5" else "inf" if fits else 1)
        assert at.js("app.state.takeUnfit()") == ([] if fits else [["beta", False]])
        if word.lower() in HARD:
            assert _beta(word) == "inf"
    at.page.evaluate("hash => { location.hash = hash; }", "beta=hard")
    at.until("location.hash.includes('beta=inf')")
