"""What the page does with little room, long texts, files and a busy notebook, and what a saved one can't do."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from browser_looking import found_by_axe
from looked_models import FAMILIES, HOSTILE, text_of

from attendo.display.web import asset
from attendo.microscope.look_page import framed_page, saved_page
from attendo.microscope.protocol import LookRequest

full = pytest.mark.full
SVG = "{http://www.w3.org/2000/svg}"


# ---- what a file can't do


PRESS = """name => {
  const said = () => document.getElementById("status").textContent.includes("--serve");
  const parts = name ? [`view-${name}`] : ["input", "heads", "inspector"];
  for (const part of parts.map((id) => document.getElementById(id)))
    for (const one of part.querySelectorAll("button, select")) {
      const there = one.getClientRects().length > 0 && !one.disabled;
      if (!there || one.matches("[id^=save-], .term, #full-screen")) continue; // files, explanations
      if (one.tagName === "BUTTON") one.click();
      else
        for (const option of [...one.options].filter((option) => !option.disabled)) {
          one.value = option.value;
          one.dispatchEvent(new Event("change"));
        }
      if (said()) return one.outerHTML;
    }
  return null;
}"""


@pytest.mark.parametrize("family", ["translation", *(pytest.param(f, marks=full) for f in FAMILIES[1:])])
def test_in_a_file_everything_that_is_there_works_and_the_header_says_how_to_do_more(saved, tokenizer, family):
    at = saved(family, text_of(tokenizer, 8), **({"max_tokens": 4} if family == "language-model" else {}))
    assert "attendo look DIR --serve" in at.page.text_content("#saved-note")
    held = (at.state("layer"), at.state("head"))
    first = "label" if family == "classification" else "attention"  # why a label, before how
    assert at.page.get_attribute(f"#tab-{first}", "aria-selected") == "true"
    assert at.page.locator("#text").get_attribute("readonly") is not None
    for name in ("search-button", "head-on", "beta-scope", "beta-sweep", "why-go", "tree-go"):
        assert not at.page.is_visible(f"#{name}")  # each would ask something new
    for name in (None, *at.tabs()):
        if name:
            at.open_tab(name)
            at.page.wait_for_timeout(80)
        assert at.page.evaluate(PRESS, name) is None
        at.page.wait_for_timeout(80)
        assert "--serve" not in at.page.text_content("#status"), name
    if family == "translation":
        assert not at.page.locator("#next .force").count()
        other = (held[0], 1 - held[1])  # of the film, the file has that of the head which it opens
        at.page.evaluate("([path, head]) => window.attendo.app.choose(path, head)", list(other))
        at.open_tab("training")
        at.until("document.getElementById('film-go').hidden")
        at.page.locator("button.head").nth(0).press("x")
        assert "attendo look DIR --serve" in at.page.text_content("#status")
    assert [url for url in at.visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    at.visit.check()


@pytest.mark.full
def test_axe_finds_nothing_in_a_file(visit, sessions, tokenizer, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(saved_page(sessions["translation"], LookRequest(text=text_of(tokenizer, 8))), encoding="utf-8")
    page = visit(path.as_uri(), bypass_csp=True).ready()
    for name in ("off", "search"):
        page.click(f"#tab-{name}")
        page.wait_for_timeout(50)
        assert found_by_axe(page, f"#view-{name}", "[role=tablist]") == [], name


# ---- room


CUT = """() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (one) => ["auto", "scroll"].includes(getComputedStyle(one).overflowX);
  const boxed = (one) => one && one.id !== "page" && (scrolls(one) || boxed(one.parentElement));
  const cut = [...document.querySelectorAll("#page *")].filter((one) => {
    const box = one.getBoundingClientRect();
    const seen = box.width && box.height && !one.closest("details:not([open])");
    return seen && box.right > wide + 1 && !boxed(one.parentElement);
  });
  return [document.documentElement.scrollWidth > wide, ...cut.map((one) => one.outerHTML.slice(0, 90))];
}"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "language"),
    [("translation", "ja"), *(pytest.param(family, "en", marks=full) for family in FAMILIES)],
)
def test_nothing_is_cut_in_a_narrow_window(live, tokenizer, family, language):
    at = live(family, text=text_of(tokenizer, 30), language=language, tree=True, frame=0, numbers=True)
    for wide in (320, 530, 800, 1100):
        at.page.set_viewport_size({"width": wide, "height": 800})
        for name in at.tabs():
            at.open_tab(name)
            at.page.wait_for_timeout(60)
            assert at.page.evaluate(CUT) == [False], (wide, name)
    at.visit.check()


SMALL = """() => [...document.querySelectorAll("button, select, input, a, summary")].filter((one) => {
  const box = (one.closest("label") ?? one).getBoundingClientRect();
  const inText = one.matches(".term, .link"); // words in a sentence
  return !inText && one.getClientRects().length && (box.height < 43 || (box.width < 24 && !one.matches(".chip")));
}).map((one) => one.outerHTML.slice(0, 90))"""


@pytest.mark.parametrize("family", ["translation", pytest.param("language-model", marks=full)])
def test_on_a_phone_the_picture_is_on_the_first_screens_and_can_be_touched(live, tokenizer, family):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    at = live(family, phone, text=text_of(tokenizer, 8))
    at.until("window.attendo.drawn.heat && window.attendo.drawn.ribbons")
    assert at.js("document.getElementById('ribbons').getBoundingClientRect().bottom") < 2 * 844
    for name in at.tabs():
        at.open_tab(name)
        at.page.wait_for_timeout(60)
        assert at.page.evaluate(SMALL) == [], name
    at.visit.check()


# ---- shades


@pytest.mark.full
def test_thumbnails_of_a_long_text_have_the_scale_of_the_map_and_tell_it(live, tokenizer):
    at = live("classification", text=text_of(tokenizer, 100), view="attention")
    at.until("window.attendo.drawn.heads && window.attendo.drawn.heat")
    scale = at.page.locator("#view-attention .scale").text_content()
    top = f"{at.weights().max():.3f}" if at.weights().max() < 0.1 else f"{at.weights().max():.2f}"
    assert scale.startswith(f"0{top}") and "√" in scale
    open_ = at.page.locator('button.head[aria-pressed="true"]')
    assert f"strongest color: weight {top}, on a scale of √" in open_.get_attribute("title")
    darkest = at.js("getComputedStyle(document.documentElement).getPropertyValue('--shade-4').slice(11, 18)").strip()
    strongest = [int(darkest[i : i + 2], 16) for i in (1, 3, 5)]
    colors = at.page.locator("canvas.thumbs").evaluate(
        """canvas => {
          const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
          copy.drawImage(canvas, 0, 0);
          const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
          return [...new Set(Array.from({ length: data.length / 4 }, (_, i) => data.slice(4 * i, 4 * i + 3).join()))];
        }"""
    )
    assert ",".join(map(str, strongest)) in colors and len(colors) > 20
    at.open_settings()
    at.page.select_option("#color", "linear")
    assert at.page.locator("#view-attention .scale").text_content() == "01"
    at.until("document.querySelector('button.head[aria-pressed=\"true\"]').title.endsWith('strongest color: weight 1')")
    at.visit.check()


# ---- files


def test_no_spreadsheet_takes_a_piece_for_a_formula(live):
    assert HOSTILE[-1].startswith("@")
    at = live("classification", text=f"{HOSTILE[-1]} snow", shows="scores", view="attention")
    at.until("window.attendo.drawn.heat")
    rows = list(csv.reader(io.StringIO(at.saved("save-csv").decode())))
    assert f"'{HOSTILE[-1]}" in rows[0] and HOSTILE[-1] not in rows[0]
    numbers = [cell for row in rows[1:] for cell in row[1:]]
    scores = at.seen().record[at.state("layer")]
    assert min(map(float, numbers)) < 0 and len(numbers) == scores.weights[0, 0].numel()


@pytest.mark.full
def test_the_tree_is_saved_as_it_is_drawn(live, tokenizer):
    at = live("translation", text=text_of(tokenizer, 8), view="search", tree=True, treeBeam=2)
    at.until("window.attendo.drawn.tree")
    at.page.click("#tree-steps summary")
    at.drawn("tree")

    def saved_by(name):
        with at.page.expect_download() as waited:
            at.page.click(f"#{name}")
        return waited.value.path().read_bytes()

    nodes = at.session.answer("tree", {"key": at.js("app.look.key"), "beam": 2})["nodes"]
    rows = list(csv.DictReader(io.StringIO(saved_by("save-tree-csv").decode())))
    assert [(row["id"], float(row["log_prob"])) for row in rows] == [
        (str(node["id"]), pytest.approx(node["log_prob"], rel=1e-6)) for node in nodes
    ]
    assert saved_by("save-tree-png").startswith(b"\x89PNG")
    svg = ElementTree.fromstring(saved_by("save-tree-svg"))
    texts = [one.text for one in svg.iter(f"{SVG}text")]
    assert len(texts) == 2 * len(nodes) + 1  # each with its number, and the start
    assert len(list(svg.iter(f"{SVG}path"))) > 3 * len(nodes)
    at.visit.check()


# ---- in a notebook


NOTEBOOK = """<!doctype html><meta charset="utf-8"><body><script>
window.asked = [];
addEventListener("message", ({ data }) => asked.push(data));
const frame = document.createElement("iframe");
frame.setAttribute("sandbox", "allow-scripts");
frame.srcdoc = PAGE;
document.body.append(frame);
</script>"""


def test_in_a_busy_notebook_the_page_says_that_it_waits(visit, sessions, tmp_path):
    session = sessions["classification"]
    path = tmp_path / "notebook.html"
    page = json.dumps(framed_page(LookRequest(text="snow rain"))).replace("<", "\\u003c")
    path.write_text(NOTEBOOK.replace("PAGE", page), encoding="utf-8")
    visited = visit(path.as_uri())
    visited.until("window.asked.length > 0")
    (frame,) = visited.page.frames[1:]
    for _ in range(200):
        if "Waiting for Python" in frame.locator("#page").inner_text():
            break
        visited.page.wait_for_timeout(20)
    else:
        raise AssertionError("an empty page")
    answered = 0
    for _ in range(300):
        for asked in visited.page.evaluate("window.asked")[answered:]:
            answered += 1
            answer = session.answer(asked["name"], asked["body"])
            binary = isinstance(answer, bytes)
            told = {"attendo": 1, "id": asked["id"], **({} if binary else {"answer": answer})}
            visited.page.evaluate(
                """([told, bytes]) => {
                  if (bytes) told.buffer = Uint8Array.from(bytes).buffer;
                  document.querySelector("iframe").contentWindow.postMessage(told, "*");
                }""",
                [told, list(answer) if binary else None],
            )
        if frame.evaluate("!!window.attendo?.ready"):
            break
        visited.page.wait_for_timeout(20)
    assert frame.evaluate("window.attendo.app.look.ask.text") == "snow rain"
    visited.check()


FRAMED = """<script>
const told = [];
addEventListener("message", ({ source, data }) => {
  if (source !== parent) return;
  told.push(data.buffer ? [data.id, [...new Uint8Array(data.buffer)]] : data);
  if (told.length === 2) parent.postMessage({ attendo: 1, id: "end", name: "end", body: told }, "*");
});
parent.postMessage("not for us", "*");
for (const id of [1, 2]) parent.postMessage({ attendo: 1, id, name: `n${id}`, body: { text: "<\\/script>" } }, "*");
</script>"""
KERNEL = """<!doctype html><meta charset="utf-8"><div id="cell"></div><script type="module">
const bridge = (await import(URL.createObjectURL(new Blob([%s], { type: "text/javascript" })))).default;
const handlers = new Set();
const asked = [];
const tell = (told, buffers) => handlers.forEach((fn) => fn(told, buffers));
const model = {
  get: (name) => ({ page: %s, height: 300 })[name],
  on: (name, fn) => handlers.add(fn),
  off: (name, fn) => handlers.delete(fn),
  send: (question) => {
    asked.push(question);
    const { attendo, view, id } = question;
    if (id === 1) {
      tell({ attendo, view: "another", id, answer: "of another view" }, []);
      tell({ attendo, view, id, answer: { n: 1 } }, []);
    }
    if (id === 2) tell({ attendo, view, id }, [new DataView(new Uint8Array([9, 1, 2, 3, 9]).buffer, 1, 3)]);
    if (id !== "end") return;
    leave();
    window.log = { asked, left: handlers.size };
  },
};
const leave = bridge.render({ model, el: document.getElementById("cell") });
</script>"""


def test_the_bridge_of_the_widget_passes_on_what_is_its_own(visit, tmp_path):
    page, bridge = (json.dumps(text).replace("</", "<\\/") for text in (FRAMED, asset("bridge.js")))
    (tmp_path / "notebook.html").write_text(KERNEL % (bridge, page), encoding="utf-8")
    visited = visit((tmp_path / "notebook.html").as_uri())
    log = visited.until("!!window.log").evaluate("window.log")
    assert log["left"] == 0
    first, second, end = log["asked"]
    assert {question["view"] for question in log["asked"]} == {first["view"]}
    asked = {"attendo": 1, "view": first["view"], "id": 1, "name": "n1", "body": {"text": "</script>"}}
    assert (first, second["id"]) == (asked, 2)
    assert end["body"] == [{"attendo": 1, "id": 1, "answer": {"n": 1}}, [2, [1, 2, 3]]]
    visited.check()
