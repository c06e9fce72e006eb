"""Custom modules in training and under the microscope: which one is not finite, and what is shown of it."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_looks import tiny_look, tiny_user
from tiny_task import tiny_run
from torch import nn

from attendo.custom_modules import custom_module_at, insert_custom_modules
from attendo.errors import AttendoError
from attendo.microscope.answers import positions_answer
from attendo.models import ModelConfig, build_model, parameter_count
from attendo.nn.positions import DistanceBias
from attendo.runs.settings import preset_tables
from attendo.training.loop import skipped_report, train, update

PATH = "encoder.blocks.0.self_attention"


def bias_of(formula):
    return type("Own", (DistanceBias,), {"forward": lambda self, q, k: formula(k - q[:, None, :, None])})()


def at(path, part):
    """A function that puts a part in a place of the model."""

    def with_part(model):
        module, _, name = path.rpartition(".")
        setattr(model.get_submodule(module), name, part)

    return with_part


class Table(nn.Module):
    """A module with numbers."""

    def __init__(self):
        super().__init__()
        self.numbers = nn.Parameter(torch.ones(2, 1, 1))


class Turning(DistanceBias):
    """All right at first, and hides a key beside."""

    def __init__(self, number=0.0):
        super().__init__()
        self.number = nn.Parameter(torch.tensor(number))

    def forward(self, queries, keys):
        distance = (queries[:, None, :, None] - keys).abs()
        return torch.where(distance > 2, -torch.inf, self.number.expand_as(distance))


@pytest.mark.parametrize("saved", [False, True])
def test_updates_left_out_for_a_part_of_ones_own_say_so(tmp_path, saved):
    run = tiny_run(tmp_path / "c", checkpoint_every=1)
    if saved:
        next(report for report in train(run) if report.kind == "checkpoint")
    run.model.get_submodule(PATH).positions = Turning(torch.nan)
    batch = run.task.batches(1, 0, 0)[:1]
    assert update(run, batch).note.startswith(f"{PATH}.positions is non-finite at step")
    update(run, batch)
    again = "resume from the last checkpoint" if saved else "train again"
    told = f"Custom module Turning returns NaN or infinity: fix its formula, then {again}"
    with pytest.raises(AttendoError, match=re.escape(told) + "$"):
        update(run, batch)


def test_a_hidden_key_is_not_taken_for_what_went_wrong(tmp_path):
    run = tiny_run(tmp_path / "c")
    run.model.get_submodule(PATH).positions = Turning()
    run.model.get_submodule("encoder.blocks.0.feed_forward").register_forward_hook(lambda m, i, out: out * torch.nan)
    report = update(run, run.task.batches(1, 0, 0)[:1])
    assert report.note.startswith("encoder.blocks.0.feed_forward is non-finite at step 1")
    run.progress.skipped_in_a_row = 2
    with pytest.raises(AttendoError, match=r"\. Train again with a lower training.learning_rate \(now \S+\)$"):
        skipped_report(run, "the loss", torch.nan, torch.nan)


def test_the_outermost_part_of_ones_own_is_named():
    model = SimpleNamespace(a=nn.Sequential(Table(), nn.Linear(1, 1)))
    assert custom_module_at(model, "a.0.numbers") is model.a[0]
    assert custom_module_at(model, "a.1.weight") is None
    assert custom_module_at(model, "the norm of the gradient") is None


def code_of_page(title):
    """A file of the page on changing a block."""
    page = Path(__file__).resolve().parents[1] / "docs" / "en" / "change-a-block.md"
    text = page.read_text(encoding="utf-8")
    (code,) = re.findall(rf'^```python title="{re.escape(title)}"\n(.*?)^```', text, re.M | re.S)
    names = {"__name__": title}
    exec(code, names)
    return text, names


def test_the_pages_alibi_is_a_part_beside_the_sines_and_positions_names_it():
    _, names = code_of_page("alibi.py")
    user = tiny_user("classification")
    insert_custom_modules(names["with_alibi"], user.model)
    answer = positions_answer(tiny_look("classification", user=user, text="rain snow"), "source")
    assert user.model.config.positions == "sinusoidal" and user.model.embedding.positions is not None
    assert (answer["kind"], answer["name"], answer["data"]) == ("own", "Alibi", "")


def test_a_bias_of_the_decoder_alone_is_shown_for_the_target_alone():
    user = tiny_user("translation")
    insert_custom_modules(
        at("decoder.blocks.0.self_attention.positions", bias_of(lambda d: -d.abs().float())), user.model
    )
    look = tiny_look("translation", user=user, text="rain snow")
    kinds = [positions_answer(look, side)["kind"] for side in ("source", "target")]
    assert kinds == ["sinusoidal", "own"]


def test_the_pages_trial_is_what_it_prints():
    text, names = code_of_page("distance_bias.py")
    commands = re.findall(r'^python3 -c "(.+?)" > (\w+)\.tsv$', text, re.M)
    rows = {}
    for code, name in commands:
        with redirect_stdout(StringIO()) as written:
            exec(code, {})
        rows[name] = [tuple(line.split("\t")) for line in written.getvalue().splitlines()]
    assert {name: len(pairs) for name, pairs in rows.items()} == {"pairs": 4000, "test": 500}
    assert not {*rows["pairs"]} & {*rows["test"]} and {len(row) for row in rows["test"]} == {2}
    held_out = len(rows["pairs"]) - int(re.search(r"entries for ([\d,]+) pairs", text)[1].replace(",", ""))
    assert f"{len(rows['pairs']):,} rows read" in text and f"\n{held_out} of 4,000 pairs are held out" in text
    vocab_size = int(re.search(r"tokenizer: bpe, ([\d,]+) entries", text)[1].replace(",", ""))
    chosen = {"vocab_size": vocab_size, "norm_first": True}  # this as every size that is chosen
    model = build_model(ModelConfig(**preset_tables("tiny")["model"], **chosen))
    names["with_log_distance"](model)
    assert f"\n{parameter_count(model):,} parameters; " in text
