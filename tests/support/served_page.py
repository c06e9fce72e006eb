"""A server whose page is looked at in a browser: models of every task, and what it wrote into its log."""

import io
import json
from urllib.parse import urlencode

from axe_playwright_python.sync_playwright import Axe
from looked_models import hostile_tokenizer, looked_model
from served_models import InMemory, live

from attendo.serving.app import create_app
from attendo.serving.monitoring import Log
from attendo.serving.state import ServingConfig, State

TOKENIZER = hostile_tokenizer()
TASKS = ("enja", "writer", "rain")
TYPING = 'document.activeElement.id === "source"'
READY = 'document.getElementById("target")?.getAttribute("aria-busy") === "false"'
WRITTEN = "document.getElementById('status')?.textContent.includes('after')"
SOME = "document.querySelector('.word, .best, .row')"


def translator(seed=0):
    return looked_model("translation", TOKENIZER, seed=seed)


def every_task():
    """A model of each, and a translator for the way back."""
    return (
        ("enja", translator(), "en", "ja"),
        ("jaen", translator(1), "ja", "en"),
        ("writer", looked_model("language-model", TOKENIZER), None, None),
        ("rain", looked_model("classification", TOKENIZER), None, None),
    )


class Site:
    """A server of models, and what it wrote into its log."""

    def __init__(self, stack, *models, **options):
        self.log = io.StringIO()
        self.state = State(InMemory(*models), ServingConfig(), log=Log("json", self.log), **options)
        self.address = stack.enter_context(live(create_app(self.state))) + "/"
        stack.callback(self.state.models.stop)

    def user(self, name):
        return self.state.models.named(name).user

    def translated(self, *texts, name="enja"):
        return [found.text for found in self.user(name).translate(list(texts))]

    def statuses(self, route):
        told = map(json.loads, self.log.getvalue().splitlines())
        return [one["status"] for one in told if one.get("route") == route]


def address_of(site, state):
    """The page with a state in its address."""
    return f"{site.address}#{urlencode(state or {})}"


def settled(visited):
    """Waits until everything that was typed is answered."""
    return visited.until(READY)


def lines(page):
    return page.evaluate("[...document.querySelectorAll('.line')].map((line) => line.textContent)")


def percent(share):
    """A probability as the pages write it."""
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.9995 < share < 1:
        return ">99.9%"
    digits = 1 if 0.995 < share < 1 else 0 if share == 0 or share >= 0.0995 else 1 if share >= 0.00995 else 2
    return f"{100 * share:.{digits}f}%"


def scripted(text, *tokens, **more):
    """An answer of /translate: (span, log-probability, source span) of each token."""
    rows = [{"span": span, "log_prob": value, "alternatives": []} for span, value, _ in tokens]
    links = [{"target": n, "source_span": span} for n, (_, _, span) in enumerate(tokens) if span]
    candidate = {"text": text, "tokens": rows, "alignment": links}
    details = {"candidates": [candidate], "parts": 1, "omission": "none", **more}
    return json.dumps({"translatedText": [text], "details": [details]})


def answers_with(page, route, body):
    """Answers each request to a route with a body."""
    page.route(f"**/{route}", lambda one: one.fulfill(body=body, content_type="application/json"))


VIOLATIONS = """axe.run(document, { resultTypes: ["violations"] })
  .then(({ violations }) => violations.map(({ id, nodes }) => [id, nodes[0].html]))"""


def violations(page):
    """What axe finds, of any impact."""
    page.evaluate(Axe().axe_script)
    return page.evaluate(VIOLATIONS)


SMALL = """[...document.querySelectorAll('button, select, a, summary, input')].filter((one) => {
  const { width, height } = one.getBoundingClientRect();
  const target = one.type === "checkbox" ? one.closest("label").getBoundingClientRect() : { width, height };
  return width && (target.height < 43.5 || target.width < 43.5);
}).map((one) => one.outerHTML)"""
"""The controls that a finger can miss."""


def curl_of(page):
    """The command of "As a request"."""
    if not page.is_visible(".request pre"):
        page.click(".request summary")
        page.wait_for_selector(".request code:not(:empty)")
    return page.text_content(".request code")


def shown(visited, expected):
    """Waits until the translation is this one."""
    wanted = json.dumps(expected)
    told = '[...document.querySelectorAll(".line")].map((line) => line.textContent.replace(/⋯$/, ""))'
    visited.until(f"{READY} && JSON.stringify({told}) === JSON.stringify({wanted})")
    return visited.page


def until_ready(looked):
    """Waits for the microscope's first picture."""
    for _ in range(500):
        if looked.evaluate("!!(window.attendo && window.attendo.ready)"):
            return
        looked.wait_for_timeout(20)
    raise AssertionError("the microscope shows nothing")
