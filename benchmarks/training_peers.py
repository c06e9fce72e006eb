"""The contenders of the training benchmark, one process each: attendo and the peers, as their users run them.

Each `..._loop(vocab, sizes, everywhere, losses)` returns (model, loop). `loop(feed)` trains on the pairs that `feed`
yields (sources with end id, targets between begin and end ids) of padded ids, and appends the loss of each step to
`losses`. A batch is finished when the loop requests the next one, so a peer's own trainer can control the loop.
"""

import contextlib
from pathlib import Path

import numpy as np

PAD, UNK, BOS, EOS = 0, 1, 2, 3
RATE = 5e-4
SHARED = {"dropout": 0.1, "smoothing": 0.1}
SIZES = {
    "small": SHARED | {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": SHARED | {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
PACKAGES = {"joeynmt": ["torch", "joeynmt"], "transformers": ["torch", "transformers", "accelerate"]}


def contender_of(name, *given):
    """Return the model and the loop of the contender with this name."""
    match name:
        case "attendo":
            return attendo_loop(*given)
        case "attendo-torch-products":
            return attendo_loop(*given, products="torch")
        case "attendo-bfloat16":
            return attendo_loop(*given, precision="bfloat16", products="torch")
        case "torch":
            return torch_loop(*given)
        case "joeynmt":
            return joey_loop(*given)
        case "transformers":
            return marian_loop(*given)
    raise SystemExit(f"no contender is named {name}")


def looped(step, losses):
    """Return a training loop that calls `step` for each batch."""

    def loop(feed):
        for src, tgt in feed:
            losses.append(step(src, tgt))

    return loop


def attendo_batch(src, tgt):
    """Return the batch as attendo's own data would: with lengths if there is padding, and with shifted targets."""
    import torch

    from attendo.data.batches import Batch

    src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
    lengths = (src != PAD).sum(1)
    inputs = {"src": src, "tgt": tgt[:, :-1].contiguous()}
    if int(lengths.min()) < src.shape[1]:
        inputs["src_lengths"] = lengths
    targets = tgt[:, 1:].contiguous()
    return Batch(inputs, targets, int((targets != PAD).sum()), np.arange(len(src)))


def attendo_loop(vocab, sizes, everywhere, losses, precision="float32", products=None):
    """Return attendo's update with all guards. With `products=None`, a probe chooses the matrix library."""
    import torch

    from attendo.models import EncoderDecoder, ModelConfig
    from attendo.training.acceleration import fastest_products
    from attendo.training.checkpoints import CheckpointConfig
    from attendo.training.loop import update
    from attendo.training.optimizer import TrainingConfig
    from attendo.training.run import Run

    inner = sizes["dropout"] if everywhere else 0.0
    config = ModelConfig(
        vocab_size=vocab,
        d_model=sizes["d_model"],
        d_ff=sizes["d_ff"],
        n_heads=sizes["heads"],
        n_encoder_layers=sizes["layers"],
        n_decoder_layers=sizes["layers"],
        dropout=sizes["dropout"],
        attention_dropout=inner,
        activation_dropout=inner,
    )
    training = TrainingConfig(
        steps=10**9,
        learning_rate=RATE,
        warmup_steps=1,
        precision=precision,
        products=products or fastest_products(torch.device("cpu")),
    )
    run = Run(EncoderDecoder(config), None, training, CheckpointConfig(), Path("unused"))
    return run.model, looped(lambda src, tgt: update(run, [attendo_batch(src, tgt)]).loss, losses)


def torch_loop(vocab, sizes, everywhere, losses):
    """Return a plain loop around torch.nn.Transformer, as a careful user of PyTorch writes it."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    model = plain_transformer(vocab, sizes).train()
    if not everywhere:
        for module in model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # on attention weights; PyTorch has a faster kernel without it
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # between the two layers of the feed-forward net
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(src, tgt):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        logits, targets = model(src, tgt[:, :-1]), tgt[:, 1:]
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=sizes["smoothing"]
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return model, looped(step, losses)


def plain_transformer(vocab, sizes, padded=True):
    """Return torch.nn.Transformer with one shared embedding, sinusoidal positions and logits.

    With `padded=False`, it expects batches without padding, for which PyTorch has faster kernels.
    """
    import math

    import torch
    import torch.nn.functional as F
    from torch import nn

    width = sizes["d_model"]

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocab, width, padding_idx=PAD)
            nn.init.normal_(self.embedding.weight, std=width**-0.5)
            frequencies = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
            place = torch.arange(512)[:, None] * frequencies
            self.register_buffer("places", torch.stack([place.sin(), place.cos()], -1).flatten(1))
            self.dropout = nn.Dropout(sizes["dropout"])
            numbers = (sizes[name] for name in ("heads", "layers", "layers", "d_ff", "dropout"))
            self.transformer = nn.Transformer(width, *numbers, batch_first=True)

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * width**0.5 + self.places[: ids.shape[1]])

        def forward(self, src, tgt):
            padding = src == PAD if padded else None
            mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
            hidden = self.transformer(
                self.embed(src),
                self.embed(tgt),
                tgt_mask=mask,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return F.linear(hidden, self.embedding.weight)

    return Plain()


def joey_loop(vocab, sizes, everywhere, losses):
    """Return a loop with JoeyNMT's model, batch, loss, clipper, optimizer and calls of `TrainManager._train_step`."""
    import torch
    from joeynmt.batch import Batch
    from joeynmt.builders import build_gradient_clipper, build_optimizer
    from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward

    model = joey_model(vocab, sizes)
    model.loss_function = ("crossentropy", sizes["smoothing"])
    if not everywhere:
        for module in model.modules():
            if isinstance(module, MultiHeadedAttention):
                module.dropout.p = 0.0
            if isinstance(module, PositionwiseFeedForward):
                module.pwff_layer[2].p = 0.0
    clip = build_gradient_clipper({"clip_grad_val": None, "clip_grad_norm": 1.0})
    optimizer = build_optimizer(
        {"optimizer": "adamw", "learning_rate": RATE, "adam_betas": [0.9, 0.98]}, model.parameters()
    )
    swapped = np.arange(vocab)
    swapped[[PAD, UNK]] = UNK, PAD  # JoeyNMT's padding has id 1

    def step(src, tgt):
        src, tgt = torch.from_numpy(swapped[src]), torch.from_numpy(swapped[tgt])
        batch = Batch(
            src=src, src_length=(src != 1).sum(1), src_prompt_mask=None, trg=tgt, trg_prompt_mask=None,
            indices=torch.arange(len(src)), device=torch.device("cpu"), pad_index=1, eos_index=3,
        )  # fmt: skip
        model.train()
        batch.sort_by_src_length()
        loss, _, _, correct = model(return_type="loss", **vars(batch))
        loss = batch.normalize(loss, normalization="tokens")
        loss.backward()
        correct.item()
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()
        return loss.item()

    return model, looped(step, losses)


def joey_model(vocab, sizes):
    """Return JoeyNMT's Transformer, built by JoeyNMT from its configuration."""
    from types import SimpleNamespace

    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"w{number}" for number in range(4, vocab)], special)
    part = {
        "type": "transformer",
        "num_layers": sizes["layers"],
        "num_heads": sizes["heads"],
        "embeddings": {"embedding_dim": sizes["d_model"], "scale": True},
        "hidden_size": sizes["d_model"],
        "ff_size": sizes["d_ff"],
        "dropout": sizes["dropout"],
        "layer_norm": "post",
    }
    config = {"encoder": dict(part), "decoder": dict(part), "tied_embeddings": True, "tied_softmax": True}
    return build_model(config, src_vocab=words, trg_vocab=words)


def marian_loop(vocab, sizes, everywhere, losses):
    """Return Hugging Face's `Trainer.train()` for a MarianMTModel, with its own loop, callbacks and defaults."""
    import tempfile

    import torch
    from transformers import Trainer, TrainingArguments

    model = marian_model(vocab, sizes, sizes["dropout"] if everywhere else 0.0)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        learning_rate=RATE,
        adam_beta2=0.98,
        label_smoothing_factor=sizes["smoothing"],
        max_steps=10**9,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )

    def inputs(src, tgt):
        src, tgt = torch.from_numpy(src), torch.from_numpy(tgt)
        labels = tgt[:, 1:].masked_fill(tgt[:, 1:] == PAD, -100)
        given = {"input_ids": src, "attention_mask": (src != PAD).long()}
        return given | {"decoder_input_ids": tgt[:, :-1].contiguous(), "labels": labels}

    class Fed(Trainer):
        def get_train_dataloader(self):
            yield from (inputs(*batch) for batch in self.feed)
            raise Fed.Over  # otherwise, another epoch would begin

        def training_step(self, *things, **more):
            loss = super().training_step(*things, **more)
            losses.append(loss.item())
            return loss

        class Over(Exception):
            pass

    trainer = Fed(model=model, args=arguments, train_dataset=[0])

    def loop(feed):
        trainer.feed = feed
        with contextlib.suppress(Fed.Over):
            trainer.train()

    return model, loop


def marian_model(vocab, sizes, inner=0.0, activation="relu"):
    """Return a MarianMTModel of these sizes. `inner` is the dropout on attention weights and in feed-forward nets."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=vocab,
            d_model=sizes["d_model"],
            encoder_layers=sizes["layers"],
            decoder_layers=sizes["layers"],
            encoder_attention_heads=sizes["heads"],
            decoder_attention_heads=sizes["heads"],
            encoder_ffn_dim=sizes["d_ff"],
            decoder_ffn_dim=sizes["d_ff"],
            dropout=sizes["dropout"],
            attention_dropout=inner,
            activation_dropout=inner,
            activation_function=activation,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=PAD,
            eos_token_id=EOS,
            forced_eos_token_id=None,
            decoder_start_token_id=BOS,
        )
    )
