"""What a model's configuration refuses, and how it says so."""

import pytest
import torch

from attendo.config import build, to_table
from attendo.model_config import ModelConfig
from attendo.models import build_model

SIZES = {"vocab_size": 11, "d_model": 8, "d_ff": 12, "n_heads": 2}
DECODER = {"architecture": "decoder", "n_encoder_layers": 0}
CLASSIFIER = {"architecture": "classifier", "n_decoder_layers": 0, "n_classes": 2}
MASKED = {"architecture": "masked", "n_decoder_layers": 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architecture": "gpt"},
            "architecture='gpt' must be one of encoder-decoder, classifier, decoder, masked",
        ),
        ({"architecture": "decoder"}, "n_encoder_layers=3 must be 0 with architecture='decoder'"),
        ({"architecture": "masked"}, "n_decoder_layers=3 must be 0 with architecture='masked'"),
        (
            DECODER | {"n_decoder_layers": 0},
            "n_decoder_layers=0 must be at least 1 with architecture='decoder'",
        ),
        (CLASSIFIER | {"n_classes": -1}, "n_classes=-1 must be at least 0"),
        ({"n_classes": 2}, "n_classes=2 has no effect with architecture='encoder-decoder'"),
        (MASKED | {"pooling": "max"}, "pooling='max' has no effect with architecture='masked'"),
        (DECODER | {"d_output": 8}, "d_output=8 has no effect with architecture='decoder'"),
        (MASKED | {"d_output": 4}, "d_output=4 differs from d_model=8.*Set tie='none'"),
        (
            {"positions": "alibi", "position_base": 50.0},
            "position_base=50.0 has no effect with positions='alibi'",
        ),
        ({"position_buckets": 8}, "position_buckets=8 has no effect with positions='sinusoidal'"),
        ({"positions": "relative", "position_buckets": 2}, "position_buckets=2 must be at least 4"),
        ({"positions": "relative", "position_reach": 16}, r"less than 2 \* position_reach=32"),
        ({"positions": "learned", "position_start": 1}, "set positions to sinusoidal or ramp or inverse"),
        ({"positions": "ramp", "position_order": "halves"}, "position_order='halves' has no effect"),
        (
            {"positions": "inverse"},
            "position_start=0 divides by 0 with positions='inverse'. Set position_start=1",
        ),
        ({"positions": "rotary", "head_dim": 3}, "positions='rotary' requires an even head_dim, not 3"),
        ({"position_base": -1.0}, "position_base=-1.0 must be a number above 0, or 'length'"),
        ({"position_base": float("nan")}, "position_base=nan must be a number above 0"),
        ({"position_start": 2}, "position_start=2 must be one of 0, 1"),
        ({"norm": "batch"}, "norm='batch' must be one of layer, rms"),
        ({"embedding_norm_eps": -1.0}, "embedding_norm_eps=-1.0 must be at least 0"),
        ({"head_dim": 0}, "head_dim=0 must be at least 1"),
        ({"pad_id": 11}, "pad_id=11 must be at least 0 and below 11"),
        ({"positions": "rotary", "no_rope_interval": -2}, "no_rope_interval=-2 must be at least 0"),
        ({"positions": "rotary", "no_rope_interval": True}, "no_rope_interval=True must be at least 0"),
        (
            {"attention_windows": (4, -1)},
            r"attention_windows has the entry -1 \(expected 0 or a number of tokens\)",
        ),
        ({"attention_softcap": 0.0}, "attention_softcap=0.0 must be a number above 0"),
        ({"output_softcap": 3.0}, "output_softcap=3.0 has no effect with architecture='encoder-decoder'"),
        (
            {"positions": "rotary", "local_position_base": 9.0},
            "local_position_base has no effect without attention_windows",
        ),
        ({"norm_first_block": False}, "norm_first_block=False has no effect with norm_first=False"),
        (CLASSIFIER | {"output_norm": True}, "output_norm=True requires a hidden layer before the logits"),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**(SIZES | change))


@pytest.mark.parametrize("base", [10000.0, "length"])
def test_a_configuration_is_read_as_it_was_written(base):
    config = ModelConfig(**SIZES, position_base=base, embedding_norm_eps=0.0, head_dim=6)
    assert build(ModelConfig, to_table(config), "here") == config


@pytest.mark.parametrize("architecture", [{}, DECODER, CLASSIFIER, MASKED], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "rms", "norm_eps": 0.0, "norm_first": True},
        {"positions": "rotary", "n_kv_heads": 1, "feed_forward_gated": True, "activation": "silu"},
        {"positions": "alibi", "feed_forward_bias": False, "attention_bias": False},
        {"positions": "ramp", "position_start": 1, "embedding_scale": False},
        {"positions": "inverse", "position_start": 1, "pad_id": 0},
        {"positions": "none", "attention_scale": 1.0, "attention_out_bias": True, "attention_bias": False},
        {"position_base": "length", "position_first_index": 1, "position_order": "halves", "max_len": 50},
        {"d_model": 7, "n_heads": 1, "position_order": "cossin"},
        {"head_dim": 5, "value_dim": 3, "tie": "none", "initialization": "normal"},
        {"embedding_norm_eps": 1e-12, "activation": "gelu_tanh"},
    ],
    ids=str,
)
def test_options_go_with_every_architecture(architecture, options):
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    config = ModelConfig(**(SIZES | {"max_len": 9} | layers | architecture | options))
    model = build_model(config).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    logits = model(ids, ids) if config.architecture == "encoder-decoder" else model(ids)
    assert logits.isfinite().all()
    logits.sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == []
