"""The two models of the lesson on words in context, a masked one and a translator, and their vectors of a noun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from attendo.data.batches import pad_rows
from attendo.data.masking import hidden_tokens
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.inspecting.recording import recording
from attendo.model_config import ModelConfig
from attendo.models import EncoderDecoder, MaskedLM
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
"""Names the embedding of a word alone, without a place."""
N_LAYERS = 2
HIDDEN_SHARE = 0.25
BATCH_ROWS = 64
_SIZES = {"d_model": 64, "d_ff": 128, "n_heads": 4, "dropout": 0.0, "max_len": 64}


def tokenizer() -> Tokenizer:
    """A tokenizer with one id for each English and Japanese word of the corpus."""
    return train_tokenizer(words(), TokenizerConfig(kind="word"))


def pairs(sentences: Sequence[Sentence], tokens: Tokenizer) -> Examples:
    """`src`: English and the end; `tgt`: the start and Japanese; targets: Japanese and the end."""
    source = english(sentences, tokens)
    targets = [[*tokens.encode(sentence.japanese), tokens.eos_id] for sentence in sentences]
    tgt = pad_rows([[tokens.bos_id, *ids[:-1]] for ids in targets], tokens.pad_id)[0]
    return Examples(source | {"tgt": tgt}, pad_rows(targets, NO_TARGET)[0])


def hidden_words(sentences: Sequence[Sentence], tokens: Tokenizer, rng: np.random.Generator) -> Examples:
    """`src`: English with a quarter of the words hidden, and the end; targets: the hidden ones."""
    source = english(sentences, tokens)
    shown, wanted = zip(
        *(
            hidden_tokens(ids, HIDDEN_SHARE, "mask", tokens.vocab_size, rng, NO_TARGET)
            for ids in source["src"].numpy()
        ),
        strict=True,
    )
    src, targets = torch.from_numpy(np.stack(shown)), torch.from_numpy(np.stack(wanted))
    return Examples(source | {"src": src}, targets)


def english(sentences: Sequence[Sentence], tokens: Tokenizer) -> dict[str, torch.Tensor]:
    """`src`: English and the end, padded; `src_lengths`: the real ones of each row."""
    rows = [[*tokens.encode(sentence.english), tokens.eos_id] for sentence in sentences]
    return {"src": pad_rows(rows, tokens.pad_id)[0], "src_lengths": torch.tensor([len(row) for row in rows])}


def new_masked_model(tokens: Tokenizer, seed: int) -> MaskedLM:
    """The masked model before it has learned anything."""
    config = ModelConfig(
        architecture="masked",
        vocab_size=tokens.vocab_size,
        n_encoder_layers=N_LAYERS,
        n_decoder_layers=0,
        **_SIZES,
    )
    return seeded(lambda: MaskedLM(config), seed).eval()


def masked_model(tokens: Tokenizer, test: Sequence[Sentence], steps: int, seed: int) -> Training:
    """An encoder that finds hidden English words in fresh sentences; it sees no Japanese. Measured on `test`."""
    held = hidden_words(test, tokens, np.random.default_rng(0))
    task = ArrayTask(lambda rng, n: hidden_words(drawn(rng, n), tokens, rng), held, BATCH_ROWS)
    return _trained(new_masked_model(tokens, seed), task, steps, seed)


def new_translator(tokens: Tokenizer, seed: int) -> EncoderDecoder:
    """The translator before it has learned anything."""
    config = ModelConfig(
        vocab_size=tokens.vocab_size, n_encoder_layers=N_LAYERS, n_decoder_layers=N_LAYERS, **_SIZES
    )
    return seeded(lambda: EncoderDecoder(config), seed).eval()


def translator(tokens: Tokenizer, test: Sequence[Sentence], steps: int, seed: int) -> Training:
    """An encoder-decoder that translates fresh sentences, measured on `test`."""
    task = ArrayTask(lambda rng, n: pairs(drawn(rng, n), tokens), pairs(test, tokens), BATCH_ROWS)
    return _trained(new_translator(tokens, seed), task, steps, seed)


def _trained(model: EncoderDecoder | MaskedLM, task: ArrayTask, steps: int, seed: int) -> Training:
    return trained(model, task, steps, 3e-3, seed, warmup_steps=100, decay_share=0.5)


def layers(model: EncoderDecoder | MaskedLM) -> list[str]:
    """The names of the layers in the order in which a sentence runs through them.

    "static" is the embedding without a place; "decoder 0" the decoder's embedding of the word before, with its place.
    """
    encoder = [STATIC, *(f"encoder {layer + 1}" for layer in range(N_LAYERS))]
    if isinstance(model, MaskedLM):
        return encoder
    return [*encoder, *(f"decoder {layer}" for layer in range(N_LAYERS + 1))]


@torch.no_grad()
def noun_vectors(
    model: EncoderDecoder | MaskedLM, tokens: Tokenizer, sentences: Sequence[Sentence]
) -> Mapping[str, Float[ndarray, "sentences d_model"]]:
    """By layer, the vectors at the noun of each sentence's first clause.

    In the encoder they are those of the noun itself; in the decoder, those from which its translation is predicted.
    """
    rows = np.arange(len(sentences))
    source = np.array([sentence.source_place(0) for sentence in sentences])
    target = np.array([sentence.target_place(0) for sentence in sentences])
    with recording(model.eval(), ["*embedding.output", "*.blocks.?.output"]) as record:
        if isinstance(model, MaskedLM):
            inputs, embedding = english(sentences, tokens), model.embedding
        else:
            inputs, embedding = pairs(sentences, tokens).inputs, model.source_embedding
        record.model.hidden(**inputs)
        found = [embedding.tokens(inputs["src"])[rows, source]]
        found += [record[f"encoder.blocks.{layer}"].output[rows, source] for layer in range(N_LAYERS)]
        if isinstance(model, EncoderDecoder):
            paths = ["target_embedding", *(f"decoder.blocks.{layer}" for layer in range(N_LAYERS))]
            found += [record[path].output[rows, target] for path in paths]
    return {name: vectors.double().numpy() for name, vectors in zip(layers(model), found, strict=True)}


def contexts(
    nouns: Sequence[Noun], cues: CueSet, rng: np.random.Generator, *, unseen: bool
) -> list[Sentence]:
    """Sentences that begin with a clause about each noun whose kind one cue tells: each such clause in every frame.

    unseen: clauses held out of training; else the others. In half of the sentences follows a second clause about
    another noun, drawn as in training, which tells nothing about the first.
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
