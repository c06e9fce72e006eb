"""Exported to ONNX: onnxruntime computes what the model does, for every option, with padding and with a cache."""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import onnx
import pytest
import torch
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.bundle import Bundle
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError
from attendo.interop import to_onnx
from attendo.interop.onnx_graph import Graph, Weights
from attendo.models import ModelConfig, build_model, parameter_count

TOKENIZER = train_tokenizer(["a b"], TokenizerConfig(kind="byte", vocab_size=260))
FEW = {"vocab_size": 260, "d_model": 8, "d_ff": 12, "n_heads": 2, "max_len": 12}
POSITIONS = ("sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative", "none")
LENGTHS = (5, 1, 4)


def exported(model, folder):
    to_onnx.write(Path(), Bundle({}, TOKENIZER), model, Path(folder))
    return to_onnx.opened(Path(folder))


def random_model(config, seed=0):
    """With every parameter drawn, those too that begin as 0 or 1."""
    torch.manual_seed(seed)
    model = build_model(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def assert_close(ours, theirs):
    ours, theirs = ours.detach(), torch.as_tensor(theirs)
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= 1e-5


def ids_of(lengths, seed=0):
    torch.manual_seed(seed)
    return [torch.randint(4, 260, (n,)).tolist() for n in lengths]


@st.composite
def shapes(draw, architecture):
    """Options of a small model, each of which is drawn."""

    def one(*choices):
        return draw(st.sampled_from(choices))

    options = {name: draw(st.booleans()) for name in (
        "attention_bias", "norm_first", "feed_forward_gated", "feed_forward_bias", "embedding_scale", "output_bias",
        "attention_norm",
    )}  # fmt: skip
    options |= FEW | {"architecture": architecture, "n_heads": one(2, 4), "n_kv_heads": one(None, 1, 2)}
    options |= {"head_dim": one(None, 4, 6), "value_dim": one(None, 3), "attention_scale": one(None, 0.3)}
    options |= {
        "attention_out_bias": one(None, True, False),
        "norm": one("layer", "rms"),
        "norm_eps": one(1e-5, 0.1),
    }
    options |= {"activation": one("relu", "gelu", "gelu_tanh", "silu"), "embedding_norm_eps": one(None, 1e-3)}
    options |= {
        "tie": one("all", "output", "input", "none"),
        "pad_id": one(None, 0),
        "positions": one(*POSITIONS),
    }
    options["n_encoder_layers"] = 0 if architecture == "decoder" else one(1, 2)
    options["n_decoder_layers"] = one(1, 2) if architecture in ("encoder-decoder", "decoder") else 0
    match options["positions"]:
        case "sinusoidal":
            options |= {
                "position_order": one("sincos", "cossin", "halves"),
                "position_first_index": one(0, 1),
            }
            options |= {"position_base": one(10000.0, "length"), "position_start": one(0, 1)}
        case "ramp":
            options |= {"position_start": one(0, 1)}
        case "inverse":
            options |= {"position_start": 1}
        case "rotary":
            options |= {"position_base": one(10000.0, "length", 500.0)}
        case "relative":
            options |= {"position_buckets": one(4, 8), "position_reach": one(5, 8)}
    if architecture == "classifier":
        options |= {
            "n_classes": one(0, 2, 3),
            "d_output": one(None, 5),
            "output_activation": one("tanh", "relu"),
        }
        options |= {"tie": "none", "pooling": one("max", "mean", "first")}
    if architecture == "masked" and options["tie"] == "none":
        options |= {"d_output": one(None, 6)}
    return ModelConfig(**options)


def check_translator(config):
    """Rows of different lengths in one step, read in parts of several sizes, are each row alone, read at once."""
    model, sources, targets = random_model(config), ids_of(LENGTHS), ids_of((6, 3, 8), 1)
    with tempfile.TemporaryDirectory() as folder:
        translator = exported(model, folder)
        rows = translator.start(sources, 1)
        rows.lengths = torch.tensor([len(target) - 8 for target in targets]).numpy()
        padded = torch.tensor([[0] * (8 - len(target)) + target for target in targets])
        parts = [translator.decoder.logits(padded[:, a:b], rows) for a, b in ((0, 6), (6, 7), (7, 8))]
    for source, target, theirs in zip(sources, targets, torch.cat(parts, 1), strict=True):
        ours = model(torch.tensor([source]), torch.tensor([target]))[0]
        assert_close(ours, theirs[8 - len(target) :])


def check_generator(config):
    model, texts = random_model(config), ids_of((6, 1, 11))
    with tempfile.TemporaryDirectory() as folder:
        generator = exported(model, folder)
        whole = generator.logits(texts)
        rows = generator.decoder.begin(1, {})
        steps = [generator.decoder.step(torch.tensor([[token]]), rows)[0] for token in texts[0]]
    for text, theirs in zip(texts, whole, strict=True):
        assert_close(model(torch.tensor([text]))[0], theirs)
    assert_close(model(torch.tensor(texts[:1]))[0], torch.stack(steps))


def check_reader(config):
    model, texts = random_model(config), ids_of(LENGTHS)
    with tempfile.TemporaryDirectory() as folder:
        found = exported(model, folder).logits(texts)
    for text, theirs in zip(texts, found, strict=True):
        assert_close(model(torch.tensor([text]))[0], theirs)


CHECKS = {
    "encoder-decoder": check_translator,
    "decoder": check_generator,
    "classifier": check_reader,
    "masked": check_reader,
}


@pytest.mark.parametrize("architecture", CHECKS)
def test_every_option_computes_what_the_model_does(architecture):
    @settings(max_examples=examples(6, 20) if architecture == "encoder-decoder" else examples(4, 12))
    @given(shapes(architecture))
    def check(config):
        assert to_onnx.why_not(config, "byte") is None
        CHECKS[architecture](config)

    check()


@pytest.mark.full
@pytest.mark.parametrize("architecture", CHECKS)
def test_many_shapes_compute_what_the_model_does(architecture):
    settings(max_examples=300)(given(shapes(architecture))(CHECKS[architecture]))()


@pytest.mark.parametrize("positions", ["alibi", "relative"])
def test_a_bias_by_distance_has_no_end(tmp_path, positions):
    shape = {"architecture": "decoder", "n_encoder_layers": 0, "n_decoder_layers": 2, "positions": positions}
    shape |= {"position_buckets": 8, "position_reach": 6} if positions == "relative" else {}
    model, text = random_model(ModelConfig(**FEW, **shape)), ids_of([80])
    generator = exported(model, tmp_path)
    generator.description["max_len"] = 80
    assert_close(model(torch.tensor(text))[0], generator.logits(text)[0])


def translator_config(**options):
    return ModelConfig(**FEW | {"n_encoder_layers": 1, "n_decoder_layers": 2} | options)


@pytest.mark.parametrize("tie", ["all", "output", "input", "none"])
def test_each_matrix_is_written_once(tmp_path, tie):
    """The file is as large as the parameters and the positions; tied matrices count once, in both graphs."""
    model = random_model(translator_config(tie=tie))
    exported(model, tmp_path)
    numbers = parameter_count(model) + FEW["max_len"] * FEW["d_model"]
    size = (tmp_path / "weights.bin").stat().st_size
    n_arrays = len(dict(model.named_parameters())) + 1
    assert 4 * numbers <= size < 4 * numbers + 64 * n_arrays


def test_the_graphs_are_sound_and_described(tmp_path):
    exported(random_model(translator_config()), tmp_path)
    described = json.loads((tmp_path / "onnx.json").read_text())
    assert described["ids"] == {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "never": [0, 2]}
    assert (described["source"], described["begin"]) == ({"before": [], "behind": [3]}, [2])
    assert described["loop"] and described["max_len"] == 12 and described["architecture"] == "encoder-decoder"
    assert set(described["graphs"]) == {"encoder.onnx", "decoder.onnx"}
    for name, graph in described["graphs"].items():
        onnx.checker.check_model(tmp_path / name, full_check=True)
        made = onnx.load(tmp_path / name, load_external_data=False)
        assert [value["name"] for value in graph["inputs"]] == [value.name for value in made.graph.input]
    inputs = {value["name"]: (value["type"], value["shape"]) for value in graph["inputs"]}
    assert inputs["token_ids"] == ("int64", ["rows", "n"])
    assert inputs["past_key_1"] == ("float32", ["rows", 2, "past_len", 4])
    assert inputs["memory_value_0"] == ("float32", ["rows", 2, "source_len", 4])


def test_a_value_asked_for_twice_is_computed_once(tmp_path):
    with Weights(tmp_path / "weights.bin", torch.nn.Identity()) as weights:
        graph = Graph(weights)
        first, again = (graph.op("Add", "x", graph.constant(1.0)) for _ in range(2))
    assert first == again and len(graph.nodes) == 1


def test_what_has_no_form_is_named():
    config = translator_config()
    object.__setattr__(config, "activation", "snake")
    assert to_onnx.why_not(config, "bpe") == "activation='snake' is not supported by the export to ONNX"
    later = dataclasses.make_dataclass(
        "Later", [("n_experts", int, 1)], bases=(ModelConfig,), frozen=True, kw_only=True
    )
    assert to_onnx.why_not(later(vocab_size=9), "bpe") is None
    assert (
        to_onnx.why_not(later(vocab_size=9, n_experts=2), "bpe") == "n_experts=2 is not supported by the export to ONNX"
    )


def test_missing_packages_are_named(tmp_path, monkeypatch):
    model = random_model(translator_config())
    translator = exported(model, tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(AttendoError, match=r"onnxruntime is not installed\. Run: pip install"):
        translator.start([[5]], 1)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(AttendoError, match=r"pip install .*interop"):
        exported(model, tmp_path)


def test_a_damaged_folder_is_named(tmp_path):
    translator = exported(random_model(translator_config()), tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"short")
    with pytest.raises(AttendoError, match=r"encoder.onnx cannot be run \(.*\)\. Export the model again"):
        translator.start([[5]], 1)
    (tmp_path / "onnx.json").write_text("{")
    with pytest.raises(AttendoError, match=r"onnx.json or card.json is damaged"):
        to_onnx.opened(tmp_path)


def test_positions_end_where_the_model_says(tmp_path):
    generator = exported(random_model(ModelConfig(**FEW, architecture="decoder", n_encoder_layers=0)), tmp_path)
    assert len(generator.logits(ids_of([12]))[0]) == 12
    with pytest.raises(AttendoError, match="a text has 13 tokens, but the exported model reads at most max_len=12"):
        generator.logits(ids_of([13]))
    with pytest.raises(AttendoError, match="a text has no tokens"):
        generator.logits([[5], []])
