"""A reader's notebook on the lecture's classes runs, and gives the lecture's figures."""

import math

import numpy as np
import numpy_transcription as plain
import pytest
import torch
from random_weights import randomized
from torch import nn
from torch_modules import copy_to_torch, to_torch

from attendo.inspecting.recording import recording
from attendo.models import EncoderClassifier, parameter_count
from attendo.nn.layers import layer_norm
from attendo_course.lecture import (
    CNN,
    FFN,
    Embeddings,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    TransformerClassifier,
    nn_Softargmax,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


pytestmark = pytest.mark.usefixtures("float64")


def same(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), np.asarray(theirs), **CLOSE)


temp_K = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])[None, None].double()
temp_V = torch.tensor([[1.0, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]])[None, None].double()


@pytest.mark.parametrize(
    ("query", "weights", "values"),
    [
        ((0, 10, 0), "3.73e-06 1.00e+00 3.73e-06 3.73e-06", "10.004 4.09927e-05 0"),
        ((0, 0, 10), "1.86e-06 1.86e-06 5.00e-01 5.00e-01", "549.998 5.49998 0"),
        ((10, 10, 0), "5.00e-01 5.00e-01 1.86e-06 1.86e-06", "5.50203 2.04965e-05 0"),
    ],
)
def test_the_notebook_looks_up_its_keys(query, weights, values):
    """T02: the layer divides by √64, though these keys are 3 wide."""
    temp_mha = MultiHeadAttention(d_model=512, num_heads=8, p=0)
    temp_Q = torch.tensor([[[query]]]).double()
    temp_out, temp_attn = temp_mha.scaled_dot_product_attention(temp_Q, temp_K, temp_V)
    assert " ".join(f"{a:.2e}" for a in temp_attn.flatten()) == weights
    assert " ".join(f"{h:.6g}" for h in temp_out.flatten()) == values
    scores = np.array([sum(q * k for q, k in zip(query, key, strict=True)) for key in temp_K[0, 0].tolist()])
    same(temp_attn.flatten(), plain.softmax(scores / 8.0))


def test_the_notebook_trains_its_classifier():
    """Twenty steps on texts of two kinds, each with its own half of the words but for one word in eight."""
    device = torch.device("cpu")
    model = TransformerClassifier(
        num_layers=1, d_model=32, num_heads=2, conv_hidden_dim=128, input_vocab_size=20, num_answers=2
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    y = torch.arange(64) % 2
    x = torch.randint(2, 11, (64, 8)) + 9 * y[:, None]
    x[:, 0], x[:, -1] = torch.randint(2, 20, (64,)), 1  # any word first, padding last
    model.train()
    losses = []
    for _ in range(20):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < 0.5 < losses[0]
    model.eval()
    with torch.no_grad():
        assert (model(x).argmax(1) == y).double().mean() > 0.95
    assert not model.encoder.embedding.word_embeddings.weight[1].any(), "the row of padding stays 0"
    assert len(model.state_dict()) == len(dict(model.named_parameters())), "each parameter has one name"


def test_parameters_of_the_lecture():
    with torch.device("meta"):
        model = TransformerClassifier(
            num_layers=1, d_model=32, num_heads=2, conv_hidden_dim=128, input_vocab_size=50002, num_answers=2
        )
    assert parameter_count(model) == 1_612_802
    assert isinstance(model.model, EncoderClassifier)
    assert {type(module).__module__ for module in model.modules()} <= {
        "attendo_course.lecture", "attendo.models", "attendo.nn.attention", "attendo.nn.blocks",
        "attendo.nn.layers", "attendo.nn.positions",
        "torch.nn.modules.container", "torch.nn.modules.linear", "torch.nn.modules.normalization",
    }  # fmt: skip


@pytest.mark.parametrize(("q_len", "k_len"), [(3, 5), (5, 3), (1, 1)])
@pytest.mark.parametrize("d_input", [None, (4, 5, 7)])
def test_attention_equals_a_loop_over_heads(q_len, k_len, d_input):
    mha = randomized(MultiHeadAttention(6, 3, 0.1, d_input))
    widths = d_input or (6, 6, 6)
    X_q, X_k, X_v = (torch.randn(2, n, d) for n, d in zip((q_len, k_len, k_len), widths, strict=True))
    H, A = mha(X_q, X_k, X_v)
    assert H.shape == (2, q_len, 6)
    assert A.shape == (2, 3, q_len, k_len)
    same(A.sum(-1), np.ones((2, 3, q_len)))
    theta = plain.arrays(mha.attention)
    assert [name for name in theta if name.endswith("bias")] == ["out_proj.bias"]
    for row in range(2):
        x, k, v = (tensor[row].numpy() for tensor in (X_q, X_k, X_v))
        same(H[row], plain.multi_head(x, k, theta, 3, values=v))
        for head in range(3):
            rows = slice(2 * head, 2 * head + 2)
            Q, K = x @ theta["q_proj.weight"][rows].T, k @ theta["k_proj.weight"][rows].T
            same(A[row, head], plain.softmax(Q @ K.T / math.sqrt(2)))


def test_attention_equals_the_core_and_torch():
    mha = randomized(MultiHeadAttention(d_model=8, num_heads=2, p=0))
    x = torch.randn(3, 4, 8, requires_grad=True)
    H, A = mha(x, x, x)
    same(H, mha.attention(x, x).detach())
    theirs = to_torch(mha.attention)
    expected, weights = theirs(x, x, x, average_attn_weights=False)
    same(H, expected.detach())
    same(A, weights.detach())
    slope = torch.randn_like(H)
    (ours,), (other,) = torch.autograd.grad(H, x, slope), torch.autograd.grad(expected, x, slope)
    same(ours, other)
    randomized(mha)
    copy_to_torch(mha.attention, theirs)
    same(mha(x, x, x)[0], theirs(x, x, x)[0].detach())


def test_split_then_group_is_the_identity():
    mha, x = MultiHeadAttention(6, 3, 0), torch.randn(2, 4, 6)
    heads = mha.split_heads(x, 2)
    assert heads.shape == (2, 3, 4, 2)
    same(heads[:, 1], x[..., 2:4])
    assert torch.equal(mha.group_heads(heads, 2), x)
    assert torch.equal(mha.group_heads(mha.split_heads(x)), x)


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="d_model=6 is not a multiple of num_heads=4"):
        MultiHeadAttention(6, 4, 0)


def test_encoder_layer():
    layer = randomized(EncoderLayer(d_model=6, num_heads=2, conv_hidden_dim=10, p=0.1))
    x = torch.randn(1, 4, 6)
    theta, rows = plain.arrays(layer.block), x[0].numpy()
    norms = [plain.part(theta, f"{name}_residual.norm") for name in ("self_attention", "feed_forward")]
    attended = plain.multi_head(rows, rows, plain.part(theta, "self_attention"), 2)
    out1 = plain.layer_norm(rows + attended, norms[0], 1e-6)
    net = plain.feed_forward(out1, plain.part(theta, "feed_forward"), plain.relu)
    same(layer(x)[0], plain.layer_norm(out1 + net, norms[1], 1e-6))
    by_parts = layer.layernorm1(x + layer.mha(x, x, x)[0])
    same(layer(x), layer.layernorm2(by_parts + layer.cnn(by_parts)).detach())


def test_without_its_last_matrices_a_layer_is_two_norms():
    """F17: zero W_h and zero second FFN weight leave LN(LN(x))."""
    layer, x = EncoderLayer(6, 2, 10), 3.0 * torch.randn(2, 4, 6) + 1.0
    assert not torch.allclose(layer(x), layer_norm(layer_norm(x, eps=1e-6), eps=1e-6), atol=1e-3)
    for linear in (layer.mha.W_h, layer.cnn.k1convL2):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
    same(layer(x), layer_norm(layer_norm(x, eps=1e-6), eps=1e-6))


def test_the_convolution_of_width_1():
    cnn, x = randomized(CNN(d_model=6, hidden_dim=10, p=0)), torch.randn(2, 4, 6)
    first, second = nn.Conv1d(6, 10, 1), nn.Conv1d(10, 6, 1)
    for conv, linear in ((first, cnn.k1convL1), (second, cnn.k1convL2)):
        conv.weight.data, conv.bias.data = linear.weight.data[..., None], linear.bias.data
    same(cnn(x), second(first(x.mT).relu()).mT.detach())
    assert FFN is CNN


def test_embeddings():
    embeddings = Embeddings(6, 9, max_position_embeddings=5, p=0.1)
    assert not embeddings.word_embeddings.weight[1].any()
    ids = torch.tensor([[2, 3, 1, 1]])
    embeddings.LayerNorm.weight.data = torch.randn(6)
    theta = plain.arrays(embeddings.embedding)
    rows = theta["tokens.weight"][ids[0]] + plain.sinusoids(4, 6)
    same(embeddings(ids)[0], plain.layer_norm(rows, plain.part(theta, "norm"), 1e-12))
    (embeddings(ids) * torch.randn(6)).sum().backward()
    assert not embeddings.word_embeddings.weight.grad[1].any()
    assert embeddings.word_embeddings.weight.grad[2].any()
    assert {name for name, _ in embeddings.named_parameters()} == {
        "embedding.tokens.weight", "embedding.norm.weight", "embedding.norm.bias"
    }  # fmt: skip
    with pytest.raises(ValueError, match="the texts have 6 tokens, but the positions end at 5"):
        embeddings(torch.full((1, 6), 2))


def test_encoder():
    encoder = randomized(Encoder(2, 6, 2, 10, 9, 5, p=0.1))
    ids = torch.tensor([[2, 3, 1, 4]])
    x = encoder.embedding(ids)
    for layer in encoder.enc_layers:
        x = layer(x)
    same(encoder(ids), x.detach())
    assert encoder.num_layers == len(encoder.enc_layers) == 2


def test_order_matters_through_the_positions_alone():
    sizes = {"d_model": 6, "num_heads": 2, "conv_hidden_dim": 10, "input_vocab_size": 9, "num_answers": 2}
    model = randomized(TransformerClassifier(num_layers=2, **sizes))
    ids, order = torch.tensor([[2, 3, 1, 4, 5]]), torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        assert not torch.allclose(model(ids), model(ids[:, order]), atol=1e-3)
        model.model.embedding.positions = None
        same(model.encoder(ids[:, order]), model.encoder(ids)[:, order])
        same(model(ids[:, order]), model(ids))


def test_the_encoder_of_a_classifier_is_seen_through_not_copied():
    model = randomized(TransformerClassifier(2, 6, 2, 10, 9, 3))
    ids = torch.tensor([[2, 3, 1, 4], [5, 1, 1, 1]])
    values, _ = torch.max(model.encoder(ids), dim=1)
    same(model(ids), model.dense(values).detach())
    last = model.encoder.enc_layers[1]
    x = model.encoder.enc_layers[0](model.encoder.embedding(ids))
    with recording(model.model) as record:
        record.model(ids)
    same(last.mha(x, x, x)[1], record["encoder.blocks.1.self_attention"].weights.detach())
    nn.init.zeros_(last.mha.W_v.weight)
    assert not model.model.encoder.blocks[1].self_attention.v_proj.weight.any()
    with pytest.raises(ValueError, match="10001 tokens"):
        model(torch.full((1, 10_001), 2))


def test_p_is_accepted_and_unused():
    """F08: in training as in evaluation, whatever p."""
    x, ids = torch.randn(1, 4, 6), torch.tensor([[2, 3, 1]])
    for module, argument in ((EncoderLayer(6, 2, 10, p=0.9), x), (Encoder(1, 6, 2, 10, 9, 5, 0.9), ids)):
        assert module.training
        same(module(argument), module.eval()(argument).detach())


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_softargmax(dim):
    s = torch.randn(3, 4, 5)
    same(nn_Softargmax(dim)(s), s.softmax(dim))
