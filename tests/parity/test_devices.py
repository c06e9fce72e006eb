"""Models, searches and runs on each device at hand: if PyTorch finds one, a GPU; with all tests, the CPU too."""

import copy

import pytest
import torch
from tiny_corpus import SMALL, pairs_file

import attendo
from attendo.decoding.backends import eager_backend, eager_decoder
from attendo.decoding.beam import DecodingConfig, beam_search
from attendo.decoding.options import SpecialIds
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig
from attendo.runs.resume import verify_resume

DEVICES = [pytest.param("cpu", marks=pytest.mark.full), *["cuda"] * torch.cuda.is_available()]
SIZES = {"vocab_size": 30, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_decoder_layers": 2}
SPECIAL = SpecialIds(bos_id=2, eos_id=3, banned_ids=(0, 2))


def twins(kind, device, **options):
    """A random model on the CPU, and its copy on the device. Matrix products are in full float32."""
    torch.manual_seed(3)
    torch.set_float32_matmul_precision("highest")
    model = kind(ModelConfig(**SIZES, **options)).eval()
    return model, copy.deepcopy(model).to(device)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("device", DEVICES)
def test_logits_and_gradients_equal_those_on_the_cpu(device, positions):
    here, there = twins(EncoderDecoder, device, n_encoder_layers=2, positions=positions)
    src, tgt, lengths = torch.randint(4, 30, (3, 7)), torch.randint(4, 30, (3, 5)), torch.tensor([7, 4, 1])
    logits = [here(src, tgt, lengths), there(src.to(device), tgt.to(device), lengths.to(device))]
    assert logits[1].device.type == device
    torch.testing.assert_close(logits[1].cpu(), logits[0], atol=1e-4, rtol=1e-4)
    for found in logits:
        found.square().mean().backward()
    for mine, theirs in zip(here.parameters(), there.parameters(), strict=True):
        if mine.grad is not None:
            torch.testing.assert_close(theirs.grad.cpu(), mine.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_search_finds_the_texts_of_the_cpu(device):
    pair = twins(EncoderDecoder, device, n_encoder_layers=1)
    sources = torch.randint(4, 30, (4, 6)).tolist()
    texts = []
    for model in pair:
        backend = eager_backend(model, 0)
        with torch.inference_mode():
            cache = backend.start(sources, 3, 9)
            found = beam_search(backend.step, cache, [9] * 4, DecodingConfig(beam=3), SPECIAL)
        texts.append([list(hypotheses[0].token_ids) for hypotheses in found])
    assert texts[0] == texts[1]
    assert any(texts[0])


@pytest.mark.parametrize("device", DEVICES)
def test_cached_steps_equal_the_whole_text(device):
    _, model = twins(DecoderLM, device, n_encoder_layers=0, architecture="decoder", positions="rotary")
    backend, ids = eager_decoder(model), torch.randint(4, 30, (2, 9), device=device)
    with torch.inference_mode():
        cache = backend.start(2, 9)
        steps = [backend.step(ids[:, i : i + 1], cache) for i in range(9)]
        whole = model(ids)
    torch.testing.assert_close(torch.stack(steps, 1), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_translates_and_resumes_exactly(device, precision, tmp_path):
    training = SMALL["training"] | {"precision": precision, "compile": False, "evaluate_every": 4, "steps": 6}
    settings = SMALL | {"training": training, "checkpoint": {"every_steps": 3}}
    translator = attendo.train(pairs_file(tmp_path), tmp_path / "run", settings=settings, device=device)
    assert len(translator.translate(["On Monday it will snow in Oslo."])) == 1
    assert str(verify_resume(tmp_path / "run", device=device)).count("bit-identical") == 2
