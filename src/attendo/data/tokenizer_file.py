"""The file of a learned tokenizer: how texts are cut and joined around a model of the `tokenizers` library."""

from collections.abc import Sequence
from typing import Any, Final, Literal

Kind = Literal["bpe", "unigram", "word", "uncased", "character", "byte", "imported"]
MARK: Final = "▁"  # U+2581, what SentencePiece writes for a space

# One cut of a text: characters of one script, one digit, white space, or everything else (punctuation,
# symbols), each with the mark of the space before it. A character's class doesn't depend on its neighbors, so
# no piece ever crosses a cut, and a SentencePiece model of the same pieces, which makes no cuts, finds the
# same pieces. Neither "<0x41>" nor "</s>" is one cut, which is why no text can spell such an entry of the
# vocabulary.
_JAPANESE = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_LETTERS = r"\p{L}\p{M}\x{200C}\x{200D}"  # with the joiners that Indic and Persian words are spelled with
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

# One word of an uncased text: a break of lines in HTML counts as a space, n't and 's are words of their own as in the
# Penn Treebank, and what is written without spaces is cut into characters (Katakana into runs).
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


def tokenizer_document(kind: Kind, model: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer file, as JSON values, of a model of the `tokenizers` library: how texts are cut and joined.

    Nothing is normalized but for `uncased`; the `Prepend` puts the mark of a space before the first word, always, which
    makes `Metaspace` exact where its own prepending is not (it takes "a" and " a" for the same text).
    """
    fuse = {"type": "Fuse"}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    normalizer, cuts, joins = None, None, [{"type": "ByteFallback"}, fuse]
    if kind in ("bpe", "unigram"):
        metaspace = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": True}
        split = {"type": "Split", "pattern": {"Regex": _CUTS}, "behavior": "Isolated", "invert": False}
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
    """What a file of the `tokenizers` library holds: its parts, each None where there is none, and added tokens.

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
