"""What a masked language model reads of a text with hidden words, and what it answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looked_models import looked_model

from attendo.data.masking import MASK, MASK_ID
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.inspecting.edits import Off
from attendo.microscope.answers import compared, next_answer, outcome
from attendo.microscope.effects import effects_answer
from attendo.microscope.protocol import EditRequest, LookRequest
from attendo.microscope.run_model import log_probs_of_wanted, look, masked_ids

WORDS = ("rain", "snow", "wind", "Oslo", "sun")
KINDS = ("bpe", "unigram", "word", "uncased", "character", "byte")
PATH = "encoder.blocks.0.self_attention"


@pytest.fixture(scope="module")
def tokenizers():
    texts = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    sizes = {"byte": 260, "word": 30, "uncased": 30, "unigram": 290}
    return {kind: train_tokenizer(texts, TokenizerConfig(kind=kind, vocab_size=sizes.get(kind, 300))) for kind in KINDS}


@pytest.fixture(scope="module")
def user(tokenizers):
    return looked_model("masked-language-model", tokenizers["word"])


@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), data=st.data())
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hidden_word_is_one_mask_and_all_else_is_as_it_was(tokenizers, kind, words, data):
    """As in training, where a word's tokens, its space among them, were replaced; where it is one token."""
    tokenizer = tokenizers[kind]
    hidden = data.draw(st.sets(st.integers(0, len(words) - 1)))
    assert masked_ids(tokenizer, " ".join(words)) == tokenizer.encode(" ".join(words))
    expected: list[int] = []
    for i, word in enumerate(words):
        space = [] if i == 0 or kind not in ("character", "byte") else tokenizer.encode_on(" ")
        plain = (tokenizer.encode_on if i and not space else tokenizer.encode)(f" {word}" if i and not space else word)
        expected += [*space, *([MASK_ID] if i in hidden else plain)]
    text = " ".join(MASK if i in hidden else word for i, word in enumerate(words))
    assert masked_ids(tokenizer, text) == expected


def test_masks_side_by_side_and_within_a_word(tokenizers):
    for kind in KINDS:
        assert masked_ids(tokenizers[kind], f"{MASK}{MASK} {MASK}").count(MASK_ID) == 3
    encode = tokenizers["character"].encode
    assert masked_ids(tokenizers["character"], f"r{MASK}in") == [*encode("r"), MASK_ID, *encode("in")]


def test_the_answer_is_the_text_with_its_hidden_tokens_found(user):
    seen = look(user, LookRequest(text=f"rain {MASK} wind {MASK}"))
    with torch.inference_mode():
        logits = user.model(src=torch.tensor([seen.source]))[0]
    (_, rain, _, wind, _), best = seen.source, logits.argmax(-1).tolist()
    assert seen.wanted == (None, None, best[2], None, best[4])
    found = outcome(seen)
    assert found["text"] == user.tokenizer.decode([rain, best[2], wind, best[4]])
    log_probs = logits.log_softmax(-1)
    assert found["log_prob"] == pytest.approx(float(log_probs[2, best[2]] + log_probs[4, best[4]]), abs=1e-4)
    assert (found["filled"], next_answer(seen, 2, 1)["actual"]["rank"]) == (2, 1)
    assert [seen.token(token)["piece"] for token in seen.source] == ["<s>", "rain", MASK, "wind", MASK]

    off = look(user, LookRequest(text=seen.request.text, edits=(EditRequest(kind="off", path=PATH),)))
    assert off.edits == (Off(PATH),)
    change = compared(off, seen)
    expected = log_probs_of_wanted(off.logits, seen.wanted) - seen.log_probs()
    assert change["deltas"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert change["total"] == pytest.approx(effects_answer(seen, PATH)["layer"]["delta"], abs=1e-4)


def test_without_a_mask_it_is_the_likeliest_token_at_each_place(user):
    seen = look(user, LookRequest(text="rain snow wind"))
    found = outcome(seen)
    assert seen.wanted == (None, *seen.source[1:])
    assert found["text"] == user.tokenizer.decode(seen.logits.argmax(-1).tolist()[1:])
    assert found["filled"] == 0


def test_an_unknown_word_is_a_hidden_one(user):
    """To the model they are the same."""
    known, unknown = (look(user, LookRequest(text=text)) for text in (f"rain {MASK}", "rain hail"))
    assert known.source == unknown.source
    assert outcome(known) == outcome(unknown)


def test_only_a_masked_language_model_has_masks(tokenizers):
    seen = look(looked_model("language-model", tokenizers["character"]), LookRequest(text=MASK, max_tokens=1))
    assert MASK_ID not in seen.target[: seen.prompt_tokens]
