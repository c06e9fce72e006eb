"""attendo generate --input --output: each line as by itself, and the same bytes however often it is stopped."""

import dataclasses
import json
import signal

import pytest
import torch
from command_line import attendo, refused
from tiny_generators import generator_of
from tiny_translator import save_run

from attendo.decoding.sampling import SamplingConfig, configs_of_lines
from attendo.inference import batch_files
from attendo.inference.generation import Windows
from attendo.inference.generator import Generator

PROMPTS = ["the sun", "", "a wind in the east and rain", "the sun", "雨が降る", "the rain", "x", "in"]


def saved(folder, **decoding):
    generator = generator_of("byte", **decoding)
    generator.model.float()
    return save_run(folder, generator, "language-model")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(batch_files, "CHUNK_LINES", 3)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("batch_files") / "run", max_len=8, max_tokens=9)


def a_file(folder):
    file = folder / "in.txt"
    file.write_text("\n".join(PROMPTS), encoding="utf-8")
    return file


def test_every_line_has_a_seed_of_its_own():
    config = SamplingConfig(seed=7)
    seeds = [found.seed for found in configs_of_lines(config, 1, 2000)]
    assert len(set(seeds)) == 2000 and min(seeds) >= 0 and max(seeds) < 2**53
    assert [found.seed for found in configs_of_lines(config, 1500, 3)] == seeds[1499:1502]
    others = {found.seed for seed in (0, 8) for found in configs_of_lines(SamplingConfig(seed=seed), 1, 2000)}
    assert not others & set(seeds)
    assert configs_of_lines(SamplingConfig(top_k=3), 4, 2) == [
        dataclasses.replace(found, top_k=3) for found in configs_of_lines(SamplingConfig(seed=0), 4, 2)
    ]


def test_each_line_is_as_the_command_writes_it_alone(run_folder, tmp_path):
    out = tmp_path / "out.txt"
    options = ["--seed", "7", "--temperature", "0.9", "--stop", "q"]
    command = ["generate", run_folder, "--input", a_file(tmp_path), *options]
    outcome = attendo(*command, "--output", out)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.splitlines()[-1].startswith("done: 8 lines in ")
    assert attendo(*command, "--output", tmp_path / "json", "--json").code == 0
    facts = [json.loads(line) for line in (tmp_path / "json").read_text(encoding="utf-8").splitlines()]
    assert [found["line"] for found in facts] == list(range(1, 9))
    assert [found["prompt"] for found in facts] == PROMPTS
    assert len({found["seed"] for found in facts}) == 8
    whole = [(found["prompt"] + found["text"]) for found in facts]
    lines = out.read_text(encoding="utf-8").split("\n")
    assert lines == [*(text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ") for text in whole), ""]
    assert whole[0] != whole[3]  # the same prompt with another seed
    for found in (facts[1], facts[4]):
        alone = attendo("generate", run_folder, found["prompt"], *options[2:], "--seed", found["seed"], "--json")
        assert json.loads(alone.out)["text"] == found["text"]
    n_cut = sum(found["cut"] > 0 for found in facts)
    assert n_cut and f"{n_cut} of 8 prompts were longer than the context length" in outcome.err


def test_line_breaks_are_spaces(tmp_path, monkeypatch):
    folder, out = saved(tmp_path / "run", max_tokens=6), tmp_path / "out.txt"
    monkeypatch.setattr(Windows, "_read", lambda self, ids, cache: torch.eye(260)[[4 + 10] * len(ids)])
    assert attendo("generate", folder, "--input", a_file(tmp_path), "--output", out, "--temperature", "0").code == 0
    assert out.read_text(encoding="utf-8") == "".join(f"{prompt}{' ' * 6}\n" for prompt in PROMPTS)


def test_the_command_stops_and_goes_on_to_the_same_bytes(run_folder, tmp_path, monkeypatch):
    file, out = a_file(tmp_path), tmp_path / "out.txt"
    command = ["generate", run_folder, "--input", file, "--output", out]
    generate_batch, calls = Generator.generate_batch, []

    def interrupted(self, prompts, *arguments, **options):
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        calls.append(len(prompts))
        return generate_batch(self, prompts, *arguments, **options)

    with monkeypatch.context() as within:
        within.setattr(Generator, "generate_batch", interrupted)
        stopped = attendo(*command)
    assert stopped.code == 128 + signal.SIGTERM
    assert "stopped; 6 of 8 lines are done. Run the same command again to resume\n" in stopped.err
    assert "was started with seed null, now it is 3" in refused(*command, "--seed", "3")
    assert attendo(*command).err.startswith("resuming: 6 of 8 lines are done\n")
    attendo(*command[:-1], tmp_path / "whole")
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
