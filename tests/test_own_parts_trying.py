"""Parts of a user's own are tried before they are trained: what changes nothing, or gives NaN, is refused by name."""

import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_looks import tiny_look, tiny_user
from tiny_task import tiny_run
from torch import nn

from attendo.errors import AttendoError
from attendo.microscope.answers import positions_answer
from attendo.models import ModelConfig, build_model, parameter_count
from attendo.nn.attention import Attend, Attention
from attendo.nn.feedforward import FeedForward
from attendo.nn.positions import DistanceBias, Rotary
from attendo.own_parts import own_part_at, put_in
from attendo.runs.settings import preset_tables
from attendo.training.loop import train
from attendo.training.update import left_out, update

PATH = "encoder.blocks.0.self_attention"
CONFIG = ModelConfig(
    vocab_size=11, d_model=8, n_heads=2, d_ff=16, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0
)
LM = replace(CONFIG, architecture="decoder", n_encoder_layers=0)


class Near(nn.Module):
    """What a DistanceBias computes, without being one."""

    def forward(self, queries, keys):
        return -(queries[:, None, :, None] - keys).abs().float()


class Unasked(nn.Module):
    def forward(self, x):
        return x


def bias_of(formula):
    return type("Own", (DistanceBias,), {"forward": lambda self, q, k: formula(k - q[:, None, :, None])})()


def at(path, part):
    """A function that puts a part in a place of the model."""

    def with_part(model):
        module, _, name = path.rpartition(".")
        setattr(model.get_submodule(module), name, part)

    return with_part


def refusal(own_parts, config=CONFIG):
    model = build_model(config)
    with pytest.raises(AttendoError) as told:
        put_in(own_parts, model, tried=True)
    begin, _, line = str(told.value).partition(": ")
    assert begin.startswith("own_parts=test_own_parts_trying.py:") and "\n" not in line
    return line


def test_positions_that_attention_does_not_ask_are_refused():
    assert refusal(at(f"{PATH}.positions", Near())) == (
        f"{PATH}.positions (Near) is no DistanceBias, so attention never asks it; derive Near from"
        " attendo.nn.positions.DistanceBias"
    )


@pytest.mark.parametrize(
    ("path", "part", "config"),
    [
        ("encoder.blocks.0.self_attention.bias", Near(), CONFIG),
        ("decoder.blocks.0.cross_attention", Attention(8, 2), LM),
        ("encoder.blocks.0.norm", Unasked(), CONFIG),
    ],
)
def test_a_part_where_nothing_calls_it_is_refused(path, part, config):
    line = refusal(at(path, part), config)
    assert line.startswith(f"nothing calls {path} ({type(part).__name__}), so the model is as it would be")


def test_a_parameter_that_nothing_reads_is_refused():
    def with_slopes(model):
        model.get_submodule(PATH).slopes = nn.Parameter(torch.ones(2))

    assert refusal(with_slopes).startswith(f"nothing reads the parameter {PATH}.slopes, so")


class Late(Attention):
    def forward(self, x, memory, mask=None, values=None):
        return 0.5 * super().forward(x, memory, mask, values)


class Doubled(nn.Linear):
    def forward(self, input):
        return 2.0 * super().forward(input)


def test_what_training_or_a_search_alone_would_call_is_refused():
    path = "decoder.blocks.0.self_attention"
    line = refusal(at(path, Late(8, 2)))
    assert line == f"{path} (Late) overrides forward, which a search never calls; override attend_to, too"
    put_in(at(PATH, Late(8, 2)), build_model(CONFIG), tried=True)  # an encoder has no steps
    line = refusal(at("output_proj", Doubled(8, 11)))
    assert line.startswith("output_proj (Doubled) overrides forward, which training never calls: it reads")


class Mean(Attend):
    def forward(self, query, key, value, mask=None, bias=None):
        return value.mean(2, keepdim=True).expand_as(query)


class Table(nn.Module):
    """Holds numbers that another part reads; nothing calls it."""

    def __init__(self):
        super().__init__()
        self.numbers = nn.Parameter(torch.ones(2, 1, 1))


class Reading(DistanceBias):
    def __init__(self, table):
        super().__init__()
        self.read = [table]

    def forward(self, queries, keys):
        return -self.read[0].numbers * (queries[:, None, :, None] - keys).abs()


class OnAnotherDevice(nn.Module):
    def forward(self, x):
        raise RuntimeError("this kernel wants a GPU")


def with_table(model):
    attention = model.get_submodule(PATH)
    attention.table = Table()
    attention.positions = Reading(attention.table)


class Asking(Attention):
    """An attention that asks its positions itself."""

    def attend_to(self, x, keys, values, *others, **more):
        return super().attend_to(x, keys, values, *others, **more)


ASKING = Asking(8, 2)


def with_positions_of_its_own_attention(model):
    ASKING.positions = Near()
    model.encoder.blocks[0].self_attention = ASKING


class InTraining(nn.Linear):
    def forward(self, x):
        return super().forward(x) if self.training else x


class Window(nn.Module):
    """A mask as numbers, which another part reads."""

    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", torch.tensor([0.0, -torch.inf]))


def with_another_list(model):
    model.encoder.blocks = nn.ModuleList(model.encoder.blocks)


@pytest.mark.parametrize(
    "own_parts",
    [
        at(f"{PATH}.positions", Rotary()),
        at("decoder.blocks.0.cross_attention.positions", bias_of(lambda d: -d.abs().float())),
        at(f"{PATH}.positions", bias_of(lambda d: torch.where(d.abs() > 0, -torch.inf, 0.0))),
        at(f"{PATH}.attend", Mean()),
        at(f"{PATH}.k_norm", nn.LayerNorm(4)),
        at("encoder.norm", nn.RMSNorm(8)),
        at("encoder.norm", OnAnotherDevice()),
        at("decoder.blocks.0.self_attention.positions", bias_of(lambda d: -torch.log1p(-d.float()))),
        at("encoder.norm", InTraining(8, 8)),
        at("encoder.window", Window()),
        with_table,
        with_positions_of_its_own_attention,
        with_another_list,
    ],
)
def test_what_is_called_or_read_passes_and_the_random_numbers_stay(own_parts):
    model, before = build_model(CONFIG), torch.get_rng_state()
    put_in(own_parts, model, tried=True)
    assert torch.equal(torch.get_rng_state(), before) and model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_trained_part_passes_where_gradients_are_off():
    with torch.inference_mode():
        put_in(with_table, build_model(CONFIG), tried=True)


@pytest.mark.parametrize("part", [Near(), bias_of(lambda d: 1 / d.abs())])
def test_a_trained_run_is_loaded_with_the_parts_that_it_had(part):
    put_in(at(f"{PATH}.positions", part), build_model(CONFIG))


@pytest.mark.parametrize(
    ("formula", "number", "distance"),
    [
        (lambda d: 1 / d.abs(), "+inf", 0),
        (lambda d: -d.float().sqrt(), "+nan", -2),
        (lambda d: 0.0 * d.abs().log(), "+nan", 0),
    ],
)
def test_a_bias_that_is_no_number_is_refused_with_its_distance(formula, number, distance):
    assert refusal(at(f"{PATH}.positions", bias_of(formula))) == (
        f"{PATH}.positions (Own) gives {number} for a key at distance {distance} (key - query); correct its formula:"
        " a bias may be -inf, but not NaN or +inf"
    )


class Broken(FeedForward):
    def forward(self, x):
        return super().forward(x) / 0.0


def test_another_part_that_is_no_number_is_refused_and_the_first_is_named():
    def both(model):
        at("encoder.norm", Unasked())(model)
        at("encoder.blocks.0.feed_forward", Broken(8, 16))(model)

    line = refusal(both)
    assert line == (
        "encoder.blocks.0.feed_forward (Broken) gives NaN or infinity on a tiny input; correct its formula"
    )


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
    assert update(run, batch).note.startswith(f"{PATH}.positions is not finite at step")
    update(run, batch)
    again = "resume from the last checkpoint" if saved else "train again"
    told = f"Turning, your part, gives NaN or infinity: correct its formula, then {again}"
    with pytest.raises(AttendoError, match=re.escape(told) + "$"):
        update(run, batch)


def test_a_hidden_key_is_not_taken_for_what_went_wrong(tmp_path):
    run = tiny_run(tmp_path / "c")
    run.model.get_submodule(PATH).positions = Turning()
    run.model.get_submodule("encoder.blocks.0.feed_forward").register_forward_hook(
        lambda m, i, out: out * torch.nan
    )
    report = update(run, run.task.batches(1, 0, 0)[:1])
    assert report.note.startswith("encoder.blocks.0.feed_forward is not finite at step 1")
    run.progress.skipped_in_a_row = 2
    with pytest.raises(AttendoError, match=r"; train again with a lower training.learning_rate \(now \S+\)$"):
        left_out(run, "the loss", torch.nan, torch.nan)


def test_the_outermost_part_of_ones_own_is_named():
    model = SimpleNamespace(a=nn.Sequential(Table(), nn.Linear(1, 1)))
    assert own_part_at(model, "a.0.numbers") is model.a[0] and own_part_at(model, "a.1.weight") is None
    assert own_part_at(model, "the norm of the gradient") is None


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
    put_in(names["with_alibi"], user.model, tried=True)
    answer = positions_answer(tiny_look("classification", user=user, text="rain snow"), "source")
    assert user.model.config.positions == "sinusoidal" and user.model.embedding.positions is not None
    assert (answer["kind"], answer["name"], answer["data"]) == ("own", "Alibi", "")


def test_a_bias_of_the_decoder_alone_is_shown_for_the_target_alone():
    user = tiny_user("translation")
    put_in(at("decoder.blocks.0.self_attention.positions", bias_of(lambda d: -d.abs().float())), user.model)
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
    assert (
        f"{len(rows['pairs']):,} rows read" in text and f"\n{held_out} of 4,000 pairs are split off" in text
    )
    vocab_size = int(re.search(r"tokenizer: bpe, ([\d,]+) entries", text)[1].replace(",", ""))
    chosen = {"vocab_size": vocab_size, "norm_first": True}  # this as every size that is chosen
    model = build_model(ModelConfig(**preset_tables("tiny")["model"], **chosen))
    names["with_log_distance"](model)
    assert f"\n{parameter_count(model):,} parameters; " in text
