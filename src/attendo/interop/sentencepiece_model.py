"""attendo's BPE and Unigram tokenizers as SentencePiece models, for programs that read nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attendo.data.tokenizers import BYTES, SPECIALS, Tokenizer
from attendo.errors import AttendoError
from attendo.interop.packages import required

SPACED = ("bpe", "unigram")
"""The kinds of tokenizers that a SentencePiece model can express."""


def why_no_sentencepiece(kind: str) -> str | None:
    """In a clause, why a tokenizer of this kind has no SentencePiece model; None where it has one.

    >>> why_no_sentencepiece("bpe"), why_no_sentencepiece("word")
    (None, "tokenizer.kind='word' can't be a SentencePiece model; bpe and unigram can")
    """
    if kind in SPACED:
        return None
    return f"tokenizer.kind={kind!r} can't be a SentencePiece model; {' and '.join(SPACED)} can"


def sentencepiece_model(tokenizer: Tokenizer, file: Path) -> bytes:
    """The bytes of a `sentencepiece.model` whose ids are the tokenizer's; file: its own tokenizer.json.

    Pieces are found without the cuts by script that attendo makes first, which is the same, as no piece of its own goes
    over a cut. BPE is the exception to the letter: SentencePiece joins any two neighbors that make a piece, attendo
    those that it has learned to join. A "▁" in a text is a space there. Raises AttendoError for another kind of
    tokenizer, and without the package.

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
    scores = _merge_scores(model) if tokenizer.kind == "bpe" else dict(model["vocab"])
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


def _merge_scores(model: dict[str, Any]) -> dict[str, float]:
    """The score of each piece that is joined of two others: the earlier it was learned, the higher."""
    scores: dict[str, float] = {}
    for rank, (first, second) in enumerate(model["merges"]):
        scores.setdefault(first + second, -float(rank))
    return scores
