"""The two models of the lesson on words in context, a masked model and a translator, and their noun vectors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from attendo.data.batches import pad_rows
from attendo.data.masking import hidden_tokens
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder, MaskedLM
from attendo.nn.layers import InputEmbedding
from attendo_course.lessons.arrays import NO_TARGET, ArrayTask, Examples, Training, seeded, trained
from attendo_course.lessons.contexts_words import (
    FRAMES,
    Clause,
    CueSet,
    Noun,
    Sentence,
    clauses,
    drawn,
    words,
)

STATIC = "static"
"""The name of the layer with the embedding of a word alone, without its position."""
N_LAYERS = 2
HIDDEN_SHARE = 0.25
BATCH_ROWS = 64
_SIZES = {"d_model": 64, "d_ff": 128, "n_heads": 4, "dropout": 0.0, "max_len": 64}


DrawTexts = Callable[[np.random.Generator, int], Sequence[str]]
"""A function that draws a number of English sentences from a random generator."""


def tokenizer(texts: Iterable[str] | None = None) -> Tokenizer:
    """Return a tokenizer with one id per word of the texts (default: the English and Japanese words of the corpus)."""
    return train_tokenizer(words() if texts is None else texts, TokenizerConfig(kind="word"))


def texts_of(sentences: Iterable[Sentence]) -> list[str]:
    """Return the English text of each sentence."""
    return [sentence.english for sentence in sentences]


def english_drawn(rng: np.random.Generator, n: int) -> list[str]:
    """Draw English sentences from the clauses that are not held out."""
    return texts_of(drawn(rng, n))


def pairs(sentences: Sequence[Sentence], tokens: Tokenizer) -> Examples:
    """Return input for a translator: `src` = English + eos, `tgt` = bos + Japanese, targets = Japanese + eos."""
    source = english(texts_of(sentences), tokens)
    targets = [[*tokens.encode(sentence.japanese), tokens.eos_id] for sentence in sentences]
    tgt = pad_rows([[tokens.bos_id, *ids[:-1]] for ids in targets], tokens.pad_id)[0]
    return Examples(source | {"tgt": tgt}, pad_rows(targets, NO_TARGET)[0])


def hidden_words(texts: Sequence[str], tokens: Tokenizer, rng: np.random.Generator) -> Examples:
    """Return English + eos as `src`, with a quarter of the words masked, and the masked words as targets."""
    source = english(texts, tokens)
    shown, wanted = zip(
        *(hidden_tokens(ids, HIDDEN_SHARE, "mask", tokens.vocab_size, rng, NO_TARGET) for ids in source["src"].numpy()),
        strict=True,
    )
    src, targets = torch.from_numpy(np.stack(shown)), torch.from_numpy(np.stack(wanted))
    return Examples(source | {"src": src}, targets)


def english(texts: Sequence[str], tokens: Tokenizer) -> dict[str, Tensor]:
    """Return English sentences with eos as padded ids in `src`, and their lengths in `src_lengths`."""
    rows = [[*tokens.encode(text), tokens.eos_id] for text in texts]
    return {"src": pad_rows(rows, tokens.pad_id)[0], "src_lengths": torch.tensor([len(row) for row in rows])}


def new_masked_model(tokens: Tokenizer, seed: int, positions: Literal["sinusoidal", "none"] = "sinusoidal") -> MaskedLM:
    """Return a masked model with random weights."""
    config = ModelConfig(
        architecture="masked",
        vocab_size=tokens.vocab_size,
        n_encoder_layers=N_LAYERS,
        n_decoder_layers=0,
        positions=positions,
        **_SIZES,
    )
    return seeded(lambda: MaskedLM(config), seed).eval()


def masked_model(
    model: MaskedLM, tokens: Tokenizer, draw: DrawTexts, test: Sequence[str], steps: int, seed: int
) -> Training:
    """Train a model in place on masked words of drawn English sentences, and compute its measures on `test`."""
    held = hidden_words(test, tokens, np.random.default_rng(0))
    task = ArrayTask(lambda rng, n: hidden_words(draw(rng, n), tokens, rng), held, BATCH_ROWS)
    return _trained(model, task, steps, seed)


def new_translator(tokens: Tokenizer, seed: int) -> EncoderDecoder:
    """Return a translator with random weights."""
    config = ModelConfig(vocab_size=tokens.vocab_size, n_encoder_layers=N_LAYERS, n_decoder_layers=N_LAYERS, **_SIZES)
    return seeded(lambda: EncoderDecoder(config), seed).eval()


def translator(tokens: Tokenizer, test: Sequence[Sentence], steps: int, seed: int) -> Training:
    """Train an encoder-decoder that translates newly drawn sentences. The measures are computed on `test`."""
    task = ArrayTask(lambda rng, n: pairs(drawn(rng, n), tokens), pairs(test, tokens), BATCH_ROWS)
    return _trained(new_translator(tokens, seed), task, steps, seed)


def _trained(model: EncoderDecoder | MaskedLM, task: ArrayTask, steps: int, seed: int) -> Training:
    return trained(model, task, steps, 3e-3, seed, warmup_steps=100, decay_share=0.5)


def layers(model: EncoderDecoder | MaskedLM) -> list[str]:
    """Return the names of the layers in the order in which a sentence passes through them.

    "static" is the embedding without its position. "decoder 0" is the decoder's embedding of the previous word, with
    its position.
    """
    encoder = [STATIC, *(f"encoder {layer + 1}" for layer in range(N_LAYERS))]
    if isinstance(model, MaskedLM):
        return encoder
    return [*encoder, *(f"decoder {layer}" for layer in range(N_LAYERS + 1))]


def word_vectors(
    model: MaskedLM, tokens: Tokenizer, texts: Sequence[str], places: Sequence[int]
) -> Mapping[str, Float[ndarray, "texts d_model"]]:
    """Return, for each layer of a masked model, the vector of the word at this place in each text.

    The places start at 0. The model is run in float64, which leaves no difference between vectors that are equal by
    the theory.
    """
    precise = copy.deepcopy(model).double()
    return _vectors(precise, precise.embedding, english(texts, tokens), places)


def noun_vectors(
    model: EncoderDecoder | MaskedLM, tokens: Tokenizer, sentences: Sequence[Sentence]
) -> Mapping[str, Float[ndarray, "sentences d_model"]]:
    """Return, for each layer, the vectors at the noun in the first clause of each sentence.

    In the encoder, the vectors are at the position of the noun. In the decoder, they are at the position that
    predicts its translation.
    """
    source = [sentence.source_place(0) for sentence in sentences]
    if isinstance(model, MaskedLM):
        return word_vectors(model, tokens, texts_of(sentences), source)
    target = [sentence.target_place(0) for sentence in sentences]
    return _vectors(model, model.source_embedding, pairs(sentences, tokens).inputs, source, target)


@torch.no_grad()
def _vectors(
    model: EncoderDecoder | MaskedLM,
    embedding: InputEmbedding,
    inputs: Mapping[str, Tensor],
    source: Sequence[int],
    target: Sequence[int] = (),
) -> Mapping[str, Float[ndarray, "sentences d_model"]]:
    """Return the vectors of each layer, for the encoder at the places `source`, for the decoder at `target`."""
    rows = np.arange(len(source))
    with recording(model.eval(), ["*embedding.output", "*.blocks.?.output"]) as record:
        record.model.hidden(**inputs)
        found = [embedding.tokens(inputs["src"])[rows, source]]
        found += [record[f"encoder.blocks.{layer}"].output[rows, source] for layer in range(N_LAYERS)]
        if isinstance(model, EncoderDecoder):
            paths = ["target_embedding", *(f"decoder.blocks.{layer}" for layer in range(N_LAYERS))]
            found += [record[path].output[rows, target] for path in paths]
    return {name: vectors.double().numpy() for name, vectors in zip(layers(model), found, strict=True)}


def contexts(nouns: Sequence[Noun], cues: CueSet, rng: np.random.Generator, *, unseen: bool) -> list[Sentence]:
    """Return sentences whose first clause is about a noun and contains one cue for its kind, in all frames.

    With `unseen`, the clauses are held out of training. Without `unseen`, the clauses are in the training data. Half
    of the sentences have a second clause about another noun, drawn as in training, which contains no information
    about the first noun.
    """
    others = [sentence.clauses[0] for sentence in drawn(rng, 200)]
    return [
        Sentence((clause, *_second(others, noun, rng)), frame)
        for noun in nouns
        for clause in clauses(noun, cues)
        if clause.held_out == unseen
        for frame in FRAMES
    ]


def _second(others: Sequence[Clause], noun: Noun, rng: np.random.Generator) -> Iterator[Clause]:
    other = others[int(rng.integers(len(others)))]
    if rng.random() < 0.5 and other.noun.source != noun.source:
        yield other
