"""A language model exported to GGUF, computed by llama.cpp and by attendo: the same token ids, logits and texts.

    python benchmarks/gguf_parity.py RUN TEXT

RUN is a run folder, TEXT a text file. The environment has attendo[interop] and llama-cpp-python. For each number format,
attendo imports the exported file again, and both programs compute the text in windows of 128 tokens, one thread.
llama.cpp stores keys and values in float32. It also rounds the activations if the weights are quantized.
"""

import argparse
import tempfile
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from llama_cpp import Llama

import attendo
from attendo.interop import ExportOptions, export, import_model
from attendo.interop.to_gguf import GgufQuantization

WINDOW, PROMPTS, NEW = 128, 20, 40


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


def ids_of(peer: Llama, text: str, begin: bool = False) -> list[int]:
    return peer.tokenize(text.encode(), add_bos=begin, special=False)


def logits_of(peer: Llama, ids: list[int]) -> np.ndarray:
    peer.reset()
    peer.eval(ids)
    return peer.scores[: len(ids)].copy()


def greedy(step, ids: list[int]) -> list[int]:
    """The ids that follow, where `step` returns the logits after a row of ids."""
    found = list(ids)
    for _ in range(NEW):
        found.append(int(step(found).argmax()))
    return found[len(ids) :]


def compare_ids(tokenizer, peer: Llama, text: str) -> None:
    """Print the shares of equal tokenizations: of lines, of words, and of stretches of 20 lines."""
    lines = text.splitlines()
    stretches = ["\n".join(lines[n : n + 20]) for n in range(0, len(lines), 20)]
    for name, texts in (("lines", lines), ("stretches of 20 lines", stretches)):
        texts = [text for text in texts if text]
        differing = [one for one in texts if tokenizer.encode(one) != ids_of(peer, one)]
        print(f"ids: {len(texts) - len(differing)} of {len(texts)} {name} are equal")
        for one in differing[:3]:
            print(f"  {one[:70]!r}")
            pair = tokenizer.encode(one), ids_of(peer, one)
            place = next((n for n, (a, b) in enumerate(zip(*pair, strict=False)) if a != b), 0)
            for ids in pair:
                print("   ", [tokenizer.entries[i] for i in ids[max(0, place - 1) : place + 5]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    text = given.text.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        for number, kind in enumerate(get_args(GgufQuantization)):
            file = Path(place, f"{kind}.gguf")
            export(given.run, file, "gguf", ExportOptions(quantization=kind), most=3)
            import_model(file, Path(place, kind))
            found = attendo.load(Path(place, kind))
            peer = Llama(
                str(file),
                n_ctx=512,
                logits_all=True,
                n_threads=1,
                n_threads_batch=1,
                type_k=0,
                type_v=0,
                verbose=False,
            )
            model, tokenizer = found.model.eval(), attendo.load(given.run).tokenizer
            if not number:
                compare_ids(tokenizer, peer, text)
                print(
                    "prompt:",
                    tokenizer.specials.prompt(tokenizer.encode("It is")) == ids_of(peer, "It is", True),
                )
            ids = tokenizer.encode(text[:60_000])
            begin, length = tokenizer.specials.prompt([]), WINDOW - len(tokenizer.specials.prompt([]))
            windows = [begin + ids[n : n + length] for n in range(0, len(ids) - length, length)][:60]
            same, largest, loss = 0, 0.0, np.zeros(2)
            for row in windows:
                with torch.inference_mode():
                    here = log_softmax(model(torch.tensor([row]))[0].numpy())
                there = log_softmax(logits_of(peer, row))
                same += (here.argmax(-1) == there.argmax(-1)).sum()
                largest = max(largest, np.abs(here - there).max())
                loss += [-one[np.arange(len(row) - 1), row[1:]].sum() for one in (here, there)]
            count = len(windows) * WINDOW
            loss /= count - len(windows)

            def own_step(row: list[int]) -> torch.Tensor:
                with torch.inference_mode():
                    return model(torch.tensor([row]))[0, -1]

            prompts = [row[:32] for row in windows[:PROMPTS]]
            texts = sum(
                greedy(own_step, row) == greedy(lambda row: logits_of(peer, row)[-1], row) for row in prompts
            )
            print(
                f"{kind}: {file.stat().st_size / 1e6:.1f} MB, largest difference of a log-probability {largest:.1e}, "
                f"equal best choices {same / count:.2%}, nats per token {loss[0]:.4f} attendo, {loss[1]:.4f} llama.cpp, "
                f"{texts} of {len(prompts)} greedy texts equal"
            )


if __name__ == "__main__":
    main()
