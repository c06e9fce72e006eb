"""What is printed of a text, its answer and one query's steps: what the model computed and what the page shows."""

import json
import math

import pytest
import torch
from command_line import attendo, refused
from looked_models import FAMILIES, hostile_tokenizer, looked_model
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

import attendo as library
from attendo.cli import look_text
from attendo.cli.look_text import steps_lines, text_lines
from attendo.display.width import columns
from attendo.inspecting.edits import Off, Temper
from attendo.microscope.answers import layer_of
from attendo.microscope.effects import tokens_answer
from attendo.microscope.run_model import attention_layers

TEXT = "Tomorrow it will rain ."


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer("word")


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer):
    return save_run(tmp_path_factory.mktemp("steps") / "run", tiny_translator(tokenizer, n_heads=2))


@pytest.mark.some(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"positions": "alibi", "n_kv_heads": 1}])
def test_the_steps_are_what_the_model_computed(tokenizer, family, options):
    view = library.look(looked_model(family, tokenizer, **options), TEXT)
    shown = view.map()
    path = view.steps(1).path
    layer, record = layer_of(view.result, path), view.result.record[path]
    for query in range(len(shown.query_pieces)):
        steps = view.steps(query, layer=layer_number(path), head=1)
        weights = torch.tensor([key.weight for key in steps.keys])
        torch.testing.assert_close(weights, record.weights[0, 1, query], rtol=0, atol=1e-6)
        powers = torch.tensor([key.power for key in steps.keys])
        torch.testing.assert_close(powers / steps.sum, weights, rtol=0, atol=1e-5)
        for j, key in enumerate(steps.keys):
            slope = 0.0 if layer["slopes"] is None else layer["slopes"][1]
            bias = -slope * abs(j - query) if steps.biased else 0.0
            assert key.score == pytest.approx(key.product * steps.scale + bias, abs=1e-4)
            assert key.masked == (layer["causal"] and j > query)
            assert math.fsum(a * b for a, b in zip(steps.q, key.k, strict=True)) == pytest.approx(key.product, abs=1e-4)
        value = record.value[0, 0 if options else 1]
        torch.testing.assert_close(torch.tensor([key.v for key in steps.keys]), value)
        torch.testing.assert_close(torch.tensor(steps.output), weights @ value, rtol=0, atol=1e-5)
    *_, line = (row.split() for row in steps_lines(steps, "", "en") if row.startswith(f" {len(steps.keys)} "))
    at = line.index("kept" if "kept" in line else "masked")
    bias = steps.keys[-1].score - steps.keys[-1].product * steps.scale
    assert not steps.biased or float(line[at - 2]) == pytest.approx(bias, abs=6e-5)
    assert steps.scale_is_root
    assert (steps.written is None) == (shown.stack != "cross")


def layer_number(path):
    return int(path.split(".")[2])


def test_with_edits(tokenizer):
    user = looked_model("translation", tokenizer)
    path = next(iter(attention_layers(user.model)))
    soft = library.look(user, TEXT, edits=[Temper("*", 0.5), Off(path, (0,))]).steps(1, "encoder", 0, 0)
    assert (soft.beta, soft.off) == (0.5, True)
    assert max(key.power for key in soft.keys) == 1.0
    assert soft.keys[0].weight == pytest.approx(soft.keys[0].power / soft.sum, abs=1e-5)
    lines = "\n".join(steps_lines(soft, "", "en"))
    assert "β·s" in lines and "β = 0.5" in lines and "switched off" in lines
    hard = library.look(user, TEXT, edits=[Temper("*", math.inf)]).steps(1, "encoder")
    assert sorted(key.power for key in hard.keys)[-2:] == [0.0, 1.0]
    assert hard.as_json()["beta"] == "inf"


@pytest.mark.parametrize("language", ["en", "ja"])
def test_the_terminal_and_json_have_the_same_numbers(run, language):
    chosen = ["--stack", "decoder", "--layer", 1, "--head", 2, "--query", 2, "--target", "snow in Oslo"]
    lines = attendo("look", run, TEXT, *chosen, "--language", language).out.splitlines()
    assert all(columns(line) <= 80 for line in lines)
    facts = json.loads(attendo("look", run, TEXT, *chosen, "--json").out)["steps"]
    assert (facts["head"], facts["query"], facts["beta"]) == (1, 1, 1.0)
    at = next(n for n, line in enumerate(lines) if line.startswith("──"))
    for n, (key, line) in enumerate(zip(facts["keys"], lines[at + 1 :], strict=False), 1):
        cells = line.split()
        wanted = [key[name] for name in ("product", "score", "power", "weight")]
        assert cells[:2] == [str(n), key["piece"]]
        assert [float(cells[i]) for i in (-5, -4, -2, -1)] == pytest.approx(wanted, abs=6e-5)
    assert [key["masked"] for key in facts["keys"]] == [False, False, *[True] * (len(facts["keys"]) - 2)]
    said = "\n".join(lines)
    assert f"1/√{facts['head_dim']} = {facts['scale']:.4f}" in said
    assert f"\nq = {facts['q'][0]:.4f}, " in said
    assert f"o = Σ α v = {facts['output'][0]:.4f}" in said
    assert all(len(vector) == facts["head_dim"] for key in facts["keys"] for vector in (key["k"], facts["q"]))
    assert f"α = exp / {facts['sum']:.4f}" in said


def test_what_is_refused(run):
    assert refused("look", run, TEXT, "--query", 99).startswith("there is no query 99; the map has rows 1")
    assert "--query and --heads cannot be combined" in refused("look", run, TEXT, "--query", 1, "--heads")
    assert "--query and --serve cannot be combined" in refused("look", run, "--serve", "--query", 1)


def test_a_row_that_looks_at_all_alike_names_no_key(run):
    even = attendo("look", run, TEXT, "--beta", 0).out
    assert " even " in even and even.count("%") - 5 == even.count(" even ")  # 5 shades
    causal = attendo("look", run, TEXT, "--beta", 0, "--stack", "decoder", "--target", "snow in Oslo").out
    first, second = causal.splitlines()[-4:-2]
    assert first.endswith("100%") and " even " not in first and second.endswith(" even 50%")
    assert " 均等 " in attendo("look", run, TEXT, "--beta", 0, "--language", "ja").out
    assert " even " not in attendo("look", run, TEXT).out


@pytest.mark.parametrize(
    ("language", "said"),
    [("en", "they change the log-probability of {} by "), ("ja", "この変更で「{}」の対数確率は")],
)
def test_edits_tell_whose_probability_they_change(run, language, said):
    asked = [TEXT, "--beta", "Hard", "--language", language]
    short, long = (
        attendo("look", run, *asked, "--target", target).out.splitlines()
        for target in ("snow in Oslo", " ".join(["snow in Oslo"] * 9))
    )
    assert any(line.strip().startswith(said.format("snow in Oslo")) for line in short)
    (line,) = [line for line in long if line.strip().startswith(said.partition("{}")[0])]
    assert "…" in line and columns(line) <= 80


def test_edits_tell_whose_label_they_make_less_probable(tokenizer):
    even = library.look(looked_model("classification", tokenizer), TEXT, edits=[Temper("*", 0.0)])
    assert even.change is not None
    label, points = even.change["labels"][0]["label"], 100 * even.change["total"]
    en, ja = (
        [line.strip() for line in text_lines(even, None, None, None, language, "answer")] for language in ("en", "ja")
    )
    assert f"they change the probability of {label} by {points:+.1f} points" in en
    assert any(line.startswith(f"この変更で「{label}」の確率は") for line in ja)


def test_a_mean_of_heads_says_how_to_see_one(run):
    said = {"en": "One head: --head 1", "ja": "1 つのヘッド：--head 1"}
    for language, words in said.items():
        lines = attendo("look", run, TEXT, "--language", language).out.splitlines()
        assert any(words in line for line in lines) and all(columns(line) <= 80 for line in lines)
        assert words not in attendo("look", run, TEXT, "--head", 1, "--language", language).out


def test_the_legend_of_the_heads_names_each_column(run):
    lines = attendo("look", run, TEXT, "--heads").out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("──"))
    legend = " ".join(lines[at:])
    assert all(f"{name}: " in legend for name in lines[at - 1].split())


def test_a_label_comes_with_the_tokens_that_matter_most(monkeypatch):
    """They are those of the page's Classes, with the same signs: a token above 0 supports the label."""
    view = library.look(looked_model("classification", hostile_tokenizer()), TEXT)
    gained = tokens_answer(view.result)["left_out"]
    order = sorted(range(len(gained)), key=lambda i: -abs(gained[i]))
    printed = text_lines(view, None, None, None, "en", "answer")
    assert max(map(len, printed)) <= 80
    pieces = [piece.strip("▁") for piece in view.map().query_pieces]
    listed = ", ".join(f"{pieces[i]} {gained[i]:+.2f}" for i in order[: look_text.MOST_TOKENS])
    assert " ".join(line.strip() for line in printed).endswith(f" log-probability with minus without a token: {listed}")
    monkeypatch.setattr(look_text, "MOST_WORK", 10)
    assert text_lines(view, None, None, None, "en", "answer") == printed[:3]


def test_other_models_have_no_such_line():
    view = library.look(looked_model("translation", hostile_tokenizer()), TEXT)
    assert not any("without" in line for line in text_lines(view, None, None, None, "en", "answer"))
