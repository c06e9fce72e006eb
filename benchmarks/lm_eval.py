"""Log-likelihoods that lm-eval measures over /v1/completions, compared with those of its own `hf` backend.

    python benchmarks/lm_eval.py --peer PYTHON [--texts FILE]

PYTHON belongs to an environment with lm-eval: `python -m venv peer && peer/bin/pip install "lm-eval[api,hf]" torch`.
The benchmark builds one random model of each kind with a byte-level BPE tokenizer trained on the texts. It imports all
models and serves them on this machine. lm-eval then runs two local tasks, a multiple choice and a rolling
log-likelihood, once with `transformers` and once with `local-completions`. Nothing is downloaded.

The kinds differ in the begin token. The tokenizers of GPT-2, SmolLM and Qwen define a begin token but do not add it to
a text; the tokenizer of Llama adds it. `local-completions` sends token ids, and lm-eval adds a begin id only with
add_bos_token.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

from turns import HERE, asked, contenders, orders, shared_options, store, tell

MAX_LEN, N_TEXTS, N_CHOICES = 256, 24, 3
END, BEGIN = "<|endoftext|>", "<|begin|>"
KINDS = {
    "gpt2": ("GPT2", END, False),
    "smollm": ("Llama", BEGIN, False),
    "llama": ("Llama", BEGIN, True),
    "qwen2": ("Qwen2", None, False),
    "qwen3": ("Qwen3", None, False),
}
"""Class of `transformers`, begin token of the tokenizer, and whether the tokenizer adds it to a text."""
SHAPE = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": MAX_LEN}
WIDE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LEN,
}


def made(kind, texts, folder):
    """Write a folder in Hugging Face's format: a random model of a kind with low-entropy outputs, and a tokenizer."""
    import torch
    import transformers
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import TemplateProcessing

    name, begin, adds = KINDS[kind]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, 600, special_tokens=[END, BEGIN], show_progress=False)
    if adds:
        ids = [(begin, tokenizer.token_to_id(begin))]
        tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=ids)
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    ends = {"bos_token_id": tokenizer.token_to_id(begin or END), "eos_token_id": tokenizer.token_to_id(END)}
    sizes = {"vocab_size": tokenizer.get_vocab_size(), **(SHAPE if name == "GPT2" else WIDE), **ends}
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**sizes, initializer_range=0.3)
    model = getattr(transformers, f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")(config)
    model.save_pretrained(folder)


def write_tasks(texts, folder):
    """Write two lm-eval tasks over the texts: a choice of their endings, and the whole texts."""
    rows = []
    for number, text in enumerate(texts):
        others = [texts[(number + step) % len(texts)] for step in range(N_CHOICES)]
        ends = [other[len(other) // 2 :] for other in others]
        rows.append({"text": text, "begin": text[: len(text) // 2] if number else "", "ends": ends})
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "texts.jsonl")}},
        "test_split": "test",
    }
    choice = {
        "task": "local_choice",
        "output_type": "multiple_choice",
        "doc_to_text": "{{begin}}",
        "doc_to_choice": "{{ends}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    rolling = {
        "task": "local_rolling",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}],
    }
    for task in (choice, rolling):
        # JSON is valid YAML
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task | common))


def work(folder):
    """Run lm-eval. For each request [backend, arguments], send all log-likelihoods by task."""
    sys.path.remove(str(HERE))  # otherwise this file would hide the package lm_eval
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    tell({"versions": {name: version(name) for name in ("lm-eval", "transformers", "torch")}})
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    for backend, arguments in orders():
        found = simple_evaluate(
            model=backend,
            model_args=arguments,
            tasks=["local_choice", "local_rolling"],
            task_manager=tasks,
            batch_size=4,
            bootstrap_iters=0,
        )
        answers = {}
        for task, samples in found["samples"].items():
            samples.sort(key=lambda sample: sample["doc_id"])
            values = [one for sample in samples for one in sample["filtered_resps"]]
            answers[task] = [one[0] if isinstance(one, (list, tuple)) else one for one in values]
        tell(answers)


def compare(options):
    """Compare both backends on every kind. Return the number of texts and the largest difference in nats."""
    from serving_load import free_port

    from attendo.interop.huggingface.importing import import_model

    texts = [part for part in options.texts.read_text(encoding="utf-8").split("\n\n") if len(part) > 80]
    texts = [text[:300] for text in texts][:N_TEXTS]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_tasks(texts, folder)
        for kind in KINDS:
            (folder / "hf" / kind).mkdir(parents=True)
            made(kind, texts, folder / "hf" / kind)
            import_model(folder / "hf" / kind, folder / kind)
        port = free_port()
        command = [
            Path(sys.executable).with_name("attendo"),
            "serve",
            *(str(folder / kind) for kind in KINDS),
        ]
        command += ["--port", str(port), "--threads", "1"]
        peer = {"lm-eval": [options.peer, __file__, "--work", "lm-eval", "--file", folder]}
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            with contenders(peer, 1) as (workers, facts):
                rows = {kind: one_kind(kind, folder / "hf" / kind, port, workers["lm-eval"]) for kind in KINDS}
        finally:
            server.terminate()
            server.wait()
    return {"versions": facts["lm-eval"]["versions"], "texts": len(texts), "kinds": rows}


def wait_for(port, seconds=120):
    """Wait until the server has loaded all models."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
            return
        time.sleep(0.2)
    raise SystemExit(f"the server is not ready after {seconds} seconds")


def one_kind(kind, folder, port, peer):
    """Return the differences for a kind: the largest difference of a log-likelihood in each task."""
    theirs = asked("lm-eval", peer, ["hf", {"pretrained": str(folder), "dtype": "float32", "device": "cpu"}])
    arguments = {
        "model": kind,
        "base_url": f"http://127.0.0.1:{port}/v1/completions",
        "tokenizer": str(folder),
        "tokenizer_backend": "huggingface",
        "max_length": MAX_LEN,
        "add_bos_token": KINDS[kind][2],
    }
    ours = asked("lm-eval", peer, ["local-completions", arguments])
    apart = {task: [abs(a - b) for a, b in zip(theirs[task], ours[task], strict=True)] for task in sorted(theirs)}
    found = {task: {"n": len(values), "largest_difference": max(values)} for task, values in apart.items()}
    print(f"{kind}: {found}", file=sys.stderr)
    return found


def main():
    """Compare the backends and store the results."""
    parser = shared_options(__doc__, rounds=1)
    parser.add_argument("--peer", help="python of an environment with lm-eval, torch and transformers")
    parser.add_argument(
        "--texts", type=Path, default=HERE.parent / "README.md", help="paragraphs (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.work:
        work(options.file)
        return
    if not options.peer:
        parser.error("give --peer, the python of an environment with lm-eval, torch and transformers")
    store("lm-eval", compare(options), options.out)


if __name__ == "__main__":
    main()
