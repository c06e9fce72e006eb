"""Conversations and preferences of attendo, compared with trl: loss mask, DPO loss and gradients.

    python benchmarks/chat_parity.py --trl PYTHON

PYTHON is the Python of an environment with trl and transformers. 200 random conversations are tokenized by trl's
SFTTrainer (`assistant_only_loss`) and by attendo, in two formats. Then the DPO loss of 8 preferences and its gradients
are computed by trl's DPOTrainer and by attendo, for a model that differs from its reference. The weights are random.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
N_TALKS, N_PAIRS, BETA = 200, 8, 0.1
ANSWER = "{% generation %}{{ MESSAGE + END }}{% endgeneration %}"
"""The part of a template that trl trains."""
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    + ANSWER.replace("MESSAGE", "m.content").replace("END", "'<|im_end|>'")
    + "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% for m in messages %}{{ bos_token if loop.first else '' }}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{% if m.role == 'assistant' %}"
    + ANSWER.replace("MESSAGE", "m.content | trim").replace("END", "'<|eot_id|>'")
    + "{% else %}{{ (m.content | trim) + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
FORMATS = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>")),
    "llama-3": (LLAMA_3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
}
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


# ---- the half that runs in the environment of trl


def theirs(work: Path) -> None:
    """Write the ids and masks of trl, and its DPO loss and gradients, into the folder."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    plain = {"use_cpu": True, "report_to": "none", "bf16": False, "gradient_checkpointing": False}
    for name in FORMATS:
        folder = work / name
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.pad_token = "<unk>"
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=1, **SHAPE))
        talks = [{"messages": talk} for talk in json.loads((work / "talks.json").read_text())]
        config = SFTConfig(output_dir=work / "out", assistant_only_loss=True, max_length=None, **plain)
        trainer = SFTTrainer(model, config, train_dataset=Dataset.from_list(talks), processing_class=tokenizer)
        rows = []
        for row in trainer.train_dataset:
            mask = row["assistant_masks"] if "assistant_masks" in row else [label != -100 for label in row["labels"]]
            rows.append([row["input_ids"], list(map(bool, mask))])
        (work / f"{name}.json").write_text(json.dumps(rows))
    pairs = json.loads((work / "pairs.json").read_text())
    torch.manual_seed(0)
    reference = LlamaForCausalLM(model.config)
    model = LlamaForCausalLM(model.config)
    model.load_state_dict({name: w + 0.02 * torch.randn_like(w) for name, w in reference.state_dict().items()})
    for kind, one in (("reference", reference), ("model", model)):
        one.save_pretrained(work / kind)
    config = DPOConfig(
        output_dir=work / "out",
        beta=BETA,
        max_length=None,
        per_device_train_batch_size=N_PAIRS,
        disable_dropout=True,
        remove_unused_columns=False,
        **plain,
    )
    trainer = DPOTrainer(
        model,
        reference,
        config,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    gradients = LlamaForCausalLM(model.config)
    gradients.load_state_dict({name: p.grad for name, p in model.named_parameters()}, strict=False)
    gradients.save_pretrained(work / "gradients")
    (work / "loss.json").write_text(json.dumps(loss.item()))


# ---- the half of attendo


def prepared(work: Path) -> None:
    """Write the tokenizers, the conversations and the preferences into the folder."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from chat_formats import random_talks, tokenizer_folder

    for name, (template, special) in FORMATS.items():
        tokenizer_folder(work / name, "bytes", special, template)
    every = (messages for messages, _ in random_talks(True, 4 * N_TALKS, seed=2))
    talks = [[m._asdict() for m in messages] for messages in every if messages[-1].role == "assistant"][:N_TALKS]
    assert len(talks) == N_TALKS
    (work / "talks.json").write_text(json.dumps(talks))
    pairs = [
        {"prompt": one[:-1], "chosen": one[-1:], "rejected": other[-1:]}
        for one, other in zip(talks[:N_PAIRS], talks[N_PAIRS : 2 * N_PAIRS], strict=True)
    ]
    (work / "pairs.json").write_text(json.dumps(pairs))


def tokenizer_of(work: Path, name: str):
    """Return the imported tokenizer of a format."""
    from attendo.interop.huggingface.chat_templates import with_chat_template
    from attendo.interop.huggingface.tokenizers import read_tokenizer

    config = {"model_type": "llama"}
    return with_chat_template(work / name, config, read_tokenizer(work / name, config), print)


def compared_masks(work: Path) -> None:
    """Print the number of conversations with equal ids and equal masks."""
    from attendo.data.chat import Message

    talks = [[Message(**message) for message in talk] for talk in json.loads((work / "talks.json").read_text())]
    for name in FORMATS:
        tokenizer = tokenizer_of(work, name)
        found = [list(tokenizer.chat.encode(tokenizer, talk)) for talk in talks]
        expected = json.loads((work / f"{name}.json").read_text())
        same_ids, same_masks = (sum(a[i] == b[i] for a, b in zip(found, expected, strict=True)) for i in (0, 1))
        print(f"{name}: equal ids {same_ids}, equal masks {same_masks} of {len(talks)} conversations")


def compared_dpo(work: Path) -> None:
    """Print the DPO losses and the largest difference of a gradient."""
    import numpy as np
    import torch

    from attendo.data.chat import Message
    from attendo.data.chat_corpus import preference_batch
    from attendo.interop.huggingface.model_files import read_json, read_model
    from attendo.training.losses import answer_log_probs, batch_loss

    tokenizer = tokenizer_of(work, "llama-3")
    reference, model, gradients = (
        read_model(work / kind, read_json(work / kind / "config.json")).eval()
        for kind in ("reference", "model", "gradients")
    )
    turns = []
    for pair in json.loads((work / "pairs.json").read_text()):
        for answer in ("chosen", "rejected"):
            talk = [Message(**message) for message in pair["prompt"] + pair[answer]]
            turns.append(tokenizer.chat.encode(tokenizer, talk))
    rows = np.arange(N_PAIRS)
    batch = preference_batch(turns, rows, tokenizer.specials, BETA, np.zeros(N_PAIRS, np.float32))
    with torch.no_grad():
        better, worse = answer_log_probs(reference, batch).unbind(1)
    batch = preference_batch(turns, rows, tokenizer.specials, BETA, (better - worse).numpy())
    loss = batch_loss(model, batch, 0.0, 1 / batch.n_targets)
    loss.backward()
    expected = json.loads((work / "loss.json").read_text())
    ours = loss.item()
    print(f"DPO loss: attendo {ours:.7f}, trl {expected:.7f}, difference {abs(ours - expected):.1e}")
    theirs = dict(gradients.named_parameters())
    differences = [(p.grad - theirs[name]).abs().max().item() for name, p in model.named_parameters()]
    largest = max(one.abs().max().item() for one in theirs.values())
    print(f"gradients: largest difference {max(differences):.1e}, largest gradient {largest:.1e}")


def main() -> None:
    """Run both halves and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", metavar="PYTHON", help="Python of an environment with trl")
    parser.add_argument("--theirs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.theirs:
        theirs(given.theirs)
        return
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        prepared(work)
        subprocess.run([given.trl, __file__, "--theirs", str(work)], check=True)
        compared_masks(work)
        compared_dpo(work)


if __name__ == "__main__":
    main()
