"""attendo quantize: a smaller copy of a run, which computes what the run computes with the same bits."""

import json
import shutil

import pytest
import torch
from command_line import attendo, refused
from exported_models import run_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attendo.bundle import load_as, load_bundle, load_model, save_tensors, save_weights
from attendo.decoding.cpu_linear import prepared
from attendo.decoding.native.library import TensorArena, library, quantized
from attendo.errors import AttendoError
from attendo.inference import Generator, Translator, load
from attendo.interop.quantizing import quantize
from attendo.microscope.session import Session
from attendo.models import DecoderLM
from attendo.quantized import QuantizedLinear
from attendo.serving.registry import ServedModel

SHAPE = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "max_len": 96}
DECODER = SHAPE | {"architecture": "decoder", "n_encoder_layers": 0, "tie": "none"}
WORDS = "It will rain"


def stored(folder, options, name="run"):
    """A run whose weights are bfloat16 numbers, as those of most imported models."""
    run, bundle, model = run_folder(folder / name, options)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    save_weights(run, model, bundle, 7)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return stored(tmp_path_factory.mktemp("quantized"), DECODER)


@settings(max_examples=15, deadline=None)
@given(
    bits=st.sampled_from([8, 4]),
    n_in=st.sampled_from([32, 160]),
    n_out=st.integers(1, 140),
    seed=st.integers(0, 9),
)
def test_stored_integers_are_packed_like_the_weights_that_they_were_made_of(bits, n_in, n_out, seed):
    weight = torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(seed))
    layer = QuantizedLinear(*quantized(weight, bits), None)
    assert layer.weight.shape == weight.shape
    assert (layer.weight - weight).abs().max() < (0.02 if bits == 8 else 0.4)
    arenas = [TensorArena(bits) for _ in range(2)]
    torch.set_num_threads(3)
    matrices = arenas[0].matrix(layer), arenas[1].product(weight, None)
    size = library().attendo_packed_bytes(n_out, n_in, bits)
    packed = [arena._kept[0][:size] for arena in arenas]
    assert torch.equal(*packed)
    assert all(matrix.n_in == n_in for matrix in matrices)
    assert arenas[0]._kept[1].equal(arenas[1]._kept[1])


@pytest.mark.parametrize(("bits", "tie"), [(16, "none"), (8, "output"), (4, "none")])
def test_a_copy_writes_and_measures_as_the_run_does_in_these_bits(bits, tie, tmp_path):
    run, small = stored(tmp_path, DECODER | {"tie": tie}), tmp_path / "small"
    assert attendo("quantize", run, "--bits", bits, "--out", small).code == 0
    greedy = [WORDS, "--max-tokens", "8", "--temperature", "0"]
    own, said = attendo("generate", small, *greedy), attendo("generate", run, *greedy, "--bits", bits)
    assert (own.code, own.out) == (0, said.out), own.err
    text = tmp_path / "text.txt"
    text.write_text("It will rain in the north tomorrow.\n" * 3)
    nats = [
        json.loads(attendo("evaluate", folder, text, "--json", *options).out)["nats"]
        for folder, options in [(small, []), (run, ["--bits", bits]), (run, [])]
    ]
    assert nats[0] == nats[1] != nats[2]
    compared = attendo("compare", small, run, text, "--metric", "loss", "--json")
    assert compared.code == 0, compared.err
    served = ServedModel("small", small, load(small), engine=None)
    assert len(served.embedder.embed([WORDS])[0]) == SHAPE["d_model"]
    generator = Generator.load(small)
    assert (generator.bits, load(small).bits, Generator.load(small, bits=32).bits) == (bits, bits, 32)
    with generator.recording() as record:
        generator.generate(WORDS, max_tokens=1)
    assert record["decoder.blocks.0.self_attention"].weights.dtype == torch.float32
    assert Session(load(small), small, []).answer("look", {"text": WORDS})["outcome"]
    assert "is quantized" in refused("eject", small, tmp_path / "model.py")
    assert "already" in refused("quantize", small, "--out", tmp_path / "again")
    header = safe_open(small / "model.safetensors", framework="pt").metadata()
    assert header["step"] == "7"


def test_a_copy_is_small_and_is_not_read_as_a_whole(tmp_path):
    run = stored(tmp_path, DECODER | {"d_model": 64, "d_ff": 512})
    sizes = [(run / "model.safetensors").stat().st_size]
    for bits in (8, 4):
        assert attendo("quantize", run, "--bits", bits, "--out", tmp_path / str(bits)).code == 0
        sizes.append((tmp_path / str(bits) / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.65 * sizes[0]
    assert sizes[2] < 0.5 * sizes[0]
    model = Generator.load(tmp_path / "4").model
    assert isinstance(model.output_proj, QuantizedLinear)
    assert model.output_proj.bits == 8
    layer = model.decoder.blocks[0].feed_forward.in_proj
    assert layer.bits == 4
    assert layer.numbers.is_mapped
    whole = load_model(tmp_path / "4", load_bundle(tmp_path / "4"))  # as all other commands see it
    plain = whole.decoder.blocks[0].feed_forward.in_proj
    assert torch.equal(plain.weight, layer.weight)
    assert plain.weight.dtype == torch.float32
    assert isinstance(plain.weight, torch.nn.Parameter)


def test_each_tensor_is_written_before_the_next_one_is_computed(run, tmp_path):
    sizes = []

    def computed():
        for value in range(3):
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            yield torch.full((1000,), float(value))

    shapes = {name: torch.empty(1000, device="meta") for name in "bca"}
    save_tensors(tmp_path, shapes, load_bundle(run), 3, computed())
    assert [size - sizes[0] for size in sizes] == [0, 4000, 8000]
    values = {name: tensor.mean() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert values == {"b": 0, "c": 1, "a": 2}


def test_a_soft_cap_of_the_logits_holds_with_and_without_the_compiled_functions(tmp_path):
    run = stored(tmp_path, DECODER | {"output_softcap": 0.5})
    assert attendo("quantize", run, "--bits", "8", "--out", tmp_path / "small").code == 0
    generator, ids = Generator.load(tmp_path / "small"), torch.tensor([[5, 6, 7]])
    eager = generator.model.output_proj(generator.model.hidden(token_ids=ids).float())
    assert 0.1 < eager.abs().max() <= 0.5
    ready = prepared(Generator.load(run).model.float(), 8)
    assert ready(ids).abs().max() <= 0.5


def test_a_file_outside_the_run_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    card = json.loads((copy / "card.json").read_text())
    (copy / "card.json").write_text(json.dumps(card | {"files": {"../evil": ""}}))
    with pytest.raises(AttendoError, match=r"'\.\./evil' is not a file of the run"):
        quantize(copy, tmp_path / "small", 8)


def test_a_translator_and_a_shortlist(tmp_path):
    run = stored(tmp_path, SHAPE | {"tie": "none", "positions": "sinusoidal", "output_bias": True})
    for bits in (8, 4):
        small = tmp_path / f"small{bits}"
        assert attendo("quantize", run, "--bits", bits, "--out", small).code == 0
        found = [attendo("translate", folder, WORDS, *rest) for folder, rest in ((small, []), (run, ["--bits", bits]))]
        assert found[0].code == 0, found[0].err
        assert found[0].out == found[1].out
    translator = Translator.load(small)
    assert (translator.bits, translator.prepare(8).bits) == (4, 8)
    assert attendo("translate", small, WORDS, "--alignments").code == 0  # with the modules of PyTorch


def test_without_the_compiled_functions_a_copy_still_works(run, tmp_path, monkeypatch):
    assert attendo("quantize", run, "--bits", "4", "--out", tmp_path / "small").code == 0
    monkeypatch.setenv("ATTENDO_NATIVE", "0")
    library.cache_clear()
    try:
        said = attendo("generate", tmp_path / "small", WORDS, "--max-tokens", "2")
        assert (said.code, "note: the search runs on PyTorch only" in said.err) == (0, True)
        assert "without the compiled functions" in refused("quantize", run, "--out", tmp_path / "other")
    finally:
        library.cache_clear()
    assert not (tmp_path / "other").exists()


def test_scales_that_do_not_match_are_refused(run, tmp_path):
    small = tmp_path / "small"
    assert attendo("quantize", run, "--bits", "4", "--out", small).code == 0
    path = small / "model.safetensors"
    header = safe_open(path, framework="pt").metadata()
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(".scale"))
    tensors[name] = tensors[name][..., :0].contiguous()
    del header["weights_sha256"]  # as if someone had made the file
    save_file(tensors, path, header)
    with pytest.raises(AttendoError, match="is damaged"):
        load_as(DecoderLM, small, bits=None)
    assert "is damaged" in refused("generate", small, WORDS)
