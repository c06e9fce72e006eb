"""SentencePiece models as documents of the `tokenizers` library: the same pieces, found by the same rules."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendo.data.tokenizers import MARK
from attendo.errors import AttendoError

_UNIGRAM, _BPE = 1, 2
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5


@dataclass(frozen=True)
class SentencePieces:
    """What a model file says. document: of the library; its ids are the places of `pieces`. unspellable: those that are
    no pieces of text: unknown, control and unused ones, and what its user has `defined`.
    """

    document: dict[str, Any]
    pieces: tuple[str, ...]
    unspellable: frozenset[int]
    unk_id: int
    defined: frozenset[int] = frozenset()


def read_sentencepiece(path: Path) -> SentencePieces:
    """The model of a file (spiece.model, source.spm …). Raises AttendoError if it is none, and for kinds that can't be.

    >>> read_sentencepiece(Path("none.model"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: none.model: no such file
    """
    if not path.is_file():
        raise AttendoError(f"{path}: no such file")
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise AttendoError(
            f'{path} needs the package sentencepiece to be read; pip install "attendo[interop]"'
        ) from None
    proto: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError:
        raise AttendoError(f"{path} is no SentencePiece model, or was cut short; copy it again") from None
    trainer = proto.trainer_spec
    if not proto.pieces or trainer.model_type not in (_UNIGRAM, _BPE) or trainer.treat_whitespace_as_suffix:
        raise AttendoError(
            f"{path}: only SentencePiece models of kind unigram or bpe that mark the begin of words can be read"
        )
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    names = tuple(piece for piece, _, _ in pieces)
    unspellable = frozenset(
        i for i, (*_, kind) in enumerate(pieces) if kind in (_UNKNOWN, _CONTROL, _UNUSED, _USER_DEFINED)
    )
    defined = frozenset(i for i, (*_, kind) in enumerate(pieces) if kind == _USER_DEFINED)
    unk_id = next((i for i, (*_, kind) in enumerate(pieces) if kind == _UNKNOWN), 0)
    known = [" " + piece if i in unspellable else piece for i, piece in enumerate(names)]
    scores = [score for _, score, _ in pieces]
    fallback = bool(trainer.byte_fallback)
    if trainer.model_type == _UNIGRAM:
        model = {
            "type": "Unigram",
            "unk_id": unk_id,
            "vocab": [list(pair) for pair in zip(known, scores, strict=True)],
            "byte_fallback": fallback,
        }
    else:
        model = {
            "type": "BPE",
            "unk_token": known[unk_id],
            "fuse_unk": True,
            "byte_fallback": fallback,
            "vocab": {piece: i for i, piece in enumerate(known)},
            "merges": _merges(known, scores),
        }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": _normalizer(proto.normalizer_spec),
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": _decoder(bool(proto.normalizer_spec.add_dummy_prefix)),
        "model": model,
    }
    return SentencePieces(document, names, unspellable, unk_id, defined)


def _normalizer(spec: Any) -> dict[str, Any]:
    """Characters are mapped; then spaces at the ends and doubled ones go; then a space is put before, and shown."""
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
    """The pairs that join to a piece, those of the best pieces first: SentencePiece keeps no list of them."""
    places = {piece: i for i, piece in enumerate(pieces)}
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(pieces, scores, strict=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in places and right in places:
                found.append((-score, places[left], places[right], left, right))
    return [[left, right] for *_, left, right in sorted(found)]
