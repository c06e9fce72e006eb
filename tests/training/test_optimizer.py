"""The settings of training are checked; Muon is Muon, and both parts of it are saved and loaded as one optimizer."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_task import TinyTask, tiny_model
from torch import nn

from attendo.training import optimizer as module
from attendo.training.losses import batch_loss


def stepped(optimizer, model, n, first=0):
    """The weights after `n` updates on the batches of the tiny task, rates that change included."""
    batches = TinyTask(n_rows=30).batches(1, 0, first)
    for number in range(n):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + first + number)
        batch_loss(model, batches[number], 0.1, 1.0).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ema_decay": 1.0}, "ema_decay=1.0 must be at least 0 and below 1"),
        ({"ema_decay": -0.1}, "ema_decay=-0.1"),
        ({"ema_decay": 0.9, "average_last": 3}, "Set ema_decay=0 or average_last=1"),
        ({"accumulation": 0}, "accumulation=0 must be above 0"),
        ({"steps": None}, "exactly one of"),
        ({"epochs": 1}, "exactly one of"),
        ({"steps": 0}, "steps=0 must be above 0"),
        ({"steps": None, "minutes": 1, "schedule": "cosine"}, "requires a fixed number of steps"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_remedy(settings, said):
    with pytest.raises(ValueError, match=said):
        module.TrainingConfig(**{"steps": 1} | settings)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_is_stepped_once_and_vectors_do_not_decay(kind):
    model = tiny_model()
    optimizer = module.build_optimizer(model, module.TrainingConfig(steps=1, optimizer=kind, weight_decay=0.5))
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held)) and set(held) == set(model.parameters())
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.5 if parameter.ndim >= 2 else 0.0)


def test_muon_takes_the_matrices_between_embedding_and_output():
    model = tiny_model()
    names = {name for name, p in model.named_parameters() if p in module.hidden_matrices(model)}
    blocks = {name for name, p in model.named_parameters() if ".blocks." in name and p.ndim == 2}
    assert names == blocks and len(names) == 4 + 2 + 8 + 2
    model.encoder.requires_grad_(False)
    assert {name.split(".")[0] for name, p in model.named_parameters() if p in module.hidden_matrices(model)} == {
        "decoder"
    }


def test_a_step_of_muon_is_nearly_orthogonal_and_as_large_as_one_of_adamw():
    """Its singular values lie near 0.2 √max(m, n) · rate, however large those of the gradient are."""
    for size in (1e-3, 1e3):
        torch.manual_seed(0)
        matrix = nn.Parameter(torch.zeros(24, 40))
        muon = torch.optim.Muon([matrix], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        optimizer = module.MuonWithAdamW(muon, torch.optim.AdamW([nn.Parameter(torch.zeros(1))]))
        matrix.grad = size * torch.randn(24, 40)
        optimizer.step()
        values = torch.linalg.svdvals(matrix.detach()) / (0.1 * 0.2 * 40**0.5)
        assert values.min() > 0.5
        assert values.max() < 1.3
        rms = matrix.detach().square().mean().sqrt().item()
        assert rms == pytest.approx(0.1 * 0.2, rel=0.3)  # that of AdamW's steps is 0.2 to 0.4 of the rate


def test_both_parts_step_as_torchs_own_would():
    """torch's Muon rounds to bfloat16: 2% for random gradients, but more than 50% for those of low rank."""
    together, apart, start = tiny_model(0.0), tiny_model(0.0), tiny_model(0.0)
    config = module.TrainingConfig(steps=1, optimizer="muon", weight_decay=0.1, learning_rate=0.01)
    both = module.build_optimizer(together, config)
    hidden = module.hidden_matrices(apart)
    rest = [p for p in apart.parameters() if p not in hidden]
    muon = torch.optim.Muon(
        [p for p in apart.parameters() if p in hidden], weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.ndim >= 2]},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
        eps=1e-9,
        weight_decay=0.1,
        fused=True,
    )
    for number in range(3):
        for one, other in zip(together.parameters(), apart.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (both, muon, adamw):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 / (1 + number)
            optimizer.step()
    for one, other, old in zip(together.parameters(), apart.parameters(), start.parameters(), strict=True):
        assert one.equal(other) or other in hidden
        assert (one - other).norm() <= 0.1 * (other - old).norm()


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_loaded_state_goes_on_to_the_same_bits(kind):
    config = module.TrainingConfig(steps=1, optimizer=kind)
    whole, first, second = tiny_model(0.0), tiny_model(0.0), tiny_model(0.0, seed=1)
    wanted = stepped(module.build_optimizer(whole, config), whole, 5)
    early = module.build_optimizer(first, config)
    stepped(early, first, 2)
    late = module.build_optimizer(second, config)
    late.load_state_dict(early.state_dict())
    second.load_state_dict(first.state_dict())
    for one, other in zip(stepped(late, second, 3, first=2), wanted, strict=True):
        assert one.equal(other)


def test_an_average_is_that_of_the_formula_and_forgets_its_start():
    model = nn.Linear(3, 2, dtype=torch.float64)
    average = module.WeightAverage(model, 0.5)
    wanted = model.weight.detach().clone()
    for step in range(1, 30):
        with torch.no_grad():
            model.weight.normal_()
        average.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        wanted = decay * wanted + (1 - decay) * model.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], wanted)


def test_swapped_weights_come_back_to_the_bit_also_after_an_error():
    model = tiny_model()
    average = module.WeightAverage(model, 0.9)
    torch.nn.init.normal_(model.encoder.blocks[0].feed_forward.in_proj.weight)
    average.update(model, 1)
    own = [p.detach().clone() for p in model.parameters()]
    kept = {name: tensor.clone() for name, tensor in average.tensors.items()}
    with pytest.raises(RuntimeError, match="stop"), average.swapped(model):
        for name, parameter in model.named_parameters():
            assert parameter.equal(kept[name])
        assert model.output_proj.weight is model.target_embedding.tokens.weight
        raise RuntimeError("stop")
    assert all(one.equal(p) for one, p in zip(own, model.parameters(), strict=True))
    assert all(average.tensors[name].equal(kept[name]) for name in kept)


def test_a_saved_average_is_taken_over_and_another_models_is_refused():
    first, second = module.WeightAverage(nn.Linear(3, 2), 0.9), module.WeightAverage(nn.Linear(3, 2), 0.9)
    second.load(first.tensors)
    assert all(second.tensors[name].equal(first.tensors[name]) for name in first.tensors)
    with pytest.raises(ValueError, match="bias"):
        second.load({"weight": first.tensors["weight"]})


@pytest.mark.parametrize(("step", "rate"), [(1, 1.74693e-7), (4000, 6.98771e-4), (50_000, 1.97642e-4)])
def test_the_figures_of_the_paper(step, rate):
    assert module.noam(step, 512, 4000) == pytest.approx(rate, rel=5e-6)


def test_noam_peaks_where_its_branches_meet():
    rates = [module.noam(step, 256, 50) for step in range(1, 200)]
    assert max(rates) == rates[49] == pytest.approx(256**-0.5 * 50**-0.5)


@given(st.integers(1, 50), st.integers(0, 100), st.integers(1, 100), st.floats(1e-5, 1e-2))
def test_warmup_stable_decay_rises_stays_and_falls(warmup, stable, decay, peak):
    start, end = warmup + stable, warmup + stable + decay
    rates = [module.warmup_stable_decay(step, peak, warmup, module.Horizon(start, end)) for step in range(1, end + 1)]
    assert rates[warmup - 1 : start] == [peak] * (stable + 1)
    assert all(a < b for a, b in itertools.pairwise(rates[:warmup]))
    assert all(a > b > 0 for a, b in itertools.pairwise(rates[start - 1 :]))
    assert rates[-1] == pytest.approx(peak / (decay + 1))
    assert module.warmup_stable_decay(10**6, peak, warmup, module.Horizon()) == peak


def test_cosine_ends_at_zero():
    assert module.cosine(5, 1.0, 10, 100) == 0.5
    assert module.cosine(10, 1.0, 10, 100) == 1.0
    assert module.cosine(55, 1.0, 10, 100) == pytest.approx(0.5)
    assert module.cosine(100, 1.0, 10, 100) == pytest.approx(0.0)


@pytest.mark.some(1)
@pytest.mark.parametrize("schedule", ["wsd", "cosine", "noam"])
def test_the_schedule_is_chosen_by_name(schedule):
    config = module.TrainingConfig(steps=100, schedule=schedule, warmup_steps=10, learning_rate=0.5)
    wanted = {"wsd": 0.5, "cosine": module.cosine(50, 0.5, 10, 100), "noam": 0.5 * module.noam(50, 64, 10)}
    assert module.learning_rate(config, 64, 50, module.Horizon(75, 100)) == wanted[schedule]
