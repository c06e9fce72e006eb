"""The pages on serving and on its HTTP API: requests are answered as they show, and lists are complete."""

import ast
import asyncio
import dataclasses
import json
import re
from itertools import zip_longest
from pathlib import Path

import typer
from curl_lines import request_of
from looked_models import looked_model
from served_models import TOKENIZER, client_of, live, serving
from tiny_translator import tiny_translator

from attendo.cli import build_app
from attendo.serving import app
from attendo.serving.state import ServingConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = ("serving.md", "http-api.md")
SINGLE = {(language, name): (DOCS / language / name).read_text("utf-8") for language in ("en", "ja") for name in NAMES}
PAGES = {language: "".join(SINGLE[language, name] for name in NAMES) for language in ("en", "ja")}
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:```json\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
STATE, APP = serving(
    ("enja", tiny_translator(TOKENIZER, max_len=60), "en", "ja"),
    ("stories", looked_model("language-model", TOKENIZER.with_chat(), max_len=60), None, None),
    ("reviews", looked_model("classification", TOKENIZER, max_len=60), None, None),
)
OPEN = {"probabilities", "examples"}  # names of labels, and texts: of the model


def blocks(page):
    """Requests as (command, status, answer or None), as a page has them."""
    found = []
    for commands, answers in BLOCK.findall(page):
        lines, shown = commands.splitlines(), answers.splitlines()
        for line, answer in zip_longest(lines, shown):
            line = line.replace('"model": "assistant"', '"model": "stories"')  # it has a chat template
            found.append((line, status(line), None if answer is None else json.loads(answer)))
    return found


def status(line):
    said = re.search(r"# (\d{3})$", line)
    return int(said[1]) if said else 200


async def answers(requests):
    async with client_of(APP) as client:
        return [
            await client.request(method, path, headers=headers, content=body)
            for method, path, headers, body in requests
        ]


def check_shape(shown, given, where=""):
    """Every field that is shown is there, of the same kind; lists are compared by their first."""
    if isinstance(shown, dict):
        assert isinstance(given, dict), where
        for name, value in shown.items():
            assert name in given, f"{where}.{name}"
            if name not in OPEN:
                check_shape(value, given[name], f"{where}.{name}")
    elif isinstance(shown, list):
        assert isinstance(given, list), where
        if shown:
            check_shape(shown[0], given[0], f"{where}[0]")
    elif shown is not None:
        kinds = (int, float) if isinstance(shown, int | float) and not isinstance(shown, bool) else type(shown)
        assert isinstance(given, kinds), f"{where} is {given!r}"


def test_the_requests_of_the_page_are_answered_as_it_shows():
    found = blocks(PAGES["en"])
    assert len(found) > 20
    given = asyncio.run(answers([request_of(command) for command, _, _ in found]))
    for (command, wanted, shown), answer in zip(found, given, strict=True):
        assert answer.status_code == wanted, (command, answer.text)
        if shown is not None:
            check_shape(shown, answer.json(), command)
            assert_no_more(shown, answer.json(), command)
    [streamed] = [answer for (command, *_), answer in zip(found, given, strict=True) if " -N " in command]
    assert streamed.text.startswith("data: {")
    assert streamed.text.endswith("data: [DONE]\n\n")


def assert_no_more(shown, given, command):
    """What the answer has beside what is shown is shown nowhere: so nothing is; a page that leaves out says so here."""
    if isinstance(shown, dict) and "frontendTimeout" not in shown:
        assert set(shown) == set(given), command


def test_every_path_of_the_page_is_there_and_every_route_is_on_it():
    paths = {re.sub(r"\{.*", "{model}", getattr(route, "path", "")) for route in APP.routes} - {"/openapi.json"}
    paths |= set(_paths(APP))
    for path in paths - {"", "/v1/models/{model}"}:
        assert f"`{path}`" in PAGES["en"] or f"localhost:8000{path}" in PAGES["en"], path
    assert paths | {"/openapi.json"} >= app.EARLY


def _paths(app):
    return [path for path in app.openapi()["paths"] if "{" not in path]


def test_every_metric_of_the_page_is_told_and_every_one_told_is_on_it():
    text = STATE.metrics.text().decode()
    told = set(re.findall(r"^# TYPE (attendo_\w+)", text, re.MULTILINE))
    told = {name for name in told if not name.endswith("_created")}
    assert told == set(re.findall(r"`(attendo_[a-z_]+)", PAGES["en"]))


def test_limits_and_their_defaults():
    serve = typer.main.get_command(build_app()).commands["serve"]  # pyright: ignore[reportAttributeAccessIssue]
    options = {option: one.default for one in serve.params for option in one.opts + one.secondary_opts}
    for language, page in PAGES.items():
        rows = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([\d,.]+) \|", page, re.MULTILINE))
        assert len(rows) == len(dataclasses.fields(ServingConfig)), language
        for option, value in rows.items():
            assert (
                float(value.replace(",", ""))
                == options[option]
                == getattr(ServingConfig(), option.removeprefix("--").replace("-", "_"))
            )


def test_pythons_own_library_asks_as_the_page_says(capsys):
    [snippet] = [
        text for text in re.findall(r"^```python\n(.*?)^```", PAGES["en"], re.MULTILINE | re.DOTALL) if "urllib" in text
    ]
    with live(APP) as address:
        exec(snippet.replace("http://127.0.0.1:8000", address), {})
    assert len(ast.literal_eval(capsys.readouterr().out)) == 2
