"""The GPT on one page computes what attendo's decoder-only model computes with the same weights."""

import ast
import runpy
import sys
from pathlib import Path

import pytest
import torch

from attendo.decoding.sampling import drawn
from attendo.model_config import ModelConfig
from attendo.models import DecoderLM
from attendo_course import one_page
from attendo_course.one_page import CONTEXT, D_FF, D_MODEL, N_HEADS, N_LAYERS

pytestmark = pytest.mark.usefixtures("float64")
SOURCE = Path(one_page.__file__).read_text(encoding="utf-8")
N_WORDS = 14
EXACT = {"rtol": 0, "atol": 1e-12}
NAMES = {
    "words": "embedding.tokens.weight",
    "positions": "embedding.positions.weight",
    "gain": "decoder.norm.weight",
    "shift": "decoder.norm.bias",
    "gain_1": "self_attention_residual.norm.weight",
    "shift_1": "self_attention_residual.norm.bias",
    "W_Q": "self_attention.q_proj.weight",
    "W_K": "self_attention.k_proj.weight",
    "W_V": "self_attention.v_proj.weight",
    "W_O": "self_attention.out_proj.weight",
    "gain_2": "feed_forward_residual.norm.weight",
    "shift_2": "feed_forward_residual.norm.bias",
    "W_1": "feed_forward.in_proj.weight",
    "b_1": "feed_forward.in_proj.bias",
    "W_2": "feed_forward.out_proj.weight",
    "b_2": "feed_forward.out_proj.bias",
}


def core_name(name):
    layer, _, rest = name.rpartition(" ")
    return f"decoder.blocks.{int(layer) - 1}.{NAMES[rest]}" if layer else NAMES[name]


def as_in_core(name, weight):
    """The core multiplies by transposed matrices; embeddings are equal."""
    return weight.T if "W_" in name else weight


@pytest.fixture
def weights():
    """No weight is 0 or 1, so every weight matters."""
    random = torch.Generator().manual_seed(7)
    found = one_page.new_weights(N_WORDS)
    for weight in found.values():
        weight.data += 0.5 * torch.randn(weight.shape, generator=random)
    return found


@pytest.fixture
def core(weights):
    config = ModelConfig(
        architecture="decoder",
        vocab_size=N_WORDS,
        d_model=D_MODEL,
        d_ff=D_FF,
        n_heads=N_HEADS,
        n_encoder_layers=0,
        n_decoder_layers=N_LAYERS,
        max_len=CONTEXT,
        positions="learned",
        norm_first=True,
        attention_bias=False,
        embedding_scale=False,
        dropout=0.0,
    )
    model = DecoderLM(config)
    parameters = dict(model.named_parameters())
    assert {core_name(name) for name in weights} == {*parameters}
    for name, weight in weights.items():
        parameters[core_name(name)].data.copy_(as_in_core(name, weight.detach()))
    return model


@pytest.fixture
def ids():
    return torch.randint(N_WORDS, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(1))


def test_logits_are_those_of_the_core(weights, core, ids):
    rows = ids[:, :-1]
    torch.testing.assert_close(one_page.run(weights, rows).logits, core(rows), **EXACT)
    torch.testing.assert_close(one_page.run(weights, rows[0, :5]).logits, core(rows[:1, :5])[0], **EXACT)


def test_loss_and_gradients_are_those_of_the_core(weights, core, ids):
    loss = one_page.mean_loss(weights, ids)
    expected = torch.nn.functional.cross_entropy(core(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(loss, expected, **EXACT)
    expected.backward()
    parameters = dict(core.named_parameters())
    for (name, weight), gradient in zip(weights.items(), torch.autograd.grad(loss, [*weights.values()]), strict=True):
        assert weight.abs().min() > 0
        theirs = as_in_core(name, parameters[core_name(name)].grad)
        torch.testing.assert_close(gradient, theirs, rtol=1e-12, atol=1e-12)


def test_training_is_adam(weights, core, ids):
    text = ids.flatten()
    one_page.train(weights, text, n_steps=3, rate=0.02)
    adam = torch.optim.Adam(core.parameters(), lr=0.02)
    windows = torch.stack([text[i : i + CONTEXT + 1] for i in range(len(text) - CONTEXT)])
    for _ in range(3):
        adam.zero_grad()
        logits = core(windows[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
        adam.step()
    parameters = dict(core.named_parameters())
    for name, weight in weights.items():
        theirs = as_in_core(name, parameters[core_name(name)])
        torch.testing.assert_close(weight, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_the_words_drawn_are_those_of_the_core(weights, core, temperature):
    """Within the context length, with the core's own cache and its own draw from the same random numbers."""
    prompt = torch.tensor([3, 1, 4])
    text = one_page.generate(weights, prompt, CONTEXT - len(prompt), temperature, seed=5)
    random = torch.Generator().manual_seed(5)
    cache, step, expected = core.start(1, CONTEXT), prompt, prompt.tolist()
    while len(expected) < CONTEXT:
        logits = core.step(step[None], cache)[:, -1]
        u = torch.rand((1,), generator=random)
        step = drawn(logits / temperature, u) if temperature else logits.argmax(-1)
        expected += step.tolist()
    assert text.tolist() == expected


def test_a_longer_text_is_continued_from_its_last_words(weights, monkeypatch):
    read, run = [], one_page.run
    monkeypatch.setattr(one_page, "run", lambda w, ids: read.append(ids.tolist()) or run(w, ids))
    text = one_page.generate(weights, torch.arange(12), 3).tolist()
    assert read == [text[end - CONTEXT : end] for end in (12, 13, 14)]


def test_a_draw_takes_the_part_that_contains_u_and_never_leaves_the_vocabulary():
    half = torch.tensor([0.5, 0.0, 0.5])
    assert [one_page.draw(half, u) for u in (0.0, 0.5 - 1e-12, 0.5)] == [0, 0, 2]
    assert one_page.draw(half - 1e-9, 1 - 1e-12) == 2


def test_it_is_one_page_that_requires_only_torch():
    assert len(SOURCE.splitlines()) <= 200
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name)
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported - sys.stdlib_module_names == {"torch"}


@pytest.mark.full
def test_it_learns_its_text_and_writes_on(capsys):
    names = runpy.run_path(one_page.__file__, run_name="__main__")
    first, greedy, *_ = capsys.readouterr().out.splitlines()
    assert first == "loss: 3.09 nats before training, 0.26 nats after training"
    assert greedy.startswith("temperature 0: the cat sat on the mat . the dog")
    assert len(names["vocabulary"]) == N_WORDS
