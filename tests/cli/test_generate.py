"""A language model from the command line: trained, continued, measured, and what it is refused for."""

import json
import math
import shutil
import tomllib

import pytest
import torch
from command_line import attendo, refused, settings
from tiny_texts import SMALL, forecast_texts, text_file

import attendo as library
from attendo.bundle import load_bundle, load_model, save_description, save_weights
from attendo.cli.evaluate import _text_loss_lines
from attendo.decoding.native.library import library as library_of_native
from attendo.inference import Generator
from attendo.inference.perplexity import TextLoss

CHARACTERS = settings({"tokenizer": {"kind": "character"}, "model": {"n_decoder_layers": 1, "max_len": 24}})


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
    assert "the last 10% of the text is held out for validation" in outcome.err
    assert "bits per byte" in outcome.err


def test_the_same_seed_writes_the_same_text(trained):
    folder, _ = trained
    options = ["generate", folder, "It will", "--max-tokens", "12", "--seed", "3"]
    first, second = attendo(*options), attendo(*options)
    assert first.code == 0
    assert first.out == second.out
    assert first.out.startswith("It will")
    facts = json.loads(attendo(*options, "--json").out)
    assert first.out == f"It will{facts['text']}\n"
    assert len(facts["log_probs"]) == 12
    other = attendo(*options[:-1], "4")
    assert other.out != first.out


def test_the_seed_is_said_where_something_was_drawn(trained):
    folder, _ = trained
    said = "(to generate this text again: "
    options = ["generate", folder, "It", "--max-tokens", "3"]
    assert said in attendo(*options).err
    assert said in attendo(*options, "--top-k", "2").err
    for certain in (["--temperature", "0"], ["--top-k", "1"], ["--seed", "3"]):
        outcome = attendo(*options, *certain)
        assert (outcome.code, outcome.err) == (0, ""), certain


def test_a_prompt_from_stdin_loses_the_line_break_at_its_end(trained):
    folder, _ = trained
    options = ["--max-tokens", "8", "--seed", "3"]
    given = attendo("generate", folder, "It\nwill", *options)
    assert attendo("generate", folder, "-", *options, stdin=b"It\r\nwill\n").out == given.out
    kept = attendo("generate", folder, "-", *options, "--json", stdin=b"It will\n\n").out
    assert json.loads(kept)["prompt"] == "It will\n"
    assert "stdin:2: invalid UTF-8" in refused("generate", folder, "-", stdin=b"It\n\xff")


def test_a_prompt_without_quotes_is_refused_with_the_quotes(trained):
    folder, _ = trained
    said = refused("generate", folder, "Now", "is", "the", "--max-tokens", "3")
    assert f'put the prompt in quotes: attendo generate {folder} "Now is the"' in said
    assert said.endswith("; see attendo generate --help")


def test_the_help_names_every_key_of_the_json(trained):
    folder, _ = trained
    keys = json.loads(attendo("generate", folder, "Rain", "--max-tokens", "2", "--json").out).keys()
    words = attendo("generate", "--help").out.replace(",", " ").replace(".", " ").split()
    assert "window" in keys and keys <= set(words)


def test_the_facts_as_json(trained):
    folder, _ = trained
    facts = json.loads(attendo("generate", folder, "Rain", "--max-tokens", "5", "--json", "--temperature", "0").out)
    found = library.load(folder).generate("Rain", max_tokens=5, temperature=0.0)
    assert isinstance(library.load(folder), Generator)
    assert (facts["text"], facts["token_ids"]) == (found.text, list(found.token_ids))
    assert facts["finished_by"] == "length"


def test_a_prompt_longer_than_the_context_is_cut_with_a_word(trained):
    folder, _ = trained
    outcome = attendo("generate", folder, "x" * 30, "--max-tokens", "2")
    assert "the prompt is 6 tokens longer than the context length of 24; its beginning was truncated" in outcome.err
    outcome = attendo("generate", folder, "x" * 25, "--max-tokens", "2")
    assert "the prompt is 1 token longer than" in outcome.err


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
    assert "was trained with at most" not in outcome.err
    outcome = attendo("evaluate", folder, text, "--context", "5000")
    assert "note: the model was trained with at most 24 tokens of context, fewer than 5,000" in outcome.err


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Forecasts in the second of three columns, under a header, with two rows that cannot be used."""
    path = tmp_path_factory.mktemp("table") / "holes.tsv"
    rows = [f"{i}\t{line}\t-\n" for i, line in enumerate(forecast_texts(40))]
    path.write_text("".join(["id\tforecast\tx\n", *rows[:9], "9\t\t-\n", "10\thail\n", *rows[9:]]))
    return path


def test_the_rows_of_a_table_are_accounted_for_whatever_the_run_learned_from(trained, table, text):
    folder, _ = trained
    outcome = attendo("evaluate", folder, table, "--column", "forecast")
    skipped = "2 skipped (1 no text: line 11, 1 wrong number of columns: line 12)"
    assert f"{table}: 1 file, 40 documents\n{table}: 42 rows read, 40 used, {skipped}\n" in outcome.err
    numbered = attendo("evaluate", folder, table, "--column", "2", "--header", "--json")
    assert json.loads(numbered.out)["reading"]["accounts"][0]["used"] == 40
    assert refused("evaluate", folder, table).endswith("; fix the row, or choose columns with --column")
    assert "Use --column" in refused("evaluate", folder, table, "--columns", "2")
    assert "a text file has no columns" in refused("evaluate", folder, text, "--column", "2")


def test_what_a_run_says_of_its_files_does_not_stand_in_the_way_of_others(trained, table, text, tmp_path):
    """One that learned from a column reads text files, one that learned from lines reads tables."""
    wanted = json.loads(attendo("evaluate", trained[0], table, "--column", "forecast", "--json").out)
    folder = shutil.copytree(trained[0], tmp_path / "run")
    config = folder / "config.toml"
    learned = config.read_text()
    config.write_text(learned.replace("header = false", 'header = true\ncolumn = "forecast"'))
    assert json.loads(attendo("evaluate", folder, table, "--json").out)["nats"] == wanted["nats"]
    assert attendo("evaluate", folder, text).code == 0
    config.write_text(learned.replace('documents = "file"', 'documents = "line"'))
    assert attendo("evaluate", folder, table, "--column", "forecast").code == 0
    assert "60 documents" in attendo("evaluate", folder, text).err


def test_words_that_are_not_known_make_the_bits_a_lower_bound():
    assert _text_loss_lines(TextLoss(12 * math.log(2), 4, 0, 6, 8, context=64, stride=32)) == [
        "perplexity 8.000, 1.3863 nats per character, 1.5000 bits per byte",
        "(context 64, stride 32, 4 tokens)",
    ]
    lines = _text_loss_lines(TextLoss(9.2e6, 10**6, 99_999, 10**6, 10**6, context=5000, stride=5000))
    assert lines[0] == "perplexity 9897.129, at least 9.2000 nats per character, 13.2728 bits per byte"
    assert lines[2] == "(99,999 unknown words, each counted as one token, not spelled out)"
    assert max(map(len, lines)) <= 80
    (_, _, last) = _text_loss_lines(TextLoss(1.0, 2, 1, 3, 3, context=4, stride=4))
    assert "(1 unknown word, each" in last


def test_options_of_the_draw_are_checked(trained):
    assert "top_p=2.0 must be" in refused("generate", trained[0], "--top-p", "2")
    assert refused("translate", trained[0], "x").endswith("use it with `attendo generate`")


def test_without_a_file_it_is_pythons_own_source():
    outcome = attendo("train", "language-model", "--print-config")
    assert tomllib.loads(outcome.out)["data"]["train"] == ["stdlib"]


def in_bfloat16(folder, out):
    """A copy of a run whose weights are rounded to bfloat16, and stored in it."""
    bundle = load_bundle(folder)
    model = load_model(folder, bundle)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    save_description(out, bundle)
    save_weights(out, model, bundle, 0)
    return model


def test_weights_that_are_bfloat16_are_stored_and_mapped_so(trained, tmp_path):
    wide, narrow = trained[0] / "model.safetensors", tmp_path / "run" / "model.safetensors"
    model = in_bfloat16(trained[0], tmp_path / "run")
    assert narrow.stat().st_size < 0.6 * wide.stat().st_size
    whole = Generator.load(tmp_path / "run").model
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
    mapped = Generator.load(tmp_path / "run", bits=8).model
    assert {parameter.dtype for parameter in mapped.parameters()} == {torch.bfloat16}
    assert mapped.output_proj.weight is mapped.embedding.tokens.weight  # still shared
    said = attendo("generate", tmp_path / "run", "It will", "--max-tokens", "5", "--temperature", "0")
    few = attendo("generate", tmp_path / "run", "It will", "--max-tokens", "5", "--temperature", "0", "--bits", "16")
    assert said.out == few.out


def test_a_loss_with_few_bits_is_that_of_the_compiled_model(trained, text, monkeypatch):
    def loss(*options):
        done = attendo("evaluate", trained[0], text, "--json", *options)
        assert done.code == 0, done.err
        return json.loads(done.out)["nats"]

    exact = loss()
    losses = [loss("--bits", bits) for bits in ("32", "16", "8", "4")]
    assert losses[0] == exact
    assert len(set(losses)) == 4
    assert losses[1] == pytest.approx(exact, rel=1e-3)
    assert losses[2] == pytest.approx(exact, rel=1e-2)
    cached = loss("--cache-bits", "8")
    assert cached != exact and cached == pytest.approx(exact, rel=1e-3)
    few = ("generate", trained[0], "It will", "--max-tokens", "2", "--cache-bits", "8")
    assert attendo(*few).code == 0
    monkeypatch.setenv("ATTENDO_NATIVE", "0")
    library_of_native.cache_clear()
    try:
        said = refused("evaluate", trained[0], text, "--bits", "8")
        assert "--bits 8 cannot be measured without the compiled step: ATTENDO_NATIVE is 0" in said
        done = attendo("generate", trained[0], "It will", "--max-tokens", "2", "--bits", "4")
        assert "note: the search runs on PyTorch only" in done.err
        assert "--cache-bits requires the compiled step: ATTENDO_NATIVE is 0" in refused(*few)
    finally:
        library_of_native.cache_clear()
    assert "'5' is not one of '32', '16', '8', '4'" in refused("generate", trained[0], "--bits", "5")


def test_a_file_that_is_replaced_in_place_does_not_change_the_model(trained, tmp_path):
    in_bfloat16(trained[0], tmp_path / "run")
    generator = Generator.load(tmp_path / "run", bits=8)
    before = generator.generate("It will", max_tokens=6, temperature=0.0)
    path = tmp_path / "run" / "model.safetensors"
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(len(data)))
    again = generator.generate("It will", max_tokens=6, temperature=0.0)
    assert (again.text, again.log_probs) == (before.text, before.log_probs)
    assert generator.prepare()._reader.compiled.bits == 8


def test_bits_are_for_the_processor(trained, text, monkeypatch):
    monkeypatch.setattr("attendo.bundle.pick_device", lambda device: "cuda")
    for command in ("generate", "chat", "evaluate"):
        files = [text] if command == "evaluate" else []
        assert "--bits is for the CPU" in refused(command, trained[0], *files, "--bits", "8")
