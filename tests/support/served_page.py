"""A server whose page is looked at in a browser: models of every task, and what it wrote into its log."""

import io
import json
from urllib.parse import urlencode

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
SOME = "document.querySelector('.word, .written, .best')"


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
