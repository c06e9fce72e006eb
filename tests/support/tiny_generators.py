"""Small generators with random weights."""

import functools

import torch
from tiny_decoder import tiny_decoder

from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.decoding.sampling import SamplingConfig
from attendo.inference.generator import Generator

TEXTS = ["the sun is out", "the rain is here, a wind in the east", "naïve Ωmega 雨が降る 😀 a b c"]

KINDS = ("bpe", "unigram", "word", "character", "byte")


BOS, EOS = 2, 3


@functools.cache
def tokenizer_of(kind):
    size = 330 if kind in ("bpe", "unigram") else None
    return train_tokenizer(TEXTS * 9, TokenizerConfig(kind=kind, vocab_size=size))


def generator_of(kind="character", max_len=12, **decoding):
    """A random model in float64; its end is improbable, so that texts are long."""
    tokenizer = tokenizer_of(kind)
    model = tiny_decoder(tokenizer.vocab_size, max_len).double().eval()
    return Generator(model, tokenizer, SamplingConfig(**decoding))


def assistant_of(kind="character", max_len=64, **decoding):
    """A random model with a chat template, ready to answer."""
    tokenizer = tokenizer_of(kind).with_chat()
    model = tiny_decoder(tokenizer.vocab_size, max_len).double().eval()
    return Generator(model, tokenizer, SamplingConfig(**decoding)).prepare()


def biased(generator, bias):
    """The same generator with these numbers added to the logits of these ids."""
    proj = torch.nn.Linear(8, generator.tokenizer.vocab_size).double()
    with torch.no_grad():
        proj.weight.copy_(generator.model.output_proj.weight)
        proj.bias.zero_()
        for token_id, value in bias.items():
            proj.bias[token_id] = value
    generator.model.output_proj = proj
    return generator
