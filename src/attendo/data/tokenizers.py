"""Conversion between text and token ids: BPE, Unigram, word, uncased word, character and byte tokenizers in one class.

A tokenizer is one JSON file of the `tokenizers` library. Ids 0 to 3 are pad, unk, bos and eos, which no text can
produce. These ids are ordinary vocabulary entries, but texts are never split into pieces that equal them. The entries
are not "added tokens", for which the library would search in texts.
"""

import hashlib
import json
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as LibraryTokenizer

from attendo.data.chat import CHAT_TOKENS, ChatTemplate
from attendo.errors import AttendoError
from attendo.files import write_atomic

Kind = Literal["bpe", "unigram", "word", "uncased", "character", "byte", "imported"]
MARK: Final = "▁"  # U+2581, the character that represents a space in SentencePiece

# Each cut of a text contains characters of one script, one digit, white space, or other characters (punctuation,
# symbols), after the mark of the preceding space. Of several spaces, all but the last are one cut (indentation). The
# class of any other character does not depend on its neighbors, so no subword ever crosses a cut. A SentencePiece model
# with the same subwords makes no cuts and therefore finds the same subwords, except after several spaces. Neither
# "<0x41>" nor "</s>" is a single cut, so no text can produce such an entry of the vocabulary.
_JAPANESE = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_LETTERS = r"\p{L}\p{M}\x{200C}\x{200D}"  # includes the joiners in Indic and Persian words
_RUN = rf"{MARK}+(?={MARK})"
_CUTS = "|".join(
    MARK + "?" + group
    for group in (
        r"\p{Han}+",
        r"\p{Hiragana}+",
        r"[\p{Katakana}ー]+",
        r"\p{N}",
        rf"[{_LETTERS}&&[^{_JAPANESE}]]+",
        r"\s+",
        rf"[^{_LETTERS}\p{{N}}\s{MARK}]+",
    )
)

# One word of an uncased text: a line break in HTML counts as a space, n't and 's are separate words as in the
# Penn Treebank, and text in scripts without spaces is cut into characters (Katakana into runs).
_UNCASED = "|".join(
    (
        rf"[{_LETTERS}&&[^{_JAPANESE}]]+?(?=n't(?![{_LETTERS}]))",
        rf"n't(?![{_LETTERS}])",
        rf"'(?:s|re|ve|ll|d|m)(?![{_LETTERS}])",
        rf"[{_LETTERS}&&[^{_JAPANESE}]]+",
        r"[\p{Katakana}ー]+",
        r"\.{2,}|--+|\S",
    )
)


def tokenizer_document(kind: Kind, model: dict[str, Any], *, runs: bool = True) -> dict[str, Any]:
    """Return the contents of a tokenizer file, as JSON values, for a model of the `tokenizers` library.

    Without `runs`, each space of several spaces is a cut, as in tokenizers of earlier versions.

    Only the kind `uncased` normalizes texts. `Prepend` always marks the first word, which makes `Metaspace` reversible:
    "a" and " a" then have different ids.
    """
    fuse = {"type": "Fuse"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    normalizer = None
    cuts = None
    joins = [{"type": "ByteFallback"}, fuse]
    if kind in ("bpe", "unigram"):
        metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": not runs}
        pattern = f"{_RUN}|{_CUTS}" if runs else _CUTS
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        normalizer = {"type": "Prepend", "prepend": MARK}
        cuts = {"type": "Sequence", "pretokenizers": [metaspace, split]}
        joins = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, *joins, strip]
    elif kind == "word":
        normalizer = {"type": "Prepend", "prepend": " "}
        cuts = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": False}
        joins = [fuse, strip]
    elif kind == "uncased":
        normalizer = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]}
        normalizer["normalizers"] += [
            {"type": "Replace", "pattern": {"Regex": r"<br\s*/?>"}, "content": " "},
            {"type": "Replace", "pattern": {"String": "’"}, "content": "'"},
        ]
        cuts = {"type": "Split", "pattern": {"Regex": _UNCASED}, "behavior": "Removed", "invert": True}
        joins = [fuse]
    decoder = {"type": "Sequence", "decoders": joins}
    return library_document(model, normalizer=normalizer, cuts=cuts, decoder=decoder)


def library_document(
    model: dict[str, Any], *, normalizer: Any, cuts: Any, decoder: Any, added: Sequence[Any] = ()
) -> dict[str, Any]:
    """Return a file of the `tokenizers` library, as JSON values, from its parts. A missing part is None.

    >>> list(library_document({"type": "BPE"}, normalizer=None, cuts=None, decoder=None))[3:6]
    ['added_tokens', 'normalizer', 'pre_tokenizer']
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": normalizer,
        "pre_tokenizer": cuts,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


Around = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids before a text, and the ids after the text."""


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """The special ids of a tokenizer. The defaults are the special ids of attendo's own tokenizers.

    Attributes:
        pad_id: The id that pads the rows of a batch.
        unk_id: The id of unknown words, or -1 if there is none.
        bos_id: The first id of an empty prompt and of a whole document, if `before_prompt` is empty.
        eos_id: The id of the end of a text.
        mask_id: The id of the mask token, or -1 if there is none.
        no_target: The value in a batch's targets where nothing is predicted. No text contains this id.
        around_source: The ids before and after the input of a translator's encoder.
        around_text: The ids before and after the input of an encoder-only model.
        begin: The ids with which a translator's decoder starts. The last of these ids directly precedes the text.
        before_prompt: The ids before a language model's prompt. GPT-2, SmolLM and Qwen have no such ids.

    >>> OWN.source([7, 8]), OWN.text([7, 8]), OWN.prompt([7, 8])
    ([7, 8, 3], [2, 7, 8], [2, 7, 8])
    """

    pad_id: int = 0
    unk_id: int = 1
    bos_id: int = 2
    eos_id: int = 3
    mask_id: int = 1
    no_target: int = 0
    around_source: Around = ((), (3,))
    around_text: Around = ((2,), ())
    begin: tuple[int, ...] = (2,)
    before_prompt: tuple[int, ...] = (2,)

    def source(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a text with the special ids that a translator's encoder expects.

        Args:
            ids: The ids of the text.
        """
        before, behind = self.around_source
        return [*before, *ids, *behind]

    def text(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a text with the special ids that an encoder-only model expects.

        Args:
            ids: The ids of the text.
        """
        before, behind = self.around_text
        return [*before, *ids, *behind]

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a text with the special ids that a language model expects. The result has at least one id.

        Args:
            ids: The ids of the text.

        >>> SpecialTokens(bos_id=9, before_prompt=()).prompt([]), SpecialTokens(before_prompt=()).prompt([7])
        ([9], [7])
        """
        return [*self.before_prompt, *ids] or [self.bos_id]

    @property
    def opening(self) -> int:
        """The id before a whole document in training and scoring.

        With this id, the first token of a document also has a probability.
        """
        return self.prompt(())[-1]

    @property
    def n_around_source(self) -> int:
        return sum(map(len, self.around_source))

    @property
    def n_around_text(self) -> int:
        return sum(map(len, self.around_text))

    @property
    def n_reserved(self) -> int:
        """The maximum number of special tokens that surround a translator's source or precede its target."""
        return max(self.n_around_source, len(self.begin))


OWN: Final = SpecialTokens()


SPECIALS: Final = ("<pad>", "<unk>", "<s>", "</s>")
BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))

_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_PICTURES = "[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"
_WITHIN_PICTURES = re.compile(f"(?<={_PICTURES})\u200d(?={_PICTURES})")
_CUTTING: Final = ("normalizer", "pre_tokenizer", "post_processor", "padding", "truncation")
WORDS: Final = ("word", "uncased")
"""The kinds with one id per word. Words that are not in the vocabulary have no id."""


class Tokenizer(ABC):
    """The base class of tokenizers: attendo's own (`LearnedTokenizer`), or imported with a model.

    Attributes:
        kind: The kind of tokenizer, or "imported" for a tokenizer that was imported with a model.
        vocab_size: The number of ids.
        specials: The ids of the special tokens.
        not_text: All ids that represent no text, such as special tokens.
        never: The ids that a model must not generate.
        chat: The template of conversations, or None if the tokenizer has none.

    Args:
        text: The contents of the tokenizer file.
    """

    kind: Kind
    vocab_size: int
    specials: SpecialTokens = OWN
    pad_id: int = OWN.pad_id
    unk_id: int = OWN.unk_id
    bos_id: int = OWN.bos_id
    eos_id: int = OWN.eos_id
    mask_id: int = OWN.mask_id
    not_text: frozenset[int] = frozenset(range(4))
    never: tuple[int, ...] = (OWN.pad_id, OWN.bos_id)
    drops_space: bool
    """Whether `decode` omits a space at the beginning of the text."""
    chat: ChatTemplate | None = None

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def text(self) -> str:
        return self._text

    @property
    @abstractmethod
    def entries(self) -> tuple[str, ...]:
        """The entries of the vocabulary, in the order of their ids. A missing entry is shown as its id, like "<5>"."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the tokenizer file. Tokenizers with equal hashes are equal."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of a translator's targets. By default, the targets use this tokenizer itself."""
        return self

    @cached_property
    def text_ids(self) -> NDArray[np.int64]:
        """The ids that represent text, in ascending order."""
        return np.array([i for i in range(self.vocab_size) if i not in self.not_text], np.int64)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without bos and eos.

        Args:
            text: Any text.
        """
        return self.encode_batch([text])[0]

    @abstractmethod
    def with_chat(self, template: ChatTemplate | None = None) -> "Tokenizer":
        """Return the tokenizer with a chat template. A tokenizer that has a template is returned unchanged.

        Args:
            template: The template (default: attendo's own, with three new special tokens after the vocabulary).
        """

    def encode_spans(self, text: str, going_on: bool = False) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and the start and end of each token in the text, in characters.

        White space before a token is not part of its span. A token that is only a part of a character spans the whole
        character. The spans refer to the given text, also if the tokenizer normalizes it.

        Args:
            text: Any text.
            going_on: Whether the text continues another text, as in `encode_on`.
        """
        ids = self.encode_on(text) if going_on else self.encode(text)
        offsets = self._offsets(well_formed(text), ids, going_on)
        parts = ((text[start:end], start, end) for start, end in offsets)
        return ids, [(end - len(part.lstrip()) if part.strip() else start, end) for part, start, end in parts]

    @abstractmethod
    def _offsets(self, text: str, ids: Sequence[int], going_on: bool) -> list[tuple[int, int]]:
        """Return the span of each token of a text, possibly with white space before the token."""

    def encode_on(self, text: str) -> list[int]:
        """Return the ids of a text that continues another text. No space is added before the first word.

        For a learned tokenizer and a non-empty text a, `decode(encode(a) + encode_on(b)) == a + b`. With the kind
        `word`, b must start with a space. An imported tokenizer that first splits at white space (T5, BERT) returns the
        ids of `encode`.

        Args:
            text: Any text.
        """
        return self.encode_batch([text], going_on=True)[0]

    @abstractmethod
    def encode_batch(self, texts: Iterable[str], going_on: bool = False) -> list[list[int]]:
        """Return the ids of many texts. One call is faster than many calls of `encode`.

        Args:
            texts: The texts to encode.
            going_on: Whether each text continues another text, as in `encode_on`.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens.

        Args:
            ids: Token ids.

        Raises:
            AttendoError: An id is out of range.
        """

    @abstractmethod
    def bytes_of(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds to the tokens before it, which can be only a part of a character.

        Args:
            token_id: The token id.
        """

    @abstractmethod
    def is_part(self, token_id: int) -> bool:
        """Return whether a token can represent only a part of a character.

        Args:
            token_id: The token id.
        """

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return one readable string per id. Examples are "▁the", "<E3>" for a byte, and "</s>" for a special token.

        Args:
            ids: Token ids.
        """
        self._check(ids)
        return [self._readable[i] for i in ids]

    def save(self, path: Path) -> None:
        """Write the tokenizer file atomically.

        Args:
            path: The path of the file.
        """
        write_atomic(path, self._text)

    @cached_property
    def _readable(self) -> list[str]:
        return [self._shown(i) for i in range(self.vocab_size)]

    @abstractmethod
    def _shown(self, i: int) -> str: ...

    def _check(self, ids: Sequence[int]) -> None:
        if len(ids) and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise AttendoError(f"token id {wrong} must be between 0 and {self.vocab_size - 1}")


class LearnedTokenizer(Tokenizer):
    """A tokenizer that attendo has learned from texts (see `tokenizer_training`). The kinds are:

    - `bpe` and `unigram`: subwords. A subword after a space starts with "▁". Text without a subword is spelled in UTF-8
      bytes.
    - `character`: one id per character. Characters without an id are spelled in bytes.
    - `byte`: one id per UTF-8 byte, 260 ids in all. The kind `byte` equals `character` without any character ids.
    - `word`: one id per word. Words are separated by single spaces (U+0020). Unknown words become `unk_id`.
    - `uncased`: one id per lowercase word. Punctuation and clitics (n't, 's) are separate words, and unknown words
      become `unk_id`. The kind `uncased` is not for models that generate text, because case and spaces are lost.

    `decode(encode(text)) == text` for every text, including any spaces, control characters, scripts and spelled-out
    special tokens. With `word`, this equality only holds for texts of known words. `uncased` decodes to known words,
    separated by single spaces. A lone surrogate (half of a UTF-16 pair, which broken JSON can contain) is read as
    U+FFFD, and two halves that form a pair are read as their character.
    """

    def __init__(self, text: str) -> None:
        """Load the text of a tokenizer file. Raises AttendoError if the file is not a learned tokenizer of attendo."""
        super().__init__(text)
        keep_to_one_thread()
        try:
            document = json.loads(text)
            chat = document.pop("attendo_chat", None)
            self._document = document = document["library"] if chat else document
            self._library = LibraryTokenizer.from_str(json.dumps(document) if chat else text)
        except Exception as error:
            raise AttendoError(f"not a tokenizer file: {error}") from error
        self.vocab_size = self._library.get_vocab_size()
        self._entries = [self._library.id_to_token(i) or "" for i in range(self.vocab_size)]
        if chat is not None:
            self._entries += CHAT_TOKENS
            self.vocab_size += len(CHAT_TOKENS)
            self.chat = ChatTemplate.of_table(chat, self.vocab_size)
            self.not_text |= {*range(self.vocab_size - len(CHAT_TOKENS), self.vocab_size)}
            self.never += (self.vocab_size - 3, self.vocab_size - 2)  # all but the end
        self.kind = _kind(document)
        self._spaced = self.kind in ("bpe", "unigram")  # a space is written as MARK
        self._prefixed = self._spaced or self.kind == "word"  # encode puts a space before the first word
        self._worded = self.kind in WORDS
        self.drops_space = self._prefixed or self._worded
        if tuple(self._entries[:4]) != SPECIALS or document["added_tokens"]:
            raise AttendoError(
                f"an attendo tokenizer file must start with {' '.join(SPECIALS)} and have no added tokens, "
                f"but this file starts with {' '.join(self._entries[:4])}. Train a tokenizer with attendo"
            )
        if not self._worded and tuple(self._entries[4:260]) != BYTES:
            raise AttendoError("an attendo tokenizer file must have the 256 byte pieces as ids 4 to 259")
        self._bytes = [self._spelled(i) for i in range(self.vocab_size)]

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def with_chat(self, template: ChatTemplate | None = None) -> "LearnedTokenizer":
        if self.chat is not None:
            return self
        template = template or ChatTemplate.own(self.specials.before_prompt, self.vocab_size)
        document = {"attendo_chat": template.as_table(), "library": self._document}
        return LearnedTokenizer(json.dumps(document, ensure_ascii=False, indent=1) + "\n")

    def encode_batch(self, texts: Iterable[str], going_on: bool = False) -> list[list[int]]:
        library = self._inner if going_on else self._library
        clean = [well_formed(text) for text in texts]
        ids = [found.ids for found in library.encode_batch_fast(clean, add_special_tokens=False)]
        if self._spaced:
            for row, text in enumerate(clean):
                if MARK in text:
                    ids[row] = self._encode_marks(text, library)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without pad, bos and eos. Raises AttendoError for an id out of range.

        Invalid UTF-8, which only a model can generate, becomes U+FFFD. A word tokenizer decodes `unk_id` as `<unk>`.
        """
        self._check(ids)
        data = b"".join([self._bytes[i] for i in ids])
        if self.drops_space and data.startswith(b" "):
            data = data[1:]  # encode adds a space before the first word, or decode adds one before each word
        return data.decode("utf-8", errors="replace")

    def bytes_of(self, token_id: int) -> bytes:
        self._check([token_id])
        return self._bytes[token_id]

    def is_part(self, token_id: int) -> bool:
        return not self._worded and len(SPECIALS) <= token_id < len(SPECIALS) + len(BYTES)

    def _offsets(self, text: str, ids: Sequence[int], going_on: bool) -> list[tuple[int, int]]:
        if self._worded:
            return library_offsets(self._inner if going_on else self._library, text)
        # the tokens spell the text byte by byte, possibly after a space that is put before the first word
        ends = list(accumulate((len(self._bytes[i]) for i in ids), initial=0))
        places = [place for place, c in enumerate(text) for _ in c.encode()]
        places = [-1] * (ends[-1] - len(places)) + places
        return [(max(0, places[start]), places[end - 1] + 1) for start, end in pairwise(ends)]

    def _encode_marks(self, text: str, library: LibraryTokenizer) -> list[int]:
        """Return the ids of a text with "▁", which is spelled in bytes because the subword "▁" means a space."""
        mark = [4 + byte for byte in MARK.encode()]
        first, *others = text.split(MARK)
        ids = library.encode(first, add_special_tokens=False).ids
        found = iter(self._inner.encode_batch_fast([part for part in others if part], add_special_tokens=False))
        for part in others:
            ids += mark
            if part:
                ids += next(found).ids
        return ids

    @cached_property
    def _inner(self) -> LibraryTokenizer:
        """This tokenizer for a text that continues another text: nothing is added before the first word."""
        if not self._prefixed:
            return self._library
        return LibraryTokenizer.from_str(json.dumps(self._document | {"normalizer": None}))

    def _spelled(self, i: int) -> bytes:
        """Return the UTF-8 bytes that an id represents."""
        entry = self._entries[i]
        if i in self.not_text:
            return b" <unk>" if i == self.unk_id and self._worded else b""
        if not self._worded and i < 260:
            return bytes([i - 4])
        if self.kind == "uncased":
            return f" {entry}".encode()
        return (entry.replace(MARK, " ") if self._spaced else entry).encode()

    def _shown(self, i: int) -> str:
        entry = self._entries[i]
        if i in self.not_text:
            return entry
        if self.kind == "byte" and " " <= chr(i - 4) <= "~":
            return chr(i - 4).replace(" ", MARK)
        if not self._worded and i < 260:
            return f"<{i - 4:02X}>"
        if self.kind == "word":
            entry = entry[1:]  # each entry starts with the space before the word
        entry = entry.replace(" ", MARK) or MARK
        joined = {match.start() for match in _WITHIN_PICTURES.finditer(entry)}  # joined emoji
        return "".join(c if c.isprintable() or at in joined else f"<U+{ord(c):04X}>" for at, c in enumerate(entry))


def library_offsets(library: LibraryTokenizer, text: str) -> list[tuple[int, int]]:
    """Return the span of each token. Combining marks that the tokenizer composes belong to their character."""
    found = []
    for start, end in library.encode(text, add_special_tokens=False).offsets:
        while end > start and end < len(text) and unicodedata.combining(text[end]):
            end += 1
        found.append((start, end))
    return found


def well_formed(text: str) -> str:
    r"""Return the text with U+FFFD in place of each lone surrogate, which UTF-8 cannot encode.

    >>> well_formed("a\ud800b") == "a\ufffdb", well_formed("\ud83d\ude00") == "\U0001f600"
    (True, True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def is_spaced(texts: Iterable[str]) -> bool:
    """Return whether nearly all texts use scripts with spaces between words, unlike Chinese, Japanese, Thai or Khmer.

    >>> is_spaced(["Wetter in Łódź"]), is_spaced(["東京の天気 (Tokyo)"])
    (True, False)
    """
    letters = unspaced = 0
    for text in texts:
        letters += sum(map(str.isalpha, text))
        unspaced += len(_UNSPACED.findall(text))
    return unspaced < 0.2 * letters


def _kind(document: dict[str, Any]) -> Kind:
    """Return the kind of a tokenizer file, inferred from the cutting rules because the library rejects extra keys."""
    kinds: dict[str, Kind] = {"BPE": "bpe", "Unigram": "unigram", "WordLevel": "word"}
    kind = kinds.get(document["model"]["type"])
    if kind == "bpe" and document["normalizer"] is None:
        kind = "character" if len(document["model"]["vocab"]) > len(SPECIALS) + len(BYTES) else "byte"
    if kind == "word" and document["normalizer"] != tokenizer_document("word", {})["normalizer"]:
        kind = "uncased"
    if kind is None:
        raise AttendoError(
            f"unknown tokenizer type {document['model']['type']} (expected {', '.join(get_args(Kind)[:-1])})"
        )
    known = (tokenizer_document(kind, {}, runs=runs) for runs in (True, False))
    if all(any(document[part] != cuts[part] for part in _CUTTING) for cuts in known):
        raise AttendoError("this tokenizer splits texts differently from attendo. Train one with attendo")
    return kind


def keep_to_one_thread() -> None:
    """Limit the `tokenizers` library to one thread unless the environment sets TOKENIZERS_PARALLELISM.

    The threads of the library do not survive a fork.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def require_list(texts: Sequence[str]) -> None:
    """Raise AttendoError if `texts` is a single string or contains an item that is not a string.

    >>> require_list("rain")
    Traceback (most recent call last):
    attendo.errors.AttendoError: 'rain' is one text (expected a list of texts). Write [text]
    """
    if isinstance(texts, str):
        shown = texts if len(texts) <= 30 else f"{texts[:29]}…"
        raise AttendoError(f"{shown!r} is one text (expected a list of texts). Write [text]")
    for number, text in enumerate(texts):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AttendoError(
                f"texts[{number}] is {type(text).__name__} (expected a string). Remove or replace missing values"
            )
