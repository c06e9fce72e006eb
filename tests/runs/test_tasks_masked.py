"""Stretches with hidden tokens: every token once an epoch, the same for the same numbers, and found if it can be."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attendo.data.token_stream import TokenStream
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.model_config import ModelConfig
from attendo.models import MaskedLM
from attendo.runs.tasks import MaskedDataset, MaskedTask, MaskingConfig
from attendo.training.losses import token_losses

TOKENIZER = train_tokenizer(["abcdef"], TokenizerConfig(kind="character"))
texts = st.lists(st.text("abcdef", min_size=1, max_size=30), min_size=1, max_size=6)


def material(texts, context=8, **masking):
    return MaskedDataset(TokenStream.of(texts, TOKENIZER), context, TOKENIZER.vocab_size, MaskingConfig(**masking))


@given(texts=texts, context=st.integers(2, 12), epoch=st.integers(0, 3))
def test_every_token_is_in_one_stretch(texts, context, epoch):
    found = material(texts, context)
    assert found.stretches[:].max() < context
    assert found.stretches[:].min() >= 1
    assert found.n_tokens == sum(map(len, texts)) + found.n_rows
    seen = []
    for batch in found.batches(40, 1, epoch):
        src, targets = batch.inputs["src"], batch.targets
        assert (src[:, 0] == TOKENIZER.bos_id).all()
        assert (batch.n_targets, bool((targets[:, 0] == 0).all())) == (int((targets != 0).sum()), True)
        whole = torch.where(targets == 0, src, targets)
        seen += [TOKENIZER.decode(row.tolist()) for row in whole]
        assert src.shape[1] == 1 + found.stretches[batch.ids].max()
    edges = zip(*found.stretches.edges(np.arange(found.n_rows)), strict=True)
    stretches = [TOKENIZER.decode(found.store.ids[a:b].tolist()) for a, b in edges]
    assert sorted(seen) == sorted(stretches)
    assert "".join(stretches) == "".join(texts)


def test_what_is_hidden_is_drawn_from_seed_epoch_and_stretch():
    found = material(["abcdef" * 40], share=0.4)

    def targets(seed, epoch, budget=64):
        batches = found.batches(budget, seed, epoch)
        rows = {
            int(i): row[: 1 + int(found.stretches[batch.ids][at])].tolist()
            for batch in batches
            for at, (i, row) in enumerate(zip(batch.ids, batch.targets, strict=True))
        }
        return [rows[i] for i in sorted(rows)]

    assert targets(1, 0) == targets(1, 0) == targets(1, 0, budget=16)
    assert targets(1, 0) != targets(1, 1)
    assert targets(1, 0) != targets(2, 0)
    batches = found.batches(32, 1, 0)
    assert torch.equal(batches[2:][0].targets, batches[2].targets)


def model(seed=0):
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 0}
    return MaskedLM(ModelConfig(architecture="masked", vocab_size=TOKENIZER.vocab_size, max_len=16, **sizes)).eval()


def test_the_measures_are_the_sums_over_all_hidden_tokens():
    task = MaskedTask(material(["ab"]), material(["abcdef" * 9, "fedcba"]), batch_tokens=64)
    network = model()
    with torch.inference_mode():
        found = task.evaluate(network).measures
    losses, right = [], []
    for batch in task.validation.batches(16, 0, 0):
        asked = batch.targets != 0
        logits = network(**batch.inputs)[asked]
        losses += token_losses(logits, batch.targets[asked]).tolist()
        right += (logits.argmax(-1) == batch.targets[asked]).tolist()
    assert found["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert found["accuracy"] == np.mean(right)
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))


def test_a_share_out_of_range_is_refused():
    with pytest.raises(ValueError, match="share=0"):
        MaskingConfig(share=0.0)
