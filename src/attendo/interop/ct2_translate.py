"""Translate the lines of standard input with the CTranslate2 model in this folder: python translate.py < sources.txt

It computes what `attendo translate RUN --set decoding.refill=true` does; attendo.json contains the settings.
"""

import json
import sys
from pathlib import Path

import ctranslate2
import sentencepiece

FOLDER = Path(__file__).parent


def main() -> None:
    """Print one translation per line."""
    about = json.loads((FOLDER / "attendo.json").read_text(encoding="utf-8"))
    alpha, gnmt = about["decoding"]["length_penalty"], about["decoding"]["length_norm"] == "gnmt"
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(FOLDER))  # compute_type="int8" quantizes while loading

    def score(hypothesis: tuple[float, list[str]]) -> float:
        # CTranslate2 divides log-probabilities by n**alpha, GNMT by ((5 + n) / 6)**alpha
        value, tokens = hypothesis
        return value * (len(tokens) / ((5 + len(tokens)) / 6)) ** alpha if gnmt else value

    texts = sys.stdin.read().splitlines()
    sources = [tokenizer.encode(text, out_type=str) for text in texts]
    for result in translator.translate_batch(sources, max_batch_size=32, **about["options"]):
        _, best = max(zip(result.scores, result.hypotheses, strict=True), key=score)
        print(tokenizer.decode([token for token in best if token != "</s>"]))  # noqa: T201


if __name__ == "__main__":
    main()
