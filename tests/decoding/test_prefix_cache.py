"""Texts that begin like earlier texts: less is read, and nothing else changes, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import configs as decoders
from native_models import model_of
from tiny_generators import tokenizer_of

from attendo.decoding.backends import BLOCK, best_decoder, eager_decoder
from attendo.decoding.prefix_cache import PrefixCache
from attendo.decoding.sampling import SamplingConfig
from attendo.inference.generation import Writing, WrittenText, written
from attendo.models import DecoderLM, ModelConfig

TOKENIZER = tokenizer_of("character")
MOST = 4 * BLOCK


def models(data, width) -> DecoderLM:
    options = vars(data.draw(decoders().filter(lambda config: config.architecture == "decoder")))
    sizes = {"vocab_size": TOKENIZER.vocab_size, "max_len": MOST, "d_model": width}
    return model_of(ModelConfig(**options | sizes)).eval()


def counted(model, counts):
    """The backend with a step that appends the number of tokens that the model reads."""

    def step(ids, cache):
        counts.append(ids.numel())
        return model.step(ids, cache)

    return replace(model, step=step)


def text_of(ids, seed, prefixes, n=9):
    return WrittenText(TOKENIZER, MOST, ids, SamplingConfig(seed=seed, max_tokens=n), prefixes=prefixes)


def written_texts(model, texts):
    steps = written(Writing(model, TOKENIZER), texts, len(texts))
    found = {step.number: step.generation for step in steps if step.generation}
    return [found[number] for number in sorted(found)]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_conversations_are_the_same_with_and_without(data):
    """Compiled in any batch; in PyTorch, whose rounding depends on the batch, one conversation at a time."""
    eager = data.draw(st.booleans())
    model = models(data, 192 if eager else 12)  # wide enough that the rounding depends on the length of a block
    bits = data.draw(st.sampled_from([(32, None), (16, None), (8, None), (4, None), (32, 8), (8, 8)]))
    backend = eager_decoder(model) if eager else best_decoder(model, *bits)
    kept, nothing = PrefixCache(data.draw(st.sampled_from([2**28, 20_000]))), PrefixCache(0)
    random = np.random.default_rng(data.draw(st.integers(0, 99)))

    def grown(talk):
        """Often a single token is left after whole blocks, which PyTorch multiplies in another order."""
        n = data.draw(st.integers(1, BLOCK))
        n += (1 - len(talk) - n) % BLOCK if data.draw(st.booleans()) else 0
        return [*talk, *random.integers(4, TOKENIZER.vocab_size, n).tolist()]

    talks = [grown([]) for _ in range(1 if eager else 3)]
    for turn in range(3):
        found = [
            written_texts(backend, [text_of(talk, turn, prefixes) for talk in talks])
            for prefixes in (nothing, kept, kept)
        ]
        assert found[0] == found[1] == found[2]  # token ids, log-probabilities and windows
        talks = [grown([*talk, *one.token_ids]) for talk, one in zip(talks, found[0], strict=True)]
    assert not len(nothing) and kept.bytes <= kept.most_bytes


@pytest.mark.parametrize("eager", [True, False])
def test_only_new_tokens_are_read(eager):
    torch.manual_seed(0)
    model = model_of(
        ModelConfig(architecture="decoder", vocab_size=TOKENIZER.vocab_size, d_model=12, d_ff=20, n_heads=2,
                    n_encoder_layers=0, n_decoder_layers=2, max_len=MOST)
    ).eval()  # fmt: skip
    counts = []
    backend = counted(eager_decoder(model) if eager else best_decoder(model), counts)
    prefixes = PrefixCache()
    first = np.random.default_rng(0).integers(4, TOKENIZER.vocab_size, BLOCK + 3).tolist()
    (one,) = written_texts(backend, [text_of(first, 1, prefixes)])
    assert sum(counts) == len(first) + 8  # the last token is never read
    counts.clear()
    again = [*first, *one.token_ids, 5]
    written_texts(backend, [text_of(again, 1, prefixes, 1)])
    assert sum(counts) == (len(again) - BLOCK if eager else 2)
    # a canceled text is kept as well
    counts.clear()
    writing = Writing(backend, TOKENIZER)
    (number,) = writing.add([text_of([7] * BLOCK, 1, prefixes)])
    writing.advance()
    writing.leave([number])
    assert prefixes.find([7] * BLOCK)[0] == BLOCK


def test_the_least_recently_used_text_is_dropped():
    prefixes = PrefixCache(3 * 96)
    for first in (1, 2, 3):
        prefixes.add([first, 5, 6], [torch.zeros(1, 3, 8)])
    assert prefixes.find([1, 5])[0] == 2
    prefixes.add([4, 5, 6], [torch.zeros(1, 3, 8)])
    assert [prefixes.find([first])[0] for first in (1, 2, 3, 4)] == [1, 0, 1, 1]
    prefixes.add([9] * 40, [torch.zeros(1, 40, 8)])  # larger than the limit
    prefixes.add([1, 5], [torch.zeros(1, 2, 8)])  # known
    assert len(prefixes) == 3 and prefixes.bytes == 3 * 96
