"""What a person does on the microscope's page, by clicks and keys, and what they must then see."""

import csv
import io
import json
from urllib.parse import urlencode

from axe_playwright_python.sync_playwright import Axe

from attendo.microscope.run_model import look

NOT_BLANK = """name => [...document.querySelectorAll(`canvas[data-name="${name}"]`)].map(canvas => {
    const copy = new OffscreenCanvas(Math.max(1, canvas.width), Math.max(1, canvas.height));
    const pen = copy.getContext("2d", { willReadFrequently: true });
    pen.drawImage(canvas, 0, 0);
    const data = pen.getImageData(0, 0, copy.width, copy.height).data;
    const colors = new Set();
    for (let i = 0; i < data.length && colors.size < 3; i += 4) colors.add(data.slice(i, i + 4).join());
    return colors.size;
})"""


def address_of(page, **state):
    """The page's address with a state in it."""
    return f"{page}#{urlencode({name: v if isinstance(v, str) else json.dumps(v) for name, v in state.items()})}"


CITED = {"rollout": "Abnar", "gradients": "Sundararajan", "patching": "Meng"}
"""A name in the source of each measure of influence."""

AXE = """([parts, first]) => {
  const contrast = "color-contrast";
  const named = ({ violations }) => violations.map(({ id, nodes }) => [id, nodes[0].html]);
  const found = async (of, options) => named(await axe.run(of, { resultTypes: ["violations"], ...options }));
  if (first) return found(document, {});
  const all = found(document, { rules: { [contrast]: { enabled: false } } });
  return all.then(async (some) => [...some, ...(await found({ include: parts }, { runOnly: [contrast] }))]);
}"""


def found_by_axe(page, *changed):
    """What axe finds: of the whole page, but the contrast, which takes long, of what changed since the last."""
    first = not page.evaluate("!!window.axe")
    if first:
        page.evaluate(Axe().axe_script)
    return page.evaluate(AXE, [[[part] for part in changed], first or not changed])


class Looking:
    """One page of one model, and the same model in Python to compare with."""

    def __init__(self, visited, session):
        self.visit, self.page, self.session = visited, visited.ready(), session

    def js(self, expression):
        """The value of an expression, in which `app` is the page's."""
        return self.page.evaluate(f"(() => {{ const app = window.attendo.app; return {expression}; }})()")

    def until(self, expression):
        """Waits for an expression to be true."""
        self.visit.until(f"(() => {{ const app = window.attendo.app; return !!({expression}); }})()")

    def state(self, name):
        """A part of the page's state."""
        return self.js(f"app.state.get({json.dumps(name)})")

    def after(self, act):
        """What the page is told in the next look, which `act` brings about."""
        self.page.evaluate("window.looked = window.attendo.app.look")
        act()
        self.until("app.look !== window.looked")
        self.until('document.getElementById("page").getAttribute("aria-busy") !== "true"')
        return self.js("app.look")

    def seen(self):
        """The same look in Python."""
        return look(self.session.user, self.session._requests[self.js("app.look.key")])

    def drawn(self, name):
        """Waits until no canvas of this name is blank; at least one must be there."""
        for _ in range(400):
            colors = self.page.evaluate(NOT_BLANK, name)
            if colors and min(colors) > 1:
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"canvas {name} is blank or missing: {colors}")

    def tells(self, panel):
        """Waits until a part of the page has a sentence to say."""
        for _ in range(300):
            if len(panel.inner_text()) > 30:
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"nothing but {panel.inner_text()!r}")

    def open_tab(self, name):
        """Clicks a tab, and gives its panel."""
        self.page.click(f"#tab-{name}")
        assert self.page.is_visible(f"#view-{name}")
        return self.page.locator(f"#view-{name}")

    def tabs(self):
        """The names of the views that there are for this family."""
        return self.page.evaluate("[...document.querySelectorAll('[role=tab]')].map(one => one.id.slice(4))")

    def ask(self, **fields):
        """Answers the questions of the sheet of the search: search, beam-size, max-tokens and target."""
        self.page.click("#search-button")
        for name, value in fields.items():
            place = f"#{name.replace('_', '-')}"
            if name == "search":
                self.page.select_option(place, value)
            else:
                self.page.fill(place, value)
                self.page.press(place, "Enter" if name == "target" else "Tab")
        self.page.keyboard.press("Escape")

    def open_settings(self):
        """Opens the settings of the picture."""
        self.page.click("#picture-settings")

    def saved(self, name):
        """The bytes of a file that the menu of the header saves."""
        self.page.click("#save")
        with self.page.expect_download() as waited:
            self.page.click(f"#{name}")
        self.page.keyboard.press("Escape")
        return waited.value.path().read_bytes()

    def says(self, panel, text):
        """Waits until a part of the page shows a text."""
        for _ in range(300):
            if text in panel.inner_text():
                return
            self.page.wait_for_timeout(20)
        raise AssertionError(f"{text!r} is not in {panel.inner_text()!r}")

    def weights(self):
        """The weights of the open head as Python recorded them."""
        return self.seen().record[self.state("layer")].weights[0, self.state("head")]


WRITERS = ("translation", "language-model")


def ask_another_way(at, text):
    """a: a text, and the answer found by the searches there are, or forced; tokens have their ids in a tooltip."""
    page = at.page
    page.fill("#text", text)
    told = at.after(lambda: page.keyboard.press("Enter"))
    assert told["ask"]["text"] == text
    if told["family"] not in WRITERS:
        assert not page.is_visible("#search-button")
        return
    told = at.after(lambda: at.ask(search="beam", beam_size="2"))
    at.until("app.look.ask.beam === 2")
    assert at.js("app.look.ask.search") == "beam"
    at.after(
        lambda: at.ask(search="forced", target=" snow rain" if told["family"] == "language-model" else "snow rain")
    )
    at.until("app.look.outcome.text.trim() === 'snow rain'")
    at.after(lambda: at.ask(search="greedy"))


def walk_over_heads(at):
    """b: a thumbnail of each head with its measure; click opens, arrows walk in the order of the computation."""
    page, look_ = at.page, at.js("app.look")
    n_heads = sum(layer["heads"] for stack in look_["stacks"] for layer in stack["layers"])
    assert page.locator("#stacks button.head").count() == n_heads
    at.drawn("thumb")
    first = look_["stacks"][0]["layers"][0]
    head = page.locator(f'button.head[data-path="{first["path"]}"]')
    head.nth(1).click()
    assert (at.state("layer"), at.state("head")) == (first["path"], 1)
    page.keyboard.press("ArrowLeft")
    assert at.state("head") == 0
    page.keyboard.press("ArrowDown")
    assert at.state("layer") != first["path"]
    for name in ("maximum", "previous", "entropy"):
        page.select_option("#measure", name)
        number = f"{first['measures'][name][0]:.2f}"[:3]
        at.until(f"document.querySelector('button.head .track').title.includes({json.dumps(number)})")


def read_values(at):
    """c: ribbons and matrix; four digits of each value; fixed by a click, moved by keys; saved in three forms."""
    page = at.page
    at.open_tab("attention")
    at.until("window.attendo.drawn.heat && app.numbersNow(app.state.get('layer'))")
    at.drawn("heat")
    heat = page.locator('canvas[data-name="heat"]')
    heat.scroll_into_view_if_needed()
    heat.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert at.state("locked") and page.is_visible("#let-go")
    weights = at.weights()
    query, key = at.js("app.spot().query"), at.js("app.spot().key")
    assert page.text_content("#value") == f"{weights[query, key]:.4f}"
    page.keyboard.press("End")
    key = at.js("app.spot().key")
    assert key == weights.shape[1] - 1 and page.text_content("#value") == f"{weights[query, key]:.4f}"
    page.keyboard.press("Escape")
    assert not at.state("locked")
    box = heat.bounding_box()
    for part in (0.5, 0.6, 0.7, 0.8, 0.9):  # somewhere in the map, past its labels
        page.mouse.move(box["x"] + box["width"] * part, box["y"] + min(box["height"], 300) * part)
        if at.js("app.pointed()"):
            break
    spot = at.js("app.pointed()")
    assert page.text_content("#value") == f"{weights[spot['query'], spot['key']]:.4f}"
    if max(weights.shape) <= 48:
        assert page.locator("#ribbons svg path").count() > 0
    else:
        assert not page.is_visible("#ribbons") and page.is_disabled("#picture-ribbons")
    save_pictures(at, weights)


def save_pictures(at, weights):
    """The open head as PNG, SVG and CSV."""
    found = {name: at.saved(name) for name in ("save-heat-png", "save-heat-svg", "save-csv")}
    assert found["save-heat-png"].startswith(b"\x89PNG") and len(found["save-heat-png"]) > 1000
    assert found["save-heat-svg"].startswith(b"<svg") and b"<script" not in found["save-heat-svg"]
    rows = list(csv.reader(io.StringIO(found["save-csv"].decode("utf-8-sig"))))
    numbers = [float(cell) for row in rows for cell in row if is_number(cell)]
    assert len(numbers) >= weights.numel()


def is_number(text):
    """Whether a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def follow_the_steps(at):
    """d: from the scores of one query to what its head passes on: colors first, and every number by a switch."""
    panel = at.open_tab("arithmetic")
    rows = panel.locator("table tbody tr")
    at.until("document.querySelectorAll('#view-arithmetic table.cards tbody tr').length > 0")
    panel.locator("#steps-numbers").click()
    at.until("document.querySelectorAll('#view-arithmetic .numbered').length > 0")
    text = panel.inner_text()
    assert "1.0000" in text and "softmax" in text.lower()
    assert "s = q·k / √8\n= q·k × 0.3536" in text
    before = at.js("app.spot().query")
    next_ = panel.locator("#steps-next")
    (next_ if next_.is_enabled() else panel.locator("#steps-previous")).click()
    assert at.js("app.spot().query") != before
    query = at.js("app.spot().query")
    weights = at.weights()[query]
    best = int(weights.argmax())
    at.says(panel, f"{weights[best]:.4f}")
    assert rows.count() >= min(len(weights), 24)


def slide_to_hard(at):
    """e: β to its end is hard attention at once, in the picture and in the model."""
    at.page.locator("#beta").focus()
    at.page.keyboard.press("End")
    assert at.state("beta") == "inf"
    assert "∞" in at.page.locator("#beta-value").text_content()
    at.until("app.numbersNow(app.state.get('layer'))")
    values = at.js("[...new Set(app.numbersNow(app.state.get('layer')).weights(app.state.get('head'), Infinity))]")
    assert set(values) <= {0, 1}
    at.page.keyboard.press("Home")
    assert at.state("beta") == 0
    at.after(lambda: (at.page.select_option("#beta-scope", "all"), at.page.keyboard.press("End")))
    at.until("app.look.ask.edits.some(edit => edit.kind === 'beta')")
    assert at.js("app.look.baseline") is not None
    at.page.click("#beta-reset")
    at.until("app.look.ask.edits.length === 0")


def switch_off(at):
    """f: a head is switched off by double click or key; both answers are at the top; a chip undoes it; a ranking."""
    page = at.page
    head = page.locator("button.head").nth(0)
    told = at.after(lambda: head.dblclick())
    assert [edit["kind"] for edit in told["ask"]["edits"]] == ["off"]
    assert told["stacks"][0]["layers"][0]["off"] == [0] and "off" in head.get_attribute("class")
    assert not page.is_checked("#head-on")
    if told["family"] != "classification":
        lines = page.locator("#answer .before-after .output-text").all_text_contents()
        assert lines == [told["baseline"]["text"], told["outcome"]["text"]]
    panel = at.open_tab("off")
    at.says(panel, f"{abs(told['baseline']['total']):.4f}")
    told = at.after(lambda: page.locator(".edits .edit").click())
    assert told["ask"]["edits"] == [] and told["baseline"] is None
    told = at.after(lambda: (head.focus(), page.keyboard.press("x")))
    assert len(told["ask"]["edits"]) == 1
    told = at.after(lambda: page.click("#head-on"))
    assert told["ask"]["edits"] == []
    if not told["quick"]:
        page.locator("#view-off .measure-effects").click()
    at.until("document.querySelectorAll('#view-off .ranking tbody tr').length >= 2")


def look_through_the_lens(at):
    """g: the logit lens by layer and position; three measures of influence; positions."""
    panel = at.open_tab("layers")
    at.until("document.querySelectorAll('#view-layers table.lens tbody tr').length > 2")
    assert panel.locator("[role=gridcell]").count() > 4
    at.page.click("#part-influence")
    at.drawn("influence")
    for way in at.page.locator("#influence-way option").evaluate_all("all => all.map(one => one.value)"):
        at.page.select_option("#influence-way", way)
        if way == "patching":
            at.page.fill("#other-text", at.js("app.look.ask.text").replace(".", ","))
            at.page.press("#other-text", "Enter")
        at.until(f"document.querySelector('#layers-influence cite')?.textContent.includes('{CITED[way]}')")
        at.drawn("influence")
    at.page.select_option("#influence-way", "rollout")
    at.page.click("#part-positions")
    at.drawn("positions")
    at.tells(panel)
    at.page.click("#part-predictions")


def force_a_token(at):
    """g: what could be written instead; one is forced, the model goes on from there, and it is taken back."""
    page, family = at.page, at.js("app.model.family")
    assert page.locator("#next").count() == (family != "classification")
    if family not in WRITERS:
        return
    at.until("document.querySelectorAll('#next tbody tr').length > 2")
    last = str(len(at.js("app.look.target")) - 1)
    page.select_option("#next select", last)
    at.until("document.querySelectorAll('#next .force').length > 1")
    told = at.after(lambda: page.locator("#next .force").nth(1).click())
    assert len(told["ask"]["prefix_ids"]) >= 1
    begin = told["prompt_tokens"]
    ids = [token["id"] for token in told["target"]][begin : begin + len(told["ask"]["prefix_ids"])]
    assert ids == told["ask"]["prefix_ids"][: len(ids)]
    told = at.after(lambda: page.click("#forced"))
    assert told["ask"]["prefix_ids"] == []


def climb_the_tree(at):
    """h: the texts of the beam as a tree, every step of it walked by keys; why not another text."""
    if at.js("app.model.family") not in WRITERS:
        assert "search" not in at.tabs()
        return
    panel = at.open_tab("search")
    at.page.select_option("#tree-beam", "3")
    panel.locator("#tree-go").click()
    at.until("window.attendo.drawn.tree && document.querySelectorAll('.folded-tree .run').length > 0")
    if not panel.locator("#tree-steps[open]").count():
        panel.locator("#tree-steps summary").click()
    at.drawn("tree")
    panel.locator('canvas[data-name="tree"]').focus()
    at.page.keyboard.press("ArrowRight")
    said = panel.locator("output").first.text_content()
    at.page.keyboard.press("ArrowRight")
    assert said and panel.locator("output").first.text_content() != said
    panel.locator("#why-text").fill("snow rain wind")
    panel.locator("#why-go").click()
    at.until("document.querySelectorAll('#view-why table tbody tr').length >= 3")


def see_why_a_label(at):
    """j: which tokens and heads a classifier's answer hangs on."""
    if at.js("app.model.family") != "classification":
        assert "label" not in at.tabs()
        return
    panel = at.open_tab("label")
    at.until("document.querySelectorAll('#view-label .piece').length > 3")
    assert at.js("app.look.outcome.labels[0].label") in panel.inner_text()
    for way in ("rollout", "pooled", "gradient_times_input", "left_out"):
        at.page.select_option("#class-way", way)


def play_the_film(at):
    """k: the open head over the checkpoints of its training."""
    panel = at.open_tab("training")
    panel.locator("#film-go").click()
    at.drawn("film")
    frames = panel.locator("#film-frame")
    frames.focus()
    at.page.keyboard.press("Home")
    first = panel.inner_text()
    at.page.keyboard.press("ArrowRight")
    assert panel.inner_text() != first


FEATURES = (
    ask_another_way, walk_over_heads, read_values, follow_the_steps, slide_to_hard, switch_off,
    look_through_the_lens, force_a_token, climb_the_tree, see_why_a_label, play_the_film,
)  # fmt: skip
