"""Algorithms 8 to 10 equal their direct transcription in float64."""

import dataclasses
import re

import algorithms_in_numpy as paper
import numpy as np
import pytest
import torch
from formal_models import SIZES, formal, random_text, randomized
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.models import DecoderLM, EncoderDecoder, MaskedLM
from attendo_course.algorithms import (
    DTransformer,
    EDTransformer,
    ETransformer,
    build_formal_ed,
    formal_d_config,
    formal_e_config,
    formal_ed_config,
    hard_coded_positions,
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


pytestmark = pytest.mark.usefixtures("float64")


@settings(max_examples=12)
@given(
    ell_z=st.integers(1, 6),
    ell_x=st.integers(1, 6),
    H=st.integers(1, 3),
    d_attn=st.integers(1, 4),
    d_mid=st.integers(1, 4),
    tied=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_transformers_equal_their_transcription(ell_z, ell_x, H, d_attn, d_mid, tied, seed):
    changes = {"H": H, "d_attn": d_attn, "d_mid": d_mid, "tied": tied}
    d_f = {"d_f": None if tied else 3}
    ed, e, d = (
        formal("A8", seed, **changes),
        formal("A9", seed, **changes, **d_f),
        formal("A10", seed, **changes),
    )
    z, x = random_text(ell_z), random_text(ell_x)
    for ours, theirs in (
        (EDTransformer(z, x, ed), paper.EDTransformer(z, x, paper.theta_of(ed))),
        (ETransformer(x, e), paper.ETransformer(x, paper.theta_of(e))),
        (DTransformer(x, d), paper.DTransformer(x, paper.theta_of(d))),
    ):
        assert ours.shape == (7, ell_x)
        np.testing.assert_allclose(ours.detach().numpy(), theirs, **CLOSE)
        np.testing.assert_allclose(ours.sum(0).detach().numpy(), 1.0, **CLOSE)


def test_hard_coded_positions_are_a_choice():
    changes = {"positions": "sinusoidal", "position_base": "length", "position_start": 1}
    config = dataclasses.replace(formal_d_config(**SIZES, L=1), **changes, position_first_index=1)
    torch.manual_seed(0)
    theta, learned = randomized(DecoderLM(config)), DecoderLM(formal_d_config(**SIZES, L=1))
    learned.load_state_dict(theta.state_dict(), strict=False)
    learned.embedding.positions.weight.data = hard_coded_positions(6, 6).T
    x = random_text(6)
    torch.testing.assert_close(DTransformer(x, theta), DTransformer(x, learned), **CLOSE)
    with pytest.raises(ValueError, match="position_first_index=0 is not A10's; it has 1"):
        DTransformer(x, DecoderLM(dataclasses.replace(config, position_first_index=0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_first": True}, "norm_first=True is not A8's; it has False"),
        ({"activation": "gelu"}, "activation='gelu' is not A8's; it has 'relu'"),
        ({"positions": "none"}, "positions='none' is not A8's; it has 'learned' or 'sinusoidal'"),
        ({"embedding_scale": True}, "embedding_scale=True is not A8's; it has False"),
        ({"attention_scale": 1.0}, "attention_scale=1.0 is not A8's; it has None"),
        ({"attention_bias": False}, "attention_bias=False is not A8's"),
        ({"n_kv_heads": 1}, "n_kv_heads=1 is not A8's; it has None or 2"),
        ({"dropout": 0.1}, "dropout=0.1 is not A8's"),
        ({"norm": "rms"}, "norm='rms' is not A8's"),
        ({"output_bias": True}, "output_bias=True is not A8's"),
    ],
)
def test_a_model_that_is_not_the_papers_is_refused(change, message):
    config = dataclasses.replace(formal_ed_config(**SIZES, L_enc=1, L_dec=1), **change)
    with pytest.raises(ValueError, match=message):
        build_formal_ed(config)
    with pytest.raises(ValueError, match=message):
        EDTransformer([1], [1], EncoderDecoder(config))


def test_a_model_of_another_algorithm_is_refused():
    pre, post = {"norm_first": True}, {"norm_first": False}
    with pytest.raises(ValueError, match="norm_first=True is not A9's"):
        ETransformer([1], MaskedLM(dataclasses.replace(formal_e_config(**SIZES, L=1), **pre)))
    with pytest.raises(ValueError, match="norm_first=False is not A10's"):
        DTransformer([1], DecoderLM(dataclasses.replace(formal_d_config(**SIZES, L=1), **post)))
    with pytest.raises(ValueError, match="activation='gelu_tanh' is not A10's; it has 'gelu'"):
        DTransformer([1], DecoderLM(dataclasses.replace(formal_d_config(**SIZES, L=1), activation="gelu_tanh")))


def test_both_sides_of_a8_share_their_embeddings():
    config = formal_ed_config(**SIZES, L_enc=1, L_dec=1)
    with pytest.raises(ValueError, match=r"source_embedding\.tokens is not .* A8 has one W_e"):
        EDTransformer([1], [1], EncoderDecoder(config))
    tied = formal_ed_config(**SIZES, L_enc=1, L_dec=1, tied=True)
    with pytest.raises(ValueError, match=r"source_embedding\.positions is not .* A8 has one W_p"):
        EDTransformer([1], [1], EncoderDecoder(tied))
    apart, shared = EncoderDecoder(config), build_formal_ed(config)
    assert len(list(apart.parameters())) - len(list(shared.parameters())) == 2
    assert shared.output_proj.weight is not shared.target_embedding.tokens.weight
    both = build_formal_ed(tied)
    assert both.output_proj.weight is both.source_embedding.tokens.weight


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ([3, 8], r"x\[2\]=8 is not in 1\.\.7"),
        ([0, 1], r"x\[1\]=0 is not in 1\.\.7"),
        ([1, -1], r"x\[2\]=-1 is not in 1\.\.7"),
        ([1] * 7, "x has 7 tokens, but positions end at ell_max=6"),
        ([], "must be a vector of at least one id"),
        ([[1, 2]], r"x has shape \(1, 2\)"),
        ([1.5], "ids are integers"),
        ([True], "ids are integers"),
    ],
)
def test_what_the_paper_does_not_guard(text, message):
    ed, e, d = formal("A8"), formal("A9"), formal("A10")
    for call in (
        lambda: EDTransformer([1], text, ed),
        lambda: ETransformer(text, e),
        lambda: DTransformer(text, d),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match=re.sub(r"^x", "z", message)):
        EDTransformer(text, [1], ed)
