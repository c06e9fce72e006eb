"""Several labels per text, numbers and pairs of texts: readers, decisions, estimates, and whole runs."""

import json
import random

import numpy as np
import pytest
import torch
from command_line import attendo as run
from sklearn.metrics import f1_score, r2_score
from tiny_classifiers import TOKENIZER, config

import attendo
from attendo.data.labelled import PairEncoder
from attendo.data.labelled_corpus import parse_labels, parse_number, steps_of
from attendo.data.tokenizers import SpecialTokens
from attendo.errors import AttendoError
from attendo.inference.label_model import mixed
from attendo.inference.multi_label import MultiLabelClassifier, Regressor
from attendo.metrics import log_softmax, yes_or_no
from attendo.models import EncoderClassifier

WORDS = {"rain": ["rain", "storm"], "sun": ["sun", "heat"], "wind": ["wind", "gale"]}
SMALL = ("d_model=32", "d_ff=32", "n_heads=2", "n_encoder_layers=1")
FAST = f"--epochs 4 --threads 1 {' '.join(f'--set model.{setting}' for setting in SMALL)}"


def weather(n, seed):
    """Return texts with the labels of the words that are not negated, and with a number."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        chosen = draw.sample(sorted(WORDS), draw.randint(0, 3))
        number = 10.0 * len(chosen) + draw.randint(-1, 1)
        words = " and ".join(draw.choice(WORDS[label]) for label in chosen)
        rows.append((sorted(chosen), number, f"{words} in {draw.choice(['north', 'south'])} {draw.randint(1, 300)}"))
    return rows


def test_fields_with_labels_and_numbers():
    assert parse_labels(" b |a|a") == parse_labels('["a", "b"]') == '["a", "b"]'
    for bad in ("a||b", "[1]", '["a", ""]', "[", "[]]"):
        assert not isinstance(parse_labels(bad), str), bad
    assert parse_number(" -2e3") == " -2e3"
    for bad in ("3,5", "nan", "inf", "1e999", "five", ""):
        assert not isinstance(parse_number(bad), str), bad


def test_two_numbers_are_a_single_decision_and_one_number_is_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{int(0 < number < 15)},{text}" for _, number, text in weather(200, 1)]
    (tmp_path / "two.csv").write_text("\n".join(["number,text", *lines]))
    assert run(*f"train regression --train two.csv --out two {FAST}".split()).code == 0
    result = json.loads(run("evaluate", "two", "two.csv", "--json").out)
    assert result["within"] >= 0.8 and result["r2"] > 0
    (tmp_path / "one.csv").write_text("\n".join(["number,text", *(f"1{line[1:]}" for line in lines)]))
    refused = run(*f"train regression --train one.csv --out one {FAST}".split())
    assert "one.csv: all rows have the number 1 (expected at least two different numbers)" in refused.err


@pytest.mark.parametrize("n_values", [2, 5, 400])
def test_some_rows_are_above_each_step_and_some_are_not(n_values):
    numbers = np.random.default_rng(n_values).integers(0, n_values, 1000) / 7
    steps = steps_of(numbers)
    assert steps == sorted(set(steps)) and 1 <= len(steps) <= 32
    assert all(0 < (numbers > step).mean() < 1 for step in steps)


def test_mixed_logits_of_decisions_are_mixed_log_probabilities():
    rng = np.random.default_rng(0)
    encoder, ngrams = rng.normal(size=(2, 5, 3))
    found = yes_or_no(0.3 * encoder + 0.7 * ngrams)
    assert np.allclose(log_softmax(found), log_softmax(mixed(yes_or_no(encoder), yes_or_no(ngrams), 0.3)))


def test_an_estimate_is_the_mean_over_the_bins_and_its_interval_follows_their_probabilities():
    torch.manual_seed(0)
    model = EncoderClassifier(config(n_classes=3)).eval()
    counts, values = {"1.0": 8, "2.0": 5, "4.0": 2}, [0.5, 1.5, 3.0, 6.0]
    user = Regressor(model, TOKENIZER, counts, card={"n_rows": 10, "values": values})
    probabilities = np.array([0.2, 0.3, 0.4, 0.1])
    above = 1 - probabilities.cumsum()[:3]
    model.output_proj.weight.data.zero_()
    model.output_proj.bias.data = torch.tensor(np.log(above / (1 - above)), dtype=torch.float32)
    [found] = user.classify(["the rain"])
    assert found.number == pytest.approx(probabilities @ values, abs=1e-5)
    # P(y <= 0.75) = 0.1 between 0.5 (0) and 1.0 (0.2); P(y <= 4) = 0.9
    assert (found.low, found.high) == pytest.approx((0.75, 4.0), abs=1e-4)
    user.card["values"] = [1.0, 2.0, 4.0, 5.0]  # each bin has one number
    assert user.classify(["the rain"])[0].cells[1:] == (1.0, 4.0)
    user.card["values"] = values
    [empty] = user.classify([""])
    assert empty.number == pytest.approx(0.5 + np.array([8.5, 5.5, 2.5]) @ np.diff(values) / 11, abs=1e-5)


def test_pairs_have_a_separator_between_their_tokens():
    encoder = PairEncoder(TOKENIZER)
    ids = encoder.encode_batch(["the rain\tthe north", ""])
    assert ids == [
        [*TOKENIZER.encode("the rain"), TOKENIZER.eos_id, *TOKENIZER.encode("the north")],
        [TOKENIZER.eos_id],
    ]
    with pytest.raises(AttendoError, match="reads two"):
        encoder.encode_batch(["one text"])
    assert SpecialTokens(around_text=((101,), (102,))).around_text[1][:1] == (102,)  # [SEP] of BERT


def test_a_run_with_several_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part, n in (("train", 400), ("test", 80)):
        lines = [json.dumps({"topics": labels, "body": text}) for labels, _, text in weather(n, n)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    columns = "--columns labels=topics,text=body"
    made = run(*f"train multi-label --train train.jsonl {columns} --out topics {FAST}".split())
    assert "baselines on" in made.err and "shares of the labels, micro-F1" in made.err, made.err
    assert "kept: step" in made.err and "run in attendo only" in made.err
    user = attendo.load("topics")
    assert isinstance(user, MultiLabelClassifier)
    rows = weather(80, 80)
    found = user.classify([text for *_, text in rows])
    names = sorted(WORDS)
    true, given = (
        [[name in own for name in names] for own in every]
        for every in ([r[0] for r in rows], [f.labels for f in found])
    )
    result = run("evaluate", "topics", "test.jsonl", "--json", "--out", "found.csv")
    measures = json.loads(result.out)
    assert measures["micro_f1"] == pytest.approx(f1_score(true, given, average="micro"))
    assert measures["macro_f1"] == pytest.approx(f1_score(true, given, average="macro"))
    assert measures["micro_f1"] > 0.9
    assert (tmp_path / "found.csv").read_text().startswith("line,labels,found,text\n")
    # a threshold above all probabilities gives no label; text without content has none
    assert run("classify", "topics", "rain", "", "--threshold", "1").out == "\n\n"
    assert "no clear difference" in run("compare", "topics", "topics", "test.jsonl", "--metric", "f1").out
    for command in ("thresholds topics --abstain 0.1", "look topics rain", "export topics x --to onnx"):
        refused = run(*command.split())
        assert refused.code and "multi-label" in refused.err, refused.err
    (tmp_path / "new.csv").write_text("topics,body\nrain|fog,fog in north\n")
    assert "new.csv:2: the label 'fog' was not seen" in run("evaluate", "topics", "new.csv").err


def test_a_run_with_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part, n in (("train", 400), ("test", 80)):
        lines = [f"{number},{text}" for _, number, text in weather(n, n)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["number,text", *lines, "many,rain"]))
    made = run(*f"train regression --train train.csv --out depth {FAST}".split())
    assert "1 invalid number: line 402" in made.err and "always the mean, mean absolute error" in made.err
    rows = weather(80, 80)
    true = np.array([number for _, number, _ in rows])
    numbers = np.array([answer.number for answer in attendo.load("depth").classify([text for *_, text in rows])])
    result = run("evaluate", "depth", "test.csv", "--json")
    measures = json.loads(result.out)
    assert measures["mae"] == pytest.approx(np.abs(numbers - true).mean())
    assert measures["r2"] == pytest.approx(r2_score(true, numbers)) and measures["r2"] > 0.8
    assert measures["within"] > 0.6
    assert len(run("classify", "depth", "rain and sun in north 3").out.split("\t")) == 3
    assert "numbers     about" in run("info", "depth").out
    assert "no clear difference" in run("compare", "depth", "depth", "test.csv").out
    strict = run(*f"train regression --train train.csv --out other --strict {FAST}".split())
    assert "train.csv:402: invalid number ('many')" in strict.err


def test_a_run_with_pairs_of_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    lines = []
    for n in range(300):
        first, second = (draw.choice(WORDS["rain"] if draw.random() < 0.5 else WORDS["sun"]) for _ in "ab")
        same = (first in WORDS["rain"]) == (second in WORDS["rain"])
        lines.append(f"{'yes' if same else 'no'}\twas there {first} {n}\tthere was {second}")
    (tmp_path / "train.tsv").write_text("\n".join(["same\tclaim\tsource", *lines]))
    columns = "--columns label=same,text=claim,second=source"
    made = run(*f"train classification --train train.tsv {columns} --out pairs {FAST}".split())
    assert "kept: step" in made.err, made.err
    one = run("classify", "pairs", "was there rain 3\tthere was storm").out
    (tmp_path / "new.csv").write_text("claim,source,id\nwas there rain 3,there was storm,7\n")
    options = "--columns text=claim,second=source --keep id"
    assert not run(*f"classify pairs --input new.csv --output out.csv {options}".split()).code
    answer = (tmp_path / "out.csv").read_text().splitlines()[1].split(",")
    assert answer[0] == "7" and answer[2:4] == one.strip().split("\t")
    assert "reads two" in run("classify", "pairs", "one text").err
    assert run("evaluate", "pairs", "train.tsv").code == 0
    for command in ("look pairs rain", "export pairs x --to onnx"):
        assert "pairs of texts" in run(*command.split()).err
