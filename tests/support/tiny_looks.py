"""Looks at small models of each task."""

import torch
from tiny_translator import SHAPE, tiny_tokenizer, tiny_translator

from attendo.data import forecasts
from attendo.inference import Classifier, Embedder, Generator
from attendo.microscope.protocol import LookRequest
from attendo.microscope.run_model import look
from attendo.models import DecoderLM, EncoderClassifier, MaskedLM, ModelConfig

TOKENIZER = tiny_tokenizer()


PAIRS = sorted(forecasts.pairs(200, "train"), key=lambda pair: len(pair[0]))[:5]
"""Short ones."""


FAMILIES = ("translation", "classification", "language-model", "masked-language-model")


LAYERS = {
    "classification": ("classifier", 2, 0),
    "language-model": ("decoder", 0, 2),
    "masked-language-model": ("masked", 2, 0),
}


def tiny_user(family="translation", scale=0.4, **options):
    """A user object of two layers on each side, with random weights."""
    if family == "translation":
        options = {"n_encoder_layers": 2, "n_decoder_layers": 2} | options
        return tiny_translator(TOKENIZER, scale=scale, **options)
    architecture, n_encoder_layers, n_decoder_layers = LAYERS[family]
    shape = SHAPE | {"n_encoder_layers": n_encoder_layers, "n_decoder_layers": n_decoder_layers}
    classes = {"n_classes": 3} if family == "classification" else {}
    config = ModelConfig(
        architecture=architecture, vocab_size=TOKENIZER.vocab_size, tie="none", **(shape | classes | options)
    )
    torch.manual_seed(1)
    kinds = {"classifier": EncoderClassifier, "decoder": DecoderLM, "masked": MaskedLM}
    model = kinds[architecture](config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=scale)
    if family == "classification":
        return Classifier(model, TOKENIZER, {"rain": 3, "snow": 1, "sun": 2}, temperature=1.7)
    return (Generator if family == "language-model" else Embedder)(model, TOKENIZER)


def tiny_look(family="translation", folder=None, user=None, **ask):
    """A look at the first text of the built-in corpus."""
    asked = {"text": PAIRS[0][0], "max_tokens": 5} | ask
    return look(tiny_user(family) if user is None else user, LookRequest(**asked), folder)
