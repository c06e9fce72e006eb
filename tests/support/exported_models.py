"""Untrained models of random shapes and run folders around them, for the tests of exports."""

import dataclasses

import numpy as np
import torch
from tiny_translator import tiny_tokenizer

from attendo.bundle import Bundle, save_description, save_weights
from attendo.data import forecasts
from attendo.models import EncoderDecoder, ModelConfig, build_model

TASKS = {
    "encoder-decoder": "translation",
    "decoder": "language-model",
    "classifier": "classification",
    "masked": "masked-language-model",
}


def drawn_options(seed, architecture):
    """Keys of [model], drawn over every option that CTranslate2 can express."""
    rng = np.random.default_rng([seed, *architecture.encode()])

    def one_of(*values):
        return values[rng.integers(len(values))]

    positions = one_of("sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative", "none")
    layers = int(rng.integers(1, 3))
    options = {
        "architecture": architecture,
        "d_model": 16,
        "d_ff": 24,
        "n_heads": one_of(4, 3) if positions == "alibi" else 4,
        "n_kv_heads": None if positions == "alibi" else one_of(None, 2, 1),
        "head_dim": 6 if positions == "alibi" else one_of(None, 6),
        "n_encoder_layers": 0 if architecture == "decoder" else layers,
        "n_decoder_layers": layers if architecture in ("decoder", "encoder-decoder") else 0,
        "max_len": 48,
        "dropout": 0.0,
        "attention_scale": one_of(None, 0.3),
        "attention_bias": one_of(True, False),
        "attention_out_bias": one_of(None, True),
        "attention_norm": architecture != "encoder-decoder" and one_of(False, False, True),
        "norm": one_of("layer", "rms"),
        "norm_first": one_of(True, False),
        "norm_eps": one_of(1e-5, 1e-3),
        "activation": one_of("relu", "gelu", "gelu_tanh", "silu"),
        "feed_forward_gated": one_of(True, False),
        "feed_forward_bias": one_of(True, False),
        "positions": positions,
        "embedding_scale": one_of(True, False),
        "tie": one_of("all", "output", "input", "none"),
        "output_bias": architecture == "encoder-decoder" or one_of(True, False),
    }
    if rng.integers(2):
        options["embedding_norm_eps"] = options["norm_eps"]
    match positions:
        case "sinusoidal":
            options |= {
                "position_order": one_of("sincos", "cossin", "halves"),
                "position_start": one_of(0, 1),
            }
        case "rotary":
            options["position_base"] = one_of(10000.0, 500.0, "length")
        case "inverse":
            options["position_start"] = 1
        case "relative":
            options |= {"position_buckets": one_of(8, 32), "position_reach": one_of(20, 128)}
    if architecture == "classifier":
        options |= {"n_classes": one_of(3, 0), "pooling": one_of("mean", "max", "first"), "tie": "none"}
        options |= {"d_output": one_of(None, 12), "output_activation": one_of("tanh", "relu")}
    return options


def noisy_model(config, seed=0, scale=0.4):
    """A model whose every number is drawn, biases and norms too."""
    torch.manual_seed(seed)
    model = build_model(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, std=scale, mean=float(name.endswith("norm.weight")))
    if isinstance(model, EncoderDecoder) and config.output_bias:
        model.output_proj.bias.data[[0, 2]] = -99.0  # pad and bos, which attendo never gives
    return model


def run_folder(folder, options, *, tokenizer=None, seed=0, card=None, decoding=None):
    """A run folder of an untrained model with these keys of [model], and what is in it: (folder, bundle, model)."""
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    config = ModelConfig(vocab_size=tokenizer.vocab_size, **options)
    model = noisy_model(config, seed)
    tables = {"model": {key: value for key, value in dataclasses.asdict(config).items() if value is not None}}
    if config.architecture == "encoder-decoder":
        tables["decoding"] = {"beam": 3, "max_length_ratio": 1.0, "max_length_extra": 4} | (decoding or {})
    facts = {"task": TASKS[config.architecture], "decoding": tables.get("decoding", {})} | (card or {})
    bundle = Bundle(tables, tokenizer, facts)
    save_description(folder, bundle)
    save_weights(folder, model, bundle, step=0)
    return folder, bundle, model


def sentences(n):
    """English ones."""
    return tuple(source for source, _ in forecasts.pairs(n, "valid"))
