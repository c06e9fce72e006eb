"""The conversion between SentencePiece models and tokenizers of attendo and the `tokenizers` library."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attendo.data.tokenizers import BYTES, MARK, SPECIALS, Tokenizer, library_document
from attendo.errors import AttendoError
from attendo.interop.requirements import required

_UNIGRAM, _BPE = 1, 2
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5


def added_token(token_id: int, content: str, *, special: bool = True) -> dict[str, Any]:
    """Return an added token in the format of the `tokenizers` library.

    >>> added_token(7, "<pad>")["normalized"]
    False
    """
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def sentencepiece_proto(path: Path) -> Any:
    """Return the parsed contents of a SentencePiece model file. Raise AttendoError for an invalid or unsupported file.

    >>> sentencepiece_proto(Path("none.model"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none.model: no such file
    """
    if not path.is_file():
        raise AttendoError(f"{path}: no such file")
    decode_error = required("google.protobuf.message").DecodeError
    proto: Any = required("sentencepiece.sentencepiece_model_pb2").ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except decode_error:
        raise AttendoError(f"{path} is not a SentencePiece model, or is truncated. Copy it again") from None
    trainer = proto.trainer_spec
    if not proto.pieces or trainer.model_type not in (_UNIGRAM, _BPE) or trainer.treat_whitespace_as_suffix:
        raise AttendoError(
            f"{path}: unsupported SentencePiece model (expected kind unigram or bpe, with the start of words marked)"
        )
    return proto


def sentencepiece_document(path: Path) -> dict[str, Any]:
    """Convert a SentencePiece model to a document of the `tokenizers` library with the same subwords and ids.

    The added tokens of the document include the unknown, control, unused and user-defined tokens. Raise AttendoError
    for an invalid file.

    >>> sentencepiece_document(Path("none.model"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none.model: no such file
    """
    proto = sentencepiece_proto(path)
    names = [piece.piece for piece in proto.pieces]
    kinds = [piece.type for piece in proto.pieces]
    scores = [piece.score for piece in proto.pieces]
    unk_id = kinds.index(_UNKNOWN) if _UNKNOWN in kinds else 0
    fallback = bool(proto.trainer_spec.byte_fallback)
    if proto.trainer_spec.model_type == _UNIGRAM:
        model = {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": [list(pair) for pair in zip(names, scores, strict=True)],
            "byte_fallback": fallback,
        }
    else:
        model = {
            "type": "BPE",
            "unk_token": names[unk_id],
            "fuse_unk": True,
            "byte_fallback": fallback,
            "vocab": {piece: i for i, piece in enumerate(names)},
            "merges": _merges(names, scores),
        }
    apart = [i for i, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL, _UNUSED, _USER_DEFINED)]
    return library_document(
        model,
        added=[added_token(i, names[i], special=kinds[i] != _USER_DEFINED) for i in apart],
        normalizer=_normalizer(proto.normalizer_spec),
        cuts=None,
        decoder=_decoder(bool(proto.normalizer_spec.add_dummy_prefix)),
    )


def _normalizer(spec: Any) -> dict[str, Any]:
    """Return the normalizer: it maps characters, removes extra spaces, adds a space at the start, and marks spaces."""
    parts: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        parts.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        parts.append({"type": "Replace", "pattern": {"Regex": rf"\A +|[ {MARK}]+\z"}, "content": ""})
        parts.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if spec.add_dummy_prefix:
        parts.append({"type": "Prepend", "prepend": MARK})
    parts.append({"type": "Replace", "pattern": {"String": " "}, "content": MARK})
    return {"type": "Sequence", "normalizers": parts}


def _decoder(prefixed: bool) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefixed:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": parts}


def _merges(pieces: Sequence[str], scores: Sequence[float]) -> list[list[str]]:
    """Return the merges of a BPE model, with the best subwords first. SentencePiece files contain no merges."""
    places = {piece: i for i, piece in enumerate(pieces)}
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(pieces, scores, strict=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in places and right in places:
                found.append((-score, places[left], places[right], left, right))
    return [[left, right] for *_, left, right in sorted(found)]


SPACED = ("bpe", "unigram")
"""The kinds of tokenizers that can be written as a SentencePiece model."""


def why_no_sentencepiece(kind: str) -> str | None:
    """Return the reason why a kind of tokenizer cannot be written as a SentencePiece model, or None if it can.

    >>> why_no_sentencepiece("bpe"), why_no_sentencepiece("word")
    (None, "tokenizer.kind='word' cannot be written as a SentencePiece model (supported: bpe and unigram)")
    """
    if kind in SPACED:
        return None
    return f"tokenizer.kind={kind!r} cannot be written as a SentencePiece model (supported: {' and '.join(SPACED)})"


def sentencepiece_model(tokenizer: Tokenizer, file: Path) -> bytes:
    """Return the bytes of a `sentencepiece.model` with the tokenizer's ids.

    attendo also splits texts where the script changes. The SentencePiece model omits the splits, as no subword crosses
    a split. BPE can differ, because SentencePiece joins any neighbors that form a subword. The character "▁" in a text
    becomes a space. Raise AttendoError for other kinds of tokenizers, and if a package is missing.

    >>> import tempfile
    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> tokenizer = train_tokenizer(["it rains", "it snows"], TokenizerConfig(vocab_size=275))
    >>> file = Path(tempfile.mkdtemp()) / "tokenizer.json"
    >>> tokenizer.save(file)
    >>> from sentencepiece import SentencePieceProcessor
    >>> there = SentencePieceProcessor(model_proto=sentencepiece_model(tokenizer, file))
    >>> there.encode("it rains, 日") == tokenizer.encode("it rains, 日")
    True
    """
    if (why := why_no_sentencepiece(tokenizer.kind)) is not None:
        raise AttendoError(f"{file}: {why}")
    proto = required("sentencepiece.sentencepiece_model_pb2")
    model = json.loads(file.read_text(encoding="utf-8"))["model"]
    found = proto.ModelProto()
    scores = merge_scores(model) if tokenizer.kind == "bpe" else dict(model["vocab"])
    kinds = proto.ModelProto.SentencePiece
    for number, entry in enumerate(tokenizer.entries):
        piece = found.pieces.add(piece=entry, score=scores.get(entry, -float(len(scores) + number)))
        if number == tokenizer.unk_id:
            piece.type = kinds.UNKNOWN
        elif number < len(SPECIALS):
            piece.type = kinds.CONTROL
        elif number < len(SPECIALS) + len(BYTES):
            piece.type = kinds.BYTE
    trained = found.trainer_spec
    trained.model_type = proto.TrainerSpec.BPE if tokenizer.kind == "bpe" else proto.TrainerSpec.UNIGRAM
    trained.vocab_size, trained.byte_fallback = tokenizer.vocab_size, True
    trained.pad_id, trained.unk_id = tokenizer.pad_id, tokenizer.unk_id
    trained.bos_id, trained.eos_id = tokenizer.bos_id, tokenizer.eos_id
    trained.pad_piece, trained.unk_piece, trained.bos_piece, trained.eos_piece = SPECIALS
    cleaned = found.normalizer_spec
    cleaned.name, cleaned.precompiled_charsmap = "identity", b""
    cleaned.add_dummy_prefix = cleaned.escape_whitespaces = True
    cleaned.remove_extra_whitespaces = False
    return found.SerializeToString(deterministic=True)


def merge_scores(model: dict[str, Any]) -> dict[str, float]:
    """Return the score of each merged subword. Subwords that were learned earlier have higher scores.

    >>> merge_scores({"merges": [["a", "b"], ["ab", "c"]]})
    {'ab': -0.0, 'abc': -1.0}
    """
    scores: dict[str, float] = {}
    for rank, (first, second) in enumerate(model["merges"]):
        scores.setdefault(first + second, -float(rank))
    return scores
