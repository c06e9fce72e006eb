"""Each preset equals its own document's formula, written out in NumPy, and has the document's number of parameters."""

import math

import numpy as np
import numpy_transcription as plain
import pytest
import torch
from random_weights import randomized

from attendo.model_config import ModelConfig
from attendo.models import parameter_count
from attendo.nn.masks import Mask
from attendo.runs.settings import preset_tables
from attendo_course import presets

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
IDS = [3, 1, 4, 1, 5, 2]
NAMES = (
    "nyu_classifier vaswani_base vaswani_big pytorch_wlm formal_ed formal_e formal_d gpt2_small bert_base"
    " weather_blog bishop slides"
)


pytestmark = pytest.mark.usefixtures("float64")


def residuals(block, eps, n):
    """The norms of a block's sub-layers, in order, as functions of rows."""
    names = ["self_attention", "feed_forward"] if n == 2 else ["self_attention", "cross_attention", "feed_forward"]
    norms = [plain.part(block, f"{name}_residual.norm") for name in names]
    return [lambda x, norm=norm: plain.layer_norm(x, norm, eps) for norm in norms]


def post_norm(x, block, eps, activation, n_heads, *, scale=None, causal=False, memory=None):
    """LN(x + f(x)) for each sub-layer in turn."""
    norms = iter(residuals(block, eps, 2 if memory is None else 3))
    attend = plain.part(block, "self_attention")
    x = next(norms)(x + plain.multi_head(x, x, attend, n_heads, scale=scale, causal=causal))
    if memory is not None:
        cross = plain.part(block, "cross_attention")
        x = next(norms)(x + plain.multi_head(x, memory, cross, n_heads, scale=scale))
    return next(norms)(x + plain.feed_forward(x, plain.part(block, "feed_forward"), activation))


def same(ours, theirs):
    np.testing.assert_allclose(ours.detach().numpy(), theirs, **CLOSE)


def test_the_table_has_every_preset():
    assert list(presets.PRESETS) == NAMES.split()
    for preset in presets.PRESETS.values():
        assert preset.build is getattr(presets, preset.build.__name__)


def vaswani_count(N, d, d_ff, V):
    attention, net, norm = 4 * d * d, 2 * d * d_ff + d_ff + d, 2 * d
    return V * d + N * (attention + net + 2 * norm) + N * (2 * attention + net + 3 * norm)


def formal_count(N_V, ell_max, d_e, d_mlp, n_attentions, n_nets, n_norms, d_f=None):
    attention, net = 4 * (d_e * d_e + d_e), 2 * d_e * d_mlp + d_mlp + d_e
    blocks = n_attentions * attention + n_nets * net + n_norms * 2 * d_e
    head = 0 if d_f is None else d_e * d_f + d_f + 2 * d_f
    return 2 * N_V * d_e + ell_max * d_e + blocks + head


def large_count(V, ell_max, d, layers, beside):
    """12d² + 13d a layer: GPT-2 and BERT, whose inner width is 4d."""
    return (V + ell_max) * d + layers * (12 * d * d + 13 * d) + beside


WLM_LAYER = 4 * (200 * 200 + 200) + 2 * (200 * 200 + 200) + 4 * 200
COUNTS = {
    "nyu_classifier": 50_002 * 32 + 64 + (4 * 32 * 32 + 32) + (2 * 32 * 128 + 128 + 32) + 128 + 2 * 32 + 2,
    "vaswani_base": vaswani_count(6, 512, 2048, 37_000),
    "vaswani_big": vaswani_count(6, 1024, 4096, 37_000),
    "slides": vaswani_count(6, 512, 2048, 37_000),
    "pytorch_wlm": 2 * 33_278 * 200 + 33_278 + 2 * WLM_LAYER,
    "formal_ed": formal_count(12, 8, 16, 32, 6, 4, 10),
    "formal_e": formal_count(12, 8, 16, 32, 2, 2, 4, d_f=16),
    "formal_d": formal_count(12, 8, 16, 32, 2, 2, 5),
    "gpt2_small": large_count(50_257, 1024, 768, 12, beside=2 * 768),
    "bert_base": large_count(30_522, 512, 768, 12, beside=2 * 768 + 768 * 768 + 3 * 768 + 30_522),
    "weather_blog": (4 + 1) * (2 * 6 + 3),
    "bishop": 4 * 512 * 512,
}
STATED = {
    "nyu_classifier": 1_612_802,
    "vaswani_base": 63_045_632,
    "vaswani_big": 214_171_648,
    "gpt2_small": 124_439_808,
    "weather_blog": 75,
}


@pytest.mark.parametrize("name", NAMES.split())
def test_parameters(name):
    preset = presets.PRESETS[name]
    with torch.device("meta"):  # counts without a byte of memory
        model = preset.build()
    assert parameter_count(model) == COUNTS[name] == preset.n_parameters
    assert STATED.get(name, COUNTS[name]) == COUNTS[name]


NYU = {"vocab_size": 9, "d_model": 6, "n_heads": 2, "d_ff": 10, "n_layers": 2, "n_classes": 3}


def test_nyu_classifier():
    model = randomized(presets.nyu_classifier(**NYU))
    theta = plain.arrays(model)
    x = theta["embedding.tokens.weight"][IDS] + plain.sinusoids(len(IDS), 6)
    x = plain.layer_norm(x, plain.part(theta, "embedding.norm"), 1e-12)
    for block in plain.stack(plain.part(theta, "encoder")):
        x = post_norm(x, block, 1e-6, plain.relu, n_heads=2)
    expected = plain.linear(x.max(axis=0), plain.part(theta, "output_proj"))
    same(model(torch.tensor([IDS]))[0], expected)
    names = plain.part(theta, "encoder.blocks.0.self_attention")
    assert {name for name in names if name.endswith("bias")} == {"out_proj.bias"}


def test_nyu_classifier_has_320_000_fixed_numbers_and_a_padding_that_stays_0():
    model = presets.nyu_classifier()
    positions = model.embedding.positions
    table = positions(torch.arange(10_000), 10_000)
    assert table.numel() == 320_000
    assert not table.requires_grad
    assert not list(positions.parameters())
    same(table[[0, 1, 77]], plain.sinusoids(78, 32)[[0, 1, 77]])
    angle = 9_999 / 10_000.0 ** (30 / 32)
    same(table[-1, -2:], [math.sin(angle), math.cos(angle)])
    row = model.embedding.tokens.weight
    model(torch.tensor([[2, 3, 1, 1]])).sum().backward()
    assert not row[1].any()
    assert not row.grad[1].any()
    assert row.grad[2].any()


def test_the_settings_of_preset_lecture_are_the_nyu_classifiers():
    there = {"architecture": "classifier", "vocab_size": 50_002, "n_classes": 2, "pad_id": 1}
    assert ModelConfig(**preset_tables("lecture")["model"] | there) == presets.nyu_classifier().config


TINY = {"d_model": 6, "d_ff": 10, "n_heads": 3, "n_encoder_layers": 2, "n_decoder_layers": 2}


@pytest.mark.parametrize(("name", "scale"), [("vaswani_base", None), ("vaswani_big", None), ("slides", 1.0)])
def test_encoder_decoders(name, scale):
    model = randomized(presets.PRESETS[name].build(9, **TINY))
    theta, eps = plain.arrays(model), 1e-5
    assert model.source_embedding.tokens.weight is model.target_embedding.tokens.weight
    assert model.output_proj.weight is model.target_embedding.tokens.weight
    rows = theta["target_embedding.tokens.weight"]
    src, tgt = IDS, [2, 7, 1, 8]
    memory = rows[src] * math.sqrt(6) + plain.sinusoids(len(src), 6)
    for block in plain.stack(plain.part(theta, "encoder")):
        memory = post_norm(memory, block, eps, plain.relu, n_heads=3, scale=scale)
    x = rows[tgt] * math.sqrt(6) + plain.sinusoids(len(tgt), 6)
    for block in plain.stack(plain.part(theta, "decoder")):
        x = post_norm(x, block, eps, plain.relu, n_heads=3, scale=scale, causal=True, memory=memory)
    same(model(torch.tensor([src]), torch.tensor([tgt]))[0], x @ rows.T)
    assert not [key for key in theta if "_proj.bias" in key and "feed_forward" not in key]


@pytest.mark.parametrize(("name", "dropout"), [("base", 0.1), ("big", 0.3)])
def test_vaswani_reads_the_settings_that_train(name, dropout):
    with torch.device("meta"):
        config = presets.PRESETS[f"vaswani_{name}"].build(50).config
    for key, value in preset_tables(name)["model"].items():
        assert getattr(config, key) == value
    assert config.dropout == dropout


@pytest.mark.parametrize("last_norm", [False, True])
def test_pytorch_wlm(last_norm):
    sizes = {"vocab_size": 9, "d_model": 6, "d_ff": 10}
    model = presets.pytorch_wlm(**sizes, last_norm=last_norm)
    for weight in (model.embedding.tokens.weight, model.output_proj.weight):
        assert 0.09 < weight.abs().max() <= 0.1
    theta = plain.arrays(randomized(model))
    x = theta["embedding.tokens.weight"][IDS] * math.sqrt(6) + plain.sinusoids(len(IDS), 6)
    for block in plain.stack(plain.part(theta, "decoder")):
        x = post_norm(x, block, 1e-5, plain.relu, n_heads=2, causal=True)
    if last_norm:
        x = plain.layer_norm(x, plain.part(theta, "decoder.norm"), 1e-5)
    logits = plain.linear(x, plain.part(theta, "output_proj"))
    expected = np.log(plain.softmax(logits))
    same(model(torch.tensor([IDS])).log_softmax(-1)[0], expected)


def test_gpt2_small():
    model = randomized(presets.gpt2_small(vocab_size=9, max_len=7, d_model=6, n_heads=3, n_layers=2))
    theta, eps = plain.arrays(model), 1e-5
    x = theta["embedding.tokens.weight"][IDS] + theta["embedding.positions.weight"][: len(IDS)]
    for block in plain.stack(plain.part(theta, "decoder")):
        first, second = residuals(block, eps, 2)
        attend = plain.part(block, "self_attention")
        x = x + plain.multi_head(first(x), first(x), attend, 3, causal=True)
        x = x + plain.feed_forward(second(x), plain.part(block, "feed_forward"), plain.gelu_tanh)
    x = plain.layer_norm(x, plain.part(theta, "decoder.norm"), eps)
    same(model(torch.tensor([IDS]))[0], x @ theta["embedding.tokens.weight"].T)


def test_bert_base():
    model = randomized(presets.bert_base(vocab_size=9, max_len=7, d_model=6, n_heads=3, n_layers=2))
    theta, eps = plain.arrays(model), 1e-12
    assert model.config.norm_eps == eps  # too small to show in the outputs
    x = theta["embedding.tokens.weight"][IDS] + theta["embedding.positions.weight"][: len(IDS)]
    x = plain.layer_norm(x, plain.part(theta, "embedding.norm"), eps)
    for block in plain.stack(plain.part(theta, "encoder")):
        x = post_norm(x, block, eps, plain.gelu, n_heads=3)
    x = plain.gelu(plain.linear(x, plain.part(theta, "output_hidden")))
    x = plain.layer_norm(x, plain.part(theta, "output_norm"), eps)
    expected = x @ theta["embedding.tokens.weight"].T + theta["output_proj.bias"]
    same(model(torch.tensor([IDS]))[0], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_weather_blog(causal):
    model = randomized(presets.weather_blog())
    theta, days = plain.arrays(model), np.random.default_rng(0).normal(size=(10, 4))
    query, key, value = (plain.linear(days, plain.part(theta, f"{name}_proj")) for name in "qkv")
    expected, _ = plain.attention(query, key, value, 1 / math.sqrt(6), causal)
    assert expected.shape == (10, 3)
    e = torch.tensor(days)[None]
    same(model(e, e, Mask(causal=True) if causal else None)[0], expected)


@pytest.mark.parametrize("d_value", [None, 5])
def test_bishop(d_value):
    """Y = Concat[H_1 … H_H] W⁽ᵒ⁾ with the book's matrices, which multiply rows from the right."""
    model = randomized(presets.bishop(d_model=6, n_heads=2, d_value=d_value))
    theta, X = plain.arrays(model), np.random.default_rng(0).normal(size=(4, 6))
    W_q, W_k, W_v, W_o = (theta[f"{name}_proj.weight"].T for name in ("q", "k", "v", "out"))
    D_k, D_v = 3, d_value or 3
    heads = []
    for h in range(2):
        Q, K = X @ W_q[:, h * D_k : (h + 1) * D_k], X @ W_k[:, h * D_k : (h + 1) * D_k]
        heads.append(plain.softmax(Q @ K.T / math.sqrt(D_k)) @ X @ W_v[:, h * D_v : (h + 1) * D_v])
    same(model(torch.tensor(X)[None], torch.tensor(X)[None])[0], np.concatenate(heads, axis=1) @ W_o)
    assert not [name for name in theta if name.endswith("bias")]
