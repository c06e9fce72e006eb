"""Tokenizers that are imported with a model: all types of the `tokenizers` library, with the model's own ids.

The tokenizer file is a JSON document that contains the library's own file (see `imported_tokenizer`).
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as LibraryTokenizer

from attendo.data.chat import CHAT_TOKENS, ChatTemplate
from attendo.data.tokenizers import (
    MARK,
    OWN,
    SpecialTokens,
    Tokenizer,
    keep_to_one_thread,
    library_offsets,
    well_formed,
)
from attendo.errors import AttendoError

FORMAT = 1
MOST_GROWTH = 10_000
MOST_IDS = 1 << 24
_KEYS = {"attendo_tokenizer", "vocab_size", "specials", "marks", "pieces", "source", "target"}
_WORD_CUTS = ("WhitespaceSplit", "Whitespace", "BertPreTokenizer")
_REMEDY = "Restore the file, or import the model again"


def byte_letters() -> dict[str, int]:
    """Return the byte that each character represents in a byte-level vocabulary, as in GPT-2 (Radford et al. 2019).

    Printable Latin-1 bytes represent themselves. The other bytes are represented by the characters from U+0100 on.

    >>> letters = byte_letters()
    >>> len(letters), letters["A"], letters["Ġ"], letters["Ċ"]
    (256, 65, 32, 10)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_LETTERS = byte_letters()


def going_on(node: Any) -> Any:
    """Return a tokenizer document for text that continues another text: no space is added before the first word.

    A document that first splits texts at white space is returned unchanged.
    """
    if isinstance(node, list):
        return [going_on(part) for part in node if not _prepends(part)]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "Metaspace":
        return node | {"prepend_scheme": "never"}
    if node.get("type") == "ByteLevel":
        return node | {"add_prefix_space": False}
    parts = node.get("pretokenizers", ())
    if any(isinstance(part, dict) and part.get("type") in _WORD_CUTS for part in parts):
        return node
    return {
        key: None if _prepends(part) else going_on(part) if key not in ("model", "decoder") else part
        for key, part in node.items()
    }


def _prepends(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "Prepend"


def require_bounded(document: Mapping[str, Any]) -> None:
    """Raise AttendoError if a tokenizer can expand short texts without limit, or if the library cannot run it."""
    growth = 1
    used, known = set[str](), set[str]()
    for part in _tables({name: part for name, part in document.items() if name not in ("model", "added_tokens")}):
        if part.get("type") == "Replace":
            growth *= max(1, len(str(part.get("content")))) + 1  # a pattern can match empty text
        known |= {*part.get("special_tokens", ())}
        used |= {str(part["SpecialToken"].get("id"))} if "SpecialToken" in part else set()
    if missing := sorted(used - known):
        raise AttendoError(f"the tokenizer adds {missing[0]!r} to each text, but has no id for it. {_REMEDY}")
    if growth > MOST_GROWTH or document.get("padding") or document.get("truncation"):
        raise AttendoError(
            f"the tokenizer lengthens a text up to {min(growth, 10**9):,} times, pads it or truncates it "
            f"(expected at most {MOST_GROWTH:,} times, no padding and no truncation). {_REMEDY}"
        )


def _tables(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the tables in a document. Outer tables come before inner tables."""
    if isinstance(node, dict):
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _tables(part)


class _Side:
    """One library tokenizer, with the model's id for each library id if the two differ."""

    def __init__(self, table: Mapping[str, Any], others: Mapping[str, int]) -> None:
        """Build the library tokenizer. `others` contains ids of subwords that the library's vocabulary may lack."""
        self._document = table["library"]
        self._ids = table["ids"]
        self._others = others
        require_bounded(self._document)
        self.library = LibraryTokenizer.from_str(json.dumps(self._document))
        self.entries = {self._id(i): piece for piece, i in self.library.get_vocab().items()}
        self._unknown = self._document["model"].get("unk_id")

    def encode(self, texts: Sequence[str], on: bool) -> list[list[int]]:
        library = self.library_for(on)
        rows = [found.ids for found in library.encode_batch_fast(list(texts), add_special_tokens=False)]
        if self._ids is None:
            return rows
        known = [[self._ids[i] for i in row] for row in rows]
        if self._others:
            for place, row in enumerate(rows):
                if self._unknown in row:
                    known[place] = self._known(library.encode(texts[place], add_special_tokens=False))
        return known

    def library_for(self, on: bool) -> LibraryTokenizer:
        return self._inner if on else self.library

    @cached_property
    def _inner(self) -> LibraryTokenizer:
        changed = going_on(self._document)
        return self.library if changed == self._document else LibraryTokenizer.from_str(json.dumps(changed))

    def _known(self, found: Encoding) -> list[int]:
        """Return the ids of a text that contains a subword unknown to the library."""
        pairs = zip(found.ids, found.tokens, strict=True)
        return [self._others.get(piece, self._id(i)) if i == self._unknown else self._id(i) for i, piece in pairs]

    def _id(self, i: int) -> int:
        return i if self._ids is None else self._ids[i]


class ImportedTokenizer(Tokenizer):
    """A tokenizer that was imported with a model and behaves as it did in the model's training.

    The tokenizer normalizes texts, so `decode(encode(text))` can differ from the text. No text is encoded to special
    tokens: "</s>" is encoded as ordinary characters.
    """

    def __init__(self, text: str) -> None:
        """Load the text of a tokenizer file. Raises AttendoError if the tokenizer is damaged or not imported."""
        super().__init__(text)
        keep_to_one_thread()
        self.kind = "imported"
        try:
            document = json.loads(text)
            chat = document.pop("chat", None)
            if unknown := sorted(document.keys() ^ _KEYS):
                raise AttendoError(f"a tokenizer file of an imported model: {unknown[0]} is missing or unknown")
            if document["attendo_tokenizer"] != FORMAT:
                raise AttendoError(f"unknown tokenizer format {document['attendo_tokenizer']!r}. Upgrade attendo")
            if not 0 < (size := int(document["vocab_size"])) < MOST_IDS:
                raise AttendoError(f"vocab_size={str(size)[:40]} is not a valid vocabulary size. {_REMEDY}")
            self.vocab_size = size
            self.chat = None if chat is None else ChatTemplate.of_table(chat, size)
            self.specials = _specials(document["specials"], self.vocab_size)
            self._marks = {int(i): str(piece) for i, piece in document["marks"].items()}
            given = {i: str(piece) for i, piece in enumerate(document["pieces"] or ()) if piece is not None}
            others = {piece: i for i, piece in given.items() if i not in self._marks}
            self._side = _Side(document["source"], others)
            self._target = None if document["target"] is None else _Side(document["target"], others)
            found = self._side.entries | given | self._marks
            self._entries = [found.get(i) for i in range(self.vocab_size)]
        except AttendoError:
            raise
        except Exception as error:
            raise AttendoError(f"not a tokenizer file ({str(error)[:200]}). {_REMEDY}") from error
        if max(found, default=0) >= self.vocab_size:
            raise AttendoError(
                f"the tokenizer has token id {max(found)}, but vocab_size is {self.vocab_size}. {_REMEDY}"
            )
        own = self.specials
        self.pad_id = own.pad_id
        self.unk_id = own.unk_id
        self.bos_id = own.bos_id
        self.eos_id = own.eos_id
        self.mask_id = own.mask_id
        self._silent = frozenset(map(int, document["specials"]["silent"]))
        missing = {i for i, entry in enumerate(self._entries) if entry is None}
        self.not_text = self._silent | missing | self._marks.keys()
        self.never = tuple(sorted((missing | set(document["specials"]["never"])) - {own.eos_id}))
        kinds = {part.get("type") for part in _tables(document["source"]["library"]["decoder"])}
        self._byte_level, self._byte_pieces = "ByteLevel" in kinds, "ByteFallback" in kinds
        self.drops_space = "WordPiece" in kinds or self._joined([f"{MARK}a"]) == "a"

    @property
    def target(self) -> Tokenizer:
        return self if self._target is None else self._for_targets

    @cached_property
    def _for_targets(self) -> Tokenizer:
        other = copy.copy(self)
        assert self._target is not None
        other._side, other._target = self._target, None
        return other

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(f"<{i}>" if entry is None else entry for i, entry in enumerate(self._entries))

    def with_chat(self, template: ChatTemplate | None = None) -> "ImportedTokenizer":
        if self.chat is not None:
            return self
        document = json.loads(self._text)
        if template is None:
            first = self.vocab_size
            template = ChatTemplate.own(self.specials.before_prompt, first)
            document["vocab_size"] += len(CHAT_TOKENS)
            document["marks"] |= {str(i): name for i, name in enumerate(CHAT_TOKENS, first)}
            document["specials"]["silent"] += range(first, first + len(CHAT_TOKENS))
            document["specials"]["never"] += range(first, template.end_id)
        document["chat"] = template.as_table()
        return ImportedTokenizer(json.dumps(document, ensure_ascii=False, indent=1) + "\n")

    def _offsets(self, text: str, ids: Sequence[int], going_on: bool) -> list[tuple[int, int]]:
        return library_offsets(self._side.library_for(going_on), text)

    def encode_batch(self, texts: Iterable[str], going_on: bool = False) -> list[list[int]]:
        return self._side.encode([well_formed(text) for text in texts], going_on)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens. Raises AttendoError for an id out of range."""
        self._check(ids)
        return self._joined([self._entries[i] or "" for i in ids if self._spells(i)])

    def bytes_of(self, token_id: int) -> bytes:
        self._check([token_id])
        entry = self._entries[token_id]
        if entry is None or not self._spells(token_id):
            return b""
        if self._byte_level:
            return bytes(_LETTERS[c] for c in entry) if all(c in _LETTERS for c in entry) else entry.encode()
        if self._byte_pieces and (byte := _byte(entry)) is not None:
            return bytes([byte])
        return self._joined(["a", entry]).removeprefix("a").encode()

    def is_part(self, token_id: int) -> bool:
        try:
            self.bytes_of(token_id).decode()
        except UnicodeDecodeError:
            return True
        return False

    def _joined(self, pieces: list[str]) -> str:
        decoder = self._side.library.decoder
        return " ".join(pieces) if decoder is None else decoder.decode(pieces)

    def _spells(self, i: int) -> bool:
        return i not in self._silent and i != self.unk_id

    def _shown(self, i: int) -> str:
        entry = self._entries[i]
        if entry is None:
            return f"<{i}>"
        if i in self._marks or not (self._byte_level or (self._byte_pieces and _byte(entry) is not None)):
            return entry
        data = self.bytes_of(i)
        if self.is_part(i):
            return "".join(f"<{byte:02X}>" for byte in data)
        text = data.decode().replace(" ", MARK)
        return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def imported_tokenizer(
    sides: Sequence[Mapping[str, Any]],
    vocab_size: int,
    specials: SpecialTokens,
    silent: Iterable[int],
    never: Iterable[int],
    marks: Mapping[int, str],
    pieces: Sequence[str | None] | None = None,
) -> ImportedTokenizer:
    """Build an imported tokenizer from the parts of its file.

    Args:
        sides: The tables of the source tokenizer and, if it differs, of the target tokenizer. "library" contains a
            document of the `tokenizers` library without special tokens, and "ids" the model's id of each library id
            (None: equal ids).
        vocab_size: The number of rows of the embedding matrix.
        specials: The special ids of the model.
        silent: The ids that `decode` omits.
        never: The ids that a model must not generate.
        marks: The displayed text of each token that texts cannot contain, by id.
        pieces: The subword of each id, or None for an id without a subword (default: the vocabularies of `sides`).
    """
    own = asdict(specials)
    del own["no_target"]
    document = {
        "attendo_tokenizer": FORMAT,
        "vocab_size": vocab_size,
        "specials": own | {"silent": sorted(set(silent)), "never": sorted(set(never))},
        "marks": {str(i): piece for i, piece in sorted(marks.items())},
        "pieces": None if pieces is None else list(pieces),
        "source": sides[0],
        "target": sides[1] if len(sides) > 1 else None,
    }
    return ImportedTokenizer(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def _specials(table: Mapping[str, Any], vocab_size: int) -> SpecialTokens:
    """Return the special ids of a file. Raises AttendoError if they are not valid ids of the model."""
    names = {field.name for field in fields(SpecialTokens)} - {"no_target"}
    if differing := sorted(table.keys() ^ {*names, "silent", "never"}):
        raise AttendoError(f"specials.{differing[0]} is missing or unknown. {_REMEDY}")
    given: dict[str, Any] = {}
    for name in names:
        value = table[name]
        is_pair, is_list = name.startswith("around"), isinstance(getattr(OWN, name), tuple)
        least = -1 if name in ("unk_id", "mask_id") else 0
        parts = value if is_pair and isinstance(value, list) else [value if is_list else [value]]
        lists = [part for part in parts if isinstance(part, list)]
        ids = all(type(i) is int and least <= i < vocab_size for part in lists for i in part)
        if not ids or not len(lists) == len(parts) == 1 + is_pair:
            wanted = "a list of ids" if is_list else "an id"
            raise AttendoError(f"specials.{name}={value} must be {wanted} in a vocabulary of {vocab_size}. {_REMEDY}")
        found = tuple(map(tuple, lists))
        given[name] = found if is_pair else found[0] if is_list else value
    if not given["begin"]:
        raise AttendoError(f"specials.begin is empty. {_REMEDY}")
    return SpecialTokens(**given, no_target=-1)


def _byte(entry: str) -> int | None:
    """Return the byte that a subword such as <0xE3> represents, or None for other subwords."""
    if len(entry) == 6 and entry.startswith("<0x") and entry.endswith(">"):
        return int(entry[3:5], 16)
    return None
