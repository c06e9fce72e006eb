"""F25 to F30: the paper's recipe, sizes, schedule, smoothing, search and cache."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from search_table import Table, every_text, search

from attendo.config import build
from attendo.decoding.beam import DecodingConfig, length_norm
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig, parameter_count
from attendo.training.losses import token_losses
from attendo.training.optimizer import Horizon, TrainingConfig, build_optimizer, learning_rate, noam
from attendo_course.presets import PRESETS, vaswani_recipe

EXACT = {"rtol": 0.0, "atol": 1e-10}


@pytest.mark.parametrize(("size", "steps", "last"), [("base", 100_000, 5), ("big", 300_000, 20)])
def test_f25_recipe(size, steps, last):
    tables = vaswani_recipe(size)
    training = build(TrainingConfig, tables["training"], "recipe")
    decoding = build(DecodingConfig, tables["decoding"], "recipe")
    model = build(ModelConfig, tables["model"], "recipe")
    assert (training.steps, training.average_last) == (steps, last)
    assert (model.embedding_scale, model.tie, model.norm_first) == (True, "all", False)
    assert (decoding.beam, decoding.length_penalty, decoding.max_length(30, 1024)) == (4, 0.6, 80)
    assert training.label_smoothing == 0.1
    group = build_optimizer(torch.nn.Linear(2, 2), training).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)
    rate = learning_rate(training, model.d_model, 4000, Horizon())
    assert rate == pytest.approx(model.d_model**-0.5 * 4000**-0.5, rel=1e-12)


def test_f27_noam():
    assert f"{noam(1, 512, 4000):.5e}" == "1.74693e-07"
    assert f"{noam(4000, 512, 4000):.5e}" == "6.98771e-04"
    assert f"{noam(50_000, 512, 4000):.5e}" == "1.97642e-04"
    rates = np.array([noam(s, 512, 4000) for s in range(1, 20_001)])
    steps = np.arange(1, 20_001)
    np.testing.assert_allclose(rates, 512**-0.5 * np.minimum(steps**-0.5, steps * 4000**-1.5), rtol=1e-12)
    assert rates.argmax() + 1 == 4000
    assert pytest.approx(4000 * 4000**-1.5, rel=1e-12) == 4000**-0.5  # the branches meet at s = w


@given(vocab=st.integers(2, 9), epsilon=st.floats(0.0, 0.9), seed=st.integers(0, 99))
def test_f28_label_smoothing(vocab, epsilon, seed):
    logits = torch.randn(3, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    targets = torch.tensor([0, vocab - 1, 0])
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    q = (1 - epsilon) * np.eye(vocab)[targets] + epsilon / vocab
    np.testing.assert_allclose(token_losses(logits, targets, epsilon), -(q * np.log(p)).sum(1), **EXACT)


def test_f28_the_floor_is_the_entropy_of_the_targets():
    V, epsilon = 37_000, 0.1
    q = torch.full((1, V), epsilon / V, dtype=torch.float64)
    q[0, 7] += 1 - epsilon
    floor = token_losses(q.log(), torch.tensor([7]), epsilon).item()  # a model that predicts q itself
    assert round(floor, 5) == 1.37691
    assert floor == pytest.approx(-(q * q.log()).sum().item(), abs=1e-10)
    logits = torch.randn(2, 5, dtype=torch.float64).requires_grad_()
    plain = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 4]), reduction="none")
    torch.testing.assert_close(token_losses(logits, torch.tensor([1, 4])), plain)
    assert torch.autograd.gradcheck(lambda x: token_losses(x, torch.tensor([1, 4]), 0.1), (logits,))


def test_f29_beam_search():
    assert length_norm(7, 0.6) == pytest.approx(2.0**0.6, abs=1e-12)
    for seed in range(5):
        table, limit = Table(seed=seed, vocab=4, end_bias=3.0), 3
        greedy = search(table, [(7,)], [limit], DecodingConfig(beam=1, length_penalty=0.0))[0][0]
        ids, prefix = [], ()
        while len(ids) < limit:  # by hand: the best token each time
            token = int(np.argmax([-math.inf, *table.logits((7,), prefix)[1:]]))
            ids.append(token)
            prefix = (*prefix, token)
            if token == 1:
                break
        assert list(greedy.token_ids) == [i for i in ids if i != 1]
        exhaustive = search(table, [(7,)], [limit], DecodingConfig(beam=4**limit, length_penalty=0.6))[0][0]
        ids, _, score = every_text(table, (7,), limit, 0.6)[0]
        assert exhaustive.finished
        assert (tuple(exhaustive.token_ids), exhaustive.score) == (ids, pytest.approx(score, abs=1e-9))


def test_f30_cache():
    sizes = {"vocab_size": 13, "d_model": 8, "d_ff": 16, "n_heads": 2, "dropout": 0.0}
    lm = DecoderLM(ModelConfig(**sizes, architecture="decoder", n_encoder_layers=0, n_decoder_layers=2)).double()
    both = EncoderDecoder(ModelConfig(**sizes, n_encoder_layers=1, n_decoder_layers=2)).double()
    ids, src = torch.tensor([[3, 8, 1, 12, 5]]), torch.tensor([[4, 2, 9]])
    for model, cache, whole in ((lm, lm.start(), lm(ids)), (both, both.start(src), both(src, ids))):
        parts = [model.step(ids[:, t : t + 1], cache) for t in range(5)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, **EXACT)
    with torch.device("meta"):
        assert parameter_count(PRESETS["gpt2_small"].build()) == 124_439_808
