"""The import of the tokenizer in a Hugging Face folder, from tokenizer.json or older files.

`transformers` converts most older files to a document of the `tokenizers` library. This module reads the SentencePiece
models of Llama (tokenizer.model) and Marian (source.spm, target.spm). `transformers` does not convert Llama models
exactly, and cannot convert Marian models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from attendo.data.imported_tokenizers import ImportedTokenizer, imported_tokenizer, require_bounded
from attendo.data.tokenizers import Around, SpecialTokens, keep_to_one_thread, library_document
from attendo.errors import AttendoError
from attendo.interop.requirements import required
from attendo.interop.sentencepiece_models import added_token, sentencepiece_document, sentencepiece_proto


@dataclass(frozen=True)
class TokenizerFacts:
    """The contents of the JSON files in a Hugging Face folder that describe the tokenizer."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type", ""))

    @cached_property
    def has_document(self) -> bool:
        """Whether the folder has a tokenizer.json, which takes precedence over older files."""
        return (self.folder / "tokenizer.json").is_file()

    @cached_property
    def own(self) -> dict[str, Any]:
        """The combined contents of special_tokens_map.json and tokenizer_config.json, which has priority."""
        return self.table("special_tokens_map.json") | self.table("tokenizer_config.json")

    @cached_property
    def generation(self) -> dict[str, Any]:
        return self.table("generation_config.json")

    def name(self, role: str) -> str | None:
        """Return the text of the special token with a role such as "eos", or None if there is no such token."""
        value = self.own.get(f"{role}_token")
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else None

    def added(self) -> dict[int, dict[str, Any]]:
        """Return the added tokens in tokenizer_config.json, by id."""
        table = self.own.get("added_tokens_decoder") or {}
        return {int(i): one for i, one in table.items() if isinstance(one, dict) and "content" in one}

    def id(self, *keys: str) -> int | None:
        """Return the token id of the first existing key, from generation_config.json or otherwise from config.json."""
        for key in keys:
            for table in (self.generation, self.config):
                value = table.get(key)
                value = value[0] if isinstance(value, list) and value else value
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocab_size:
                    return value
        return None

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary, or a number above all ids if the size is unknown."""
        value = self.config.get("vocab_size")
        return value if isinstance(value, int) else 1 << 30

    def json(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise AttendoError(f"{path} is damaged (not valid JSON: {error}). Copy it again") from None

    def table(self, name: str) -> dict[str, Any]:
        if not (self.folder / name).is_file():
            return {}
        table = self.json(name)
        if not isinstance(table, dict):
            raise AttendoError(f"{self.folder / name} is damaged (not a JSON object). Copy it again")
        return table


_LLAMAS = {"llama", "mistral"}
"""The model types whose tokenizer.model contains the ids of the model."""
_FILES = (
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("tokenizer.model",),
)
"""The possible files of an older tokenizer."""
_CODE = re.compile("[a-z]{2,3}_[A-Z]{2}")
"""The pattern of mBART's language codes."""

NAMES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")


def read_tokenizer(
    folder: Path,
    config: Mapping[str, Any],
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> ImportedTokenizer:
    """Return the tokenizer of a Hugging Face folder, with the special ids of config.json and generation_config.json.

    Args:
        folder: The folder with the files of the tokenizer.
        config: The contents of config.json.
        source_language: The source language of a translator, a code of the vocabulary such as "en_XX" or "deu".
        target_language: The target language of a translator, in the same format.

    Raises:
        AttendoError: A file is missing or damaged, or a multilingual model has no target language.

    >>> read_tokenizer(Path("nowhere"), {})
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere has no tokenizer (expected tokenizer.json, vocab.json with merges.txt, \
vocab.txt, spiece.model, sentencepiece.bpe.model or tokenizer.model, or source.spm with target.spm and vocab.json). \
Copy these files from the original model
    """
    keep_to_one_thread()
    facts = TokenizerFacts(folder, config)
    if (folder / "source.spm").is_file() or (facts.kind == "marian" and not facts.has_document):
        return _two_sided(facts, target_language)
    return _one_sided(facts, library_file(facts), source_language, target_language)


_USUAL = {
    "bos": ("<s>", "<|endoftext|>", "[CLS]"),
    "eos": ("</s>", "<|endoftext|>", "[SEP]"),
    "unk": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "[PAD]"),
    "mask": ("<mask>", "[MASK]"),
}
"""The usual names of special tokens, for models whose files do not name them."""


def library_file(facts: TokenizerFacts) -> dict[str, Any]:
    """Return the tokenizer as a document of the `tokenizers` library, whose added tokens include special tokens.

    >>> library_file(TokenizerFacts(Path("nowhere"), {}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere has no tokenizer (expected tokenizer.json, ...
    """
    folder = facts.folder
    if (folder / "tokenizer.json").is_file():
        document = facts.json("tokenizer.json")
        if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
            raise AttendoError(f"{folder / 'tokenizer.json'} is not a file of the tokenizers library. Copy it again")
        return document
    names = next((names for names in _FILES if all((folder / name).is_file() for name in names)), None)
    if names is None:
        raise AttendoError(
            f"{folder} has no tokenizer (expected tokenizer.json, vocab.json with merges.txt, vocab.txt, "
            "spiece.model, sentencepiece.bpe.model or tokenizer.model, or source.spm with target.spm and "
            "vocab.json). Copy these files from the original model"
        )
    if names == ("tokenizer.model",) and facts.kind in _LLAMAS:
        return _llama_document(facts)
    return _converted(facts, names)


def _llama_document(facts: TokenizerFacts) -> dict[str, Any]:
    """Return the document of Llama's tokenizer.model. It adds a begin token unless add_bos_token is false."""
    document = sentencepiece_document(facts.folder / "tokenizer.model")
    ids = _ids(document)
    known = {token["content"] for token in document["added_tokens"]}
    new = {i: token for i, token in facts.added().items() if token["content"] not in known}
    document["added_tokens"] += [
        added_token(i, token["content"], special=bool(token.get("special"))) for i, token in new.items()
    ]
    bos = facts.name("bos") or "<s>"
    if facts.own.get("add_bos_token", True) and bos in ids:
        document["post_processor"] = template(((ids[bos],), ()), {ids[bos]: bos})
    return document


def _converted(facts: TokenizerFacts, names: Sequence[str]) -> dict[str, Any]:
    """Convert older files with `transformers`. Raise AttendoError if that fails or `transformers` is missing."""
    folder = facts.folder
    transformers = required("transformers")
    if names[0].endswith(".model"):
        sentencepiece_proto(folder / names[0])
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder,
            config=transformers.AutoConfig.for_model(facts.kind),
            local_files_only=True,
            trust_remote_code=False,
        )
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise AttendoError(f"{folder}: transformers cannot read {' and '.join(names)} ({said})") from error
    if not {*names} <= {*tokenizer.vocab_files_names.values()} or not tokenizer.is_fast:
        raise AttendoError(
            f"{folder}: unknown numbering of the pieces of {names[0]} in a {facts.kind or 'model'}. Copy its "
            "tokenizer.json, or save it with transformers "
            "(AutoTokenizer.from_pretrained(…).save_pretrained(…))"
        )
    return json.loads(tokenizer.backend_tokenizer.to_str())


def template(around: Around, names: Mapping[int, str]) -> dict[str, Any] | None:
    """Return a post-processor of the `tokenizers` library that adds special tokens before and after a text.

    `around` contains the ids before and after the text. `names` contains the token of each id.

    >>> template(((), ()), {})
    >>> template(((1,), (2,)), {1: "<s>", 2: "</s>"})["single"][0]
    {'SpecialToken': {'id': '<s>', 'type_id': 0}}
    """
    before, behind = around
    if not (before or behind):
        return None
    texts = {letter: {"Sequence": {"id": letter, "type_id": 0}} for letter in "AB"}
    marks = [[{"SpecialToken": {"id": names[i], "type_id": 0}} for i in part] for part in around]
    return {
        "type": "TemplateProcessing",
        "single": [*marks[0], texts["A"], *marks[1]],
        "pair": [*marks[0], texts["A"], *marks[1], texts["B"], *marks[1]],
        "special_tokens": {names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]} for i in (*before, *behind)},
    }


def _ids(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of all tokens in a document."""
    vocab = document["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    return ids | {token["content"]: token["id"] for token in document["added_tokens"]}


def _one_sided(
    facts: TokenizerFacts, document: dict[str, Any], source_language: str | None, target_language: str | None
) -> ImportedTokenizer:
    path = facts.folder / "tokenizer.json" if facts.has_document else facts.folder
    try:
        ids = _ids(document)
        around = _around(document)
        special = {token["id"] for token in document["added_tokens"] if token.get("special")}
        special |= {ids[name] for role in NAMES if (name := facts.name(role)) in ids}
        apart = spelled_apart(document, special)
    except AttendoError:
        raise
    except Exception as error:
        raise AttendoError(f"{path} is not a readable tokenizer ({str(error)[:200]}). Copy it again") from error
    vocab_size = facts.vocab_size if "vocab_size" in facts.config else max(ids.values()) + 1
    marks = {i: piece for i, piece in apart.marks.items() if i < vocab_size}
    several = facts.kind == "mbart" and any(_CODE.fullmatch(mark) for mark in marks.values())
    is_chosen = facts.has_document and len(around[0]) + len(around[1]) == 2
    if several and source_language is None and not is_chosen:
        raise AttendoError(f"{facts.folder}: choose the source language with `source_language`, for example en_XX")
    # other models have no language tokens
    languages = (source_language, target_language) if several else (None, None)
    codes = [_code(facts, ids, language) for language in languages]
    specials = _specials(facts, ids, apart.unk_id, around, codes)
    side = {"library": apart.document, "ids": apart.ids}
    silent = {i for i in special if i < vocab_size}
    tokenizer = imported_tokenizer([side], vocab_size, specials, silent, _never(facts, specials), marks)
    _check_apart(tokenizer, list(marks.values()), path)
    return tokenizer


def _around(document: Mapping[str, Any]) -> Around:
    """Return the ids that the library adds before and after a text, by encoding an example."""
    document = {**document, "truncation": None, "padding": None}
    require_bounded(document)
    library = LibraryTokenizer.from_str(json.dumps(document))
    bare, whole = (library.encode("a", add_special_tokens=added).ids for added in (False, True))
    start = next((n for n in range(len(whole) - len(bare) + 1) if whole[n : n + len(bare)] == bare), 0)
    return tuple(whole[:start]), tuple(whole[start + len(bare) :])


def _code(facts: TokenizerFacts, ids: Mapping[str, int], language: str | None) -> int | None:
    if language is None:
        return None
    for name in (language, f"__{language}__", f">>{language}<<"):
        if name in ids:
            return ids[name]
    raise AttendoError(f"{facts.folder}: the tokenizer has no language {language!r}. Give a code from its vocabulary")


def _specials(
    facts: TokenizerFacts,
    ids: Mapping[str, int],
    unk_id: int,
    around: Around,
    codes: Sequence[int | None] = (None, None),
) -> SpecialTokens:
    """Return the special tokens by role. The files of the model take precedence over those of the tokenizer."""

    def named(role: str) -> int | None:
        names = (facts.name(role), *_USUAL.get(role, ()))
        found = (ids[name] for name in names if name is not None and name in ids)
        return next((i for i in found if i < facts.vocab_size), None)

    def first(*found: int | None) -> int | None:
        return next((i for i in found if i is not None), None)

    eos_id = first(facts.id("eos_token_id"), named("eos"))
    if eos_id is None:
        raise AttendoError(
            f"{facts.folder}: no end token in config.json or the tokenizer files (eos_token_id, eos_token). "
            "Add it to config.json"
        )
    bos_id = first(facts.id("bos_token_id"), named("bos"), eos_id)
    pad_id = first(facts.id("pad_token_id"), named("pad"), eos_id)
    mask_id = first(named("mask"), -1)
    assert bos_id is not None and pad_id is not None and mask_id is not None
    before, behind = around
    source_code, target_code = codes
    if source_code is not None:
        behind = (eos_id, source_code) if facts.kind == "mbart" and not before else behind
        before = (source_code,) if facts.kind != "mbart" or before else before
    start = first(facts.id("decoder_start_token_id"), pad_id if facts.kind in ("t5", "mt5") else bos_id)
    forced = first(target_code, facts.id("forced_bos_token_id"))
    assert start is not None
    return SpecialTokens(
        pad_id=pad_id,
        unk_id=unk_id,
        bos_id=bos_id,
        eos_id=eos_id,
        mask_id=mask_id,
        no_target=-1,
        around_source=(before, behind),
        around_text=(before, behind),
        begin=_begin(start, forced, {pad_id, bos_id, eos_id}),
        before_prompt=before,
    )


def _begin(start: int, forced: int | None, usual: Collection[int]) -> tuple[int, ...]:
    """Return the first ids of a decoder. A chosen language replaces the default language."""
    if forced is None or forced == start:
        return (start,)
    return (start, forced) if start in usual else (forced,)


def _never(facts: TokenizerFacts, specials: SpecialTokens) -> set[int]:
    """Return the ids that are never generated: padding, suppressed ids, and all end ids except the first."""
    found = {specials.pad_id}
    for table in (facts.config, facts.generation):
        found |= {words[0] for words in table.get("bad_words_ids") or () if len(words) == 1}
        found |= set(table.get("suppress_tokens") or ())
        ends = table.get("eos_token_id")
        found |= set(ends) if isinstance(ends, list) else set()
    return {i for i in found if isinstance(i, int) and 0 <= i < facts.vocab_size} - {specials.eos_id}


def _two_sided(facts: TokenizerFacts, target_language: str | None) -> ImportedTokenizer:
    """Return Marian's tokenizer, in which both languages have their own SentencePiece model and share a vocabulary."""
    folder = facts.folder
    names = ("source.spm", "target.spm", "vocab.json")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise AttendoError(
            f"{folder} has no {missing[0]}. The tokenizer of a MarianMT model consists of {', '.join(names)}: "
            "copy them from the original model"
        )
    if facts.own.get("separate_vocabs") or (folder / "target_vocab.json").is_file():
        raise AttendoError(
            f"{folder} has one vocabulary per language (target_vocab.json). Only models with one shared "
            "vocabulary can be imported"
        )
    ids = facts.json("vocab.json")
    if not isinstance(ids, dict) or not all(isinstance(i, int) for i in ids.values()):
        raise AttendoError(f"{folder / 'vocab.json'} is not a table of pieces and ids. Copy it again")
    usual = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
    roles = {role: facts.name(role) or name for role, name in usual.items()}
    if unnamed := [name for name in roles.values() if name not in ids]:
        raise AttendoError(
            f"{folder / 'vocab.json'} has no {unnamed[0]}, which a MarianMT model requires. Copy it again"
        )
    unk_id, eos_id = ids[roles["unk"]], ids[roles["eos"]]
    codes = {name[2:-2]: i for name, i in ids.items() if name.startswith(">>") and name.endswith("<<")}
    if codes and target_language not in codes:
        raise AttendoError(
            f"{folder} translates into several languages. Choose one with `target_language`: "
            f"{', '.join(sorted(codes)[:12])}{' …' * (len(codes) > 12)}"
        )
    sides = []
    for name in names[:2]:
        document = sentencepiece_document(folder / name)
        unspellable = {token["id"] for token in document["added_tokens"]}
        places = [unk_id if i in unspellable else ids.get(piece, unk_id) for piece, i in _ids(document).items()]
        sides.append({"library": spelled_apart(document, unspellable).document, "ids": places})
    vocab_size = facts.vocab_size if "vocab_size" in facts.config else max(ids.values()) + 1
    before = (codes[target_language],) if target_language in codes else ()
    specials = _specials(facts, ids, unk_id, (before, (eos_id,)))
    pieces: list[str | None] = [None] * vocab_size
    for piece, i in ids.items():
        if 0 <= i < vocab_size:
            pieces[i] = piece
    marks = {ids[name]: name for name in roles.values()} | {i: f">>{code}<<" for code, i in codes.items()}
    return imported_tokenizer(sides, vocab_size, specials, marks, _never(facts, specials), marks, pieces)


def _check_apart(tokenizer: ImportedTokenizer, names: Sequence[str], path: Path) -> None:
    """Raise AttendoError if the encoding of a text can contain a special token."""
    special = tokenizer.not_text - {tokenizer.unk_id}
    for name, ids in zip(names, tokenizer.encode_batch(names), strict=True):
        if special & set(ids):
            raise AttendoError(
                f"{path}: the text {name!r} would become a special token, since this tokenizer does not split "
                "texts at spaces. It cannot be imported"
            )


@dataclass(frozen=True)
class SpelledApart:
    """A tokenizer with which texts never contain special tokens, as returned by `spelled_apart`.

    Attributes:
        document: The tokenizer as a document of the `tokenizers` library.
        ids: The model's token id for each id of the library, or None if all ids are equal.
        marks: The texts of the special tokens, by token id.
        unk_id: The id of the unknown token, or -1 if the tokenizer has none.
    """

    document: dict[str, Any]
    ids: list[int] | None
    marks: dict[int, str]
    unk_id: int


def spelled_apart(document: Mapping[str, Any], special: Collection[int]) -> SpelledApart:
    r"""Remove the post-processor, and ensure that encoded texts contain no special tokens.

    The library finds added tokens in every text, and vocabulary entries in every word. Therefore, added tokens are
    removed unless they are words. Vocabulary entries of special tokens get a leading space, which no word contains.

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

    model = renamed(model, {piece: f" {piece}" for piece in apart})
    if "unk_token" in model and unknown is None:
        model["unk_token"] = None if model["type"] == "BPE" else " "
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else list(pair) for pair in model["merges"]]
        model["merges"] = [pair for pair in pairs if not apart & {*pair, "".join(pair)}]
    parts = {"normalizer": "normalizer", "cuts": "pre_tokenizer", "decoder": "decoder"}
    own = {ours: document.get(theirs) for ours, theirs in parts.items()}
    found = library_document(model, added=kept, **own)
    return SpelledApart(found, _renumbered(found, kept), marks, unk_id)


def renamed(model: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the model of a tokenizer with new names of some vocabulary entries.

    >>> renamed({"vocab": {"<s>": 0, "[UNK]": 1}, "unk_token": "[UNK]"}, {"[UNK]": " [UNK]"})
    {'vocab': {'<s>': 0, ' [UNK]': 1}, 'unk_token': ' [UNK]'}
    """
    found, vocab = dict(model), model["vocab"]
    if isinstance(vocab, dict):
        found["vocab"] = {names.get(piece, piece): i for piece, i in vocab.items()}
    else:
        found["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if "unk_token" in found:
        found["unk_token"] = names.get(found["unk_token"], found["unk_token"])
    return found


def _is_text(content: str) -> bool:
    """Return whether an added token is a word or whitespace rather than markup."""
    return not content.strip() or content.replace(" ", "").isalnum()


def _renumbered(document: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> list[int] | None:
    """Return the model's id for each id of the library, or None if they are equal."""
    if not kept:
        return None
    library = LibraryTokenizer.from_str(json.dumps(document))
    own = library.get_vocab()
    ids = list(range(max(own.values()) + 1))
    for token in kept:
        ids[own[token["content"]]] = token["id"]
    return None if ids == list(range(len(ids))) else ids
