"""Tiny tokenizers of each family, as `transformers` writes them: what the folders of imported models hold."""

import io
import json
import warnings
from pathlib import Path

import sentencepiece
import transformers
from tokenizers import ByteLevelBPETokenizer, trainers

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "it won't rain in Łódź tomorrow , they said ; 12.5 mm of rain fell on 3 days",
    "Der schnelle braune Fuchs springt über den faulen Hund .",
    "Morgen wird es in Köln regnen , sagen sie : 20 % mehr als gestern !",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    "猫 は 静か に 眠る 。 ( really ? ) [ yes ] { no } < s > / \\ | @ # $ & * + = _ - \" ' ` ~ ^",
] * 3
CODES = ["en_XX", "de_DE"]


def spiece(path: Path, lines: list[str] = LINES, **options) -> None:
    """Writes a SentencePiece model of these lines."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        minloglevel=2,
        hard_vocab_limit=False,
        num_threads=1,
        **{"vocab_size": 200, "model_type": "unigram", **options},
    )
    path.write_bytes(model.getvalue())


def byte_level(folder: Path, specials: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Writes vocab.json and merges.txt, the specials first."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(LINES, vocab_size=330, show_progress=False, special_tokens=specials)
    tokenizer.save_model(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text("utf-8"))
    merges = [tuple(line.split(" ")) for line in (folder / "merges.txt").read_text("utf-8").split("\n")[1:] if line]
    return vocab, merges


def word_pieces(folder: Path) -> dict[str, int]:
    """Writes vocab.txt."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    library = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=specials, show_progress=False)
    library.train_from_iterator(LINES, trainer)
    vocab = library.get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n", "utf-8")
    return vocab


def marian(folder: Path, codes: tuple[str, ...] = ()) -> None:
    """Writes a MarianMT model's files: two SentencePiece models, one vocabulary in an order of its own."""
    sides = []
    for name, lines in (("source.spm", LINES[:2] * 5), ("target.spm", LINES[2:4] * 5)):
        spiece(folder / name, lines, vocab_size=90)
        sides.append(sentencepiece.SentencePieceProcessor(model_file=str(folder / name)))
    pieces = {side.id_to_piece(i) for side in sides for i in range(3, side.get_piece_size())}
    names = ["</s>", "<unk>", *sorted(pieces), *(f">>{code}<<" for code in codes), "<pad>"]
    vocab = {name: i for i, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocab), "utf-8")
    settings = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def config_of(kind: str, vocab_size: int, **more) -> dict:
    """A config.json, as far as tokenizers need it."""
    translates = kind in ("marian", "bart", "mbart", "t5")
    return {"model_type": kind, "vocab_size": vocab_size, "is_encoder_decoder": translates, **more}


def made(kind: str, folder: Path):
    """The files of a tokenizer of this kind without its tokenizer.json, and transformers' own of it."""
    folder.mkdir(parents=True, exist_ok=True)
    match kind:
        case "gpt2":
            vocab, merges = byte_level(folder, ["<|endoftext|>"])
            return transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
        case "qwen2":
            vocab, merges = byte_level(folder, ["<|endoftext|>"])
            return transformers.Qwen2Tokenizer(vocab=vocab, merges=merges)
        case "roberta" | "bart":
            vocab, merges = byte_level(folder, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
            return transformers.RobertaTokenizer(vocab=vocab, merges=merges)
        case "bert":
            return transformers.BertTokenizer(vocab=word_pieces(folder))
        case "t5":
            spiece(folder / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
            return transformers.T5Tokenizer.from_pretrained(folder)
        case "mbart":
            spiece(folder / "sentencepiece.bpe.model", model_type="unigram")
            return transformers.MBartTokenizer.from_pretrained(folder)
        case "llama":
            options = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420}
            plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
            spiece(folder / "tokenizer.model", **options, **plain)
            return transformers.LlamaTokenizer.from_pretrained(folder)
        case "marian":
            marian(folder)
            with warnings.catch_warnings(action="ignore"):  # it would like sacremoses, which it does not use
                return transformers.MarianTokenizer.from_pretrained(folder)
    raise AssertionError(kind)
