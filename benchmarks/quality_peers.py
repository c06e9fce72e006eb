"""The peers of quality.py. Each peer trains with its own trainer and one thread until its CPU minutes are used.

`train_…(rows, plan, out)` returns a function (mark) -> (lines, facts): the translations of the test set by the model
after this number of CPU minutes. rows: {"train": pairs, "valid": pairs, "test": pairs}. The CPU time of all work
counts: imports, the tokenizer, batches and validation.

`documented` settings of JoeyNMT: configs/transformer_iwslt14_deen_bpe.yaml of its repository, its Transformer for a
small corpus (6+6 layers, d 256, 4,096 padded tokens, Adam 3e-4 on a plateau, dropout 0.3, smoothing 0.1, beam 5, alpha
1). There are two changes: 10,000 joint SentencePiece subwords instead of 32,000, because a corpus of 29,000 pairs has
no more, and no lowercasing, because raw text is scored. `documented` settings of Hugging Face: the defaults of
examples/pytorch/translation/run_translation.py (AdamW 5e-5, linear decay, 8 sentences, no smoothing), at the sizes of
the model in its README, opus-mt-en-ro (6+6 layers, d 512), from scratch. Both settings are meant for a GPU, and those
of Hugging Face for fine-tuning.

`small` settings are better for such a short time: 3+3 layers and d 256. JoeyNMT uses batches of 2,048 tokens. Hugging
Face uses values that are usual for training from scratch (5e-4, cosine, 1,000 steps of warm-up, weight decay 0.1, 32
sentences) and smoothing 0.1.
"""

import json
import math
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
from training_peers import EOS, SIZES, marian_model

PIECES = 10_000
LONGEST = 62
"""Largest number of subwords in a sentence, as JoeyNMT documents it, and here also in an output. Without a cache of
keys, its documented 100 takes hours if a model with little training generates no end.
"""
SAVE_EVERY = 180.0
"""CPU seconds between two saved states. After a restart, work after the last state is repeated and counted again."""


class Spent:
    """CPU seconds of a run over all its sessions, stored with the state from which the run resumes."""

    def __init__(self, path):
        self.path = path
        self.before = json.loads(path.read_text())["cpu_seconds"] if path.exists() else 0.0
        self.saved = self.now()

    def now(self):
        """Return the CPU seconds so far."""
        return self.before + time.process_time()

    def save(self):
        """Store the CPU seconds. Call this method right after the state itself is saved."""
        self.saved = self.now()
        self.path.write_text(json.dumps({"cpu_seconds": self.saved}))

    def due(self):
        """Return whether the state should be saved."""
        return self.now() - self.saved > SAVE_EVERY


@contextmanager
def uncounted(spent):
    """Exclude the `with` block from the CPU time, for work of the benchmark itself."""
    began = time.process_time()
    yield
    spent.before -= time.process_time() - began


def joey_config(plan, out, texts):
    """Return JoeyNMT's configuration."""
    small = plan["settings"] == "small"
    side = {"max_length": LONGEST, "lowercase": False, "normalize": False, "level": "bpe", "voc_min_freq": 1}
    side |= {"tokenizer_type": "sentencepiece", "tokenizer_cfg": {"model_file": str(out / "pieces.model")}}
    side |= {"voc_file": str(out / "vocab.txt")}
    part = {"type": "transformer", "num_layers": 3 if small else 6, "num_heads": 4, "hidden_size": 256}
    part |= {"embeddings": {"embedding_dim": 256, "scale": True, "dropout": 0.0}, "ff_size": 1024}
    part |= {"dropout": 0.3, "layer_norm": "post"}
    return {
        "name": "quality",
        "model_dir": str(out / "model"),
        "use_cuda": False,
        "random_seed": plan["seed"],
        "data": {
            **texts,
            "dataset_type": "plain",
            "src": {"lang": "src", **side},
            "trg": {"lang": "trg", **side},
        },
        "testing": {
            "beam_size": 5,
            "beam_alpha": 1.0,
            "eval_metrics": ["bleu"],
            "max_output_length": LONGEST,
        },
        "training": {
            "optimizer": "adam",
            "normalization": "tokens",
            "adam_betas": [0.9, 0.999],
            "scheduling": "plateau",
            "patience": 5,
            "decrease_factor": 0.7,
            "loss": "crossentropy",
            "learning_rate": 0.0003,
            "learning_rate_min": 1e-8,
            "weight_decay": 0.0,
            "label_smoothing": 0.1,
            "batch_size": 2048 if small else 4096,
            "batch_type": "token",
            "early_stopping_metric": "bleu",
            "epochs": 10_000,
            "validation_freq": 1000,
            "logging_freq": 100,
            "keep_best_ckpts": 5,
            "print_valid_sents": [0],
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "embed_init_gain": 1.0,
            "init_gain": 1.0,
            "bias_initializer": "zeros",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": dict(part),
            "decoder": dict(part),
        },
    }


def joey_files(rows, out):
    """Write text files for each set, and one SentencePiece model for both sides with JoeyNMT's special ids."""
    import sentencepiece

    texts = {}
    for name, wanted in (("train", "train"), ("valid", "dev"), ("test", "test")):
        texts[wanted] = str(out / name)
        for side, suffix in ((0, "src"), (1, "trg")):
            path = out / f"{name}.{suffix}"
            path.write_text("".join(row[side] + "\n" for row in rows[name]), encoding="utf-8")
    if not (out / "vocab.txt").exists():
        sentencepiece.SentencePieceTrainer.train(
            input=[f"{texts['train']}.src", f"{texts['train']}.trg"],
            model_prefix=str(out / "pieces"),
            vocab_size=PIECES,
            model_type="bpe",
            character_coverage=1.0,
            unk_id=0,
            pad_id=1,
            bos_id=2,
            eos_id=3,
            num_threads=1,
        )
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "pieces.model"))
        words = [pieces.id_to_piece(number) for number in range(pieces.get_piece_size())]
        (out / "vocab.txt").write_text("".join(word + "\n" for word in words), encoding="utf-8")
    return texts


def train_joeynmt(rows, plan, out):
    """Train with JoeyNMT's `TrainManager`, which is stopped and saved at the marks."""
    import sentencepiece
    import torch
    from joeynmt import builders
    from joeynmt.config import parse_global_args, set_validation_args
    from joeynmt.prediction import predict, prepare
    from joeynmt.training import TrainManager

    torch.set_num_threads(1)
    # an argument and a method that newer libraries have removed; neither had an effect here
    plateau = builders.ReduceLROnPlateau
    builders.ReduceLROnPlateau = lambda verbose=False, **options: plateau(**options)
    sentencepiece.SentencePieceProcessor.SetVocabulary = lambda pieces, words: None
    (out / "model").mkdir(exist_ok=True)
    config = joey_config(plan, out, joey_files(rows, out))
    spent, latest = Spent(out / "spent.json"), out / "model" / "latest.ckpt"
    if latest.exists() and spent.before:
        config["training"]["load_model"] = str(latest)
    args = parse_global_args(config, mode="train")
    model, train_data, dev_data, test_data = prepare(args, rank=0, mode="train")

    class Timed(TrainManager):
        def _train_step(self, batch):
            for mark in plan["marks"]:
                if spent.now() >= 60 * mark and not (out / f"at-{mark:g}.npz").exists():
                    facts = {"steps": self.stats.steps, "epochs": self.stats.epochs}
                    (out / f"at-{mark:g}.json").write_text(json.dumps(facts))
                    weights = {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}
                    np.savez(out / f"at-{mark:g}.npz", **weights)
            if spent.now() >= 60 * plan["marks"][-1]:
                raise KeyboardInterrupt  # the manager then saves and ends
            if spent.due():
                self._save_checkpoint(False, float("nan"))
                spent.save()
            return super()._train_step(batch)

    if not (out / f"at-{plan['marks'][-1]:g}.npz").exists():
        manager = Timed(
            rank=0,
            model=model,
            model_dir=args.model_dir,
            device=args.device,
            autocast=args.autocast,
            seed=args.seed,
            train_args=args.train,
            dev_args=set_validation_args(args.test),
        )
        manager.train_and_validate(train_data=train_data, valid_data=dev_data)
        spent.save()

    def translations(mark):
        weights = np.load(out / f"at-{mark:g}.npz")
        model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
        found = predict(
            model,
            test_data,
            args.device,
            n_gpu=0,
            normalization="tokens",
            args=args.test,
            autocast=args.autocast,
        )
        return found[2], json.loads((out / f"at-{mark:g}.json").read_text())

    config["training"].pop("load_model", None)  # the checkpoint to resume from is not a setting
    sizes = {"parameters": sum(p.numel() for p in model.parameters()), "pieces": len(model.src_vocab)}
    return translations, {**sizes, "config": {k: config[k] for k in ("training", "model", "testing")}}


def marian_tokenizer(rows, out):
    """Train a BPE tokenizer on both sides with `tokenizers`. It ends each text with </s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    path = out / "tokenizer.json"
    if not path.exists():
        made = Tokenizer(models.BPE(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        special = ["<pad>", "<unk>", "<s>", "</s>"]
        trainer = trainers.BpeTrainer(vocab_size=PIECES, special_tokens=special, show_progress=False)
        made.train_from_iterator((text for pair in rows["train"] for text in pair), trainer)
        made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
        made.save(str(path))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        bos_token="<s>",
        model_max_length=512,
    )


def marian_arguments(settings):
    """Return the model sizes and the arguments of the trainer for these settings."""
    if settings == "documented":
        return SIZES["base"], {
            "per_device_train_batch_size": 8,
            "learning_rate": 5e-5,
        }
    return SIZES["small"], {
        "per_device_train_batch_size": 32,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 1000,
        "weight_decay": 0.1,
        "label_smoothing_factor": 0.1,
    }


def train_transformers(rows, plan, out):
    """Train with Hugging Face's `Seq2SeqTrainer`, which is stopped and saved at the marks."""
    import torch
    from transformers import (
        DataCollatorForSeq2Seq,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        TrainerCallback,
        set_seed,
    )

    torch.set_num_threads(1)
    set_seed(plan["seed"])
    tokenizer = marian_tokenizer(rows, out)
    sizes, arguments = marian_arguments(plan["settings"])
    model = marian_model(len(tokenizer), sizes, activation="swish")
    spent, state = Spent(out / "spent.json"), out / "state"
    sources, targets = (tokenizer([pair[side] for pair in rows["train"]])["input_ids"] for side in (0, 1))
    data = [{"input_ids": a, "labels": b} for a, b in zip(sources, targets, strict=True)]
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)

    def trainer(model, **more):
        made = Seq2SeqTrainingArguments(
            output_dir=str(state), seed=plan["seed"], use_cpu=True, report_to=[], disable_tqdm=True,
            save_strategy="no", save_total_limit=2, **arguments, **more,
        )  # fmt: skip
        return Seq2SeqTrainer(model=model, args=made, train_dataset=data, data_collator=collator)

    class Timed(TrainerCallback):
        def on_step_end(self, args, state, control, **things):
            now = spent.now()
            for mark in plan["marks"]:
                if now >= 60 * mark and not (out / f"at-{mark:g}").exists():
                    things["model"].save_pretrained(out / f"at-{mark:g}")
                    facts = {"steps": state.global_step, "epochs": round(state.epoch, 2)}
                    (out / f"at-{mark:g}" / "facts.json").write_text(json.dumps(facts))
            control.should_training_stop |= now >= 60 * plan["marks"][-1]
            control.should_save |= spent.due() or control.should_training_stop
            return control

        def on_save(self, args, state, control, **things):
            spent.save()

    last = out / f"at-{plan['marks'][-1]:g}"
    if not last.exists():
        if "steps" not in plan:
            plan["steps"] = marian_steps(trainer, sizes, len(tokenizer), spent, plan)
            (out / "plan.json").write_text(json.dumps(plan))
        made = trainer(model, max_steps=plan["steps"])
        made.add_callback(Timed())
        made.train(resume_from_checkpoint=bool(spent.before) and any(Path(state).glob("checkpoint-*")))
        if not last.exists():  # the planned steps took less time than planned
            made.model.save_pretrained(last)
            facts = {"steps": made.state.global_step, "epochs": made.state.epoch, "cpu_seconds": spent.now()}
            (last / "facts.json").write_text(json.dumps(facts))

    def translations(mark):
        from transformers import MarianMTModel

        trained = MarianMTModel.from_pretrained(out / f"at-{mark:g}").eval()
        found = []
        for first in range(0, len(rows["test"]), 32):
            texts = [pair[0] for pair in rows["test"][first : first + 32]]
            ids = tokenizer(texts, return_tensors="pt", padding=True)
            with torch.inference_mode():
                tokens = trained.generate(
                    ids["input_ids"], attention_mask=ids["attention_mask"], num_beams=4, max_new_tokens=128
                )
            found += tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return found, json.loads((out / f"at-{mark:g}" / "facts.json").read_text())

    numbers = {"parameters": sum(p.numel() for p in model.parameters()), "pieces": len(tokenizer)}
    return translations, {**numbers, "sizes": sizes, "arguments": arguments | {"max_steps": plan["steps"]}}


def marian_steps(trainer, sizes, vocab, spent, plan, probe=40):
    """Return the number of steps that fit into the time, for the schedule.

    The number is estimated from the speed of some steps on another model, whose time is not counted.
    """
    with uncounted(spent):
        tried = trainer(marian_model(vocab, sizes, activation="swish"), max_steps=2)
        tried.train()
        tried = trainer(marian_model(vocab, sizes, activation="swish"), max_steps=probe)
        began = time.process_time()
        tried.train()
        pace = (time.process_time() - began) / probe
    return math.ceil((60 * plan["marks"][-1] - spent.now()) / pace)


PACKAGES = {
    "joeynmt": ["joeynmt", "torch", "sentencepiece"],
    "transformers": ["transformers", "torch", "tokenizers"],
}


def versions(tool):
    """Return the versions of a peer and its libraries."""
    return {package: version(package) for package in PACKAGES[tool]}
