"""The model's configuration, its names, its sizes and how its parts are joined."""

import copy
import tomllib
from importlib import resources

import pytest
import torch

from attendo.models import EncoderDecoder, ModelConfig, parameter_count
from attendo.nn.layers import Dropout

TINY = {
    "vocab_size": 11,
    "d_model": 8,
    "d_ff": 16,
    "n_heads": 2,
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
}

ENCODER_NAMES = """
encoder.blocks.0.self_attention.q_proj.weight encoder.blocks.0.self_attention.q_proj.bias
encoder.blocks.0.self_attention.k_proj.weight encoder.blocks.0.self_attention.k_proj.bias
encoder.blocks.0.self_attention.v_proj.weight encoder.blocks.0.self_attention.v_proj.bias
encoder.blocks.0.self_attention.out_proj.weight encoder.blocks.0.self_attention.out_proj.bias
encoder.blocks.0.self_attention_residual.norm.weight encoder.blocks.0.self_attention_residual.norm.bias
encoder.blocks.0.feed_forward.in_proj.weight encoder.blocks.0.feed_forward.in_proj.bias
encoder.blocks.0.feed_forward.out_proj.weight encoder.blocks.0.feed_forward.out_proj.bias
encoder.blocks.0.feed_forward_residual.norm.weight encoder.blocks.0.feed_forward_residual.norm.bias
"""
CROSS_NAMES = """
decoder.blocks.0.cross_attention.q_proj.weight decoder.blocks.0.cross_attention.q_proj.bias
decoder.blocks.0.cross_attention.k_proj.weight decoder.blocks.0.cross_attention.k_proj.bias
decoder.blocks.0.cross_attention.v_proj.weight decoder.blocks.0.cross_attention.v_proj.bias
decoder.blocks.0.cross_attention.out_proj.weight decoder.blocks.0.cross_attention.out_proj.bias
decoder.blocks.0.cross_attention_residual.norm.weight decoder.blocks.0.cross_attention_residual.norm.bias
"""
OUTER_NAMES = "source_embedding.tokens.weight target_embedding.tokens.weight output_proj.weight"
PRE_NORM_NAMES = "encoder.norm.weight encoder.norm.bias decoder.norm.weight decoder.norm.bias"
LEARNED_NAMES = "source_embedding.positions.weight target_embedding.positions.weight"


def tiny(**changes):
    torch.manual_seed(0)
    return EncoderDecoder(ModelConfig(**(TINY | changes)))


def preset(name):
    table = tomllib.loads((resources.files("attendo") / "presets" / f"{name}.toml").read_text())
    return ModelConfig(**({"vocab_size": 37_000} | table["model"]))


def test_the_names_of_the_state_dict_are_frozen():
    """They are the paths in files and recordings: a change breaks every saved model."""
    decoder_names = ENCODER_NAMES.replace("encoder.", "decoder.") + CROSS_NAMES
    names = set((ENCODER_NAMES + decoder_names + OUTER_NAMES).split())
    assert set(tiny().state_dict()) == names
    bigger = tiny(norm_first=True, positions="learned", tie="none")
    assert set(bigger.state_dict()) == names | set((PRE_NORM_NAMES + " " + LEARNED_NAMES).split())


def test_attention_stands_at_its_paths():
    paths = [name for name, module in tiny().named_modules() if type(module).__name__ == "Attend"]
    assert paths == [
        "encoder.blocks.0.self_attention.attend",
        "decoder.blocks.0.self_attention.attend",
        "decoder.blocks.0.cross_attention.attend",
    ]


@pytest.mark.parametrize(("name", "count"), [("base", 63_045_632), ("big", 214_171_648)])
def test_presets_have_the_parameters_of_the_paper(name, count):
    with torch.device("meta"):  # counts without a byte of memory
        assert parameter_count(EncoderDecoder(preset(name))) == count


def test_parameters_by_hand():
    attention, feed_forward, norm = 4 * (8 * 8 + 8), 2 * 8 * 16 + 16 + 8, 2 * 8
    blocks = 3 * attention + 2 * feed_forward + 5 * norm
    assert parameter_count(tiny()) == 11 * 8 + blocks
    assert parameter_count(tiny(tie="output")) == 2 * 11 * 8 + blocks
    assert parameter_count(tiny(tie="none")) == 3 * 11 * 8 + blocks
    assert parameter_count(tiny(attention_bias=False)) == 11 * 8 + blocks - 3 * 4 * 8
    assert parameter_count(tiny(n_kv_heads=1)) == 11 * 8 + blocks - 3 * 2 * (8 * 4 + 4)
    assert parameter_count(tiny(norm_first=True)) == 11 * 8 + blocks + 2 * norm
    assert parameter_count(tiny(positions="learned", max_len=5)) == 11 * 8 + blocks + 2 * 5 * 8
    frozen = tiny()
    frozen.encoder.requires_grad_(False)
    assert parameter_count(frozen) == 11 * 8 + 2 * attention + feed_forward + 3 * norm


@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_ties_outlive_a_copy(tie):
    for model in (tiny(tie=tie), copy.deepcopy(tiny(tie=tie)), tiny(tie=tie).double()):
        source, target = model.source_embedding.tokens.weight, model.target_embedding.tokens.weight
        assert (source is target) == (tie == "all")
        assert (model.output_proj.weight is target) == (tie != "none")


def test_forward_is_output_of_hidden_of_memory():
    model = tiny().eval()
    src, tgt, src_lengths = (
        torch.tensor([[1, 2, 3], [4, 5, 0]]),
        torch.tensor([[2, 3], [2, 4]]),
        torch.tensor([3, 2]),
    )
    hidden = model.hidden(src, tgt, src_lengths)
    assert hidden.shape == (2, 2, 8)
    assert model(src, tgt, src_lengths).equal(model.output(hidden))
    assert model(src, tgt, src_lengths).equal(hidden @ model.output_proj.weight.T)
    assert model.encode(src, src_lengths).shape == (2, 3, 8)
    assert not model(src, tgt)[1].equal(model(src, tgt, src_lengths)[1])


def test_every_parameter_learns():
    model = tiny(positions="learned", tie="none", norm_first=True, max_len=3, dropout=0.0)
    src = torch.tensor([[1, 2, 3], [4, 5, 6]])
    model(src, src).square().sum().backward()
    for name, parameter in model.named_parameters():
        # a bias of the keys moves all scores of a query alike: softmax does not see it
        assert parameter.grad is not None, name
        assert parameter.grad.any() or name.endswith("k_proj.bias"), name


def test_dropout_has_its_seventeen_sites():
    """Embeddings with positions, and each sub-layer's output (Vaswani et al. 2017, section 5.4)."""
    model = tiny(n_encoder_layers=3, n_decoder_layers=3, dropout=0.1)
    sites = [name for name, module in model.named_modules() if isinstance(module, Dropout) and module.p > 0]
    assert len(sites) == 2 + 3 * 2 + 3 * 3
    assert all(name.endswith(("embedding.dropout", "residual.dropout")) for name in sites)
    inner = tiny(dropout=0.0, attention_dropout=0.2, activation_dropout=0.3)
    assert {m.p for name, m in inner.named_modules() if name.endswith("feed_forward.dropout")} == {0.3}
    assert inner.encoder.blocks[0].self_attention.attend.dropout == 0.2


def test_dropout_acts_in_training_only():
    torch.manual_seed(1)
    model, src = tiny(dropout=0.5), torch.tensor([[1, 2, 3]])
    assert not model(src, src).equal(model(src, src))
    model.eval()
    assert model(src, src).equal(model(src, src))


def test_learned_positions_end_and_sinusoids_do_not():
    text = torch.ones(1, 6, dtype=torch.long)
    assert tiny(max_len=4)(text, text).shape == (1, 6, 11)
    learned = tiny(max_len=4, positions="learned")
    with pytest.raises(ValueError, match="the text has 6 tokens"):
        learned(text, text[:, :2])
    cache = learned.start(text[:, :4], capacity=9)
    learned.step(text[:, :4], cache)
    with pytest.raises(ValueError, match="the text has 5 tokens"):
        learned.step(text[:, :1], cache)


def test_a_model_of_any_accepted_shape_runs():
    text = torch.tensor([[1, 2, 3]])
    odd = tiny(d_model=9, n_heads=3, n_kv_heads=1, d_ff=5, activation="gelu", norm_first=True, norm_eps=0.0)
    assert odd(text, text).isfinite().all()
    assert tiny(embedding_scale=False).source_embedding.tokens.scale == 1.0
    assert tiny(norm_eps=0.25).encoder.blocks[0].feed_forward_residual.norm.eps == 0.25
