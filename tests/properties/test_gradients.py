"""Every differentiable formula has the gradient that finite differences give, in inputs and parameters."""

import pytest
import torch
from random_weights import randn
from torch import nn

from attendo.inspecting.residual_stream import head_contributions
from attendo.model_config import ModelConfig
from attendo.models import build_model
from attendo.nn.attention import Attention, masked_softmax
from attendo.nn.blocks import DecoderBlock, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, pool
from attendo.nn.masks import Mask
from attendo.nn.positions import Alibi, RelativeBias, Rotary


def right(function, module, *inputs):
    """gradcheck over the inputs and over all parameters of the module."""
    module = module.double()
    for number, parameter in enumerate(module.parameters()):
        parameter.data = 0.7 * randn(*parameter.shape, seed=number + 10)
    names = [name for name, _ in module.named_parameters()]

    def of(*tensors):
        parameters = dict(zip(names, tensors[len(inputs) :], strict=True))
        return torch.func.functional_call(module, parameters, function(*tensors[: len(inputs)]))

    tensors = [*(x.requires_grad_() for x in inputs), *module.parameters()]
    return torch.autograd.gradcheck(of, tensors, fast_mode=True)


def residual():
    return Residual(nn.LayerNorm(4), norm_first=False)


@pytest.mark.parametrize(
    "positions",
    [None, Rotary(), Alibi(2), RelativeBias(2, 4, 8)],
    ids=["none", "rotary", "alibi", "relative"],
)
def test_multi_head_attention(positions):
    layer = Attention(4, 2, n_kv_heads=1, value_dim=3, positions=positions)
    assert right(lambda x: (x, x, Mask(causal=True)), layer, randn(1, 3, 4))


def test_attention_with_other_inputs_for_values():
    layer = Attention(4, 2, d_memory=(5, 6))
    inputs = randn(1, 2, 4), randn(1, 3, 5, seed=1), randn(1, 3, 6, seed=2)
    assert right(lambda x, memory, values: (x, memory, None, values), layer, *inputs)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward(activation, gated):
    net = FeedForward(3, 5, activation=activation, gated=gated)
    assert right(lambda x: (x,), net, randn(2, 3))


@pytest.mark.parametrize("norm", [nn.LayerNorm(4, eps=0.0), nn.RMSNorm(4, eps=0.0)], ids=["layer", "rms"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_add_and_norm(norm, norm_first):
    block = Residual(norm, norm_first=norm_first)
    assert right(lambda x: (x, torch.sin), block, randn(2, 4))


def test_blocks():
    encoder = EncoderBlock(Attention(4, 2), FeedForward(4, 5, activation="gelu"), residual)
    assert right(lambda x: (x, Mask(window=2)), encoder, randn(1, 3, 4))
    parts = Attention(4, 2), Attention(4, 2), FeedForward(4, 5, activation="gelu")
    decoder = DecoderBlock(*parts, residual)
    inputs = randn(1, 3, 4), randn(1, 2, 4, seed=1)
    assert right(lambda x, memory: (x, memory, Mask(causal=True)), decoder, *inputs)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "options",
    [
        {"architecture": "encoder-decoder"},
        {"architecture": "classifier", "n_decoder_layers": 0, "n_classes": 3},
        {"architecture": "decoder", "n_encoder_layers": 0},
        {"architecture": "masked", "n_decoder_layers": 0},
    ],
    ids=lambda options: options["architecture"],
)
def test_whole_models(options):
    sizes = {
        "vocab_size": 5,
        "d_model": 4,
        "d_ff": 6,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
    }
    sizes |= {"activation": "gelu", "positions": "learned", "max_len": 4, "dropout": 0.0}
    ids = torch.tensor([[1, 4, 2]])
    model = build_model(ModelConfig(**(sizes | options)))
    assert right(lambda: (ids, ids) if options["architecture"] == "encoder-decoder" else (ids,), model)


@pytest.mark.parametrize("kind", ["max", "mean", "first"])
def test_pooling(kind):
    lengths = torch.tensor([3, 2])
    assert torch.autograd.gradcheck(lambda x: pool(x, kind, lengths), randn(2, 3, 4).requires_grad_())


def test_pure_functions():
    scores = randn(2, 3).requires_grad_()
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert torch.autograd.gradcheck(lambda s: masked_softmax(s, mask, 2.5), scores)
    mixed, weight = randn(1, 2, 3, 2).requires_grad_(), randn(4, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(head_contributions, (mixed, weight))
