"""A small embedder of each architecture."""

import torch

from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.inference.embedder import Embedder
from attendo.model_config import ModelConfig
from attendo.models import build_model

LAYERS = {
    "encoder-decoder": {"n_encoder_layers": 2, "n_decoder_layers": 1},
    "classifier": {"n_encoder_layers": 2, "n_decoder_layers": 0, "n_classes": 2},
    "decoder": {"n_encoder_layers": 0, "n_decoder_layers": 2},
    "masked": {"n_encoder_layers": 2, "n_decoder_layers": 0},
}


def embedder(architecture, seed=0):
    tokenizer = train_tokenizer(["ab ba"], TokenizerConfig(kind="character"))
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "d_ff": 16, "n_heads": 2, "max_len": 16}
    torch.manual_seed(seed)
    model = build_model(ModelConfig(architecture=architecture, norm_first=True, **sizes, **LAYERS[architecture]))
    return Embedder(model.eval(), tokenizer)
