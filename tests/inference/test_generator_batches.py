"""Many prompts at a time: each text is the one that its prompt, config and seed have alone, exactly in float64."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_generators import EOS, KINDS, biased, generator_of

from attendo.decoding.backends import eager_decoder
from attendo.decoding.sampling import SamplingConfig
from attendo.errors import AttendoError
from attendo.inference.generation import Windows

PROMPTS = ["the sun", "", "a wind in the east and rain", "the sun", "雨が降る"]
CONFIGS = [
    SamplingConfig(max_tokens=25, seed=1),
    SamplingConfig(max_tokens=9, temperature=0.0),
    SamplingConfig(max_tokens=14, temperature=1.5, top_k=9, seed=3),
    SamplingConfig(max_tokens=25, top_p=0.8, repetition_penalty=1.3, seed=4),
    SamplingConfig(max_tokens=17, min_p=0.02, seed=5),
]


def alone(generator, prompt, config):
    options = dataclasses.asdict(config)
    return generator.generate(prompt, **options)


def check(found, wanted):
    """The same in all but the last digits of the log-probabilities, and of a seed that nobody chose."""
    assert found.log_probs == pytest.approx(wanted.log_probs, abs=1e-12)
    assert dataclasses.replace(found, log_probs=(), seed=0) == dataclasses.replace(wanted, log_probs=(), seed=0)


@pytest.mark.parametrize(("kind", "end"), [("character", -100.0), ("bpe", 1.5)])
def test_a_text_is_the_same_alone_and_among_five_in_any_order(kind, end):
    generator = biased(generator_of(kind, max_len=16), {EOS: end})
    wanted = [alone(generator, *pair) for pair in zip(PROMPTS, CONFIGS, strict=True)]
    assert len({text.text for text in wanted}) > 2 and (end > 0 or any(text.slides for text in wanted))
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        rows = 5 if order[0] == 0 else 2
        found = generator.generate_batch([PROMPTS[i] for i in order], [CONFIGS[i] for i in order], rows=rows)
        for text, i in zip(found, order, strict=True):
            check(text, wanted[i])


@settings(max_examples=15)
@given(st.data())
def test_any_prompts_with_any_limits(data):
    generator = generator_of("byte", max_len=data.draw(st.integers(1, 9)))
    prompts = data.draw(st.lists(st.text("ab 雨", max_size=6), max_size=5))
    stops = st.sampled_from([(), ("a",), ("b ", "q")])
    draw = st.builds(
        SamplingConfig,
        max_tokens=st.integers(0, 14),
        stop=stops,
        seed=st.integers(0, 9),
        temperature=st.just(2.0),
    )
    configs = [data.draw(draw) for _ in prompts]
    found = generator.generate_batch(prompts, configs, rows=data.draw(st.integers(1, 3)))
    assert len(found) == len(prompts)
    for text, pair in zip(found, zip(prompts, configs, strict=True), strict=True):
        check(text, alone(generator, *pair))


@pytest.mark.parametrize("kind", KINDS)
def test_one_prompt_and_many_seeds(kind):
    generator = generator_of(kind, max_tokens=8)
    configs = [dataclasses.replace(generator.decoding, seed=seed) for seed in (4, 5, 4)]
    first, second, third = generator.generate_batch(["the"] * 3, configs)
    check(first, third)
    assert first.seed == third.seed == 4 and first.token_ids != second.token_ids and second.seed == 5
    given_seed = generator.generate_batch(["the", "the"], dataclasses.replace(generator.decoding, seed=5))
    assert [text.text for text in given_seed] == [second.text] * 2
    fresh = generator.generate_batch(["the", "the"])
    assert fresh[0].seed != fresh[1].seed
    check(fresh[1], generator.generate("the", seed=fresh[1].seed))


def test_no_prompt_no_text_and_unequal_numbers_are_refused():
    generator = generator_of()
    assert generator.generate_batch([]) == []
    with pytest.raises(AttendoError, match="2 prompts with 1 configs"):
        generator.generate_batch(["a", "b"], [SamplingConfig()])
    with pytest.raises(AttendoError, match="at least 1 row"):
        generator.generate_batch(["a"], rows=0)


def test_each_text_of_a_batch_is_recorded_in_the_order_of_the_prompts():
    generator = generator_of()
    configs = [SamplingConfig(max_tokens=n, seed=0) for n in (6, 1, 3)]
    with generator.recording() as record:
        found = generator.generate_batch(["the", "a", "the sun"], configs, rows=2)
        [path] = record
        sizes = [call.weights.shape[-1] for call in record.calls(path)]
    assert sizes == [len(text.window) for text in found]


@torch.no_grad()
def test_windows_of_several_texts_see_what_each_would_see_alone():
    model = generator_of(max_len=7).model
    together = Windows(eager_decoder(model), [[2], [2, 5, 6, 7, 8, 9], [2, 9]], [9, 9, 9])
    single = [Windows(eager_decoder(model), [row.unread], [9]) for row in together.rows]
    ids = torch.randint(4, 20, (9, 3), generator=torch.Generator().manual_seed(0))
    for n, new_ids in enumerate(ids[:, :, None]):
        if n == 4:
            together.keep(torch.tensor([2, 0]))
            single = [single[2], single[0]]
        if n == 6:
            together.join(Windows(eager_decoder(model), [[2, 7]], [9]))
            single.append(Windows(eager_decoder(model), [[2, 7]], [9]))
        now = new_ids[: len(single)]
        wanted = torch.cat([one.step(now[i : i + 1]) for i, one in enumerate(single)])
        assert torch.allclose(together.step(now), wanted, rtol=0, atol=1e-12)
        assert [row.ids for row in together.rows] == [one.rows[0].ids for one in single]
        assert [row.slides for row in together.rows] == [one.rows[0].slides for one in single]
