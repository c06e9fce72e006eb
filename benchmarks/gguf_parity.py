"""A language model exported to GGUF, computed by llama.cpp and by attendo: the same token ids, logits and texts.

    python benchmarks/gguf_parity.py RUN TEXT

RUN is a run folder, TEXT a text file. The environment has attendo[interop] and llama-cpp-python. For each number
format, attendo imports the exported file again, and both programs compute the text in windows of 128 tokens, one
thread. llama.cpp stores keys and values in float32. It also rounds the activations if the weights are quantized.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from llama_cpp import Llama

import attendo
from attendo.data.tokenizers import Tokenizer
from attendo.interop import ExportOptions, export, import_model
from attendo.interop.to_gguf import GgufQuantization
from attendo.metrics import log_softmax

WINDOW, MOST, PROMPTS, NEW = 128, 60, 20, 40
Logits = Callable[[Sequence[int]], np.ndarray]
"""A function from a row of ids to the logits after each of them."""


def of_attendo(model: torch.nn.Module) -> Logits:
    """Return the logits of attendo."""

    @torch.inference_mode()
    def logits(row: Sequence[int]) -> np.ndarray:
        return model(torch.tensor([row]))[0].numpy()

    return logits


def of_llama_cpp(peer: Llama) -> Logits:
    """Return the logits of llama.cpp."""

    def logits(row: Sequence[int]) -> np.ndarray:
        peer.reset()
        peer.eval(row)
        return peer.scores[: len(row)].copy()

    return logits


def greedy(logits: Logits, row: Sequence[int]) -> list[int]:
    """Return a row with the ids that greedy search adds."""
    found = list(row)
    for _ in range(NEW):
        found.append(int(logits(found)[-1].argmax()))
    return found


def compare_ids(tokenizer: Tokenizer, peer: Llama, text: str) -> None:
    """Print the numbers of lines, and of 20 lines in a row, with equal ids."""
    lines = text.splitlines()
    rows = {
        "lines": lines,
        "20 lines in a row": ["\n".join(lines[n : n + 20]) for n in range(0, len(lines), 20)],
    }
    for name, texts in rows.items():
        pairs = [
            (text, tokenizer.encode(text), peer.tokenize(text.encode(), add_bos=False, special=False))
            for text in filter(None, texts)
        ]
        differing = [pair for pair in pairs if pair[1] != pair[2]]
        print(f"ids: {len(pairs) - len(differing)} of {len(pairs)} {name} are equal")
        for text, *both in differing[:3]:
            place = next(n for n, (one, other) in enumerate(zip(*both, strict=False)) if one != other)
            print(f"  {text[:60]!r}", *([tokenizer.entries[i] for i in ids[place : place + 4]] for ids in both))
    begun = peer.tokenize(b"It is", add_bos=True) == tokenizer.specials.prompt(tokenizer.encode("It is"))
    print(f"ids: the begin token is {'the same' if begun else 'another one'}")


def compare(kind: str, size: float, windows: Sequence[Sequence[int]], both: Sequence[Logits]) -> None:
    """Print the differences of log-probabilities, the losses and the number of equal texts."""
    same, largest, loss = [], 0.0, np.zeros(2)
    for row in windows:
        here, there = (log_softmax(logits(row).astype(np.float64)) for logits in both)
        same += (here.argmax(-1) == there.argmax(-1)).tolist()
        largest = max(largest, float(np.abs(here - there).max()))
        loss -= [found[np.arange(len(row) - 1), row[1:]].mean() for found in (here, there)]
    loss /= len(windows)
    prompts = [row[:32] for row in windows[:PROMPTS]]
    equal = sum(greedy(both[0], row) == greedy(both[1], row) for row in prompts)
    print(
        f"{kind}: {size:.1f} MB, largest difference of a log-probability {largest:.1e}, equal best choices "
        f"{np.mean(same):.2%}, nats per token {loss[0]:.4f} (attendo) and {loss[1]:.4f} (llama.cpp), "
        f"{equal} of {len(prompts)} greedy texts of {NEW} tokens are equal"
    )


def main() -> None:
    """Compare both programs for each number format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer, text = attendo.load(given.run).tokenizer, given.text.read_text(encoding="utf-8")
    ids, begin = tokenizer.encode(text), tokenizer.specials.prompt([])
    width = WINDOW - len(begin)
    windows = [begin + ids[n : n + width] for n in range(0, len(ids) - width, width)][:MOST]
    options = {"n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0, "verbose": False}
    with tempfile.TemporaryDirectory() as place:
        for number, kind in enumerate(get_args(GgufQuantization)):
            file, run = Path(place, f"{kind}.gguf"), Path(place, kind)
            export(given.run, file, "gguf", ExportOptions(quantization=kind), most=3)
            import_model(file, run)
            peer = Llama(str(file), n_ctx=2 * WINDOW, logits_all=True, **options)
            if number == 0:
                compare_ids(tokenizer, peer, text)
            both = of_attendo(attendo.load(run).model.eval()), of_llama_cpp(peer)
            compare(kind, file.stat().st_size / 1e6, windows, both)


if __name__ == "__main__":
    main()
