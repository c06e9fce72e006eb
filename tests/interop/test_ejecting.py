"""attendo eject: the written file gives attendo's logits, holds nothing that it does not use, and is formatted."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from command_line import attendo, refused
from exported_models import TASKS, drawn_options, noisy_model, run_folder
from safetensors.torch import save_file

from attendo.bundle import load_bundle, save_card
from attendo.interop import ejecting
from attendo.interop.ejecting import model_source
from attendo.interop.requirements import unknown_option
from attendo.models import ModelConfig

SEEDS = range(24)
EXACT = {"rtol": 1e-9, "atol": 1e-9}
SIZES = {"vocab_size", "d_model", "d_ff", "n_heads", "n_encoder_layers", "n_decoder_layers", "max_len"}
ARCHITECTURES = tuple(TASKS)
USUAL = {"d_model": 16, "d_ff": 24, "n_heads": 2}


def drawn_config(seed, architecture):
    """A configuration drawn over every option of ModelConfig."""
    rng = np.random.default_rng([seed, 1, *architecture.encode()])

    def one_of(*values):
        return values[rng.integers(len(values))]

    options = drawn_options(seed, architecture) | {
        "dropout": one_of(0.0, 0.1),
        "attention_dropout": one_of(0.0, 0.1),
        "activation_dropout": one_of(0.0, 0.1),
        "attention_norm": one_of(False, True),
        "value_dim": one_of(None, 5),
        "embedding_norm_eps": one_of(None, 1e-4),
        "pad_id": one_of(None, 0),
        "initialization": one_of("xavier", "normal"),
    }
    if options["positions"] == "sinusoidal":
        options["position_first_index"] = one_of(0, 1)
        options["d_model"] = one_of(16, 17)
        options["head_dim"] = 6
    if architecture == "masked":
        options["d_output"] = one_of(None, 12)
        options["tie"] = "none" if options["d_output"] else options["tie"]
    return ModelConfig(vocab_size=23, **options)


def executed(source):
    """The names that a written file defines."""
    names = {"__name__": "written"}
    exec(compile(source, "written", "exec"), names)
    return names


def written_model(source, model, folder):
    """The model of a written file, with the weights of a model as a run folder stores them."""
    save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, folder / "model.safetensors")
    return executed(source)["load"](str(folder))


def inputs(config):
    """Ids and lengths for a forward pass."""
    src, tgt = torch.randint(config.vocab_size, (3, 9)), torch.randint(config.vocab_size, (3, 7))
    lengths = torch.tensor([9, 4, 1])
    match config.architecture:
        case "encoder-decoder":
            return src, tgt, lengths
        case "decoder":
            return (src,)
    return src, lengths


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.usefixtures("float64")
def test_a_written_file_gives_the_logits_of_attendo(architecture, tmp_path):
    for seed in SEEDS:
        config = drawn_config(seed, architecture)
        model = noisy_model(config, seed)
        there = written_model(model_source(config, model, "model.py"), model, tmp_path)
        ids = inputs(config)
        with torch.no_grad():
            torch.testing.assert_close(there(*ids), model(*ids), **EXACT, msg=lambda m, c=config: f"{c}\n{m}")


def test_every_option_is_drawn():
    configs = [drawn_config(seed, architecture) for architecture in ARCHITECTURES for seed in SEEDS]
    fields = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    drawn = {name for config in configs for name, default in fields.items() if getattr(config, name) != default}
    of_imports = {"position_frequencies", "no_rope_interval", "local_position_base", "attention_windows"}
    of_imports |= {"attention_softcap", "output_softcap", "norm_output", "norm_first_block", "output_norm"}
    assert drawn == set(fields) - of_imports
    scaled = ModelConfig(vocab_size=9, d_model=8, n_heads=2, positions="rotary", position_frequencies=(1.0, 0.5))
    assert unknown_option(scaled) == "position_frequencies=(1.0, 0.5)"
    alternating = ModelConfig(vocab_size=9, positions="rotary", no_rope_interval=4)
    assert unknown_option(alternating) == "no_rope_interval=4"
    assert unknown_option(ModelConfig(vocab_size=9, attention_windows=(4, 0))) == "attention_windows=(4, 0)"


def test_written_files_are_formatted_and_use_all_that_they_define(tmp_path):
    for architecture in ARCHITECTURES:
        for seed in SEEDS:
            config = drawn_config(seed, architecture)
            source = model_source(config, noisy_model(config, seed), "model.py")
            (tmp_path / f"{architecture}-{seed}.py").write_text(source, encoding="utf-8")
            defined = re.findall(r"^(?:def |class )?([A-Za-z_]+)(?: = |\(|:)", source, re.MULTILINE)
            assert [name for name in defined if len(re.findall(rf"\b{name}\b", source)) < 2] == []
            assert not re.search(r"attendo\.|\$|^%", source.split('"""')[2], re.MULTILINE)
    for command in (
        ["check", "--select=E,W,F,I,B,C4,UP,SIM,PIE,RET", "--ignore=RET504"],
        ["format", "--check"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length=110"]
        done = subprocess.run([*ruff, "--target-version=py311", tmp_path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_a_fresh_model_has_the_weights_distribution_of_attendo():
    config = ModelConfig(vocab_size=500, d_model=64, d_ff=128, n_heads=2, pad_id=0, tie="none")
    fresh = executed(model_source(config, noisy_model(config), "model.py"))["Translator"]()
    assert fresh.source_embedding.tokens.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    assert fresh.source_embedding.tokens.weight[0].abs().max() == 0.0
    matrix = fresh.encoder.blocks[0].feed_forward.in_proj
    assert matrix.weight.std().item() == pytest.approx((2 / (64 + 128)) ** 0.5, rel=0.05)
    assert matrix.bias.abs().max() == 0.0


# ---- the command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("run") / "run", USUAL)[0]


def test_the_command_writes_a_file_that_checks_itself(run, tmp_path):
    out = tmp_path / "model.py"
    outcome = attendo("eject", run, out)
    assert (outcome.code, outcome.out) == (0, "")
    lines = len(out.read_text(encoding="utf-8").splitlines())
    assert outcome.err == f"{out}: {lines} lines; check it with: python {out} {run}\n"
    assert lines < 260
    checked = subprocess.run([sys.executable, out, run], capture_output=True, text=True, check=True).stdout
    parameters, difference = checked.splitlines()
    assert re.fullmatch(r"[\d,]+ parameters", parameters)
    assert float(difference.removeprefix("largest difference from attendo's logits: ")) < 1e-4


def test_errors_name_what_is_wrong(run, tmp_path, monkeypatch):
    out = tmp_path / "model.py"
    said = refused("eject", run, tmp_path / "no" / "model.py")
    assert f"there is no folder {tmp_path / 'no'}. Create the folder first" in said
    monkeypatch.setattr(ejecting, "unknown_option", lambda config: "norm='other'")
    assert "`attendo eject` does not support norm='other'" in refused("eject", run, out)
    save_card(run, load_bundle(run).card | {"own_parts": "bias.py:with_bias"})
    assert "has custom modules (bias.py:with_bias), which `attendo eject` cannot write" in refused("eject", run, out)
    out.touch()
    assert f"{out} already exists. Choose another name, or remove the file" in refused("eject", run, out)
