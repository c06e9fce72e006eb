"""Tokenizers in several processes: the same file from each, and no warning after a fork."""

import hashlib
import os
import subprocess
import sys

import pytest

from attendo.data.tokenizers import Kind

KINDS: tuple[Kind, ...] = ("bpe", "unigram", "character", "word")


TRAIN = """
import sys
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
texts = [f"{word} the cat{i % 7} ate {word[::-1]} 猫が{i}を食べる " for i, word in enumerate(sys.stdin.read().split())]
tokenizer = train_tokenizer(texts, TokenizerConfig(kind=sys.argv[1], vocab_size=600))
print(tokenizer.sha256)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_file_in_every_process(kind: Kind) -> None:
    words = " ".join(hashlib.sha256(str(i).encode()).hexdigest()[: 3 + i % 9] for i in range(400))
    conditions = [("0", "1", "false"), ("1", "2", "true"), ("77", "3", "true")]
    found = set()
    for seed, threads, parallel in conditions:
        variables = {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": parallel}
        done = subprocess.run(
            [sys.executable, "-c", TRAIN, kind],
            input=words,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
        )
        assert done.stderr == ""
        found.add(done.stdout.strip())
    assert len(found) == 1


FORK = """
import os
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
tokenizer = train_tokenizer(["the cat", "a dog"] * 50, TokenizerConfig(vocab_size=290))
before = tokenizer.encode_batch(["the cat"] * 100)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode_batch(["the cat"] * 100) == before else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_can_go_on_without_a_warning() -> None:
    clean = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", FORK], env=clean, capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")
