"""Tokenizers from Hugging Face folders give the ids and texts of `transformers`, whose folders these are."""

import json
import logging
import shutil
import sys
from pathlib import Path

import pytest
import sentencepiece
import tiny_tokenizers as tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attendo.bundle import load_tokenizer
from attendo.data.imported_tokenizers import ImportedTokenizer
from attendo.data.tokenizers import Tokenizer
from attendo.errors import AttendoError
from attendo.inference.incremental_decode import Spelling
from attendo.interop.huggingface.tokenizers import read_tokenizer
from attendo.interop.sentencepiece_models import sentencepiece_document

logging.getLogger("transformers").setLevel(logging.ERROR)
KINDS = ("gpt2", "qwen2", "bart", "bert", "t5", "mbart", "llama", "marian")
MARKS = "<s> </s> <pad> <unk> <mask> <|endoftext|> [CLS] [SEP] [PAD] [MASK] [UNK]".split()  # noqa: SIM905
MARKS += ["<extra_id_0>", "en_XX", ">>deu<<", "<think>"]
LETTERS = st.sampled_from(
    [*"abcdefg ABC.,;!?'-0123äöüŁé猫静\t\n…①한", "the", " dog", "  ", " Fuchs", "regn", "</", "\u0301", "🙂"]
)
TEXTS = st.lists(LETTERS, max_size=16).map("".join)


class Folder:
    """The two forms of a tokenizer's folder, as they came and as transformers saves them, and its oracle."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.files, self.saved = kind, folder / "files", folder / "saved"
        self.oracle = tiny.made(kind, self.files)
        self.oracle.save_pretrained(self.saved)
        self.config = tiny.config_of(kind, len(self.oracle) + 3)
        self.tokenizer = read_tokenizer(self.saved, self.config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    return {kind: Folder(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, folders: dict[str, Folder]) -> Folder:
    return folders[request.param]


def framed(tokenizer: Tokenizer, ids: list[int], kind: str) -> list[int]:
    """As a model of this kind reads it."""
    specials = tokenizer.specials
    return specials.text(ids) if kind == "bert" else specials.source(ids)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_ids_and_texts_are_those_of_transformers(folder: Folder, text: str) -> None:
    tokenizer, oracle = folder.tokenizer, folder.oracle
    ids = tokenizer.encode(text)
    assert framed(tokenizer, ids, folder.kind) == oracle(text)["input_ids"]
    assert tokenizer.encode_batch([text, ""]) == [ids, []]
    decoded, wanted = tokenizer.decode(ids), oracle.decode(ids, skip_special_tokens=True)
    if folder.kind == "marian":  # transformers strips its texts
        assert decoded.strip() == wanted
    else:
        assert decoded == wanted


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, marks=st.lists(st.sampled_from(MARKS), min_size=1, max_size=3))
def test_no_text_spells_a_special_token(folder: Folder, text: str, marks: list[str]) -> None:
    tokenizer = folder.tokenizer
    special = tokenizer.not_text - {tokenizer.unk_id}
    for whole in (text.join(["", *marks, ""]), " ".join(marks), *marks):
        assert not special & set(tokenizer.encode(whole)) and not special & set(tokenizer.encode_on(whole))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_tokens_one_by_one_spell_the_text(folder: Folder, text: str) -> None:
    tokenizer = folder.tokenizer
    ids = tokenizer.encode(text)
    if folder.kind != "bert":  # its decoder joins words and marks by what stands between
        spelling = Spelling(tokenizer, going_on=False)
        assert "".join(map(spelling.add, ids)) + spelling.end() == tokenizer.decode(ids)
    assert len(tokenizer.pieces(ids)) == len(ids)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS.filter(bool), more=TEXTS)
def test_a_text_may_go_on(folders: dict[str, Folder], text: str, more: str) -> None:
    for kind in ("gpt2", "qwen2", "bart", "llama"):
        tokenizer = folders[kind].tokenizer
        ids, on = tokenizer.encode(text), tokenizer.encode_on(more)
        after = tokenizer.decode([*tokenizer.encode("a"), *on])[1:]
        assert tokenizer.decode([*ids, *on]) == tokenizer.decode(ids) + after


def test_a_file_is_read_as_it_was_saved(folder: Folder, tmp_path: Path) -> None:
    tokenizer = folder.tokenizer
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(again, ImportedTokenizer)
    for name in ("sha256", "specials", "never"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert again.encode("the dog sleeps .") == tokenizer.encode("the dog sleeps .")
    assert again.vocab_size == tokenizer.vocab_size == len(folder.oracle) + 3
    without_token = {len(folder.oracle), len(folder.oracle) + 2}
    assert without_token <= set(again.never)


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "bart", "bert", "t5"])
def test_older_files_say_the_same_as_tokenizer_json(folders: dict[str, Folder], kind: str) -> None:
    folder = folders[kind]
    older = read_tokenizer(folder.files, folder.config)
    assert older.specials == folder.tokenizer.specials
    for text in ("the quick brown fox", "Łódź, 12.5 mm", "  two  spaces\n"):
        assert older.encode(text) == folder.tokenizer.encode(text)
        assert older.decode(older.encode(text)) == folder.tokenizer.decode(older.encode(text))


SPIECES = {
    "unigram": {},
    "bpe": {"model_type": "bpe", "vocab_size": 160},
    "bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420},
    "spaces": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
}
SPIECES["bytes"]["normalization_rule_name"] = "identity"


@pytest.mark.parametrize("name", SPIECES)
def test_sentencepiece_models_cut_as_sentencepiece_does(tmp_path: Path, name: str) -> None:
    tiny.spiece(tmp_path / "tokenizer.model", **SPIECES[name])
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    found = read_tokenizer(tmp_path, {"model_type": "llama"})
    alphabet = st.lists(LETTERS.filter("\u0301".__ne__), max_size=16).map("".join)

    @settings(max_examples=40)
    @given(alphabet)
    def check(text: str) -> None:
        ids = found.encode(text)
        assert ids == oracle.encode(text)
        if oracle.unk_id() not in ids:
            assert found.decode(ids) == oracle.decode(ids)

    check()


def test_xlm_roberta_is_numbered_as_transformers_does(tmp_path: Path) -> None:
    tiny.spiece(tmp_path / "sentencepiece.bpe.model")
    oracle = tiny.transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    found = read_tokenizer(tmp_path, tiny.config_of("xlm-roberta", len(oracle)))
    for text in (*tiny.LINES[:6], "  two  spaces ", ""):
        assert found.specials.text(found.encode(text)) == oracle(text)["input_ids"]
    assert found.pieces([0, 1, 2, 3, len(oracle) - 1]) == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_an_mbart_reads_and_writes_a_language(tmp_path: Path, name: str) -> None:
    tiny.spiece(tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    oracle = getattr(tiny.transformers, name).from_pretrained(tmp_path, src_lang="de_DE", tgt_lang="en_XX")
    german, english = oracle.convert_tokens_to_ids(["de_DE", "en_XX"])
    config = tiny.config_of("mbart", len(oracle), decoder_start_token_id=2)
    found = read_tokenizer(tmp_path, config, source_language="de_DE", target_language="en_XX")
    for text in (*tiny.LINES[:6], ""):
        assert found.specials.source(found.encode(text)) == oracle(text)["input_ids"]
    assert found.pieces([0, 1, 2, 3, german, english]) == ["<s>", "<pad>", "</s>", "<unk>", "de_DE", "en_XX"]
    assert found.specials.begin == (2, english)
    config = tiny.config_of("mbart", len(oracle), decoder_start_token_id=german)
    found = read_tokenizer(tmp_path, config, source_language="de_DE", target_language="en_XX")
    assert found.specials.begin == (english,)
    refused(tmp_path, config, "choose the source language with `source_language`")
    with pytest.raises(AttendoError, match="no language 'qq_XX'"):
        read_tokenizer(tmp_path, config, source_language="qq_XX")


def test_older_files_are_converted_by_transformers_and_a_document_needs_none(
    folders: dict[str, Folder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for kind in KINDS:
        folder = folders[kind]
        assert read_tokenizer(folder.saved, folder.config).encode("the dog")
        if kind in ("llama", "marian"):
            assert read_tokenizer(folder.files, folder.config).encode("the dog")
        else:
            refused(folder.files, folder.config, r"transformers is not installed\. Run: pip install")


def test_a_marian_has_two_sides(folders: dict[str, Folder], tmp_path: Path) -> None:
    folder = folders["marian"]
    tokenizer, oracle = folder.tokenizer, folder.oracle
    differ = 0
    for text in (*tiny.LINES[:6], "ü0 猫", "regnen und rain", ""):
        wanted = oracle(text_target=text)["input_ids"]
        assert [*tokenizer.target.encode(text), tokenizer.eos_id] == wanted
        assert tokenizer.target.decode(wanted) == tokenizer.decode(wanted)
        assert tokenizer.target.encode_batch([text]) == [tokenizer.target.encode(text)]
        differ += tokenizer.encode(text) != tokenizer.target.encode(text)
    assert differ > 2 and tokenizer.target.target is tokenizer.target
    pad_id = tokenizer.pad_id
    config = folder.config | {"decoder_start_token_id": pad_id, "bad_words_ids": [[pad_id]]}
    assert read_tokenizer(folder.saved, config).specials.begin == (tokenizer.pad_id,)
    tiny.marian(tmp_path, ("deu", "fra"))
    with pytest.raises(AttendoError, match=r"several languages\. Choose one with `target_language`: deu, fra"):
        read_tokenizer(tmp_path, folder.config)
    found = read_tokenizer(tmp_path, folder.config, target_language="deu")
    [code] = found.specials.around_source[0]
    assert found.pieces([code]) == [">>deu<<"] and code not in found.encode(">>deu<< the dog")


def test_special_ids_come_from_the_models_files_first(folders: dict[str, Folder], tmp_path: Path) -> None:
    folder = folders["bart"]
    config = folder.config | {"decoder_start_token_id": 2, "forced_bos_token_id": 0, "eos_token_id": [2, 3]}
    found = read_tokenizer(folder.saved, config)
    assert (found.specials.begin, found.eos_id, found.specials.around_source) == ((2, 0), 2, ((0,), (2,)))
    assert {1, 3} <= set(found.never) and 2 not in found.never and found.mask_id == 4
    shutil.copytree(folder.saved, tmp_path / "saved")
    (tmp_path / "saved" / "generation_config.json").write_text('{"decoder_start_token_id": 1}')
    assert read_tokenizer(tmp_path / "saved", config).specials.begin == (1, 0)
    gpt2 = folders["gpt2"].tokenizer
    assert gpt2.specials.prompt([7]) == [7] and gpt2.specials.prompt([]) == [gpt2.eos_id]
    llama = folders["llama"]
    assert llama.tokenizer.specials.prompt(llama.tokenizer.encode("a")) == llama.oracle("a")["input_ids"]
    t5 = folders["t5"].tokenizer.specials
    assert (t5.begin, t5.source([7])) == ((0,), [7, 1])


def test_added_words_are_text_and_added_marks_are_not(folders: dict[str, Folder], tmp_path: Path) -> None:
    oracle = tiny.made("gpt2", tmp_path / "files")
    n = len(oracle)
    oracle.add_tokens(["<think>", "quickish", "</think>", "zebra fox"])
    oracle.save_pretrained(tmp_path / "saved")
    found = read_tokenizer(tmp_path / "saved", tiny.config_of("gpt2", n + 4))
    text = "a quickish zebra fox runs"
    assert found.encode(text) == oracle(text)["input_ids"]
    assert {n + 1, n + 3} <= set(found.encode(text))
    assert not {n, n + 2} & set(found.encode("<think> and </think>"))
    ids = [n, *found.encode(" the dog"), n + 2]
    assert found.decode(ids) == oracle.decode(ids, skip_special_tokens=True) == "<think> the dog</think>"
    assert n not in found.never and found.bytes_of(n) == b"<think>"


def refused(folder: Path, config: dict, match: str) -> None:
    with pytest.raises(AttendoError, match=match) as error:
        read_tokenizer(folder, config)
    assert "\n" not in str(error.value)


def test_bad_folders_are_refused_in_a_line(folders: dict[str, Folder], tmp_path: Path) -> None:
    config = tiny.config_of("gpt2", 400)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused(tmp_path, config, r"has no tokenizer \(expected tokenizer\.json, .* Copy these files from")
    refused(tmp_path, tiny.config_of("marian", 9), r"has no source.spm\. The tokenizer of a MarianMT")
    whole = (folders["gpt2"].saved / "tokenizer.json").read_text("utf-8")
    for text, match in (
        (whole[:900], "damaged .not valid JSON"),
        ("[]", "not a file of the tokenizers library"),
        ('{"model": {"type": "BPE"}}', "not a readable tokenizer"),
        (whole.replace('"ByteLevel"', '"Bytes"'), "not a readable tokenizer"),
        (whole.replace('"BPE"', '"WordLevel", "unk_token": "the"'), "not a readable tokenizer|special"),
    ):
        (tmp_path / "tokenizer.json").write_text(text, "utf-8")
        refused(tmp_path, config, match)
    (tmp_path / "tokenizer.json").write_text(whole, "utf-8")
    refused(tmp_path, tiny.config_of("gpt2", 50), "vocab_size is 50")
    (tmp_path / "tokenizer_config.json").write_text("{", "utf-8")
    refused(tmp_path, config, "tokenizer_config.json is damaged")
    (tmp_path / "spm").mkdir()
    (tmp_path / "spm" / "spiece.model").write_bytes(b"no model")
    refused(tmp_path / "spm", tiny.config_of("t5", 400), "not a SentencePiece model, or is truncated")
    tiny.spiece(tmp_path / "spm" / "spiece.model")
    refused(tmp_path / "spm", config, "unknown numbering of the pieces of spiece.model in a gpt2")
    refused(tmp_path / "spm", tiny.config_of("mamba9", 400), "transformers cannot read spiece.model")
    tiny.spiece(tmp_path / "spm" / "spiece.model", model_type="char", vocab_size=80)
    refused(tmp_path / "spm", tiny.config_of("t5", 400), "unsupported SentencePiece model")


def test_damaged_files_of_a_run_are_refused_in_a_line(folders: dict[str, Folder], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    folders["marian"].tokenizer.save(path)
    whole = path.read_text("utf-8")
    for text, match in (
        (whole[: len(whole) // 2], "not a tokenizer file .* Restore the file"),
        (whole.replace('"attendo_tokenizer": 1', '"attendo_tokenizer": 2'), "unknown tokenizer format 2"),
        (whole.replace('"marks"', '"mark"'), "mark is missing or unknown"),
        (whole.replace('"eos_id": 0', '"eos_id": 100000'), "specials.eos_id=100000 must be an id"),
        (whole.replace('"eos_id"', '"eos"'), "specials.eos is missing or unknown"),
    ):
        assert text != whole
        path.write_text(text, "utf-8")
        with pytest.raises(AttendoError, match=match) as error:
            load_tokenizer(path)
        assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_unspellable_pieces_are_named(tmp_path: Path) -> None:
    tiny.spiece(tmp_path / "m.model", user_defined_symbols=["<sep>"], control_symbols=["<ctl>"])
    found = sentencepiece_document(tmp_path / "m.model")["added_tokens"]
    assert {token["content"] for token in found} == {"<unk>", "<s>", "</s>", "<ctl>", "<sep>"}
    assert [token["content"] for token in found if not token["special"]] == ["<sep>"]
