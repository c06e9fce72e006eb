"""Text to token ids and back: BPE, Unigram, word, uncased word, character and byte tokenizers, one class for all.

All of a tokenizer is one JSON file of the `tokenizers` library. Ids 0 to 3 are pad, unk, bos and eos, which
no text can produce: they are plain entries of the vocabulary that no cut of a text ever equals, never "added
tokens" that the library would look for in the text.
"""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as LibraryTokenizer

from attendo.data.special_tokens import OWN, SpecialTokens
from attendo.data.tokenizer_file import MARK, Kind, tokenizer_document
from attendo.errors import AttendoError, is_failure
from attendo.files import write_atomic

SPECIALS: Final = ("<pad>", "<unk>", "<s>", "</s>")
BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))

_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_PICTURES = "[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff]"
_WITHIN_PICTURES = re.compile(f"(?<={_PICTURES})\u200d(?={_PICTURES})")
_CUTTING: Final = ("normalizer", "pre_tokenizer", "post_processor", "padding", "truncation")
WORDS: Final = ("word", "uncased")
"""The kinds that have an id for a word, and none for what no training text had."""


class Tokenizer(ABC):
    """Raw text to ids and back: attendo's own (`LearnedTokenizer`), or one that came with a model from elsewhere.

    kind: "imported" for the latter. vocab_size: ids are below it. specials: which ids stand for no text, and what
    stands around texts. not_text: all ids that spell nothing. never: those that no model may write.
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
    """Whether `decode` leaves out a space at the very beginning."""

    def __init__(self, text: str) -> None:
        """Take the text of a tokenizer file."""
        self._text = text

    @property
    def text(self) -> str:
        """The tokenizer file."""
        return self._text

    @property
    @abstractmethod
    def entries(self) -> tuple[str, ...]:
        """The vocabulary by id, as the tokenizer file spells it, each entry once; "<5>" for an id 5 without one."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the tokenizer file: two tokenizers with the same one do the same."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    @property
    def target(self) -> "Tokenizer":
        """What reads a translator's targets: itself, unless the two languages are cut in different ways."""
        return self

    @cached_property
    def text_ids(self) -> NDArray[np.int64]:
        """The ids that spell something, ascending."""
        return np.array([i for i in range(self.vocab_size) if i not in self.not_text], np.int64)

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without bos and eos; [] for the empty text."""

    @abstractmethod
    def encode_on(self, text: str) -> list[int]:
        """The ids of a text that goes on from one before it, so that no space stands before its first word."""

    @abstractmethod
    def encode_batch(self, texts: Iterable[str], going_on: bool = False) -> list[list[int]]:
        """`encode` of each text, or `encode_on` where they are `going_on`, faster."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; specials are left out, wherever they are. Raises AttendoError for an id out of range."""

    @abstractmethod
    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token spells behind others, maybe only a part of a character."""

    @abstractmethod
    def is_part(self, token_id: int) -> bool:
        """Whether a token may spell a part of a character."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One readable string per id, for display: "▁the", bytes as "<E3>", specials as "</s>"."""
        self._check(ids)
        return [self._readable[i] for i in ids]

    def save(self, path: Path) -> None:
        """Write the tokenizer file, atomically."""
        write_atomic(path, self._text)

    @staticmethod
    def load(path: Path) -> "Tokenizer":
        """Read what `save` wrote. Raises AttendoError naming the file if it is missing, cut short or foreign."""
        from attendo.data.imported_tokenizers import ImportedTokenizer

        try:
            text = path.read_bytes().decode("utf-8")
            imported = text[:100].lstrip().removeprefix("{").lstrip().startswith('"attendo_tokenizer"')
            return ImportedTokenizer(text) if imported else LearnedTokenizer(text)
        except FileNotFoundError:
            raise AttendoError(f"{path}: no such file; a run folder holds its tokenizer.json") from None
        except UnicodeDecodeError as error:
            raise AttendoError(f"{path}: not a tokenizer file: {error}") from error
        except AttendoError as error:
            raise AttendoError(f"{path}: {error}") from error
        except BaseException as error:
            if not is_failure(error):
                raise
            raise AttendoError(f"{path}: not a tokenizer file ({type(error).__name__}: {error})") from error

    @cached_property
    def _readable(self) -> list[str]:
        return [self._shown(i) for i in range(self.vocab_size)]

    @abstractmethod
    def _shown(self, i: int) -> str: ...

    def _check(self, ids: Sequence[int]) -> None:
        if len(ids) and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise AttendoError(f"token id {wrong} is not one of 0 to {self.vocab_size - 1}")


class LearnedTokenizer(Tokenizer):
    """Raw text to ids and back, by what attendo has learned from texts (`tokenizer_training`).

    - `bpe`, `unigram`: pieces that start with "▁" where a space was; what has no piece is spelled in UTF-8 bytes.
    - `character`: one id per character; characters without an id are spelled in bytes.
    - `byte`: one id per UTF-8 byte, 260 in all: what `character` is where no character has an id.
    - `word`: one id per word, words being what stands between two spaces (U+0020); unknown words become `unk_id`.
    - `uncased`: one id per word in lower case, punctuation and clitics (n't, 's) being words of their own; unknown
      words become `unk_id`. For reading only: case and spaces are forgotten.

    `decode(encode(text)) == text` for every text, whatever its spaces, control characters, scripts, or
    specials spelled out in it; with `word`, for every text of known words; `uncased` decodes to known words with a
    space between two. One thing is no text, a lone
    surrogate (half of a UTF-16 pair, as broken JSON may hold): it is read as U+FFFD, and two halves that make
    a pair as its character.
    """

    def __init__(self, text: str) -> None:
        """Take the text of a tokenizer file. Raises AttendoError if it is not one of ours."""
        super().__init__(text)
        keep_to_one_thread()
        try:
            self._library = LibraryTokenizer.from_str(text)
            document = json.loads(text)
        except Exception as error:
            raise AttendoError(f"not a tokenizer file: {error}") from error
        self.vocab_size = self._library.get_vocab_size()
        self._entries = [self._library.id_to_token(i) or "" for i in range(self.vocab_size)]
        self.kind = _kind(document)
        self._spaced = self.kind in ("bpe", "unigram")  # a space is written as MARK
        self._prefixed = self._spaced or self.kind == "word"  # encode puts a space before the first word
        self._worded = self.kind in WORDS
        self.drops_space = self._prefixed or self._worded
        if tuple(self._entries[:4]) != SPECIALS or document["added_tokens"]:
            raise AttendoError(
                f"a tokenizer file of attendo starts with {' '.join(SPECIALS)} and has no added tokens; "
                f"this one starts with {' '.join(self._entries[:4])}: train one with attendo"
            )
        if not self._worded and tuple(self._entries[4:260]) != BYTES:
            raise AttendoError("a tokenizer file of attendo has the 256 byte pieces as ids 4 to 259")
        self._bytes = [self._spelled(i) for i in range(self.vocab_size)]

    @property
    def entries(self) -> tuple[str, ...]:
        """As `Tokenizer.entries`."""
        return tuple(self._entries)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without bos and eos; [] for the empty text."""
        return self._encode(well_formed(text), self._library)

    def encode_on(self, text: str) -> list[int]:
        """The ids of a text that goes on from one before it, so that no space stands before its first word.

        `decode(encode(a) + encode_on(b)) == a + b` for an a that is not empty; with `word`, where b starts with
        a space. The ids are those of the whole, `encode(a + b)`, where b starts with a space, and with
        `character` and `byte` always.
        """
        return self._encode(well_formed(text), self._inner)

    def encode_batch(self, texts: Iterable[str], going_on: bool = False) -> list[list[int]]:
        """`encode` of each text, or `encode_on` where they are `going_on`, faster.

        One thread does it unless the environment says TOKENIZERS_PARALLELISM=true, which a process that forks
        later should not.
        """
        library = self._inner if going_on else self._library
        clean = [well_formed(text) for text in texts]
        ids = [found.ids for found in library.encode_batch_fast(clean, add_special_tokens=False)]
        if self._spaced:
            for row, text in enumerate(clean):
                if MARK in text:
                    ids[row] = self._encode(text, library)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `encode` gave these ids for; pad, bos and eos are left out, wherever they are.

        Ids that no text has come from a model: bytes that are no UTF-8 become U+FFFD; `unk_id` is the word
        `<unk>` for a word tokenizer and nothing for the others. Raises AttendoError for an id out of range.
        """
        self._check(ids)
        data = b"".join([self._bytes[i] for i in ids])
        if self.drops_space and data.startswith(b" "):
            data = data[1:]  # the space that encode puts before the first word, or decode before each
        return data.decode("utf-8", errors="replace")

    def bytes_of(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token spells behind others: one alone for a byte."""
        self._check([token_id])
        return self._bytes[token_id]

    def is_part(self, token_id: int) -> bool:
        """Whether it is a byte."""
        return not self._worded and len(SPECIALS) <= token_id < len(SPECIALS) + len(BYTES)

    def _encode(self, text: str, library: LibraryTokenizer) -> list[int]:
        """The ids of a text; a "▁" in it is spelled in bytes where the bare piece is a space."""
        if not (self._spaced and MARK in text):
            return library.encode(text, add_special_tokens=False).ids
        mark = [4 + byte for byte in MARK.encode()]
        first, *others = text.split(MARK)
        ids = library.encode(first, add_special_tokens=False).ids
        found = iter(
            self._inner.encode_batch_fast([part for part in others if part], add_special_tokens=False)
        )
        for part in others:
            ids += mark
            if part:
                ids += next(found).ids
        return ids

    @cached_property
    def _inner(self) -> LibraryTokenizer:
        """The same tokenizer for text that goes on: nothing is put before its first word."""
        if not self._prefixed:
            return self._library
        return LibraryTokenizer.from_str(json.dumps(json.loads(self._text) | {"normalizer": None}))

    def _spelled(self, i: int) -> bytes:
        """The UTF-8 bytes that one id stands for in the text."""
        entry = self._entries[i]
        if i < len(SPECIALS):
            return b" <unk>" if i == self.unk_id and self._worded else b""
        if not self._worded and i < 260:
            return bytes([i - 4])
        if self.kind == "uncased":
            return f" {entry}".encode()
        return (entry.replace(MARK, " ") if self._spaced else entry).encode()

    def _shown(self, i: int) -> str:
        entry = self._entries[i]
        if i < len(SPECIALS):
            return entry
        if self.kind == "byte" and " " <= chr(i - 4) <= "~":
            return chr(i - 4).replace(" ", MARK)
        if not self._worded and i < 260:
            return f"<{i - 4:02X}>"
        if self.kind == "word":
            entry = entry[1:]  # each word is kept with the space before it
        entry = entry.replace(" ", MARK) or MARK
        joined = {match.start() for match in _WITHIN_PICTURES.finditer(entry)}  # emoji that are one
        return "".join(
            c if c.isprintable() or at in joined else f"<U+{ord(c):04X}>" for at, c in enumerate(entry)
        )


def well_formed(text: str) -> str:
    r"""The text as UTF-8 can hold it: U+FFFD for each lone surrogate; everything else stays as it is.

    >>> well_formed("a\ud800b") == "a\ufffdb", well_formed("\ud83d\ude00") == "\U0001f600"
    (True, True)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def is_spaced(texts: Iterable[str]) -> bool:
    """Whether these texts are of scripts that put spaces between words, nearly: no Chinese, Japanese, Thai, Khmer …

    >>> is_spaced(["Wetter in Łódź"]), is_spaced(["東京の天気 (Tokyo)"])
    (True, False)
    """
    letters = unspaced = 0
    for text in texts:
        letters += sum(map(str.isalpha, text))
        unspaced += len(_UNSPACED.findall(text))
    return unspaced < 0.2 * letters


def _kind(document: dict[str, Any]) -> Kind:
    """The kind of a tokenizer file: the library refuses keys of ours in it, but how it cuts texts tells."""
    kinds: dict[str, Kind] = {"BPE": "bpe", "Unigram": "unigram", "WordLevel": "word"}
    kind = kinds.get(document["model"]["type"])
    if kind == "bpe" and document["normalizer"] is None:
        kind = "character" if len(document["model"]["vocab"]) > len(SPECIALS) + len(BYTES) else "byte"
    if kind == "word" and document["normalizer"] != tokenizer_document("word", {})["normalizer"]:
        kind = "uncased"
    if kind is None:
        raise AttendoError(
            f"a {document['model']['type']} tokenizer is none of {', '.join(get_args(Kind)[:-1])}"
        )
    cuts = tokenizer_document(kind, {})
    if any(document[part] != cuts[part] for part in _CUTTING):
        raise AttendoError("this tokenizer cuts texts in another way than attendo's: train one with attendo")
    return kind


def keep_to_one_thread() -> None:
    """Keep the library to one thread unless the user says otherwise: its threads do not survive a fork."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def require_list(texts: Sequence[str]) -> None:
    """Raises AttendoError for one bare text, which would be taken for a text a letter.

    >>> require_list("rain")
    Traceback (most recent call last):
    attendo.errors.AttendoError: 'rain' is one text; give a list of texts, [text]
    """
    if isinstance(texts, str):
        shown = texts if len(texts) <= 30 else f"{texts[:29]}…"
        raise AttendoError(f"{shown!r} is one text; give a list of texts, [text]")
