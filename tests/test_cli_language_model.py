"""A language model from the command line: trained, continued, measured, and what it is refused for."""

import json
import math

import pytest
from command_line import attendo, refused, settings
from tiny_texts import SMALL, text_file

import attendo as library
from attendo.tasks import Generator

CHARACTERS = [
    "--set",
    "tokenizer.kind=character",
    "--set",
    "model.n_decoder_layers=1",
    "--set",
    "model.max_len=24",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return text_file(tmp_path_factory.mktemp("texts"), 60)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("model") / "run"
    options = ["--train", text, "--out", folder, *settings(SMALL), *CHARACTERS]
    outcome = attendo("train", "language-model", *options)
    assert outcome.code == 0, outcome.err
    return folder, outcome


def test_what_was_read_and_split_off_is_said(trained, text):
    _, outcome = trained
    assert f"{text}: 1 file, 1 document" in outcome.err
    assert "the last 10% of the text is split off for validation" in outcome.err
    assert "bits a byte" in outcome.err


def test_the_same_seed_writes_the_same_text(trained):
    folder, _ = trained
    options = ["generate", folder, "It will", "--max-tokens", "12", "--seed", "3"]
    first, second = attendo(*options), attendo(*options)
    assert first.code == 0
    assert first.out == second.out
    assert first.out.startswith("It will")
    assert len(first.out) == len("It will") + 12 + 1
    other = attendo(*options[:-1], "4")
    assert other.out != first.out
    free = attendo(*options[:-2])
    assert "writes this again)" in free.err


def test_the_facts_as_json(trained):
    folder, _ = trained
    facts = json.loads(
        attendo("generate", folder, "Rain", "--max-tokens", "5", "--json", "--temperature", "0").out
    )
    found = library.load(folder).generate("Rain", max_tokens=5, temperature=0.0)
    assert isinstance(library.load(folder), Generator)
    assert (facts["text"], facts["token_ids"]) == (found.text, list(found.token_ids))
    assert facts["finished_by"] == "length"


def test_a_prompt_longer_than_the_context_is_cut_with_a_word(trained):
    folder, _ = trained
    outcome = attendo("generate", folder, "x" * 30, "--max-tokens", "2")
    assert (
        "the prompt has 6 tokens more than the model's context of 24; its first ones are left out"
        in outcome.err
    )


def test_characters_never_seen_are_spelled_in_bytes(trained):
    folder, _ = trained
    assert attendo("generate", folder, "雨", "--max-tokens", "2").out.startswith("雨")


def test_perplexity_with_its_window(trained, text):
    folder, _ = trained
    outcome = attendo("evaluate", folder, text)
    assert outcome.code == 0, outcome.err
    assert "(context 24, stride 24," in outcome.out
    facts = json.loads(attendo("evaluate", folder, text, "--context", "16", "--stride", "4", "--json").out)
    assert (facts["context"], facts["stride"]) == (16, 4)
    assert facts["n_characters"] == len(text.read_text(encoding="utf-8")) == facts["n_targets"] - 1
    assert facts["perplexity"] == pytest.approx(math.exp(facts["nats"] / facts["n_targets"]))
    assert facts["bits_per_byte"] == pytest.approx(facts["nats"] / math.log(2) / facts["n_bytes"])


def test_resuming_goes_on(trained):
    folder, _ = trained
    assert attendo("resume", folder, "--more-steps", "3").code == 0
    assert "done" in attendo("info", folder).out


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("rain and snow, snow and rain\n" * 2, ["--set", "model.max_len=500"], "less than one window of 500"),
        (" \n ", [], "no document (empty file"),
        ("one\n" * 400, ["--set", "model.n_encoder_layers=1"], "n_encoder_layers=1 must be 0"),
    ],
)
def test_what_no_model_learns_from_is_refused(content, options, said, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(content)
    options = ["--train", file, "--out", tmp_path / "run", *CHARACTERS, *options]
    assert said in refused("train", "language-model", *options)


def test_options_of_the_draw_are_checked(trained):
    assert "top_p is 2.0" in refused("generate", trained[0], "--top-p", "2")
    assert refused("translate", trained[0], "x").endswith("use it with `attendo generate`")


def test_without_a_file_it_is_pythons_own_source():
    outcome = attendo("train", "language-model", "--print-config")
    assert 'train = ["stdlib"]' in outcome.out
