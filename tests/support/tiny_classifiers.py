"""A small classifier with random weights."""

from pathlib import Path

import torch

from attendo.bundle import Bundle, save_description, save_weights
from attendo.config import to_table
from attendo.data.labelled import LongTexts
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.inference.classifier import Classifier
from attendo.models import EncoderClassifier, ModelConfig, build_model

TEXTS = ["the sky is clear", "rain", "snow falls in the north of the country today", "the rain ends", "?"]


COUNTS = {"cold": 10, "dry": 60, "wet": 30}


TOKENIZER = train_tokenizer(TEXTS * 9, TokenizerConfig(vocab_size=360))


def config(**changes) -> ModelConfig:
    shape = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 0}
    return ModelConfig(
        **{
            "architecture": "classifier",
            "vocab_size": TOKENIZER.vocab_size,
            "n_classes": 3,
            **shape,
            **changes,
        }
    )


def classifier(temperature: float = 1.0, long: LongTexts | None = None, **changes) -> Classifier:
    torch.manual_seed(3)
    model = EncoderClassifier(config(**changes)).double().eval()
    model.output_proj.weight.data *= 2  # so that texts differ
    return Classifier(model, TOKENIZER, COUNTS, temperature, long or LongTexts())


def saved(folder: Path, model_config: ModelConfig, card: dict, **data) -> Path:
    torch.manual_seed(0)
    bundle = Bundle({"model": to_table(model_config), "data": data}, TOKENIZER, card)
    save_description(folder, bundle)
    save_weights(folder, build_model(model_config), bundle, 1)
    return folder
