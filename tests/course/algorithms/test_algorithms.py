"""Algorithms 1 to 7 equal their direct transcription in float64; all 15 are there."""

import inspect
import re

import algorithms_in_numpy as paper
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo_course import algorithms

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
lengths, widths = st.integers(1, 4), st.integers(1, 4)


pytestmark = pytest.mark.usefixtures("float64")


def random_head(d_x, d_z, d_attn, d_out):
    shapes = (d_attn, d_x), (d_attn,), (d_attn, d_z), (d_attn,), (d_out, d_z), (d_out,)
    return algorithms.AttentionParameters(*(torch.randn(shape, dtype=torch.float64) for shape in shapes))


def numbers(parameters):
    """As the transcription has them."""
    return {name: tensor.numpy() for name, tensor in parameters._asdict().items()}


def test_all_fifteen_are_there_under_the_papers_names():
    assert [number for number, _ in algorithms.ALGORITHMS] == [f"A{n}" for n in range(1, 16)]
    assert " ".join(function.__name__ for _, function in algorithms.ALGORITHMS) == (
        "token_embedding positional_embedding single_query_attention Attention MHAttention layer_norm unembedding"
        " EDTransformer ETransformer DTransformer EDTraining ETraining DTraining DInference EDInference"
    )
    for number, function in algorithms.ALGORITHMS:
        assert getattr(algorithms, function.__name__) is function
        docstring = inspect.getdoc(function) or ""
        assert re.match(rf"Compute algorithm {number[1:]}\b", docstring), number


def test_special_ids_come_last():
    assert algorithms.special_ids(3) == (1, 2, 3)
    with pytest.raises(ValueError, match="N_V=2 is too small"):
        algorithms.special_ids(2)


# A1 and A2


def test_embeddings_are_columns_and_count_from_one():
    W = torch.randn(3, 5, requires_grad=True)
    for number in range(1, 6):
        for embed, transcribed in (
            (algorithms.token_embedding, paper.token_embedding),
            (algorithms.positional_embedding, paper.positional_embedding),
        ):
            assert (embed(number, W).detach().numpy() == transcribed(number, W.detach().numpy())).all()
            (gradient,) = torch.autograd.grad(embed(number, W).sum(), W)
            assert gradient.nonzero().tolist() == [[row, number - 1] for row in range(3)]


@pytest.mark.parametrize("number", [0, 6, -1])
def test_embeddings_name_the_id_they_do_not_have(number):
    W = torch.randn(3, 5)
    with pytest.raises(ValueError, match=rf"v={number} is not in 1\.\.5"):
        algorithms.token_embedding(number, W)
    with pytest.raises(ValueError, match=rf"ell={number} is not in 1\.\.5"):
        algorithms.positional_embedding(number, W)


def test_hard_coded_positions():
    for d_e, ell_max in ((2, 1), (4, 7), (8, 50)):
        W_p = algorithms.hard_coded_positions(d_e, ell_max)
        np.testing.assert_allclose(W_p.numpy(), paper.hard_coded_positions(d_e, ell_max), **CLOSE)
    printed = torch.tensor([0.207607, 0.978212, 0.043721, 0.999044])
    assert algorithms.hard_coded_positions(5, 50)[:4, 0].sub(printed).abs().max() < 5e-7


# A3 to A5


@settings(max_examples=20)
@given(lengths, lengths, widths, widths, widths, widths, st.integers(0, 2**31))
def test_attention_equals_its_transcription(ell_x, ell_z, d_x, d_z, d_attn, d_out, seed):
    torch.manual_seed(seed)
    W, X, Z = random_head(d_x, d_z, d_attn, d_out), torch.randn(d_x, ell_x), torch.randn(d_z, ell_z)
    Mask = torch.rand(ell_z, ell_x) < 0.5
    Mask[0] = True  # a token without any to attend to is 0/0 in the paper
    expected = paper.Attention(X.numpy(), Z.numpy(), numbers(W), Mask.numpy())
    np.testing.assert_allclose(algorithms.Attention(X, Z, W, Mask).numpy(), expected, **CLOSE)
    np.testing.assert_allclose(algorithms.Attention(X, Z, W, Mask.double()).numpy(), expected, **CLOSE)
    unmasked = paper.Attention(X.numpy(), Z.numpy(), numbers(W), paper.bidirectional(ell_z, ell_x))
    for every in (None, algorithms.bidirectional(ell_z, ell_x)):
        np.testing.assert_allclose(algorithms.Attention(X, Z, W, every).numpy(), unmasked, **CLOSE)
    for t in range(ell_x):  # A3 is one column of A4
        alone = algorithms.single_query_attention(X[:, t], Z, W).numpy()
        np.testing.assert_allclose(alone, unmasked[:, t], **CLOSE)
        context = list(Z.numpy().T)
        np.testing.assert_allclose(alone, paper.single_query_attention(X[:, t].numpy(), context, numbers(W)), **CLOSE)


@settings(max_examples=15)
@given(lengths, lengths, widths, widths, widths, st.integers(1, 3), st.integers(0, 2**31))
def test_multi_head_attention_equals_its_transcription(ell_x, ell_z, d_x, d_attn, d_mid, H, seed):
    torch.manual_seed(seed)
    d_z, d_out = d_x + 1, d_mid + 1
    heads = [random_head(d_x, d_z, d_attn, d_mid) for _ in range(H)]
    W = algorithms.MHAttentionParameters(heads, torch.randn(d_out, H * d_mid), torch.randn(d_out))
    X, Z = torch.randn(d_x, ell_x), torch.randn(d_z, ell_z)
    theirs = {"heads": [numbers(head) for head in heads], "W_o": W.W_o.numpy(), "b_o": W.b_o.numpy()}
    Mask = torch.rand(ell_z, ell_x) < 0.5
    Mask[-1] = True
    for mask, dense in ((Mask, Mask.numpy()), (None, paper.bidirectional(ell_z, ell_x))):
        expected = paper.MHAttention(X.numpy(), Z.numpy(), theirs, dense)
        np.testing.assert_allclose(algorithms.MHAttention(X, Z, W, mask).numpy(), expected, **CLOSE)


def test_a_token_that_may_attend_to_none_gets_zeros():
    torch.manual_seed(0)
    head, X = random_head(3, 3, 4, 5), torch.randn(3, 2)
    Mask = torch.tensor([[1, 0], [1, 0]])
    W = algorithms.MHAttentionParameters([head], torch.eye(5), torch.full((5,), 7.0))
    assert algorithms.Attention(X, X, head, Mask)[:, 1].tolist() == [0.0] * 5
    assert algorithms.MHAttention(X, X, W, Mask)[:, 1].tolist() == [7.0] * 5
    assert algorithms.Attention(X, X, head, Mask)[:, 0].all()


def test_the_unidirectional_mask_is_the_papers():
    for ell in range(1, 5):
        assert (algorithms.unidirectional(ell, ell).numpy() == paper.unidirectional(ell)).all()
    for ell_z, ell_x in ((2, 4), (4, 2)):  # counted from the first token, whichever is longer
        assert (algorithms.unidirectional(ell_z, ell_x).numpy() == paper.unidirectional(4)[:ell_z, :ell_x]).all()


def test_shapes_that_do_not_fit_are_named():
    head, X, Z = random_head(3, 2, 4, 5), torch.randn(3, 4), torch.randn(2, 6)
    with pytest.raises(ValueError, match=r"Mask is \(4, 6\), but Z has 6 tokens and X has 4"):
        algorithms.Attention(X, Z, head, algorithms.unidirectional(4, 6))
    with pytest.raises(ValueError, match=r"W_q is \(4, 3\), but \(4, 2\) fits"):
        algorithms.Attention(Z, X, head)
    with pytest.raises(ValueError, match=r"W_k is \(5, 2\), but \(4, 2\) fits"):
        algorithms.single_query_attention(X[:, 0], Z, head._replace(W_k=torch.randn(5, 2)))
    with pytest.raises(ValueError, match=r"b_v is \(4,\), but \(5,\) fits"):
        algorithms.Attention(X, Z, head._replace(b_v=torch.randn(4)))
    W = algorithms.MHAttentionParameters([head, head], torch.randn(3, 10), torch.randn(3))
    with pytest.raises(ValueError, match=r"W_v of head 2 is \(6, 2\), that of head 1 is \(5, 2\)"):
        algorithms.MHAttention(X, Z, W._replace(heads=[head, random_head(3, 2, 4, 6)]))
    with pytest.raises(ValueError, match=r"W_o is \(3, 9\) and b_o \(3,\), but H·d_mid=10"):
        algorithms.MHAttention(X, Z, W._replace(W_o=torch.randn(3, 9)))
    with pytest.raises(ValueError, match="W has no heads"):
        algorithms.MHAttention(X, Z, W._replace(heads=[]))


# A6 and A7


@settings(max_examples=15)
@given(st.integers(2, 6), lengths, st.integers(0, 2**31))
def test_layer_norm_equals_its_transcription(d_e, ell, seed):
    torch.manual_seed(seed)
    X, gamma, beta = torch.randn(d_e, ell), torch.randn(d_e), torch.randn(d_e)
    columns = algorithms.layer_norm(X, gamma, beta)
    for t in range(ell):
        expected = paper.layer_norm(X[:, t].numpy(), gamma.numpy(), beta.numpy())
        np.testing.assert_allclose(columns[:, t].numpy(), expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(
            algorithms.layer_norm(X[:, t], gamma, beta).numpy(), expected, rtol=1e-10, atol=1e-10
        )
        rms = algorithms.layer_norm(X[:, t], gamma, rms=True).numpy()
        np.testing.assert_allclose(rms, paper.rms_norm(X[:, t].numpy(), gamma.numpy()), **CLOSE)


def test_layer_norm_without_epsilon_divides_zero_by_zero():
    equal, gamma = torch.full((4,), 3.0), torch.ones(4)
    assert algorithms.layer_norm(equal, gamma, gamma).isnan().all()
    assert algorithms.layer_norm(equal, gamma, gamma, eps=1e-5).equal(gamma)
    assert algorithms.layer_norm(torch.tensor([1.0, 3.0]), torch.ones(2), eps=3.0).tolist() == [-0.5, 0.5]
    with pytest.raises(ValueError, match="RMSnorm has none"):
        algorithms.layer_norm(equal, gamma, gamma, rms=True)


def test_unembedding_gives_distributions():
    torch.manual_seed(0)
    X, W_e = torch.randn(4, 3), torch.randn(4, 6)
    P = algorithms.unembedding(X, W_e.T)
    assert P.shape == (6, 3) and (P > 0).all()
    torch.testing.assert_close(P.sum(0), torch.ones(3), **CLOSE)
    for t in range(3):
        expected = paper.unembedding(X[:, t].numpy(), W_e.numpy().T)
        np.testing.assert_allclose(P[:, t].numpy(), expected, **CLOSE)
        np.testing.assert_allclose(algorithms.unembedding(X[:, t], W_e.T).numpy(), expected, **CLOSE)
