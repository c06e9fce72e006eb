"""attendo look: the map in a terminal, files, tables, the live page, and one line for each mistake."""

import csv
import dataclasses
import json
import os
import re
import signal
import sys
import tempfile
import threading
import urllib.request
from urllib.parse import parse_qs

import numpy as np
import pytest
from command_line import attendo, refused
from looked_models import FAMILIES, HOSTILE, hostile_tokenizer, looked_model
from tiny_translator import save_run, tiny_translator

import attendo as library
from attendo.bundle import Bundle, save_description, save_weights
from attendo.data import forecasts
from attendo.display.width import columns
from attendo.inspecting.edits import Off, Temper
from attendo.microscope.effects import importance
from attendo.microscope.server import LookServer

TEXT = "Tomorrow it will rain ."
CROSS = "decoder.blocks.0.cross_attention"
SELF = "encoder.blocks.1.self_attention"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = save_run(tmp_path_factory.mktemp("look") / "run", tiny_translator(hostile_tokenizer()))
    with (folder / "config.toml").open("a", encoding="utf-8") as config:
        config.write('\n[data]\ntrain = ["train.tsv"]\n')
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run folder of each family, two layers a stack."""
    tokenizer, folder = hostile_tokenizer(), tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        model = looked_model(family, tokenizer, max_len=300).model
        shape = {key: value for key, value in dataclasses.asdict(model.config).items() if value is not None}
        card = {"task": family, "labels": {"rain": 5, "snow": 3, "sun": 2}}
        bundle = Bundle({"model": shape, "data": {"train": ["train.txt"]}}, tokenizer, card)
        save_description(folder / family, bundle)
        save_weights(folder / family, model, bundle, step=0)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    file = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    rows = [(source, "snow in Oslo") for source, _ in forecasts.pairs(4, "test")]
    file.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return file, rows


def test_the_map_in_a_terminal(run):
    outcome = attendo("look", run, TEXT)
    assert (outcome.code, outcome.err) == (0, "")
    view = library.look(run, TEXT)
    head, _, drawn = outcome.out.partition("\n\n")
    assert head.splitlines()[0] == f"    {TEXT}"
    assert head.splitlines()[1].startswith("  → ")
    assert f"log-probability {view.outcome['log_prob']:.2f}, score {view.outcome['score']:.3f}" in head
    assert drawn.replace(". One head: --head 1", "", 1) == f"{view}\n"
    assert drawn.startswith("Cross-attention, layer 1 of 1, mean of 2 heads\n")
    chosen = attendo("look", run, TEXT, "--stack", "encoder", "--layer", 1, "--head", 2, "--language", "ja")
    assert "\nエンコーダのセルフアテンション、第 1 層（全 1 層）、ヘッド 2（全 2）\n" in chosen.out


def test_hostile_texts_are_text(run):
    text = " ".join(["\x1b[2J", *HOSTILE, "a\nb"])
    outcome = attendo("look", run, text, "--target", " ".join(HOSTILE))
    assert outcome.code == 0
    assert all(columns(line) <= 80 for line in outcome.out.splitlines())
    assert "\x1b" not in outcome.out
    assert "\u202e" not in outcome.out
    assert "[2J" in outcome.out


@pytest.mark.some(1)
@pytest.mark.parametrize("language", ["en", "ja"])
def test_of_a_long_text_the_beginning_is_printed_and_the_rest_counted(run, language):
    text = " ".join(f"word{n:04}" for n in range(400))
    view = library.look(run, text, target=text)
    printed = attendo("look", run, text, "--target", text, "--language", language).out
    for whole, mark in ((text, "    word0000"), (view.outcome["text"], "  → ")):
        begun = printed[printed.index(mark) + 4 :]
        found = re.match(r"(.*?)…\s?[(（](?:ほか )?([\d,]+)\s", begun, re.DOTALL)
        kept = len(whole) - int(found[2].replace(",", ""))
        assert whole[:kept].split() == found[1].split()
        assert 4 * 70 <= kept < 4 * 79
    assert all(columns(line) <= 80 for line in printed.splitlines())


def test_files(run, tmp_path):
    for name in ("page.html", "map.csv"):
        outcome = attendo("look", run, TEXT, "--beam", 1, "--out", tmp_path / name, "--head", 2)
        assert (outcome.code, outcome.err) == (0, f"wrote {tmp_path / name}\n")
        assert outcome.out.startswith(f"    {TEXT}\n")
        assert "\n\n" not in outcome.out  # no map: the file has it
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with (tmp_path / "map.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["head"] for row in rows} == {"2"}
    weights = library.look(run, TEXT, beam=1).weights(CROSS)[1]
    np.testing.assert_allclose([float(row["weight"]) for row in rows], weights.ravel(), rtol=1e-5)


def test_json_and_edits(run):
    options = f"--off {CROSS}:1 --off encoder.blocks.0.feed_forward --beta inf --target snow".split()
    facts = json.loads(attendo("look", run, TEXT, *options, "--json").out)
    edits = [Off(CROSS, (0,)), Off("encoder.blocks.0.feed_forward"), Temper("*", float("inf"))]
    view = library.look(run, TEXT, target="snow", edits=edits)
    assert facts["outcome"]["log_prob"] == pytest.approx(view.outcome["log_prob"], abs=1e-5)
    assert view.change is not None
    assert facts["change"]["total"] == pytest.approx(view.change["total"], abs=1e-5)
    np.testing.assert_allclose(facts["map"]["weights"], view.map().shown(), atol=1e-6)
    assert [facts["map"][key] for key in ("stack", "layer", "head")] == ["cross", 0, None]
    assert facts["heads"] == view.heads()
    said = attendo("look", run, TEXT, *options).out
    assert f"log-probability of snow by {view.change['total']:+.2f}\n" in said


def test_the_table_of_heads(run):
    lines = attendo("look", run, TEXT, "--heads").out.splitlines()
    rows = library.look(run, TEXT).heads()
    table = [line.split() for line in lines if line.startswith(("encoder", "decoder", "cross"))][: len(rows)]
    assert [row[:2] for row in table] == [
        [stack, f"1.{head}"] for stack in ("encoder", "decoder", "cross") for head in (1, 2)
    ]
    for row, shown in zip(rows, table, strict=True):
        assert shown[2:5] == [f"{row[name]:.2f}" for name in ("entropy", "maximum", "distance")]
    assert all(len(line) <= 80 for line in lines)


def test_the_table_of_the_heads_that_are_chosen(runs):
    def names(*options):
        out = attendo("look", runs / "translation", TEXT, "--target", "snow", "--heads", *options).out
        return re.findall(r"^((?:encoder|decoder|cross) \d\.\d) +\d", out, re.MULTILINE)

    assert len(names()) == 12
    assert names("--stack", "cross", "--layer", 2) == ["cross 2.1", "cross 2.2"]
    assert names("--head", 2, "--layer", 1) == ["encoder 1.2", "decoder 1.2", "cross 1.2"]
    said = refused("look", runs / "classification", TEXT, "--heads", "--stack", "encoder", "--layer", 3)
    assert "there is no layer 3; encoder has 1 to 2" in said


def opened_in(page):
    """What a saved page opens, and the head of its film."""
    answers = json.loads(re.search(r'id="answers">(.*?)</script>', page, re.DOTALL)[1])
    (film,) = [json.loads(name.removeprefix("film ")) for name in answers if name.startswith("film ")]
    return answers.get("opens"), (film["path"], film["head"])


def test_a_page_opens_the_head_that_is_chosen(runs, tmp_path):
    folder, page = runs / "classification", tmp_path / "page.html"
    chosen = ["--stack", "encoder", "--layer", 2, "--head", 1]
    assert attendo("look", folder, TEXT, *chosen, "--out", page).code == 0
    assert opened_in(page.read_text()) == ({"layer": SELF, "head": 0}, (SELF, 0))
    assert attendo("look", folder, TEXT, "--out", page).code == 0
    assert opened_in(page.read_text())[0] is None
    view = library.look(runs / "translation", TEXT, target="snow")
    sharpest = view.map("decoder").sharpest_layer
    path = f"decoder.blocks.{sharpest}.self_attention"
    entropies = [row["entropy"] for row in view.heads() if row["path"] == path]
    assert view.opened("decoder") == {"path": path, "head": int(np.argmin(entropies))}


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        (
            ["classification", TEXT, "--layer", 2, "--head", 1, "--off", f"{SELF}:1"],
            {"text": TEXT, "search": "greedy", "layer": SELF, "head": "0", "edits": [(SELF, 0)]},
        ),
        (["classification", "--off", f"{SELF}:1"], {"edits": [(SELF, 0)]}),
        (["translation", "--beam", 3], {"beam": "3"}),
        (["translation", "--beam", 1], {"search": "greedy"}),
        (["translation", "--target", "snow"], {"search": "forced", "target": "snow"}),
        (["language-model", "--max-tokens", 3], {"max_tokens": "3"}),
        (["language-model"], {}),
    ],
)
def test_the_address_of_the_live_page_says_what_is_chosen(runs, monkeypatch, arguments, state):
    monkeypatch.setattr(LookServer, "run", lambda server: server._socket.close())
    family, *options = arguments
    out = attendo("look", runs / family, *options, "--serve", "--port", 0).out
    told = {name: value for name, (value,) in parse_qs(out.strip().partition("#")[2]).items()}
    if "edits" in told:
        told["edits"] = [(edit["path"], edit["head"]) for edit in json.loads(told["edits"])]
    assert told == state


def test_progress_over_a_file(run, pairs, monkeypatch):
    monkeypatch.setattr("attendo.display.progress.PLAIN_EVERY", 0.0)
    outcome = attendo("look", run, "--over", pairs[0])
    shown = [line for line in outcome.err.splitlines() if " batches  " in line]
    assert [line.split("%")[0].strip() for line in shown] == [f"{n / 7:.0%}"[:-1] for n in range(1, 8)]
    assert re.fullmatch(r" 29%  2 of 7 batches  [\d,.]+ per second  .* left", shown[1])
    told = attendo("look", run, "--over", pairs[0], "--language", "ja").err.splitlines()
    assert told[0] == f"{pairs[0]}：4 行を読み、4 行を使用、0 行を除外"
    assert re.fullmatch(r" 29%  2 / 7 バッチ  毎秒 [\d,.]+  残り .*", told[2])


def test_ranking_over_a_file(run, pairs, tmp_path):
    file, rows = pairs
    gold = tmp_path / "gold.txt"
    gold.write_text("0-0 1?1\n\n0-2\n0-0\n", encoding="utf-8")
    outcome = attendo("look", run, "--over", file, "--alignments", gold)
    assert outcome.code == 0
    assert "4 rows read, 4 used" in outcome.err
    found = importance(library.load(run), rows)
    table = outcome.out.splitlines()[-len(found.heads) :]
    for line, head in zip(table, found.heads, strict=True):
        assert f" {head.effect:+.4f} ± {head.standard_error:.4f}" in line
        assert line.endswith(head.path)
    said = " ".join(outcome.out.split())
    assert f"of a row's translation with all heads: {found.log_prob:.3f} nats (mean of 4 rows)." in said
    assert "±: standard error over the rows" in said
    assert "AER: alignment error rate" in said
    assert all(columns(line) <= 80 for line in outcome.out.splitlines())
    facts = json.loads(attendo("look", run, "--over", file, "--json").out)
    assert facts["n_rows"] == 4
    assert [(head["path"], head["head"]) for head in facts["heads"]] == [(h.path, h.head) for h in found.heads]
    gold.write_text("0-0\n", encoding="utf-8")
    assert "has 1 lines for 4 pairs" in refused("look", run, "--over", file, "--alignments", gold)


@pytest.mark.parametrize(
    ("family", "of"),
    [
        ("language-model", "a row's text"),
        ("classification", "a row's label"),
        ("masked-language-model", "hidden tokens"),
    ],
)
def test_ranking_of_every_family(runs, tmp_path, family, of):
    file = tmp_path / "rows.tsv"
    labels = ("rain\t", "snow\t") if family == "classification" else ("", "")
    file.write_text(f"{labels[0]}rain in Oslo\n{labels[1]}{'snow ' * 400}\n")
    outcome = attendo("look", runs / family, "--over", file, "--language", "en")
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert of in said
    assert "AER" not in said
    assert "1 rows were truncated to the context length" in said
    assert "--alignments applies only to translation models" in refused(
        "look", runs / family, "--over", file, "--alignments", file
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_live_page_until_a_signal(run, monkeypatch, number):
    serve, got = LookServer.run, []

    def use_and_stop(address: str) -> None:
        question = urllib.request.Request(
            f"{address}api/model", b"{}", {"Content-Type": "application/json"}, method="POST"
        )
        for request in (address, question):
            with urllib.request.urlopen(request, timeout=30) as answer:
                got.append(answer.read())
        os.kill(os.getpid(), number)

    def serve_and_stop(server: LookServer) -> None:
        threading.Thread(target=use_and_stop, args=(server.address,)).start()
        serve(server)

    monkeypatch.setattr(LookServer, "run", serve_and_stop)
    outcome = attendo("look", run, "rain & 雨", "--serve", "--port", 0, "--beam", 2, "--off", CROSS)
    assert outcome.code == 128 + number
    assert got[0].startswith(b"<!doctype html>")
    assert json.loads(got[1])["family"] == "translation"
    address, _, state = outcome.out.strip().partition("#")
    assert address.startswith("http://127.0.0.1:")
    told = {name: value for name, (value,) in parse_qs(state).items()}
    assert json.loads(told.pop("edits"))[0]["path"] == CROSS
    assert told == {"text": "rain & 雨", "search": "beam", "beam": "2"}
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "TEXT is missing. Give a text, --serve or --over FILE"),
        ([""], "the text is empty. Give a sentence"),
        ([TEXT, "--out", "map.jpg"], "must end in .html, .png, .svg, .csv"),
        ([TEXT, "--out", "nowhere/map.png"], "folder nowhere does not exist. Create it first"),
        (
            [TEXT, "--out", "FOLDER.html"],
            "FOLDER.html is a folder (expected a file, for example FOLDER.html/page.html)",
        ),
        ([TEXT, "--head", "3"], "there is no head 3; cross has 1 to 2"),
        ([TEXT, "--layer", "2"], "there is no layer 2; cross has 1 to 1"),
        ([TEXT, "--stack", "middle"], "'--stack'"),
        ([TEXT, "--off", f"{CROSS}:3"], "the head must be 1 to 2"),
        ([TEXT, "--off", f"{CROSS}:0"], "the head must be 1 to 2"),
        (
            [TEXT, "--off", "nope:2"],
            "--off nope:2: no such layer. The layers are encoder.blocks.0.self_attention, encoder.",
        ),
        ([TEXT, "--off", "decoder.blocks.0.cross_atention"], f"no such layer. Did you mean {CROSS}?"),
        ([TEXT, "--off", "*.feed_forward:1"], "feed-forward layers have no heads. Remove :1"),
        ([TEXT, "--off", "*:3"], "--off *:3: the head must be 1 to 2"),
        (["--serve", "--off", "nope"], "--off nope: no such layer"),
        ([TEXT, "--beta", "-1"], "--beta -1 must be a number of 0 or more, or inf"),
        ([TEXT, "--beta", "nan"], "--beta nan must be a number of 0 or more, or inf"),
        ([TEXT, "--beam", "17"], "beam=17 must be 1 to 16"),
        ([TEXT, "--over", "F"], "--over and TEXT cannot be combined"),
        (["--over", "F", "--off", "x"], "--over and --off cannot be combined"),
        (["--over", "F", "--beta", "2"], "--over and --beta cannot be combined"),
        (["--serve", "--json"], "--serve and --json cannot be combined"),
        (["--serve", "--head", "1"], "--head requires TEXT"),
        ([TEXT, "--alignments", "F"], "--alignments requires --over"),
        ([TEXT, "--port", "0"], "--port requires --serve"),
        ([TEXT, "--open"], "--open requires --serve"),
        ([TEXT, "--probe", "F"], "--probe requires --serve"),
        (["--serve", "--probe", "nowhere.tsv"], "nowhere.tsv: no such file"),
        ([TEXT, "--target", "a", "--beam", "2"], "--target and --beam cannot be combined"),
        (
            [TEXT, "--max-tokens", "3"],
            "--max-tokens applies only to language models, not to a translation model",
        ),
        (["--over", "F", "--stack", "cross"], "--over and --stack cannot be combined"),
        (["--over", "F", "--beam", "0"], "--over and --beam cannot be combined"),
        (["--over", "nowhere.tsv"], "nowhere.tsv: no such file"),
        (["\udcff"], "is not valid UTF-8"),
        ([TEXT, "--target", "\udcff"], "is not valid UTF-8"),
    ],
)
def test_one_line_for_each_mistake(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER.html").mkdir()
    error = refused("look", run, *arguments)
    assert said in error
    assert len(error) < 300


@pytest.mark.some(4)
@pytest.mark.parametrize("family", ["classification", "masked-language-model"])
@pytest.mark.parametrize("option", [["--target", "x"], ["--beam", "2"], ["--max-tokens", "2"]])
@pytest.mark.parametrize("way", [[TEXT], ["--serve"]])
def test_options_of_another_family(runs, family, option, way):
    name = family.removesuffix("-language-model") + (" model" if family == "classification" else " language model")
    said = refused("look", runs / family, *way, *option)
    assert f"{option[0]} applies only to " in said
    assert f"language models, not to a {name}. Leave it out" in said


def test_what_cannot_be_written_is_said_first(run, tmp_path, monkeypatch):
    def denied(*, dir):
        raise PermissionError(13, "Permission denied", str(dir))

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", denied)
        said = refused("look", run, TEXT, "--out", tmp_path / "page.html", code=1)
    assert f"cannot write to {tmp_path} (permission denied). Choose another folder" in said
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "attendo.display.fonts", raising=False)
    said = refused("look", run, TEXT, "--out", tmp_path / "map.png")
    assert ".png requires matplotlib. Write .html or .csv, or run: pip install" in said
    assert list(tmp_path.iterdir()) == []


def test_a_masked_model_fills_in_what_is_hidden(runs):
    folder = runs / "masked-language-model"
    words = next(iter(forecasts.pairs(1, "train")))[0].split(" ")[:6]
    text = " ".join([*words[:2], "<mask>", *words[3:]])
    view = library.look(folder, text)
    assert [i for i, piece in enumerate(view.map().key_pieces) if piece == "<mask>"] == [3]
    found = view.result.tokenizer.pieces([int(view.result.logits[3].argmax())])[0]
    out = attendo("look", folder, text).out.splitlines()
    assert out[:2] == [f"    {text}", f"  → {' '.join([*words[:2], found, *words[3:]])}"]
    assert out[2] == f"    log-probability {view.outcome['log_prob']:.2f} of the token predicted"
    plain = attendo("look", folder, " ".join(words)).out
    assert "the most likely token at each position, because the text has no <mask>" in " ".join(plain.split())
