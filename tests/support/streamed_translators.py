"""Translators whose texts are streamed or drawn, one for each kind of tokenizer."""

from hypothesis import strategies as st
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.inference.translator import Translator

KINDS = ("bpe", "unigram", "word", "uncased", "character", "byte")
TOKENIZERS = {kind: tiny_tokenizer(kind) for kind in KINDS}

PARTS = ("It will rain. There is fog at dawn.\nSnow! ", "\n雪だ。風も強い。 明日は晴れ？\n\nRain.", "雪" * 40)


def double(translator: Translator) -> Translator:
    """In float64, where what stands beside a row changes no choice."""
    for model in (translator.model, *translator.companions):
        model.double()
    return translator


def made(kind: str, **options) -> Translator:
    options = {"max_length_extra": 10, "max_len": 64} | options
    return tiny_translator(TOKENIZERS[kind], **options)


MADE = {kind: double(made(kind)) for kind in KINDS}
TOGETHER = double(made("bpe"))
TOGETHER.companions = (double(made("bpe", seed=1)).model,)
COMPILED = made("character").prepare()

texts = st.one_of(
    st.sampled_from(PARTS),
    st.lists(
        st.sampled_from(["It will rain", "雪", "🌧️", "é", ". ", "。", "\n", " ", "Snow!", "明日は", "x"]),
        max_size=9,
    ).map("".join),
)
