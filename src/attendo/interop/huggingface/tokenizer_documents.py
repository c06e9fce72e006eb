"""Documents of the `tokenizers` library: from the files of older tokenizers, and with special tokens out of reach."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from attendo.data.tokenizer_file import library_document
from attendo.interop.huggingface.sentencepiece_models import SentencePieces

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class SpelledApart:
    """A tokenizer in which no text can spell a special token.

    document: of the library. ids: the model's id of each of its own; None where they are the same. marks: the tokens
    that no text can spell, by id. unk_id: -1 where there is none.
    """

    document: dict[str, Any]
    ids: list[int] | None
    marks: dict[int, str]
    unk_id: int


def spelled_apart(document: Mapping[str, Any], special: Collection[int]) -> SpelledApart:
    r"""The tokenizer without its post-processor, and with its special tokens where no text reaches them.

    The library looks for added tokens in every text, and for entries of the vocabulary in every word. So tokens that
    are added are taken out but for those that are text (a word, or white space), and the entries of the others are
    written with a space in front, which no word holds once it is cut. special: their ids.

    >>> model = {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    >>> cuts = {"type": "WhitespaceSplit"}
    >>> parts = {"added_tokens": [{"id": 0, "content": "<s>", "special": True}], "pre_tokenizer": cuts, "model": model}
    >>> apart = spelled_apart(parts, {0})
    >>> apart.document["model"]["vocab"], apart.marks, apart.unk_id
    ({' <s>': 0, 'a': 1, ' [UNK]': 2}, {0: '<s>', 2: '[UNK]'}, 2)
    """
    model, added = dict(document["model"]), list(document.get("added_tokens") or ())
    kept = [token for token in added if token["id"] not in special and _is_text(token["content"])]
    apart = {token["content"] for token in added} - {token["content"] for token in kept}
    vocab = model["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    apart |= {piece for piece, i in ids.items() if i in special}
    unknown = model.get("unk_token") if "unk_token" in model else None
    if model["type"] == "Unigram" and model.get("unk_id") is not None:
        unknown = vocab[model["unk_id"]][0]
    unk_id = -1 if unknown is None else ids.get(unknown, -1)
    if unk_id < 0:
        unknown = None
    apart |= set() if unknown is None else {unknown}
    marks = {token["id"]: token["content"] for token in added if token["content"] in apart}
    marks |= {i: piece for piece, i in ids.items() if piece in apart}

    def named(piece: str) -> str:
        return f" {piece}" if piece in apart else piece

    if isinstance(vocab, dict):
        model["vocab"] = {named(piece): i for piece, i in vocab.items()}
    else:
        model["vocab"] = [[named(piece), score] for piece, score in vocab]
    if "unk_token" in model:
        model["unk_token"] = None if unknown is None else named(unknown)
        if model["unk_token"] is None and model["type"] != "BPE":
            model["unk_token"] = " "
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]
        model["merges"] = [pair for pair in pairs if not apart & {*pair, "".join(pair)}]
    parts = {"normalizer": "normalizer", "cuts": "pre_tokenizer", "decoder": "decoder"}
    found = library_document(
        model, added=kept, **{ours: document.get(theirs) for ours, theirs in parts.items()}
    )
    return SpelledApart(found, _renumbered(found, kept), marks, unk_id)


def added_token(token_id: int, content: str, *, special: bool = True) -> dict[str, Any]:
    """An added token as the library's documents have it.

    >>> added_token(7, "<pad>")["normalized"]
    False
    """
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def _is_text(content: str) -> bool:
    """Whether an added token is a word, or white space, rather than markup."""
    return not content.strip() or content.replace(" ", "").isalnum()


def _renumbered(document: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """The model's ids of the library's, which numbers added tokens on; None where they are the same."""
    if not kept:
        return None
    library = LibraryTokenizer.from_str(json.dumps(document))
    own = library.get_vocab()
    ids = list(range(max(own.values()) + 1))
    for token in kept:
        ids[own[token["content"]]] = token["id"]
    return None if ids == list(range(len(ids))) else ids


def byte_level_document(
    vocab: Mapping[str, int], merges: Sequence[str], kind: str, own: Mapping[str, Any]
) -> dict[str, Any]:
    """GPT-2's, RoBERTa's, BART's and Qwen's: vocab.json and the lines of merges.txt.

    >>> document = byte_level_document({"a": 0, "b": 1, "ab": 2}, ["#version: 0.2", "a b", ""], "gpt2", {})
    >>> document["model"]["merges"], document["decoder"]["type"]
    ([['a', 'b']], 'ByteLevel')
    """
    pairs = [line.split(" ") for line in merges if line and not line.startswith("#version")]
    level = {"type": "ByteLevel", "add_prefix_space": bool(own.get("add_prefix_space")), "trim_offsets": True}
    cuts: dict[str, Any] = level | {"use_regex": True}
    normalizer = None
    if kind.startswith("qwen"):
        split = {"type": "Split", "pattern": {"Regex": _QWEN_WORDS}, "behavior": "Isolated", "invert": False}
        cuts = {"type": "Sequence", "pretokenizers": [split, level | {"use_regex": False}]}
        normalizer = {"type": "NFC"}
    model = {"type": "BPE", "vocab": dict(vocab), "merges": pairs}
    return library_document(model, normalizer=normalizer, cuts=cuts, decoder=level | {"use_regex": True})


def word_piece_document(vocab: Sequence[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """BERT's and DistilBERT's: the lines of vocab.txt, and what tokenizer_config.json says of case and accents.

    >>> word_piece_document(["[UNK]", "a", "##b"], {"do_lower_case": False})["normalizer"]["lowercase"]
    False
    """
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": own.get("tokenize_chinese_chars", True),
        "strip_accents": own.get("strip_accents"),
        "lowercase": own.get("do_lower_case", True),
    }
    unknown = own.get("unk_token", "[UNK]")
    model = {
        "type": "WordPiece",
        "unk_token": unknown["content"] if isinstance(unknown, dict) else unknown,
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {piece: i for i, piece in enumerate(vocab)},
    }
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return library_document(model, normalizer=normalizer, cuts={"type": "BertPreTokenizer"}, decoder=decoder)


def template(found: SentencePieces) -> dict[str, Any]:
    """A SentencePiece model with its own ids, as Llama has it; what is no text is among the added tokens.

    >>> found = SentencePieces({"added_tokens": [], "model": {"vocab": {" <s>": 0, "a": 1}}}, ("<s>", "a"), {0}, 0)
    >>> template(found)["model"]["vocab"], template(found)["added_tokens"][0]["content"]
    ({'<s>': 0, 'a': 1}, '<s>')
    """
    document = json.loads(json.dumps(found.document))
    model = document["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {piece: i for i, piece in enumerate(found.pieces)}
        if "unk_token" in model:
            model["unk_token"] = found.pieces[found.unk_id]
    else:
        model["vocab"] = [
            [piece, score] for piece, (_, score) in zip(found.pieces, model["vocab"], strict=True)
        ]
    document["added_tokens"] = [
        added_token(i, found.pieces[i], special=i not in found.defined) for i in sorted(found.unspellable)
    ]
    return document


def t5_document(found: SentencePieces, n_extra: int) -> dict[str, Any]:
    """T5's: behind the pieces come <extra_id_99> down to <extra_id_0>.

    >>> model = {"vocab": [["a", -1.0]]}
    >>> document = t5_document(SentencePieces({"added_tokens": [], "model": model}, ("a",), frozenset(), 0), 2)
    >>> [(token["id"], token["content"]) for token in document["added_tokens"]]
    [(1, '<extra_id_1>'), (2, '<extra_id_0>')]
    """
    document = template(found)
    first = len(found.pieces)
    document["added_tokens"] += [
        added_token(first + n, f"<extra_id_{n_extra - 1 - n}>") for n in range(n_extra)
    ]
    return document


def fairseq_document(found: SentencePieces, behind: Sequence[str]) -> dict[str, Any]:
    """XLM-R's and mBART's: <s> <pad> </s> <unk>, the pieces but for the first three, and what stands behind them.

    >>> model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["a", -1.0]]}
    >>> pieces = SentencePieces({"added_tokens": [], "model": model}, ("<unk>", "<s>", "</s>", "a"), frozenset(), 0)
    >>> document = fairseq_document(pieces, ["<mask>"])
    >>> [piece for piece, _ in document["model"]["vocab"]], document["model"]["unk_id"]
    (['<s>', '<pad>', '</s>', '<unk>', 'a', '<mask>'], 3)
    """
    document = template(found)
    model = document["model"]
    first = [[name, 0.0] for name in ("<s>", "<pad>", "</s>", "<unk>")]
    model["vocab"] = [*first, *model["vocab"][3:], *([name, 0.0] for name in behind)]
    model["unk_id"] = 3
    named = [name for name, _ in first] + list(behind)
    ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    document["added_tokens"] = [added_token(ids[name], name) for name in named]
    return document
