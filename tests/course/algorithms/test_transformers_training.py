"""Algorithms 11 to 15: losses, gradients and steps of training, and every draw of inference, as transcribed."""

import math

import algorithms_in_numpy as paper
import numpy as np
import pytest
import torch
from example_counts import examples
from formal_models import formal

from attendo_course.algorithms import (
    DInference,
    DTraining,
    DTransformer,
    EDInference,
    EDTraining,
    ETraining,
    d_inference_steps,
    d_loss,
    distribution,
    e_loss,
    ed_inference_steps,
    ed_loss,
    masked,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SLOPES = {"rtol": 1e-6, "atol": 1e-8}  # central differences are no better
TINY = {"N_V": 5, "ell_max": 4, "H": 1, "d_e": 3, "d_mlp": 2, "d_attn": 1, "d_mid": 2}
TINY_STACK = TINY | {"L": 1}
MASK, BOS, EOS = 3, 4, 5
TEXTS = [[BOS, 2, 1, EOS], [BOS, 1, EOS]]
SOURCES = [[1, 2], [2, 2, 1]]


pytestmark = pytest.mark.usefixtures("float64")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def gradients(loss, theta):
    """Under the paper's names and in its order: what one step of η = 1 takes away."""
    loss(theta).backward()
    with torch.no_grad():
        for parameter in theta.parameters():
            parameter.copy_(parameter.grad)
    return list(paper.arrays(paper.theta_of(theta)))


def assert_same(ours, theirs, **tolerance):
    ours, theirs = list(paper.arrays(ours)), list(paper.arrays(theirs))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, **tolerance)


# A11 to A13


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_losses_and_their_gradients_equal_the_transcription(seed):
    ed = formal("A8", seed, **(TINY | {"L_enc": 1, "L_dec": 1}))
    e, d = formal("A9", seed, **TINY_STACK), formal("A10", seed, **TINY_STACK)
    z, x, x_masked = [2, 1], [BOS, 2, 1, EOS], [MASK, 2, MASK, EOS]
    for model, ours, theirs in (
        (ed, lambda theta: ed_loss(z, x, theta), lambda theta: paper.ed_loss(z, x, theta)),
        (e, lambda theta: e_loss(x, x_masked, theta), lambda theta: paper.e_loss(x, x_masked, theta)),
        (d, lambda theta: d_loss(x, theta), lambda theta: paper.d_loss(x, theta)),
    ):
        theta = paper.theta_of(model)
        assert ours(model).item() == pytest.approx(theirs(theta), rel=1e-10)
        assert_same(gradients(ours, model), paper.gradient(theirs, theta), **SLOPES)


def test_encoder_decoder_training_takes_the_transcriptions_steps():
    model = formal("A8", **(TINY | {"L_enc": 1, "L_dec": 1}))
    theta, pairs = paper.theta_of(model), list(zip(SOURCES, TEXTS, strict=True))[: examples(1, 2)]
    trained, losses = EDTraining(pairs, model, N_epochs=1, eta=0.05)
    assert_same(paper.theta_of(model), theta, rtol=0, atol=0)  # θ stays as it is
    np.testing.assert_allclose(losses, paper.EDTraining(pairs, theta, 1, 0.05), **SLOPES)
    assert_same(paper.theta_of(trained), theta, **SLOPES)
    assert trained.source_embedding.tokens is trained.target_embedding.tokens


def test_encoder_training_takes_the_transcriptions_steps():
    model = formal("A9", **TINY_STACK)
    theta, draws = paper.theta_of(model), seeded(4)
    trained, losses = ETraining(TEXTS, model, N_epochs=2, eta=0.05, p_mask=0.4, generator=seeded(4))
    expected = paper.ETraining(TEXTS, theta, 2, 0.05, 0.4, lambda ell: torch.rand(ell, generator=draws))
    assert len(losses) == 4 and len(set(losses)) == 4
    np.testing.assert_allclose(losses, expected, **SLOPES)
    assert_same(paper.theta_of(trained), theta, **SLOPES)


def test_decoder_training_takes_the_transcriptions_steps():
    model = formal("A10", **TINY_STACK)
    theta = paper.theta_of(model)
    trained, losses = DTraining(TEXTS, model, N_epochs=2, eta=0.05)
    np.testing.assert_allclose(losses, paper.DTraining(TEXTS, theta, 2, 0.05), **SLOPES)
    assert_same(paper.theta_of(trained), theta, **SLOPES)
    assert losses == [*DTraining(TEXTS, model, N_epochs=1, eta=0.05).losses, *losses[2:]]


def test_where_nothing_is_masked_the_step_changes_nothing():
    model = formal("A9", **TINY_STACK)
    trained, losses = ETraining(TEXTS, model, N_epochs=2, eta=0.5, p_mask=0.0)
    assert losses == [0.0] * 4
    assert_same(paper.theta_of(trained), paper.theta_of(model), rtol=0, atol=0)


def test_masks_are_drawn_token_by_token():
    x = [1, 2] * 5000
    x_masked = masked(x, 5, 0.15, seeded(0))
    n = int((x_masked == MASK).sum())
    assert abs(n - 1500) < 4 * math.sqrt(10_000 * 0.15 * 0.85)
    assert ((x_masked == MASK) | (x_masked == torch.tensor(x))).all()
    assert not masked(x, 5, 0.15, seeded(1)).equal(x_masked)
    assert masked(x, 5, 0.15, seeded(0)).equal(x_masked)
    for p_mask in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"p_mask={p_mask} is not a probability"):
            ETraining(TEXTS, formal("A9"), N_epochs=1, eta=0.1, p_mask=p_mask)
    with pytest.raises(ValueError, match="x has 2 tokens and x_masked 1"):
        e_loss([1, 2], [1], formal("A9"))


# A14 and A15


@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
def test_decoder_inference_draws_from_the_transcriptions_distributions(tau):
    model, prompt = formal("A10"), [6, 1]
    steps = list(d_inference_steps(prompt, model, ell_gen=5, tau=tau, generator=seeded(0)))
    drawn, q = [step.y for step in steps], []
    replay = iter(drawn)

    def sample(distribution):
        q.append(distribution)
        return next(replay)

    assert paper.DInference(prompt, paper.theta_of(model), 5, tau, sample) == drawn
    np.testing.assert_allclose(np.stack([step.q for step in steps]), np.stack(q), **CLOSE)
    assert DInference(prompt, model, ell_gen=5, tau=tau, generator=seeded(0)) == drawn
    assert len(set(drawn)) > 1


@pytest.mark.some(1)
@pytest.mark.parametrize(("tau", "seed"), [(0.5, 1), (1.0, 2), (3.0, 3)])
def test_encoder_decoder_inference_draws_from_the_transcriptions_distributions(tau, seed):
    model, z = formal("A8", ell_max=40), [2, 1, 3]
    steps = list(ed_inference_steps(z, model, tau=tau, generator=seeded(seed)))
    drawn, q = [step.y for step in steps], []
    replay = iter(drawn)

    def sample(distribution):
        q.append(distribution)
        return next(replay)

    assert paper.EDInference(z, paper.theta_of(model), tau, sample) == [6, *drawn]
    np.testing.assert_allclose(np.stack([step.q for step in steps]), np.stack(q), **CLOSE)
    assert EDInference(z, model, tau=tau, generator=seeded(seed)) == ([6, *drawn], True)


@pytest.mark.full
def test_draws_at_temperature_one_are_faithful():
    """χ² of 600 draws; 7 - 1 degrees of freedom, 1 % point 16.81. It can tell another temperature."""
    model, prompt, generator, n = formal("A10", L=1), [6, 1], seeded(0), 600
    draws = [DInference(prompt, model, ell_gen=1, tau=1.0, generator=generator)[0] for _ in range(n)]
    counts = np.bincount(draws, minlength=8)[1:]
    p = DTransformer(prompt, model)[:, -1].detach().numpy()
    for tau, faithful in ((1.0, True), (0.5, False), (2.0, False)):
        expected = n * paper.sharpened(p, tau)
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        assert (chi_squared < 16.81) == faithful, (tau, chi_squared)
    assert n * p.min() > 5  # what the test asks for


def test_temperature_goes_from_the_argmax_to_uniform():
    model = formal("A10")
    for prompt in ([6, 1], [2], [3, 3, 4]):
        p = DTransformer(prompt, model)[:, -1].detach()
        limit = torch.nn.functional.one_hot(p.argmax(), 7).double()
        for tau, q, tolerance in ((0.0, limit, 0.0), (1e-320, limit, 0.0), (1e-4, limit, 1e-10)):
            (step,) = d_inference_steps(prompt, model, ell_gen=1, tau=tau)
            torch.testing.assert_close(step.q, q, rtol=0, atol=tolerance)
            assert step.y == p.argmax() + 1
        for tau, tolerance in ((1e9, 1e-8), (math.inf, 1e-15)):
            (step,) = d_inference_steps(prompt, model, ell_gen=1, tau=tau)
            torch.testing.assert_close(step.q, torch.full((7,), 1 / 7), rtol=0, atol=tolerance)
        (step,) = d_inference_steps(prompt, model, ell_gen=1, tau=1.0)
        torch.testing.assert_close(step.q, p, **CLOSE)


def test_temperatures_that_are_none():
    ed, d = formal("A8"), formal("A10")
    for tau in (-1.0, math.nan):
        for call in (
            lambda tau=tau: DInference([1], d, ell_gen=1, tau=tau),
            lambda tau=tau: EDInference([1], ed, tau=tau),
            lambda tau=tau: distribution(torch.zeros(3), tau),
        ):
            with pytest.raises(ValueError, match=f"tau={tau} must be 0 or more"):
                call()
    for tau in (1e-308, 1e-40, 1e-3):  # no infinity and no NaN, in float32 either
        assert distribution(torch.tensor([0.0, 80.0]).float(), tau).tolist() == [0.0, 1.0]


def test_encoder_decoder_inference_stops_at_eos_or_at_the_limit():
    model, z = formal("A8"), [1, 2, 3]
    n, ended, lengths = examples(16, 40), 0, set()
    for seed in range(n):
        x_hat, end = EDInference(z, model, tau=1.0, generator=seeded(seed))
        assert x_hat[0] == 6 and 7 not in x_hat[:-1]
        assert end == (x_hat[-1] == 7) and len(x_hat) <= 7
        assert end or len(x_hat) == 7  # ℓ_max + 1: nothing is predicted from the last
        ended += end
        lengths.add(len(x_hat))
        short = EDInference(z, model, tau=1.0, generator=seeded(seed), max_len=3)
        assert short.x_hat == x_hat[:3] and short.ended == (x_hat[:3][-1] == 7)
    assert 0 < ended < n and len(lengths) > 2
    with torch.no_grad():  # eos for certain: its row alone meets the last norm's shift
        model.decoder.blocks[-1].feed_forward_residual.norm.bias.fill_(5.0)
        model.output_proj.weight.zero_()
        model.output_proj.weight[6] = 20.0
    assert EDInference(z, model, tau=1.0) == ([6, 7], True)
    for max_len in (1, 8):
        with pytest.raises(ValueError, match=rf"max_len={max_len} must lie in 2\.\.7"):
            EDInference(z, model, tau=1.0, max_len=max_len)


def test_generation_ends_with_the_positions():
    model, prompt = formal("A10"), [6, 1]
    assert len(DInference(prompt, model, ell_gen=5, tau=1.0)) == 5
    assert DInference(prompt, model, ell_gen=0, tau=1.0) == []
    for ell_gen in (6, -1):
        with pytest.raises(ValueError, match=rf"ell_gen={ell_gen} must lie in 0\.\.5: .*ell_max=6"):
            DInference(prompt, model, ell_gen=ell_gen, tau=1.0)
    with pytest.raises(ValueError, match=r"x\[1\]=8 is not in 1"):
        DInference([8], model, ell_gen=1, tau=1.0)
    with pytest.raises(ValueError, match=r"z\[1\]=0 is not in 1"):
        EDInference([0], formal("A8"), tau=1.0)
