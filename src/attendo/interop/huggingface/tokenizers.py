"""The tokenizer of a Hugging Face folder, without `transformers`: from its tokenizer.json, or from older files."""

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
from attendo.data.special_tokens import Around, SpecialTokens
from attendo.data.tokenizers import keep_to_one_thread
from attendo.errors import AttendoError
from attendo.interop.huggingface.sentencepiece_models import read_sentencepiece
from attendo.interop.huggingface.tokenizer_documents import (
    added_token,
    byte_level_document,
    fairseq_document,
    spelled_apart,
    t5_document,
    template,
    word_piece_document,
)

_TRANSLATORS = {"marian", "bart", "mbart", "t5", "mt5", "umt5", "m2m_100", "pegasus"}
_DECODERS = {"gpt2", "llama", "qwen2", "qwen3", "mistral", "gpt_neo", "gpt_neox", "phi", "gemma"}


@dataclass(frozen=True)
class TokenizerFacts:
    """The small files beside a model."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def translates(self) -> bool:
        return bool(self.config.get("is_encoder_decoder", self.kind in _TRANSLATORS))

    @property
    def writes(self) -> bool:
        """Whether it is a decoder that stands alone."""
        names = " ".join(map(str, self.config.get("architectures") or ()))
        return not self.translates and ("CausalLM" in names or "LMHead" in names or self.kind in _DECODERS)

    @cached_property
    def own(self) -> dict[str, Any]:
        """What tokenizer_config.json says, over special_tokens_map.json."""
        return self.table("special_tokens_map.json") | self.table("tokenizer_config.json")

    @cached_property
    def generation(self) -> dict[str, Any]:
        return self.table("generation_config.json")

    def name(self, role: str) -> str | None:
        """The special token of a role ("eos")."""
        return _content(self.own.get(f"{role}_token"))

    def more_names(self) -> list[str]:
        """Special tokens without a role."""
        found: list[str] = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            value = self.own.get(key) or []
            found += [str(_content(one)) for one in (value.values() if isinstance(value, dict) else value)]
        return found

    def added(self) -> dict[int, dict[str, Any]]:
        """Added tokens by id, as tokenizer_config.json has them."""
        table = self.own.get("added_tokens_decoder") or {}
        return {int(i): one for i, one in table.items() if isinstance(one, dict) and "content" in one}

    def id(self, *keys: str) -> int | None:
        """The id that the model's files give for the first of these keys, the generation's file before the model's."""
        for key in keys:
            for table in (self.generation, self.config):
                value = table.get(key)
                value = value[0] if isinstance(value, list) and value else value
                if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocab_size:
                    return value
        return None

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, or a number above all ids where the config does not say."""
        value = self.config.get("vocab_size")
        return value if isinstance(value, int) else 1 << 30

    def json(self, name: str) -> Any:
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise AttendoError(f"{path} is damaged (no valid JSON: {error}); copy it again") from None

    def table(self, name: str) -> dict[str, Any]:
        if not (self.folder / name).is_file():
            return {}
        table = self.json(name)
        if not isinstance(table, dict):
            raise AttendoError(f"{self.folder / name} is damaged (no table); copy it again")
        return table


def _content(value: Any) -> str | None:
    """A token's text, alone or in a table."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


SENTENCEPIECE = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_NUMBERED = {
    "spiece.model": {"t5", "mt5", "umt5"},
    "sentencepiece.bpe.model": {"xlm-roberta", "mbart"},
    "tokenizer.model": {"llama", "mistral"},
}
"""The kinds of models whose ids are known from each of these files alone."""
_CODE = re.compile("[a-z]{2,3}_[A-Z]{2}")
"""A language as mBART has it."""

NAMES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
_FRAMED = {"bart", "roberta", "xlm-roberta"}
"""Kinds of models that read <s> … </s>."""


def read_tokenizer(
    folder: Path,
    config: Mapping[str, Any],
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> ImportedTokenizer:
    """The tokenizer of a model from Hugging Face, with the ids that its config.json and generation_config.json name.

    config: what config.json holds. source_language, target_language: codes as the vocabulary has them ("en_XX", "deu"),
    for a model that knows several. Raises AttendoError naming the file that is missing or damaged, and for a model of
    several languages to translate into where none is chosen.

    >>> read_tokenizer(Path("nowhere"), {})
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere has no tokenizer: no tokenizer.json, vocab.json with merges.txt, vocab.txt, \
spiece.model, sentencepiece.bpe.model or tokenizer.model, source.spm with target.spm and vocab.json; copy them from \
where the model came from
    """
    keep_to_one_thread()
    facts = TokenizerFacts(folder, config)
    has_document = (folder / "tokenizer.json").is_file()
    if (folder / "source.spm").is_file() or (facts.kind == "marian" and not has_document):
        return _two_sided(facts, target_language)
    document = _document(facts)
    return _one_sided(facts, document, source_language, target_language)


_USUAL = {
    "bos": ("<s>", "<|endoftext|>", "[CLS]"),
    "eos": ("</s>", "<|endoftext|>", "[SEP]"),
    "unk": ("<unk>", "[UNK]"),
    "pad": ("<pad>", "[PAD]"),
    "mask": ("<mask>", "[MASK]"),
}
"""What special tokens are called where no file says it."""


def _document(facts: TokenizerFacts) -> dict[str, Any]:
    """The tokenizer as a document of the library, its special tokens among its added tokens."""
    folder = facts.folder
    if (folder / "tokenizer.json").is_file():
        document = facts.json("tokenizer.json")
        if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
            raise AttendoError(
                f"{folder / 'tokenizer.json'} is no file of the tokenizers library; copy it again"
            )
        return document
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        merges = _lines(folder / "merges.txt")
        document = byte_level_document(facts.json("vocab.json"), merges, facts.kind, facts.own)
        around = ("<s>", "</s>") if facts.kind in _FRAMED else ("", "")
    elif (folder / "vocab.txt").is_file():
        document = word_piece_document(_lines(folder / "vocab.txt"), facts.own)
        around = facts.name("cls") or "[CLS]", facts.name("sep") or "[SEP]"
    else:
        document, around = _from_sentencepiece(facts)
    return _named(facts, document, around)


def _from_sentencepiece(facts: TokenizerFacts) -> tuple[dict[str, Any], tuple[str, str]]:
    name = next((name for name in SENTENCEPIECE if (facts.folder / name).is_file()), None)
    if name is None:
        raise AttendoError(
            f"{facts.folder} has no tokenizer: no tokenizer.json, vocab.json with merges.txt, vocab.txt,"
            f" {', '.join(SENTENCEPIECE[:-1])} or {SENTENCEPIECE[-1]}, source.spm with target.spm and vocab.json; copy"
            " them from where the model came from"
        )
    if facts.kind not in _NUMBERED[name]:
        raise AttendoError(
            f"{facts.folder}: how a {facts.kind or 'model'} numbers the pieces of {name} is not known; copy its"
            " tokenizer.json, or make one with transformers (AutoTokenizer.from_pretrained(…).save_pretrained(…))"
        )
    found = read_sentencepiece(facts.folder / name)
    if name == "sentencepiece.bpe.model":
        codes = [facts.name("mask") or "<mask>"]
        if facts.kind == "mbart":
            codes = [*facts.more_names(), *codes]
        return fairseq_document(found, codes), ("<s>", "</s>") if facts.kind in _FRAMED else ("", "</s>")
    if facts.kind in ("t5", "mt5", "umt5"):
        return t5_document(found, int(facts.own.get("extra_ids", 100))), ("", "</s>")
    return template(found), ("<s>", "")


def _named(facts: TokenizerFacts, document: dict[str, Any], around: tuple[str, str]) -> dict[str, Any]:
    """A document with its special tokens as added ones, and what stands around a text."""
    ids = _ids(document)
    names = (
        {name for role in NAMES if (name := facts.name(role))} | set(facts.more_names()) | {*around} - {""}
    )
    names |= {name for usual in _USUAL.values() for name in usual} & ids.keys()
    known = {token["content"] for token in document["added_tokens"]}
    for i, token in facts.added().items():
        if token["content"] not in known:
            special = bool(token.get("special"))
            document["added_tokens"].append(added_token(i, token["content"], special=special))
            known.add(token["content"])
    more = (name for name in sorted(names) if name in ids and name not in known)
    document["added_tokens"] += [added_token(ids[name], name) for name in more]
    ids = _ids(document)
    single = [{"SpecialToken": {"id": name, "type_id": 0}} for name in around if name]
    single.insert(1 if around[0] else 0, {"Sequence": {"id": "A", "type_id": 0}})
    tokens = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in around if name in ids}
    if len(tokens) == len({*around} - {""}) > 0:
        document["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": tokens,
        }
    return document


def _ids(document: Mapping[str, Any]) -> dict[str, int]:
    """The ids of all entries of a document."""
    vocab = document["model"]["vocab"]
    ids = dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}
    return ids | {token["content"]: token["id"] for token in document["added_tokens"]}


def _one_sided(
    facts: TokenizerFacts, document: dict[str, Any], source_language: str | None, target_language: str | None
) -> ImportedTokenizer:
    path = facts.folder / "tokenizer.json" if (facts.folder / "tokenizer.json").is_file() else facts.folder
    try:
        ids = _ids(document)
        around = _around(document)
        special = {token["id"] for token in document["added_tokens"] if token.get("special")}
        special |= {ids[name] for role in NAMES if (name := facts.name(role)) in ids}
        apart = spelled_apart(document, special)
    except AttendoError:
        raise
    except Exception as error:
        raise AttendoError(
            f"{path} is no tokenizer that can be read ({str(error)[:200]}); copy it again"
        ) from error
    vocab_size = facts.vocab_size if "vocab_size" in facts.config else max(ids.values()) + 1
    marks = {i: piece for i, piece in apart.marks.items() if i < vocab_size}
    several = facts.kind == "mbart" and any(_CODE.fullmatch(mark) for mark in marks.values())
    if several and source_language is None and len(around[0]) + len(around[1]) < 2:
        raise AttendoError(
            f"{facts.folder}: choose what is translated from by --from (source_language), for instance en_XX"
        )
    languages = (
        (source_language, target_language) if several else (None, None)
    )  # elsewhere they are no tokens
    codes = [_code(facts, ids, language) for language in languages]
    specials = _specials(facts, ids, apart.unk_id, around, codes)
    side = {"library": apart.document, "ids": apart.ids}
    silent = {i for i in special if i < vocab_size}
    tokenizer = imported_tokenizer([side], vocab_size, specials, silent, _never(facts, specials), marks)
    _check_apart(tokenizer, list(marks.values()), path)
    return tokenizer


def _around(document: Mapping[str, Any]) -> Around:
    """What the library puts around a text, found by looking at one."""
    document = {**document, "truncation": None, "padding": None}
    require_bounded(document)
    library = LibraryTokenizer.from_str(json.dumps(document))
    bare, whole = (library.encode("a", add_special_tokens=added).ids for added in (False, True))
    start = next(
        (n for n in range(len(whole) - len(bare) + 1) if whole[n : n + len(bare)] == bare),
        0,
    )
    return tuple(whole[:start]), tuple(whole[start + len(bare) :])


def _code(facts: TokenizerFacts, ids: Mapping[str, int], language: str | None) -> int | None:
    if language is None:
        return None
    for name in (language, f"__{language}__", f">>{language}<<"):
        if name in ids:
            return ids[name]
    raise AttendoError(
        f"{facts.folder}: the tokenizer has no language {language!r}; give a code of its vocabulary"
    )


def _specials(
    facts: TokenizerFacts,
    ids: Mapping[str, int],
    unk_id: int,
    around: Around,
    codes: Sequence[int | None] = (None, None),
) -> SpecialTokens:
    """What each id is for: as the model's files say, else as the tokenizer's."""

    def named(role: str) -> int | None:
        names = (facts.name(role), *_USUAL.get(role, ()))
        found = (ids[name] for name in names if name is not None and name in ids)
        return next((i for i in found if i < facts.vocab_size), None)

    def first(*found: int | None) -> int | None:
        return next((i for i in found if i is not None), None)

    eos_id = first(facts.id("eos_token_id"), named("eos"))
    if eos_id is None:
        raise AttendoError(
            f"{facts.folder}: neither config.json nor the tokenizer's files name an end token (eos_token_id,"
            " eos_token); add it to config.json"
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
    explicit = facts.own.get("add_bos_token")
    has_document = (facts.folder / "tokenizer.json").is_file()  # what it adds counts, as to transformers
    if facts.writes and isinstance(explicit, bool) and not has_document:
        before = (bos_id,) if explicit else ()
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
    """What a decoder starts with; a language takes the place of another one that the model's files start with."""
    if forced is None or forced == start:
        return (start,)
    return (start, forced) if start in usual else (forced,)


def _never(facts: TokenizerFacts, specials: SpecialTokens) -> set[int]:
    """Padding, what the generation's settings suppress, and other ends than the first."""
    found = {specials.pad_id}
    for table in (facts.config, facts.generation):
        found |= {words[0] for words in table.get("bad_words_ids") or () if len(words) == 1}
        found |= set(table.get("suppress_tokens") or ())
        ends = table.get("eos_token_id")
        found |= set(ends) if isinstance(ends, list) else set()
    return {i for i in found if isinstance(i, int) and 0 <= i < facts.vocab_size} - {specials.eos_id}


def _two_sided(facts: TokenizerFacts, target_language: str | None) -> ImportedTokenizer:
    """Marian's: each language has its SentencePiece model, and both have one vocabulary."""
    folder = facts.folder
    names = ("source.spm", "target.spm", "vocab.json")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise AttendoError(
            f"{folder} has no {missing[0]}; a MarianMT model's tokenizer is {', '.join(names)}: copy them from where"
            " the model came from"
        )
    if facts.own.get("separate_vocabs") or (folder / "target_vocab.json").is_file():
        raise AttendoError(
            f"{folder} has a vocabulary for each language (target_vocab.json); only models with one for both can be"
            " imported"
        )
    ids = facts.json("vocab.json")
    if not isinstance(ids, dict) or not all(isinstance(i, int) for i in ids.values()):
        raise AttendoError(f"{folder / 'vocab.json'} is no table of pieces and their ids; copy it again")
    roles = {
        role: facts.name(role) or name for role, name in (("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>"))
    }
    if unnamed := [name for name in roles.values() if name not in ids]:
        raise AttendoError(
            f"{folder / 'vocab.json'} has no {unnamed[0]}, which a MarianMT model needs; copy it again"
        )
    unk_id, eos_id = ids[roles["unk"]], ids[roles["eos"]]
    codes = {name[2:-2]: i for name, i in ids.items() if name.startswith(">>") and name.endswith("<<")}
    if codes and target_language not in codes:
        raise AttendoError(
            f"{folder} translates into several languages; choose one by --to (target_language):"
            f" {', '.join(sorted(codes)[:12])}{' …' * (len(codes) > 12)}"
        )
    sides = []
    for name in names[:2]:
        found = read_sentencepiece(folder / name)
        places = [
            unk_id if i in found.unspellable else ids.get(piece, unk_id)
            for i, piece in enumerate(found.pieces)
        ]
        sides.append({"library": found.document, "ids": places})
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
    """Raises AttendoError where a text can spell a special token after all."""
    special = tokenizer.not_text - {tokenizer.unk_id}
    for name, ids in zip(names, tokenizer.encode_batch(names), strict=True):
        if special & set(ids):
            raise AttendoError(
                f"{path}: the text {name!r} would become a special token, as this tokenizer cuts no texts at spaces; it"
                " can't be imported"
            )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise AttendoError(f"{path} is damaged (no UTF-8: {error}); copy it again") from None
