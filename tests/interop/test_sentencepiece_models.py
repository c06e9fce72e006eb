"""The SentencePiece model of a tokenizer finds the tokenizer's own pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from attendo.data import forecasts
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import MARK
from attendo.errors import AttendoError
from attendo.interop.sentencepiece_models import sentencepiece_model

PAIRS = forecasts.pairs(300, "train")
ODD = ["", " a", "a  b ", "\n", "x\ny", "</s>", "<0x41> <unk>", "\tA1", "ABC日本語abc"]
ODD += ["👩\u200d👩\u200d👧", "a\u3000b", "１２", "a_b"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def both(request, tmp_path_factory):
    """(attendo's tokenizer, the SentencePiece model made from it)."""
    texts = [text for pair in PAIRS[:200] for text in pair]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind=request.param, vocab_size=700))
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(file)
    return tokenizer, SentencePieceProcessor(model_proto=sentencepiece_model(tokenizer, file))


def test_english_and_japanese_have_the_same_pieces(both):
    tokenizer, processor = both
    texts = [text for pair in PAIRS for text in pair] + ODD
    ids = tokenizer.encode_batch(texts)
    assert processor.encode(texts) == ids
    assert [processor.decode(row) for row in ids] == texts
    assert [processor.id_to_piece(i) for i in range(tokenizer.vocab_size)] == list(tokenizer.entries)


@settings(max_examples=80)
@given(text=st.text(st.characters(exclude_characters=MARK, exclude_categories=["Cs"])))
def test_any_text_has_the_same_pieces(both, text):
    tokenizer, processor = both
    assert processor.encode(text) == tokenizer.encode(text)


def test_another_kind_is_refused(tmp_path):
    tokenizer = train_tokenizer(["a b"], TokenizerConfig(kind="word"))
    with pytest.raises(AttendoError, match=r"kind='word' cannot be written as a SentencePiece model"):
        sentencepiece_model(tokenizer, tmp_path / "tokenizer.json")
