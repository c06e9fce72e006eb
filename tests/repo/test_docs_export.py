"""The page on export: its examples without attendo find what attendo finds."""

import io
import re
import runpy
from pathlib import Path

from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.bundle import Bundle
from attendo.interop import to_ctranslate2, to_onnx

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def examples(word):
    """The examples that have a word, of each language."""
    pages = [DOCS / language / "export.md" for language in ("en", "ja")]
    blocks = [BLOCK.findall(page.read_text(encoding="utf-8")) for page in pages]
    return [next(block for block in found if word in block) for found in blocks]


def test_the_loop_finds_what_attendo_finds(tmp_path, monkeypatch, capsys):
    english, japanese = examples("onnxruntime.InferenceSession")
    assert english == japanese
    (tmp_path / "out").mkdir()
    translator = tiny_translator(tiny_tokenizer(), beam=1, max_length_extra=100, max_len=32)
    to_onnx.write(tmp_path, Bundle({}, translator.tokenizer), translator.model, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    exec(compile(english, "export.md", "exec"), {})
    texts = ["A dog runs on the beach.", "Two children play."]
    assert english.endswith(f"print(translate({texts}))\n".replace("'", '"'))
    expected = [found.text for found in translator.translate(texts, guard=False)]
    assert capsys.readouterr().out == f"{expected}\n"
    assert any(expected)


def test_the_script_of_ctranslate2_translates_as_attendo_does(tmp_path, monkeypatch, capsys):
    tokenizer, decoding = tiny_tokenizer(), {"beam": 4, "max_length_extra": 100}
    translator = tiny_translator(tokenizer, **decoding, refill=True, max_len=32)
    tokenizer.save(tmp_path / "tokenizer.json")
    out = tmp_path / "mine.ct2"
    out.mkdir()
    to_ctranslate2.write(tmp_path, Bundle({"decoding": decoding}, tokenizer), translator.model, out)
    texts = ["A dog runs.", "Two children play."]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts)))
    runpy.run_path(str(out / "translate.py"), run_name="__main__")
    expected = [found.text for found in translator.translate(texts, guard=False)]
    assert capsys.readouterr().out.splitlines() == expected
    assert all(expected)
