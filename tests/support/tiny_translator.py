"""An untrained translator of one layer, in memory or as a run folder: what it says is noise, but always the same."""

import dataclasses
from pathlib import Path

import torch

from attendo.bundle import Bundle, save_description, save_weights
from attendo.data import forecasts
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.options import DecodingConfig
from attendo.inference.generator import Generator
from attendo.inference.translator import Translator
from attendo.models import EncoderDecoder, ModelConfig

SHAPE = {
    "d_model": 16,
    "d_ff": 16,
    "n_heads": 2,
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
    "dropout": 0.0,
}


def tiny_tokenizer(kind: str = "bpe", seed: int = 0) -> Tokenizer:
    texts = [text for pair in forecasts.pairs(60, "train")[seed:] for text in pair]
    return train_tokenizer(texts, TokenizerConfig(kind=kind, vocab_size=260 if kind == "byte" else 560))


def tiny_translator(tokenizer: Tokenizer, seed: int = 0, scale: float = 0.5, **options) -> Translator:
    """options: keys of the model's or of the search's configuration. scale: how sure the model is of what it says."""
    searching = {field.name for field in dataclasses.fields(DecodingConfig)}
    decoding = {"beam": 2, "max_length_ratio": 0.0, "max_length_extra": 8}
    decoding |= {key: value for key, value in options.items() if key in searching}
    shape = SHAPE | {key: value for key, value in options.items() if key not in searching}
    torch.manual_seed(seed)
    model = EncoderDecoder(ModelConfig(vocab_size=tokenizer.vocab_size, tie="none", **shape)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=scale)
    return Translator(model, tokenizer, DecodingConfig(**decoding))


def save_run(folder: Path, user: Translator | Generator, task: str = "translation") -> Path:
    """The model as a run folder."""
    tables = {
        name: {key: value for key, value in dataclasses.asdict(config).items() if value is not None}
        for name, config in (("model", user.model.config), ("decoding", user.decoding))
    }
    bundle = Bundle(tables, user.tokenizer, {"task": task, "decoding": tables["decoding"]})
    save_description(folder, bundle)
    save_weights(folder, user.model, bundle, step=0)
    return folder
