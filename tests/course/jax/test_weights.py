"""The modules in JAX equal those of the core on the same weights, in values and gradients, in float64 and float32."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest
import torch

from attendo import models
from attendo.model_config import ModelConfig
from attendo.nn.attention import Attention
from attendo.nn.attention import attention as core_attention
from attendo.nn.masks import Mask, causal
from attendo_course.grader.jax_functions import as_torch
from attendo_course.jax.attention import (
    MultiHeadAttention,
    SingleQueryAttention,
    attention,
    single_query_attention,
)
from attendo_course.jax.transformer import DecoderLM
from attendo_course.jax.weights import copy_weights
from attendo_course.presets import weather_blog

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
KEY = jax.random.key(0)
SIZES = {
    "architecture": "decoder",
    "vocab_size": 7,
    "d_model": 4,
    "d_ff": 8,
    "n_heads": 2,
    "n_encoder_layers": 0,
}
POST_NORM = ModelConfig(**SIZES, n_decoder_layers=1, dropout=0.0)
PRE_NORM = ModelConfig(
    **SIZES,
    n_decoder_layers=1,
    dropout=0.0,
    norm_first=True,
    positions="learned",
    max_len=5,
    activation="gelu",
)


@pytest.fixture(params=TOLERANCES, ids=["float64", "float32"])
def same(request):
    """A comparison in one of the types, which new tensors have; JAX has it only within the test."""
    torch.manual_seed(0)
    torch.set_default_dtype(request.param)
    tolerance = TOLERANCES[request.param]
    with jax.enable_x64(request.param == torch.float64):
        yield partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
    torch.set_default_dtype(torch.float32)
    assert not jax.config.jax_enable_x64


def drawn(core):
    """The core's module with random weights everywhere, biases and norms included."""
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return core


@pytest.mark.parametrize("mask", [None, causal(3, 3), torch.tensor([[False] * 3, [True] * 3, [False, True, False]])])
def test_attention_and_its_gradient(mask):
    torch.manual_seed(0)
    arrays = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    outputs = [
        core_attention(*arrays, mask, 0.7),
        as_torch(jax.jit(attention))(*arrays, mask=mask, scale=0.7),
    ]
    torch.testing.assert_close(*outputs, rtol=1e-10, atol=1e-10)
    wanted, got = (torch.autograd.grad(output.square().sum(), arrays) for output in outputs)
    torch.testing.assert_close(wanted, got, rtol=1e-10, atol=1e-10)


def test_single_query_attention_is_the_preset_with_one_query(same):
    core = drawn(weather_blog())
    template = eqx.filter_eval_shape(SingleQueryAttention, 4, 6, 3, key=KEY)
    layer, e = copy_weights(template, core), torch.randn(4, 5)  # tokens are columns in the post
    wanted = core(e.T[None], e.T[None])[0].T.detach()
    same(eqx.filter_jit(layer)(e[:, -1].numpy(), e.numpy()), wanted[:, -1])
    all_queries = jax.vmap(single_query_attention, in_axes=(None, 1, None), out_axes=1)
    same(jax.jit(all_queries)(vars(layer), e.numpy(), e.numpy()), wanted)


def test_multi_head_attention_to_a_memory_with_a_mask(same):
    core = drawn(Attention(6, 3, d_memory=4))
    template = eqx.filter_eval_shape(MultiHeadAttention, 6, 3, d_memory=4, key=KEY)
    layer, x, memory = copy_weights(template, core), torch.randn(2, 6), torch.randn(3, 4)
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    wanted = core(x[None], memory[None], Mask(allowed=allowed))[0].detach()
    same(eqx.filter_jit(layer)(x.numpy(), memory.numpy(), allowed.numpy()), wanted)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("same", "config"),
    [(torch.float32, POST_NORM), (torch.float64, PRE_NORM)],
    ids=["post-norm", "pre-norm"],
    indirect=["same"],
)
def test_a_whole_transformer_and_its_gradients(same, config):
    core = drawn(models.DecoderLM(config))
    template = eqx.filter_eval_shape(DecoderLM, config, key=KEY)
    model, ids = copy_weights(template, core), torch.tensor([[3, 1, 4, 1]])
    logits = core(ids)
    factors = torch.randn(logits.shape)
    (logits * factors).sum().backward()

    @eqx.filter_jit
    @partial(eqx.filter_grad, has_aux=True)
    def slopes(model):
        found = jax.vmap(model)(ids.numpy())
        return (found * factors.numpy()).sum(), found

    gradient, found = slopes(model)
    same(found, logits.detach())
    for parameter in core.parameters():
        parameter.data = parameter.grad
    for one, other in zip(*map(jax.tree.leaves, (gradient, copy_weights(template, core))), strict=True):
        same(one, other)


def test_weights_that_do_not_fit_are_refused():
    template = eqx.filter_eval_shape(MultiHeadAttention, 4, 2, key=KEY)
    with pytest.raises(ValueError, match=r"^q_proj\.weight has the shape \(6, 6\) in Attention \(expected \(4, 4\)\)"):
        copy_weights(template, Attention(6, 2))
    with pytest.raises(ValueError, match=r"^q_proj\.bias is missing in Attention"):
        copy_weights(template, Attention(4, 2, bias=False))
    bare = eqx.filter_eval_shape(MultiHeadAttention, 4, 2, bias=False, key=KEY)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention has no parameter q_proj\.bias"):
        copy_weights(bare, Attention(4, 2))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"norm": "rms"}, "norm='rms' is not available in JAX"),
        ({"positions": "rotary"}, "positions='rotary' must be"),
        (
            {"architecture": "masked", "n_encoder_layers": 1, "n_decoder_layers": 0},
            "architecture='masked' must be",
        ),
    ],
)
def test_settings_without_their_part_are_refused(setting, said):
    with pytest.raises(ValueError, match=said):
        DecoderLM(ModelConfig(**SIZES | {"n_decoder_layers": 1} | setting), key=KEY)
    with pytest.raises(ValueError, match="d_model=4 is not divisible by n_heads=3"):
        MultiHeadAttention(4, 3, key=KEY)
