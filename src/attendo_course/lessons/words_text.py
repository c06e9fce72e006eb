"""Texts cut into words, and where the words of the lesson come from: the user's files or Python's own source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from attendo.data.text_corpus import TextCorpus, TextData
from attendo.data.texts import STDLIB, Chunk, read_documents
from attendo.data.token_stream import Document, TokenStream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.display.i18n import Localized
from attendo.runs.tasks import LanguageModelTask

CONTEXT, BATCH_ROWS = 35, 20
"""Words in a window (the source's bptt) and windows in a batch, as in the source."""
MOST_CHARACTERS = 20_000_000
"""Of the training and of the validation text, from its beginning: the vocabulary needs no more."""
LINE = "\n"
"""The word that ends a line."""

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Chinese characters: where nobody puts spaces between words, each is one of its own."""
_WORD = re.compile(rf"\n\s*|[{_ALONE}]|[^\W\d_{_ALONE}]+|\d|[^\w\s]|_")


def words_of(text: str) -> list[str]:
    r"""The words of a text: letters side by side, and each digit, sign and end of a line by itself.

    Spaces are not kept, nor are blank lines and indentation behind the end of a line.

    >>> words_of("It's 10 °C.\n\n  雨だ")
    ['It', "'", 's', '1', '0', '°', 'C', '.', '\n', '雨', 'だ']
    """
    return [LINE if word[0] == LINE else word for word in _WORD.findall(text)]


def cut(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The documents with one space between all words, so that a word tokenizer knows where they are."""
    begins = False
    for text, starts in chunks:
        begins |= starts
        if found := words_of(text):
            yield Chunk(("" if begins else " ") + " ".join(found), begins)
            begins = False


def first(chunks: Iterable[Chunk], n_characters: int) -> Iterator[Chunk]:
    """The chunks until so many characters have been given."""
    for chunk in chunks:
        yield chunk
        n_characters -= len(chunk.text)
        if n_characters <= 0:
            return


def stream_of(documents: Sequence[Document]) -> TokenStream:
    """Documents as a stream that is held in memory; one that was cut short ends where it was cut."""
    return TokenStream(
        np.concatenate([document.ids for document in documents]),
        np.cumsum([0, *(len(document.ids) for document in documents)]),
        np.array([document.n_bytes for document in documents]),
        np.array([document.n_characters for document in documents]),
    )


def word_task(files: Iterable[Path], n_train: int, n_valid: int, vocab_size: int) -> LanguageModelTask:
    """Windows of at most so many words to learn from, and so many to be measured on, each document by itself.

    They are of these files or else of the standard library; documents are drawn once and for all. Of the user's own
    files some documents, or the end of each, are held out, as by `attendo train language-model`. Words that the
    vocabulary has no room for are one, the unknown. Raises AttendoError for a file that is missing, too short
    or not UTF-8.
    """
    data = TextData(train=tuple(map(str, files)) or (STDLIB,), strict=True)
    data.check()
    source = data.source("train")
    assert source is not None, "a training text is always named"
    for _ in read_documents(source, data.strict):
        pass  # what cannot be read is refused before anything is split off
    corpus = TextCorpus(data, say=lambda line: None)
    train, valid = (list(cut(first(corpus.chunks(part), MOST_CHARACTERS))) for part in ("train", "valid"))
    tokenizer = train_tokenizer(
        (chunk.text for chunk in train), TokenizerConfig(kind="word", vocab_size=vocab_size)
    )
    return LanguageModelTask(
        stream_of(TokenStream.of_chunks(train, tokenizer).sample(n_train, tokenizer)),
        TokenStream.of_chunks(valid, tokenizer),
        tokenizer,
        CONTEXT,
        CONTEXT * BATCH_ROWS,
        evaluate_tokens=n_valid,
        name=STDLIB if data.embedded else source.name,
    )


def about(task: LanguageModelTask) -> Localized:
    """What there is to learn from and to be measured on, in a few sentences."""
    documents = task.validation_documents
    n, n_valid = task.stream.n_positions, sum(document.n_targets for document in documents)
    v, name = task.tokenizer.vocab_size, Localized(task.name, task.name)
    if task.name == STDLIB:
        name = Localized("the source of Python's standard library", "Python 標準ライブラリのソースコード")
    unknown, also = unknown_share([task.stream.ids]), unknown_share([document.ids for document in documents])
    return Localized(
        f"Text: {name.en}. Learned from are {n:,} words (letters side by side, a digit, a sign or the end of a"
        f" line), measured on are {n_valid:,} others, each document by itself. {v:,} words are known; of the others"
        f" ({unknown:.1%} and {also:.1%} of the text) it is only predicted that one comes, which flatters every"
        " perplexity below.",
        f"テキスト：{name.ja}。{n:,} 語（連続する文字、数字、記号、行末をそれぞれ 1 語とする）から学び、別の"
        f" {n_valid:,} 語で、文書ごとに測る。語彙は {v:,} 語。それ以外の語（学習文の {unknown:.1%}、検証文の"
        f" {also:.1%}）は「未知語が来る」ことだけを予測するので、以下のパープレキシティはその分低く出る。",
    )


def unknown_share(ids: Iterable[np.ndarray]) -> float:
    """How many of the words are not in the vocabulary.

    >>> unknown_share([np.array([Tokenizer.unk_id, 7]), np.array([8, 9])])
    0.25
    """
    return float((np.concatenate(list(ids)) == Tokenizer.unk_id).mean())


def phrase(task: LanguageModelTask, n_words: int) -> list[int]:
    """So many words of the validation text from the beginning of a line, all known, if there are such.

    The first are taken of which most are different, the end of a line not being one; without any, a document's first.
    """
    [line] = task.tokenizer.encode(LINE)
    best: list[int] = []
    for document in task.validation_documents:
        ids = document.ids.tolist()
        for start in (i + 1 for i, word in enumerate(ids) if word == line and line != Tokenizer.unk_id):
            found = ids[start : start + n_words]
            known = len(found) == n_words and Tokenizer.unk_id not in found
            if known and len({*found} - {line}) > len({*best} - {line}):
                best = found
    return best or task.validation_documents[0].ids[:n_words].tolist()
