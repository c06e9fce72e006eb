"""Untrained models of every family for the microscope to look at: what they say is noise, but always the same."""

import torch

from attendo.data import forecasts
from attendo.data.labelled import LongTexts
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.options import DecodingConfig
from attendo.inference import Classifier, Embedder, Generator, Tagger, Translator
from attendo.models import ModelConfig, build_model

FAMILIES = ("translation", "language-model", "classification", "masked-language-model")
ARCHITECTURES = {
    "translation": "encoder-decoder",
    "language-model": "decoder",
    "classification": "classifier",
    "tagging": "classifier",
    "masked-language-model": "masked",
}
HOSTILE = (
    '</script><img/src=x/onerror="window.harmed=1">', "<!--<script>", "שלום", "مرحبا", "👩‍👩‍👧‍👦", "🏳️‍🌈",
    "e\u0301\u202e", "x" * 2000, "@@ANSWERS@@",
)  # fmt: skip
"""Words that harm a careless page."""


def hostile_tokenizer() -> Tokenizer:
    """A tokenizer of words that has the hostile ones as single tokens."""
    texts = [" ".join(HOSTILE)] * 3 + [source for source, _ in forecasts.pairs(40, "train")]
    return train_tokenizer(texts, TokenizerConfig(kind="word", vocab_size=400))


def looked_model(family: str, tokenizer: Tokenizer, *, seed: int = 0, scale: float = 0.3, **options):
    """A Translator, Generator, Classifier or Embedder of random weights; options: keys of the model's configuration."""
    shape = {"d_model": 16, "d_ff": 16, "n_heads": 2, "dropout": 0.0, "max_len": 600, "tie": "none"}
    layers = {"n_encoder_layers": 2, "n_decoder_layers": 2}
    if family == "language-model":
        layers["n_encoder_layers"] = 0
    elif family != "translation":
        layers["n_decoder_layers"] = 0
    if family == "classification":
        shape["n_classes"] = 3
    if family == "tagging":
        shape |= {"n_classes": 5, "pooling": "none"}
    torch.manual_seed(seed)
    settings = shape | layers | options
    config = ModelConfig(architecture=ARCHITECTURES[family], vocab_size=tokenizer.vocab_size, **settings)
    model = build_model(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=scale)
    match family:
        case "translation":
            return Translator(model, tokenizer, DecodingConfig(beam=3, max_length_ratio=1.0, max_length_extra=4))
        case "language-model":
            return Generator(model, tokenizer)
        case "classification":
            counts = {"rain": 5, "snow": 3, "sun": 2}
            return Classifier(model, tokenizer, counts, long_texts=LongTexts(max_tokens=config.max_len - 1))
        case "tagging":
            return Tagger(model, tokenizer, {"LOC": 1, "PER": 1})
        case _:
            return Embedder(model, tokenizer)


def text_of(tokenizer: Tokenizer, n_tokens: int) -> str:
    """A text of exactly so many tokens, or as many as whole words allow."""
    words = " ".join(source for source, _ in forecasts.pairs(n_tokens // 4 + 2, "train")).split()
    n, text = 0, ""
    while len(tokenizer.encode(text)) < n_tokens:
        text, n = " ".join(words[: n + 1]), n + 1
    return text if len(tokenizer.encode(text)) <= n_tokens else " ".join(words[: n - 1])
