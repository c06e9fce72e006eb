"""Small models of every kind that a decoder can be built as, for the compiled functions."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from attendo.decoding.native.library import NoLibrary, library
from attendo.models import DecoderLM, EncoderDecoder, ModelConfig, build_model

try:
    library()
except NoLibrary as reason:
    pytest.skip(f"nothing is compiled here: {reason}", allow_module_level=True)

VOCAB = 37


@st.composite
def configs(draw) -> ModelConfig:
    """Every way of building a decoder, in sizes that fill no vector."""
    heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]))
    options: dict[str, Any] = {
        "architecture": draw(st.sampled_from(["encoder-decoder", "decoder"])),
        "d_model": 12,
        "d_ff": draw(st.sampled_from([8, 20, 70])),
        "n_heads": heads[0],
        "n_kv_heads": heads[1],
        "head_dim": draw(st.sampled_from([None if heads[0] < 4 else 4, 6, 20, 66])),
        "value_dim": draw(st.sampled_from([None, 5, 16, 81])),
        "n_decoder_layers": draw(st.integers(1, 3)),
        "n_encoder_layers": 2,
        "max_len": 24,
        "dropout": 0.2,
        "attention_scale": draw(st.sampled_from([None, 0.7])),
        "attention_bias": draw(st.booleans()),
        "attention_norm": draw(st.booleans()),
        "attention_out_bias": draw(st.sampled_from([None, True, False])),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "norm_first": draw(st.booleans()),
        "activation": draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        "feed_forward_gated": draw(st.booleans()),
        "feed_forward_bias": draw(st.booleans()),
        "positions": draw(st.sampled_from(["learned", "sinusoidal", "rotary", "alibi", "relative", "ramp", "none"])),
        "embedding_scale": draw(st.booleans()),
        "embedding_norm_eps": draw(st.sampled_from([None, 1e-5])),
        "tie": draw(st.sampled_from(["all", "none"])),
        "output_bias": draw(st.booleans()),
        "attention_windows": draw(st.sampled_from([(), (3,), (0, 2), (5, 0, 17)])),
        "attention_softcap": draw(st.sampled_from([None, 0.5, 20.0])),
        "norm_output": draw(st.booleans()),
    }
    if options["architecture"] == "decoder":
        options["n_encoder_layers"] = 0
        options["output_softcap"] = draw(st.sampled_from([None, 1.5]))
    elif options["norm_first"]:
        options["norm_first_block"] = draw(st.booleans())
    if options["positions"] == "rotary" and draw(st.booleans()):  # scaled, as in Llama 3
        width = options["head_dim"] or options["d_model"] // options["n_heads"]
        options["position_frequencies"] = tuple(0.5 / (1 + i) for i in range(width // 2))
    if options["positions"] == "rotary":
        options["no_rope_interval"] = draw(st.sampled_from([0, 2]))
        if options["attention_windows"]:
            options["local_position_base"] = draw(st.sampled_from([None, 7.0]))
    return ModelConfig(vocab_size=VOCAB, **options)


def model_of(config: ModelConfig, seed: int = 0) -> EncoderDecoder | DecoderLM:
    torch.manual_seed(seed)
    model = build_model(config)
    assert isinstance(model, EncoderDecoder | DecoderLM)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


def sources(n: int, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, VOCAB, rng.integers(1, 9)).tolist() for _ in range(n)]


def translator(**options: Any) -> EncoderDecoder:
    sizes: dict[str, Any] = {
        "d_model": 32,
        "d_ff": 48,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 2,
    }
    model = model_of(ModelConfig(vocab_size=VOCAB, dropout=0.1, **sizes | options))
    assert isinstance(model, EncoderDecoder)
    return model
