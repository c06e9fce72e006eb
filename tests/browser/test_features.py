"""Every feature of the microscope's page, used by clicks and keys, for each family and at several lengths."""

import json
import random

import pytest
import torch
from browser_looking import FEATURES, Looking, address_of, found_by_axe
from looked_models import FAMILIES, HOSTILE, looked_model, text_of

from attendo.microscope.look_page import saved_page
from attendo.microscope.protocol import EditRequest, LookRequest
from attendo.microscope.session import Session
from attendo.nn.positions import DistanceBias

full = pytest.mark.full


LENGTHS = {8: ("translation",), 30: (), 128: (), 512: ()}
"""Families that every run looks at with so many tokens; `make test-full` looks at all of them at all lengths."""


@pytest.mark.parametrize(
    ("family", "n_tokens"),
    [
        pytest.param(family, n_tokens, marks=() if family in always else full)
        for n_tokens, always in LENGTHS.items()
        for family in FAMILIES
    ],
)
def test_every_feature_works_by_clicks_and_keys(visit, served, sessions, tokenizer, family, n_tokens):
    text = text_of(tokenizer, n_tokens - (4 if family == "language-model" else 0))
    visited = visit(address_of(served(sessions[family]), text=text, max_tokens=4))
    at = Looking(visited, sessions[family])
    for feature in FEATURES:
        feature(at, *([text.replace("rain", "snow") + " wind"] if feature is FEATURES[0] else []))
    visited.check()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("family", "theme"),
    [
        ("translation", "light"),
        ("classification", "dark"),
        *(pytest.param(family, theme, marks=full) for family in FAMILIES for theme in ("light", "dark")),
    ],
)
def test_axe_finds_nothing(visit, served, sessions, tokenizer, family, theme):
    state = {"text": text_of(tokenizer, 12), "max_tokens": 4, "theme": theme}
    visited = visit(address_of(served(sessions[family]), **state), bypass_csp=True)
    page = visited.ready()
    at = Looking(visited, sessions[family])
    for name in at.tabs():
        page.click(f"#tab-{name}")
        page.wait_for_timeout(50)
        assert found_by_axe(page, f"#view-{name}", "[role=tablist]") == [], name
    for name in ("about", "save", "keys", "search-button"):
        if page.is_visible(f"#{name}"):
            page.click(f"#{name}")
            assert found_by_axe(page, ".sheet:popover-open") == [], name
            page.keyboard.press("Escape")
    visited.check()


@pytest.mark.some(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_words_are_shown_as_text_and_break_nothing(visit, served, sessions, family):
    words = list(HOSTILE)
    random.Random(family).shuffle(words)
    state = {"text": " ".join(words), "search": "forced", "target": " ".join(HOSTILE), "edits": []}
    visited = visit(address_of(served(sessions[family]), **state))
    at = Looking(visited, sessions[family])
    assert at.js("typeof window.harmed") == "undefined" and at.page.locator("#page img").count() == 0
    for name in at.tabs()[1:-1]:
        at.open_tab(name)
    at.open_tab("attention")
    shown = "".join(at.js("app.tokensOf(app.openLayer().keys).map((token) => token.piece)"))
    titles = "".join(at.page.locator("#ribbons .chip").evaluate_all("all => all.map(one => one.title)"))
    for word in HOSTILE[:6]:
        assert word in shown and (not titles or word in titles)
    assert at.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    visited.check()


def test_a_saved_page_of_a_changed_model_shows_the_change_and_the_head_that_was_chosen(
    visit, sessions, tokenizer, tmp_path
):
    session, head = sessions["translation"], {"path": "encoder.blocks.1.self_attention", "head": 1}
    path, edit = tmp_path / "page.html", EditRequest(kind="beta", path="*", beta=2.0)
    ask = LookRequest(text=text_of(tokenizer, 8), search="beam", beam=2, edits=(edit,))
    path.write_text(saved_page(session, ask, "ja", head=head), encoding="utf-8")
    at = Looking(visit(path.as_uri()), session)
    assert at.js("app.look.ask.edits.length") == 1 and at.js("app.look.baseline !== null")
    assert at.page.evaluate("document.documentElement.lang") == "ja"
    assert (at.state("layer"), at.state("head")) == (head["path"], head["head"])
    at.open_tab("training").locator("#film-go").click()  # it holds that head's
    at.drawn("film")
    assert "--serve" not in at.page.text_content("#status")
    at.visit.check()


@pytest.mark.full
def test_attribution_and_probes(visit, served, sessions, tokenizer):
    session = Session(sessions["translation"].user)
    shares = {"accuracy": [0.5, 0.88, 1.0], "control": [0.5, 0.4, 0.3], "majority": 0.6}
    session.probes = {"stack": "encoder", **shares, "n_train": 75, "n_test": 25}
    edits = [{"kind": "off", "path": "decoder.blocks.1.self_attention", "head": 1, "how": "zero", "beta": 1}]
    address = address_of(served(session), text=text_of(tokenizer, 8), position=2, edits=edits)
    at = Looking(visit(address, bypass_csp=True), session)
    page, panel = at.page, at.page.locator("#layers-attribution")
    page.click("#link-logit")
    logits, token = at.seen().logits[2], at.seen().wanted[2]
    at.says(panel, f"is {logits[token]:.4f}".replace("-", "−"))
    titles = panel.locator("td[title]").evaluate_all("all => all.map(one => one.title.replace('−', '-'))")
    assert sum(map(float, titles)) == pytest.approx(float(logits[token]), abs=1e-3)
    other = int(page.select_option("#logit-other", index=1)[0])
    at.says(panel, f"is {logits[token] - logits[other]:.4f}".replace("-", "−"))
    assert found_by_axe(page, "#layers-attribution") == []
    head = panel.locator("tbody button").first
    name = head.text_content()
    head.click()
    at.says(page.locator("#view-attention #head-line"), name)
    at.open_tab("layers")
    page.click("#part-probes")
    cells = page.locator("#layers-probes tbody td").all_text_contents()
    assert [cell.strip() for cell in cells[2:4]] == ["88% ± 7.1%", "40%"]
    at.visit.check()


class Window(DistanceBias):
    """The first head sees the keys next to a query alone, the second all."""

    def forward(self, queries, keys):
        far = (queries[:, None, :, None] - keys).abs() > torch.tensor([1, 600])[:, None, None]
        return torch.zeros(far.shape).masked_fill(far, -torch.inf)


@pytest.mark.full
def test_what_a_bias_hides_has_no_weight_and_no_color(visit, tokenizer, tmp_path):
    user, layer = looked_model("translation", tokenizer), "encoder.blocks.1.self_attention"
    for block in user.model.encoder.blocks:
        block.self_attention.positions = Window()
    user.folder = tmp_path / "near"
    session, path = Session(user), tmp_path / "page.html"
    path.write_text(
        saved_page(session, LookRequest(text=text_of(tokenizer, 8)), head={"path": layer, "head": 0}),
        encoding="utf-8",
    )
    at = Looking(visit(path.as_uri()), session)
    drawn = at.js(f'[...app.numbersNow("{layer}").weights(0)]')
    weights = at.weights()
    torch.testing.assert_close(torch.tensor(drawn), weights.flatten(), rtol=0, atol=1e-5)
    assert (weights.triu(2) == 0).all() and weights.triu(1).any()
    assert min(at.js(f'[...app.numbersNow("{layer}").weights(0, 0)]')) == 0.0  # at β = 0, too
    assert at.page.text_content("#about").startswith("near · ")
    assert "run: attendo.look(model, text), in Python" in at.page.text_content("#saved-note")
    at.open_settings()
    assert at.page.text_content("#shows [value=scores]").endswith("q·k·scale + b")
    at.page.select_option("#shows", "scores")
    at.page.keyboard.press("Escape")
    at.page.locator('canvas[data-name="heat"]').focus()
    at.page.keyboard.press("End")  # the last key of the first query
    assert "q·k·scale + b −∞" in at.page.text_content("#readout")
    steps = at.open_tab("arithmetic")
    at.page.click("#steps-numbers")
    at.until("document.querySelector('#view-arithmetic .numbered')")
    assert "−∞" in steps.inner_text() and "b(j−i)" in steps.inner_text()
    columns = steps.locator("table tr").evaluate_all("all => all.map((row) => row.cells.length)")
    assert set(columns) == {9}
    at.open_tab("layers")
    at.page.click("#part-positions")
    at.drawn("positions")
    assert "∞" not in "".join(at.page.locator("#layers-positions .color-scale").all_text_contents())
    shown = at.page.inner_text("#layers-positions")
    assert f"Window, a bias by distance: {len(weights)} distances, 2 heads" in shown
    assert "Encoder self-attention, layer 2: what is added to the scores, distances down, heads across" in shown
    assert "Encoder self-attention, layer 2, head 1: queries down" in shown
    assert "Compare by" not in shown and "How alike" not in shown
    panel, end = at.page.locator("#layers-positions"), f"position {len(weights) - 1}"
    for head, number in ((0, "−∞"), (1, "0.0000")):  # of the last key for the first query
        at.js(f"app.choose({json.dumps(layer.replace('1', '0'))}, {head})")
        at.says(panel, f"Encoder self-attention, layer 1, head {head + 1}: queries down")
        panel.locator('canvas[data-name="position-dots"]').focus()
        at.page.keyboard.press("End")
        told = panel.locator(".cells-value").last.text_content()
        assert end in told and told.split()[-1] == number
    at.visit.check()


@pytest.mark.full
def test_a_masked_model_fills_in_what_is_hidden(visit, served, sessions, tokenizer):
    session = sessions["masked-language-model"]
    words = text_of(tokenizer, 8).split(" ")
    text = " ".join([*words[:2], "<mask>", *words[3:]])
    at = Looking(visit(address_of(served(session), text=text)), session)
    assert at.js("app.look.source.map((token) => token.piece)")[3] == "<mask>"
    assert at.js("app.look.source.map((token) => Boolean(token.out))").count(True) == 1
    assert "1 masked tokens filled in" in at.page.text_content("#answer")
    for tab in ("off", "layers", "attention"):
        at.open_tab(tab)
    at.visit.check()


@pytest.mark.full
def test_a_change_of_language_during_a_look_loses_nothing(visit, served, sessions, tokenizer):
    visited = visit(address_of(served(sessions["translation"]), text=text_of(tokenizer, 8), language="en"))
    at = Looking(visited, sessions["translation"])
    at.page.fill("#text", text_of(tokenizer, 30))
    at.page.keyboard.press("Enter")
    at.page.evaluate("document.getElementById('language').click()")
    at.until("app.look.source.length === 31 && document.documentElement.lang === 'ja'")
    at.drawn("heat")
    visited.check()


@pytest.mark.full
def test_the_whole_state_is_in_the_address(visit, served, sessions, tokenizer):
    session = sessions["translation"]
    edits = [{"kind": "off", "path": "decoder.blocks.1.cross_attention", "head": 1, "how": "zero"}]
    layer = "decoder.blocks.0.self_attention"
    state = {"text": text_of(tokenizer, 8), "edits": edits, "layer": layer, "head": 1, "view": "layers"}
    visited = visit(address_of(served(session), **state, language="ja", theme="dark", query=2, key=1, locked=True))
    at = Looking(visited, session)
    assert at.js("app.look.ask.edits") == [edits[0] | {"beta": 1.0}]
    assert (at.state("layer"), at.state("head"), at.state("view")) == (layer, 1, "layers")
    assert at.page.evaluate("document.documentElement.lang + document.documentElement.dataset.theme") == "jadark"
    assert f"{at.weights()[2, 1]:.4f}" == at.page.text_content("#value")
    at.page.click("#language")
    at.page.wait_for_timeout(600)
    assert "language=en" in at.page.url and at.page.is_visible("#view-layers")
    again = Looking(visit(at.page.url), session)
    assert again.js("JSON.stringify(app.look.outcome)") == at.js("JSON.stringify(app.look.outcome)")


@pytest.mark.full
def test_what_each_view_shows_is_in_the_address_too(visit, served, sessions, tokenizer):
    chosen = {
        "lensStack": "encoder",
        "influence": "gradients",
        "influenceStack": "decoder",
        "positionsSide": "target",
        "positionsLike": "cosine",
    }
    address = address_of(served(sessions["translation"]), text=text_of(tokenizer, 8), view="layers", **chosen)
    at = Looking(visit(address), sessions["translation"])
    at.until("document.querySelectorAll('#layers-predictions select').length")
    at.page.click("#part-influence")
    at.drawn("influence")
    shown = at.page.locator("#view-layers select").evaluate_all("all => all.map(one => one.value)")
    assert shown[:3] == ["encoder", "gradients", "decoder"]
    at.page.click("#part-positions")
    panel = at.page.locator("#layers-positions")
    at.drawn("positions")
    assert panel.locator("select").evaluate_all("all => all.map(one => one.value)") == ["target", "cosine"]
    panel.locator("select").first.select_option("source")
    at.page.wait_for_timeout(600)
    assert "positionsSide=source" in at.page.url
    at.visit.check()


@pytest.mark.full
def test_the_slider_changes_what_is_chosen_now(visit, served, sessions, tokenizer):
    address = address_of(served(sessions["translation"]), text=text_of(tokenizer, 8))
    at = Looking(visit(address), sessions["translation"])
    at.page.locator("#beta").focus()
    told = at.after(lambda: at.page.keyboard.press("End"))
    assert [edit["path"] for edit in told["ask"]["edits"]] == [at.state("layer")]
    told = at.after(lambda: at.page.select_option("#beta-scope", "all"))
    assert [(edit["path"], edit["beta"]) for edit in told["ask"]["edits"]] == [("*", "inf")]
    told = at.after(lambda: at.page.select_option("#beta-scope", "layer"))
    assert [edit["path"] for edit in told["ask"]["edits"]] == [at.state("layer")]
    at.visit.check()
