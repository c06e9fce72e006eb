"""The system's Chromium, driven by clicks and keys; without one, these tests are skipped with a word."""

import contextlib
import json
import os
import shutil
import threading
from collections import defaultdict
from urllib.parse import urlsplit

import pytest
import served_page
from browser_looking import Looking, address_of
from looked_models import FAMILIES, hostile_tokenizer, looked_model
from safetensors.torch import save_file

from attendo.files import write_manifest
from attendo.microscope.look_page import saved_page
from attendo.microscope.server import LookServer
from attendo.microscope.session import Session, json_schema
from attendo.microscope.view import ask_for
from attendo.training.checkpoints import weights_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


SHARED = pytest.StashKey()


@pytest.fixture(scope="module")
def shared(request):
    """Makes what all tests of this folder share, once; gone with them, since other tests count threads and fork."""
    folder = request.node.getparent(pytest.Dir)
    if SHARED not in folder.stash:
        folder.stash[SHARED] = contextlib.ExitStack(), {}
        folder.addfinalizer(folder.stash[SHARED][0].close)
    stack, made = folder.stash[SHARED]

    def of(key, make):
        if key not in made:
            made[key] = stack.enter_context(make())
        return made[key]

    return of


@pytest.fixture(scope="module")
def browser(shared):
    """A browser."""
    return shared("browser", started_browser)


@contextlib.contextmanager
def started_browser():
    if CHROMIUM is None:
        reason = "no Chromium on this machine: install it (apt install chromium) to run the browser tests"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def names_in(schema):
    """The names of all fields in a JSON schema."""
    if isinstance(schema, list):
        return {name for part in schema for name in names_in(part)}
    if not isinstance(schema, dict):
        return set()
    return {*schema.get("properties", ())}.union(*map(names_in, schema.values()))


FIELDS = {name: sorted(names_in(both["answer"])) for name, both in json_schema().items()}
FIELDS["look"].append("rank_of_final")  # a cell of the lens may show what the look itself predicts
WATCH_READS = (
    """window.unknownReads = new Set();
const fields = FIELDS, proxies = new WeakMap();
const ofPromisesAndJson = ["then", "toJSON"];
function watched(value, name) {
  if (value === null || typeof value !== "object") return value;
  if (!proxies.has(value))
    proxies.set(value, new Proxy(value, { get(target, key) {
      const known = Array.isArray(target) || typeof key === "symbol" || key in target;
      if (!known && ![...fields[name], ...ofPromisesAndJson].includes(key)) unknownReads.add(`${name}: ${key}`);
      return watched(target[key], name);
    }}));
  return proxies.get(value);
}
const json = Response.prototype.json, parse = JSON.parse;
Response.prototype.json = async function () {
  const name = new URL(this.url).pathname.split("/").at(-1), answer = await json.call(this);
  return this.ok && name in fields ? watched(answer, name) : answer;
};
JSON.parse = (...given) => {
  const found = parse(...given);
  return found?.live ? { live: watched(found.live, "model") } : found;
};"""
).replace("FIELDS", json.dumps(FIELDS))
"""Notes each field that the page reads of an answer and that the answer's schema does not have."""


class Visit:
    """A page under watch: what it asked for and what it complained of, and what it read in vain."""

    def __init__(self, context):
        self.requests, self.complaints = [], []
        context.route("**/*", self._route)
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _route(self, route):
        self.requests.append(route.request.url)
        local = urlsplit(route.request.url).hostname in (None, "127.0.0.1") or route.request.url.startswith(
            ("file:", "data:", "blob:")
        )
        if local:
            route.continue_()
        else:
            route.abort()

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def ready(self):
        """Waits until the first look is drawn."""
        return self.until("!!(window.attendo && window.attendo.ready)")

    def until(self, expression):
        """Waits until something holds in the page; asked from outside, since the page's policy forbids `eval`."""
        for _ in range(1000):
            if self.page.evaluate(expression):
                return self.page
            self.page.wait_for_timeout(20)
        raise AssertionError(f"never came true: {expression}; complaints: {self.complaints}")

    def check(self):
        """Nothing left this machine, and nothing was wrong."""
        assert self.complaints == []
        assert self.page.evaluate("[...window.unknownReads]") == []
        foreign = [url for url in self.requests if urlsplit(url).scheme in ("http", "https", "ws", "wss")]
        assert all(urlsplit(url).hostname == "127.0.0.1" for url in foreign), foreign


@pytest.fixture(scope="module")
def windows(browser, shared):
    """Lends windows of the browser; what a test did in one is undone before the next has it."""
    free = shared("windows", lambda: contextlib.nullcontext(defaultdict(list)))

    @contextlib.contextmanager
    def lent(**options):
        unused = free[repr(sorted(options.items()))]
        if unused:
            context = unused.pop()
        else:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            context.add_init_script(WATCH_READS)
        yield context
        for page in context.pages:
            page.close()
        context.unroute_all(behavior="ignoreErrors")
        context.clear_cookies()
        context.clear_permissions()
        context.set_offline(False)
        unused.append(context)

    return lent


@pytest.fixture
def visit(windows):
    """Opens pages; at the end, each must have kept to itself and to its peace."""
    with contextlib.ExitStack() as stack:

        def opened(url, **options):
            visited = Visit(stack.enter_context(windows(**options)))
            visited.page.goto(url)
            return visited

        yield opened


@contextlib.contextmanager
def served_session(session):
    server = LookServer(session)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server.address
    server.stop()
    thread.join()


@pytest.fixture
def served(shared):
    """Serves a session on a free port of this machine, one server for each."""
    return lambda session: shared(session, lambda: served_session(session))


@pytest.fixture(scope="session")
def tokenizer():
    return hostile_tokenizer()


@pytest.fixture(scope="session")
def sessions(tokenizer, tmp_path_factory):
    """A session of each family, with two checkpoints of its training."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        for step in (10, 20):
            path = folder / "checkpoints" / f"step-{step}"
            path.mkdir(parents=True)
            weights = weights_of(looked_model(family, tokenizer, seed=step).model)
            save_file({name: tensor.clone() for name, tensor in weights.items()}, path / "model.safetensors")
            write_manifest(path, {"format": 1, "step": step})
        user = looked_model(family, tokenizer)
        weights = {name: tensor.clone() for name, tensor in weights_of(user.model).items()}
        save_file(weights, folder / "model.safetensors", {"step": "30"})
        found[family] = Session(user, folder)
    return found


@pytest.fixture
def live(visit, served, sessions):
    """Opens the live page of a family with a state in its address, in a window with other options."""

    def opened(family, window=None, **state):
        address = address_of(served(sessions[family]), **state)
        return Looking(visit(address, **(window or {})), sessions[family])

    return opened


@pytest.fixture
def saved(visit, sessions, tmp_path):
    """Opens a page in a file, of a look as the command asks for it."""

    def opened(family, text, address="", **options):
        path = tmp_path / f"{family}.html"
        ask = ask_for(sessions[family].user, text, **options)
        path.write_text(saved_page(sessions[family], ask), encoding="utf-8")
        return Looking(visit(path.as_uri() + address), sessions[family])

    return opened


@pytest.fixture
def stack():
    """What servers of one test are closed by."""
    with contextlib.ExitStack() as opened:
        yield opened


@contextlib.contextmanager
def site_of_every_task():
    with contextlib.ExitStack() as stack:
        yield served_page.Site(stack, *served_page.every_task(), look=True)


@pytest.fixture(scope="module")
def site(browser, shared):
    """A server of models of every task, with the microscope."""
    return shared("site", site_of_every_task)


@pytest.fixture
def at(visit, site):
    """Opens the server's page with a state in its address."""
    return lambda state=None, own=site, **options: visit(served_page.address_of(own, state), **options)
