"""The models that figures are drawn of."""

import numpy as np

from attendo.model_config import ModelConfig

CLASSIFIER = ModelConfig(  # the NYU lecture's, on IMDB
    architecture="classifier",
    vocab_size=50_002,
    d_model=32,
    d_ff=128,
    n_heads=2,
    n_encoder_layers=1,
    n_decoder_layers=0,
    n_classes=2,
    pooling="max",
    embedding_norm_eps=1e-12,
    embedding_scale=False,
    attention_bias=False,
    attention_out_bias=True,
)


GPT2 = ModelConfig(
    architecture="decoder",
    vocab_size=50_257,
    d_model=768,
    d_ff=3072,
    n_heads=12,
    n_encoder_layers=0,
    n_decoder_layers=12,
    max_len=1024,
    norm_first=True,
    activation="gelu_tanh",
    positions="learned",
    embedding_scale=False,
)


MASKED = ModelConfig(
    architecture="masked",
    vocab_size=300,
    d_model=24,
    d_ff=40,
    n_heads=4,
    n_encoder_layers=2,
    n_decoder_layers=0,
    max_len=50,
    positions="learned",
    activation="gelu",
    output_bias=True,
)


MIXED = ModelConfig(
    vocab_size=300,
    d_model=24,
    d_ff=40,
    n_heads=6,
    n_kv_heads=2,
    value_dim=3,
    n_encoder_layers=2,
    n_decoder_layers=4,
    norm="rms",
    norm_first=True,
    activation="silu",
    feed_forward_gated=True,
    positions="rotary",
    tie="none",
)


def encoding(length, d, base=10000.0):
    """PE[p, 2i] = sin(p / base^(2i/d)), PE[p, 2i+1] = cos(p / base^(2i/d)), entry by entry."""
    table = np.zeros((length, d))
    for p in range(length):
        for j in range(d):
            angle = p / base ** (2 * (j // 2) / d)
            table[p, j] = np.cos(angle) if j % 2 else np.sin(angle)
    return table
