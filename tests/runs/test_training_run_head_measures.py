import numpy as np
import pytest
import torch
from coach_curves import HEALTHY_OUTPUTS
from tiny_task import TinyTask, tiny_run

from attendo.data.batches import Batch
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, ModelConfig, build_model
from attendo.nn.attention import Attention
from attendo.runs.training_run import COACH, RunCoach, even_inputs, measured_heads
from attendo.training.coach import names_of_dead
from attendo.training.distributed import ALONE
from attendo.training.loop import train
from attendo.training.run import Evaluation

SIZES = {"vocab_size": 20, "d_model": 16, "d_ff": 32, "n_heads": 4, "dropout": 0.3}
KINDS = {
    "encoder-decoder": {"n_encoder_layers": 2, "n_decoder_layers": 1},
    "classifier": {"n_encoder_layers": 2, "n_decoder_layers": 0, "n_classes": 3, "positions": "alibi"},
    "decoder": {"n_encoder_layers": 0, "n_decoder_layers": 2, "positions": "rotary", "n_kv_heads": 2},
    "masked": {"n_encoder_layers": 1, "n_decoder_layers": 0, "norm_first": True},
}


def model_of(architecture):
    torch.manual_seed(1)
    return build_model(ModelConfig(architecture=architecture, **SIZES, **KINDS[architecture]))


def inputs_for(model, rows=8, length=7):
    torch.manual_seed(2)
    ids = torch.randint(4, 20, (rows, length))
    match model:
        case EncoderDecoder():
            return {"src": ids, "tgt": ids.flip(1)}
        case DecoderLM():
            return {"token_ids": ids}
        case EncoderClassifier() | MaskedLM():
            return {"src": ids}
    raise AssertionError(model)


@pytest.mark.parametrize("architecture", KINDS)
def test_heads_of_a_fresh_model_live_and_the_model_is_not_touched(architecture):
    model = model_of(architecture).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs, modules = inputs_for(model), dict(model.named_modules())
    state = torch.get_rng_state()
    heads = measured_heads(model, inputs)
    n_layers = {"encoder-decoder": 4, "classifier": 2, "decoder": 2, "masked": 1}[architecture]
    assert len(heads) == len({head.name for head in heads}) == 4 * n_layers
    assert names_of_dead(heads) == []
    assert all(0 < head.spread < 1 and head.share > 0.01 for head in heads)
    assert model.training and dict(model.named_modules()) == modules
    assert all(not module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert measured_heads(model, inputs) == heads


def attention_at(model, path):
    found = model.get_submodule(path)
    assert isinstance(found, Attention)
    return found


def cut_head(attention, number, *, weights=True, values=True):
    """Makes a head look everywhere alike, and adds nothing."""
    size = attention.head_dim
    part = slice(number * size, (number + 1) * size)
    with torch.no_grad():
        for projection in [attention.q_proj] * weights + [attention.v_proj] * values:
            projection.weight[part] = 0.0
            projection.bias[part] = 0.0


@pytest.mark.parametrize("path", ["encoder.blocks.1.self_attention", "decoder.blocks.0.cross_attention"])
def test_a_head_that_is_cut_is_found_and_no_other(path):
    model = model_of("encoder-decoder")
    cut_head(attention_at(model, path), 2)
    heads = measured_heads(model, inputs_for(model))
    assert names_of_dead(heads) == [f"{path}[2]"]
    dead = next(head for head in heads if head.name == f"{path}[2]")
    assert dead.spread < 1e-6 and dead.share == 0.0


def test_a_head_that_averages_all_it_sees_lives():
    model = model_of("encoder-decoder")
    cut_head(attention_at(model, "decoder.blocks.0.cross_attention"), 2, values=False)
    heads = measured_heads(model, inputs_for(model))
    assert min(head.spread for head in heads) < 1e-6
    assert names_of_dead(heads) == []


def test_a_layer_whose_values_are_the_same_for_all_inputs_is_dead():
    """As after a rate that is too high: it looks here and there, and finds nothing."""
    model = model_of("encoder-decoder")
    for number in range(4):
        cut_head(attention_at(model, "decoder.blocks.0.cross_attention"), number, weights=False)
    heads = measured_heads(model, inputs_for(model))
    assert names_of_dead(heads) == [f"decoder.blocks.0.cross_attention[{i}]" for i in range(4)]


def test_the_share_is_what_the_head_adds_beside_what_flows_past():
    """By hand, from the layer's own output with all other heads cut."""
    model = model_of("decoder").double().eval()
    inputs = inputs_for(model)
    attention = attention_at(model, "decoder.blocks.0.self_attention")
    wanted = {head.name: head.share for head in measured_heads(model, inputs)}
    added = []
    out = attention.out_proj.get_parameter("weight")
    assert isinstance(model, DecoderLM)
    with torch.no_grad():
        stream = model.embedding(inputs["token_ids"])
        for number in range(4):
            kept = slice(number * attention.value_dim, (number + 1) * attention.value_dim)
            whole = out.clone()
            out.zero_()
            out[:, kept] = whole[:, kept]
            hook = attention.register_forward_hook(lambda m, i, o: added.append(o))
            model.hidden(**inputs)
            hook.remove()
            out.copy_(whole)
            rms = [(x - x.mean(0)).square().sum(-1).mean().sqrt() for x in (added[-1], stream)]
            name = f"decoder.blocks.0.self_attention[{number}]"
            assert wanted[name] == pytest.approx(float(rms[0] / rms[1]), rel=1e-5)


def test_too_few_rows_tell_nothing():
    model = model_of("decoder")
    assert measured_heads(model, inputs_for(model, rows=3)) == []


def padded_batch(lengths, target_lengths=None):
    src = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in zip(src, lengths, strict=True):
        row[:length] = 5
    inputs = {"src": src}
    if min(lengths) < max(lengths):
        inputs["src_lengths"] = torch.tensor(lengths)
    if target_lengths is None:
        return Batch(inputs, torch.ones(len(lengths)), len(lengths), np.arange(len(lengths)), -1)
    tgt = torch.zeros(len(lengths), max(target_lengths), dtype=torch.long)
    for row, length in zip(tgt, target_lengths, strict=True):
        row[:length] = 7
    return Batch(inputs | {"tgt": tgt}, tgt, sum(target_lengths), np.arange(len(lengths)))


def test_even_inputs_hold_no_padding():
    batch = padded_batch([3, 9, 4, 7, 8, 2, 7, 7])
    assert even_inputs(batch)["src"].shape == (5, 7)
    pairs = even_inputs(padded_batch([5, 5, 5, 5, 5, 5], [2, 9, 8, 9, 1, 7]))
    assert pairs["src"].shape == (4, 5) and pairs["tgt"].shape == (4, 7)
    for part in [even_inputs(batch)["src"], *pairs.values()]:
        assert (part != 0).all()
    opposed = even_inputs(padded_batch([1, 2, 3, 4], [4, 3, 2, 1]))
    assert opposed["src"].shape == opposed["tgt"].shape == (2, 2)


# ---- beside a run


class Collapsed(TinyTask):
    """Every text comes out alike."""

    def evaluate(self, model, ranks=ALONE):
        samples = [(source, wanted, "no .") for source, wanted, _ in HEALTHY_OUTPUTS]
        return Evaluation({**super().evaluate(model).measures, "loss": 3.0}, "value", samples)


def heard(run):
    coach = RunCoach(run, dropout=0.1, fresh=True)
    return [(report.progress.step, a.rule) for report in train(run) for a in coach.advise(report)]


def test_a_coach_beside_a_run_remembers_in_its_progress():
    run = tiny_run(None, Collapsed(n_rows=24, rows_per_batch=8), steps=12, evaluate_every=2)
    assert heard(run) == [(8, "output_collapse")]
    assert run.progress.notes[COACH]["said"] == ["output_collapse"]
    assert heard(tiny_run(None, TinyTask(n_rows=24, rows_per_batch=8), steps=12, evaluate_every=2)) == []


def losses(listens):
    run = tiny_run(None, TinyTask(n_rows=24, rows_per_batch=8), steps=8, evaluate_every=2)
    coach = RunCoach(run, dropout=0.1, fresh=True)
    found = []
    for report in train(run):
        if listens:
            coach.advise(report)
        found += [report.loss] if report.kind == "step" else []
    return found, run.model.state_dict()


def test_listening_changes_nothing_of_a_run():
    (plain, weights), (listened, same) = losses(False), losses(True)
    assert plain == listened
    assert all(torch.equal(weights[name], same[name]) for name in weights)
