"""F10, F11, F15 to F22 against direct transcriptions in NumPy float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy_transcription import arrays, feed_forward, gelu, layer_norm, multi_head, part, relu, softmax
from random_weights import randn
from torch import nn

from attendo.decoding.protocols import join_rows
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, ModelConfig, build_model
from attendo.nn.attention import Attention
from attendo.nn.blocks import DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import FeedForward, InputEmbedding, TokenEmbedding, pool, rms_norm
from attendo.nn.layers import layer_norm as ours_layer_norm
from attendo.nn.masks import Mask
from attendo.nn.positions import LearnedPositions

EXACT = {"rtol": 0.0, "atol": 1e-10}


def randomized(module):
    """Every parameter drawn anew, norms and biases, too: no part is hidden by a start of 0 or 1."""
    module = module.double()
    for number, parameter in enumerate(module.parameters()):
        parameter.data = 0.5 * randn(*parameter.shape, seed=number)
    return module


def residual(d, eps=1e-5):
    return Residual(nn.LayerNorm(d, eps=eps), norm_first=False)


def model(**options):
    torch.set_default_dtype(torch.float64)
    try:
        built = build_model(ModelConfig(**({"vocab_size": 11, "d_model": 8, "d_ff": 12, "n_heads": 2} | options)))
    finally:
        torch.set_default_dtype(torch.float32)
    return randomized(built).eval()


SIZES = {"n_encoder_layers": 1, "n_decoder_layers": 1, "dropout": 0.0}
ALONE = SIZES | {"architecture": "decoder", "n_encoder_layers": 0}
CLASSIFIER = SIZES | {"architecture": "classifier", "n_decoder_layers": 0, "n_classes": 3}


@pytest.mark.parametrize(("name", "function"), [("relu", relu), ("gelu", gelu)])
def test_f10_feed_forward(name, function):
    net, x = randomized(FeedForward(4, 7, activation=name)), randn(5, 4)
    with torch.no_grad():
        seen = net(x).numpy()
        np.testing.assert_allclose(seen, feed_forward(x.numpy(), arrays(net), function), **EXACT)
        convolved = nn.functional.conv1d(x.T[None], net.in_proj.weight[..., None], net.in_proj.bias)
        convolved = torch.relu(convolved) if name == "relu" else nn.functional.gelu(convolved)
        convolved = nn.functional.conv1d(convolved, net.out_proj.weight[..., None], net.out_proj.bias)
        np.testing.assert_allclose(seen, convolved[0].T, **EXACT)
        np.testing.assert_allclose(net(x[2:3])[0], seen[2], **EXACT)  # each position by itself
    assert torch.autograd.gradcheck(net, (x.requires_grad_(),))


def test_a_gate_multiplies_the_inner_vector():
    net, x = randomized(FeedForward(4, 6, activation="silu", gated=True, bias=False)), randn(3, 4)
    w = arrays(net)
    gate, inner = x.numpy() @ w["gate_proj.weight"].T, x.numpy() @ w["in_proj.weight"].T
    expected = (gate / (1 + np.exp(-gate)) * inner) @ w["out_proj.weight"].T
    np.testing.assert_allclose(net(x).detach(), expected, **EXACT)


@given(d=st.integers(2, 9), eps=st.sampled_from([0.0, 1e-12, 1e-6, 1e-5]), seed=st.integers(0, 99))
def test_f11_add_and_norm(d, eps, seed):
    x, f = randn(3, d, seed=seed), randn(3, d, seed=seed + 1)
    gamma, beta = randn(d, seed=seed + 2), randn(d, seed=seed + 3)
    block = Residual(nn.LayerNorm(d, eps=eps), norm_first=False).double()
    block.norm.weight.data, block.norm.bias.data = gamma, beta
    expected = layer_norm((x + f).numpy(), {"weight": gamma.numpy(), "bias": beta.numpy()}, eps)
    np.testing.assert_allclose(block(x, lambda _: f).detach(), expected, **EXACT)
    plain = ours_layer_norm(x, eps=eps)
    np.testing.assert_allclose(plain.mean(-1), 0.0, atol=1e-7)
    if eps == 0.0:
        np.testing.assert_allclose(plain.var(-1, unbiased=False), 1.0, atol=1e-7)
    rms = x.numpy() / np.sqrt((x.numpy() ** 2).mean(-1, keepdims=True) + eps) * gamma.numpy()
    np.testing.assert_allclose(rms_norm(x, gamma, eps), rms, **EXACT)


def test_norms_without_epsilon_divide_0_by_0_and_have_right_gradients():
    assert ours_layer_norm(torch.ones(1, 4), eps=0.0).isnan().all()
    x = randn(2, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ours_layer_norm(x, eps=0.0), (x,))
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, eps=0.0), (x,))


def test_f15_token_and_learned_position():
    embedding = randomized(InputEmbedding(TokenEmbedding(7, 4, scaled=False), LearnedPositions(4, max_len=5)))
    ids = torch.tensor([[3, 1, 3]])
    W_e, W_p = embedding.tokens.weight.detach().numpy().T, embedding.positions.weight.detach().numpy().T
    seen = embedding(ids)
    for t, v in enumerate(ids[0].tolist()):
        one_hot = np.eye(7)[v]
        np.testing.assert_allclose(seen[0, t].detach(), W_e @ one_hot + W_p[:, t], **EXACT)
    seen.sum().backward()
    used = embedding.tokens.weight.grad.abs().sum(1) > 0
    assert used.nonzero().flatten().tolist() == [1, 3]
    assert (embedding.positions.weight.grad.abs().sum(1) > 0).tolist() == [True] * 3 + [False] * 2
    with pytest.raises(ValueError, match="6 tokens, but the learned positions end at max_len=5"):
        embedding(torch.zeros(1, 6, dtype=torch.long))


def test_f16_embeddings_of_the_lecture():
    options = CLASSIFIER | {"embedding_scale": False, "embedding_norm_eps": 1e-12, "pad_id": 1}
    built = model(**options)
    fresh = build_model(ModelConfig(vocab_size=11, d_model=8, d_ff=12, n_heads=2, **options))
    assert fresh.embedding.tokens.weight[1].eq(0.0).all()
    assert fresh.embedding.tokens.weight[2].ne(0.0).all()
    built.embedding.tokens.weight.data[1] = 0.0
    ids = torch.tensor([[4, 1, 6]])
    w = arrays(built)
    table = [[math.sin(p / 10000 ** (i / 8)) if i % 2 == 0 else math.cos(p / 10000 ** ((i - 1) / 8))
              for i in range(8)] for p in range(3)]  # fmt: skip
    summed = w["embedding.tokens.weight"][ids[0]] + np.array(table)
    expected = layer_norm(summed, part(w, "embedding.norm"), 1e-12)
    seen = built.embedding(ids)
    np.testing.assert_allclose(seen[0].detach(), expected, **EXACT)
    seen.square().sum().backward()
    assert built.embedding.tokens.weight.grad[1].eq(0.0).all()
    assert not any("positions" in name for name, _ in built.named_parameters())  # the table is not trained


def encoder_block_in_numpy(x, w, n_heads, eps=1e-5):
    attended = multi_head(x, x, part(w, "self_attention"), n_heads)
    out1 = layer_norm(x + attended, part(w, "self_attention_residual.norm"), eps)
    fed = feed_forward(out1, part(w, "feed_forward"), relu)
    return layer_norm(out1 + fed, part(w, "feed_forward_residual.norm"), eps)


def test_f17_encoder_layer():
    block = randomized(EncoderBlock(Attention(8, 2), FeedForward(8, 16), lambda: residual(8)))
    x = randn(1, 5, 8)
    expected = encoder_block_in_numpy(x[0].numpy(), arrays(block), 2)
    np.testing.assert_allclose(block(x)[0].detach(), expected, **EXACT)
    for last in (block.self_attention.out_proj, block.feed_forward.out_proj):
        last.weight.data.zero_(), last.bias.data.zero_()
    norms = block.self_attention_residual.norm, block.feed_forward_residual.norm
    torch.testing.assert_close(block(x), norms[1](norms[0](x)), **EXACT)


def test_f18_order_comes_from_positions_alone():
    order = torch.tensor([3, 0, 2, 1])
    ids = torch.tensor([[5, 2, 9, 4]])
    for positions, alike in (("none", True), ("sinusoidal", False), ("learned", False)):
        built = model(**SIZES, positions=positions)
        seen, moved = built.encode(ids)[0][order], built.encode(ids[:, order])[0]
        assert torch.allclose(seen, moved, rtol=0, atol=1e-10) is alike, positions


def test_f19_decoder_layer():
    block = randomized(DecoderBlock(Attention(8, 2), Attention(8, 2), FeedForward(8, 16), lambda: residual(8)))
    y, memory, w = randn(1, 4, 8), randn(1, 6, 8, seed=1), arrays(block)
    seen = block(y, memory, Mask(causal=True))[0].detach()
    x = y[0].numpy()
    attended = multi_head(x, x, part(w, "self_attention"), 2, causal=True)
    x = layer_norm(x + attended, part(w, "self_attention_residual.norm"), 1e-5)
    attended = multi_head(x, memory[0].numpy(), part(w, "cross_attention"), 2)
    x = layer_norm(x + attended, part(w, "cross_attention_residual.norm"), 1e-5)
    fed = feed_forward(x, part(w, "feed_forward"), relu)
    np.testing.assert_allclose(seen, layer_norm(x + fed, part(w, "feed_forward_residual.norm"), 1e-5), **EXACT)
    later = torch.cat([y[:, :2], randn(1, 2, 8, seed=5)], 1)
    torch.testing.assert_close(block(later, memory, Mask(causal=True))[0, :2], seen[:2], **EXACT)
    padded = torch.cat([memory, 1e3 * randn(1, 2, 8, seed=6)], 1)
    padding = Mask(key_lengths=torch.tensor([6]))
    torch.testing.assert_close(block(y, padded, Mask(causal=True), padding)[0], seen, **EXACT)


def test_f20_classifier():
    built = model(**CLASSIFIER, pooling="max", positions="none")
    ids, w = torch.tensor([[5, 2, 9, 4]]), arrays(built)
    x = w["embedding.tokens.weight"][ids[0]] * math.sqrt(8)
    x = encoder_block_in_numpy(x, part(w, "encoder.blocks.0"), 2)
    expected = w["output_proj.weight"] @ x.max(0) + w["output_proj.bias"]
    np.testing.assert_allclose(built(ids)[0].detach(), expected, **EXACT)
    torch.testing.assert_close(built(ids[:, [2, 0, 3, 1]]), built(ids), **EXACT)  # invariant


@pytest.mark.parametrize("kind", ["max", "mean", "first"])
def test_pooling_looks_at_real_tokens_alone(kind):
    x = randn(2, 4, 3)
    lengths = torch.tensor([4, 2])
    expected = [{"max": row.max(0), "mean": row.mean(0), "first": row[0]}[kind]
                for row in (x[0].numpy(), x[1, :2].numpy())]  # fmt: skip
    np.testing.assert_allclose(pool(x, kind, lengths), np.stack(expected), **EXACT)
    torch.testing.assert_close(pool(x[:1], kind), pool(x[:1], kind, lengths[:1]), **EXACT)
    built = model(**CLASSIFIER, pooling=kind)
    ids = torch.tensor([[5, 2, 9, 4], [5, 2, 0, 0]])
    torch.testing.assert_close(built(ids, lengths)[1:], built(ids[1:, :2]), **EXACT)


@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_f21_output_distribution(tie):
    built = model(**SIZES, tie=tie)
    assert (built.output_proj.weight is built.target_embedding.tokens.weight) is (tie != "none")
    assert (built.source_embedding.tokens is built.target_embedding.tokens) is (tie == "all")
    hidden = built.hidden(torch.tensor([[5, 2]]), torch.tensor([[2, 7, 4]]))
    P = built.output(hidden).softmax(-1)[0].detach()
    expected = softmax(hidden[0].detach().numpy() @ built.output_proj.weight.detach().numpy().T)
    np.testing.assert_allclose(P, expected, **EXACT)
    np.testing.assert_allclose(P.sum(-1), 1.0, **EXACT)


def test_f22_the_encoder_runs_once(monkeypatch):
    built, calls = model(**SIZES), []
    forward = Encoder.forward
    monkeypatch.setattr(Encoder, "forward", lambda self, *a: calls.append(1) or forward(self, *a))
    src = torch.tensor([[5, 2, 9]])
    cache = built.start(src)
    steps = [built.step(torch.tensor([[token]]), cache) for token in (2, 7, 4)]
    assert len(calls) == 1
    whole = built(src, torch.tensor([[2, 7, 4]]))
    torch.testing.assert_close(torch.cat(steps, 1), whole, **EXACT)
    key, value = built.decoder.blocks[0].cross_attention.keys_values(built.encode(src))
    torch.testing.assert_close(cache.blocks[0].memory_key, key, **EXACT)
    torch.testing.assert_close(cache.blocks[0].memory_value, value, **EXACT)


@pytest.mark.parametrize("options", [{"positions": "rotary"}, {"positions": "alibi"}, {"positions": "learned"},
                                     {"head_dim": 3, "value_dim": 5}, {"n_kv_heads": 1}])  # fmt: skip
@pytest.mark.parametrize("rows", [1, 2])
def test_a_decoder_that_stands_alone_steps_as_it_runs(options, rows):
    built = model(**ALONE, **options)
    assert isinstance(built, DecoderLM)
    ids = torch.tensor([[5, 2, 9, 4, 1, 3]]).expand(rows, -1)
    cache = built.start(rows, capacity=8)
    parts = [built.step(ids[:, :3], cache), built.step(ids[:, 3:4], cache), built.step(ids[:, 4:], cache)]
    torch.testing.assert_close(torch.cat(parts, 1), built(ids), **EXACT)


def test_rows_of_different_length_turn_by_their_own_positions():
    built = model(**ALONE, positions="rotary")
    longer, shorter = torch.tensor([[5, 2, 9]]), torch.tensor([[7, 1]])
    first, second = built.start(1), built.start(1)
    built.step(longer, first), built.step(shorter, second)
    join_rows(first, second)
    together = built.step(torch.tensor([[4], [4]]), first)
    torch.testing.assert_close(together[0], built(torch.tensor([[5, 2, 9, 4]]))[0, -1:], **EXACT)
    torch.testing.assert_close(together[1], built(torch.tensor([[7, 1, 4]]))[0, -1:], **EXACT)


def test_each_architecture_builds_its_own_model():
    assert isinstance(model(**SIZES), EncoderDecoder)
    assert isinstance(model(**CLASSIFIER), EncoderClassifier)
    with pytest.raises(ValueError, match=r"config\.architecture='decoder' must be 'classifier'"):
        EncoderClassifier(ModelConfig(vocab_size=5, **ALONE))
