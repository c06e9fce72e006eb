"""Adapters and frozen parts: the same function merged, the base's weights at rest, and everything else as ever."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import in_ranks
from tiny_task import TinyTask, tiny_model, tiny_run

from attendo.errors import AttendoError
from attendo.models import ModelConfig, build_model
from attendo.training.acceleration import use_onednn
from attendo.training.checkpoints import (
    load_checkpoint,
    load_weights,
    newest_checkpoint,
    optimizer_tensors,
    weights_of,
)
from attendo.training.distributed import ALONE
from attendo.training.loop import train
from attendo.training.lora import (
    adapters,
    freeze,
    merge,
    merged_tensors,
    parameters_of,
    unmerge,
    with_adapters,
)
from attendo.training.losses import TrainStepExecutor
from attendo.training.optimizer import LoraConfig, TrainingConfig, WeightAverage, build_optimizer

LORA = LoraConfig(rank=3)
FAMILIES = {
    "encoder-decoder": {"tie": "all"},
    "classifier": {"n_decoder_layers": 0, "n_classes": 3},
    "decoder": {"n_encoder_layers": 0, "positions": "rotary", "tie": "output"},
    "masked": {"n_decoder_layers": 0, "output_bias": True, "tie": "output"},
}


def model_of(family, **options):
    sizes = {
        "vocab_size": 20,
        "d_model": 16,
        "d_ff": 24,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
    }
    torch.manual_seed(0)
    return build_model(ModelConfig(architecture=family, **{**sizes, **FAMILIES[family], **options})).eval()


def logits_of(model):
    ids = torch.tensor([[4, 5, 6, 7]])
    match model.config.architecture:
        case "encoder-decoder":
            return model(ids, ids[:, :3]).detach()
        case _:
            return model(ids).detach()


def moved(twin, seed=0):
    """Gives each B numbers, as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, adapter in adapters(twin):
            adapter.up.weight.copy_(torch.randn(adapter.up.weight.shape, generator=generator))
    return twin


def copies(tensors):
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def differing(before, after):
    """The names of tensors that are not equal to the bit."""
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def finished(run):
    for _ in train(run):
        pass
    return run


# ---- the function


@settings(max_examples=8)
@given(
    st.sampled_from(list(FAMILIES)),
    st.integers(1, 20),
    st.floats(0.1, 64.0),
    st.sampled_from(["all", ("q_proj",), ("q_proj", "v_proj"), ("feed_forward.out_proj", "k_proj")]),
    st.fixed_dictionaries({"norm_first": st.booleans(), "feed_forward_gated": st.booleans()}),
    st.integers(0, 99),
)
def test_merged_weights_are_the_same_function(family, rank, alpha, targets, options, seed):
    model = model_of(family, **options).double()
    before, names = copies(weights_of(model)), list(model.state_dict())
    twin = moved(with_adapters(model, LoraConfig(rank=rank, alpha=alpha, targets=targets)), seed)
    wanted, base = logits_of(twin), logits_of(model)
    kept = merge(model, twin)
    assert torch.allclose(logits_of(model), wanted, rtol=0, atol=1e-10)
    assert not torch.allclose(base, wanted, atol=1e-3)
    assert differing(before, weights_of(model)) == {f"{path}.weight" for path, _ in adapters(twin)}
    unmerge(model, kept)
    assert not differing(before, weights_of(model)) and list(model.state_dict()) == names
    learned = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    load_weights(model, merged_tensors({**weights_of(model), **learned}, alpha / rank), "here")
    assert torch.allclose(logits_of(model), wanted, rtol=0, atol=1e-10)


@pytest.mark.some(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("onednn", [False, True])
def test_at_the_start_the_function_is_that_of_the_base_to_the_bit(family, onednn):
    model = model_of(family)
    if onednn:
        use_onednn(model)
    twin = with_adapters(model, LORA)
    assert torch.equal(logits_of(twin), logits_of(model))
    assert set(dict(model.named_parameters())) < set(dict(twin.named_parameters()))


def test_the_output_layer_and_the_embedding_have_no_adapter():
    twin = with_adapters(model_of("masked"), LORA)
    paths = [path for path, _ in adapters(twin)]
    assert "output_hidden" in paths and "output_proj" not in paths
    assert len(paths) == 6 + 1
    assert all(p.requires_grad == (".lora." in name) for name, p in twin.named_parameters())


def test_targets_by_the_end_of_their_path():
    twin = with_adapters(tiny_model(), LoraConfig(rank=1, targets=("cross_attention.q_proj", "in_proj")))
    assert [path for path, _ in adapters(twin)] == [
        "encoder.blocks.0.feed_forward.in_proj",
        "decoder.blocks.0.cross_attention.q_proj",
        "decoder.blocks.0.feed_forward.in_proj",
    ]


def test_parts_trained_whole_and_frozen_parts_have_no_adapter():
    model = tiny_model()
    freeze(model, ["encoder", "decoder.blocks.0.cross_attention.q_proj"])
    twin = with_adapters(model, LoraConfig(rank=1, trained=("decoder.blocks.0.feed_forward", "encoder.blocks")))
    trained = {name for name, p in twin.named_parameters() if p.requires_grad}
    assert {path.rpartition(".")[0] for path, _ in adapters(twin)} == {
        "decoder.blocks.0.self_attention",
        "decoder.blocks.0.cross_attention",
    }
    assert {name for name in trained if ".lora." not in name} == {
        f"decoder.blocks.0.feed_forward.{name}"
        for name in ("in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias")
    }


def test_a_tied_matrix_is_frozen_under_each_of_its_names():
    for part_ in ("output_proj", "target_embedding", "source_embedding.tokens.weight"):
        model = tiny_model()
        freeze(model, [part_])
        assert [name for name, p in model.named_parameters() if not p.requires_grad] == [
            "source_embedding.tokens.weight"
        ]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda m: freeze(m, ["encodr"]), "training.frozen: the model has no part 'encodr'; did you mean encoder?"),
        (lambda m: freeze(m, ["embedding"]), "no part 'embedding'; did you mean target_embedding?"),
        (lambda m: freeze(m, ["xyz"]), "available: source_embedding, target_embedding, encoder, decoder, output_proj"),
        (lambda m: freeze(m, ["source_embedding", "encoder", "decoder"]), "leaves nothing to train"),
        (lambda m: parameters_of(m, ["decoder.blocks.1"], "x"), "no part 'decoder.blocks.1'; did you mean"),
        (lambda m: with_adapters(m, LoraConfig(rank=1, targets=("q_porj",))), "did you mean q_proj?"),
        (lambda m: with_adapters(m, LoraConfig(rank=1, targets=("norm",))), "no linear layer is named 'norm'"),
        (lambda m: with_adapters(m, LoraConfig(rank=1, targets=("output_proj",))), r'lora.trained=\["output_proj"\]'),
        (lambda m: with_adapters(m, LoraConfig(rank=1, trained=("head",))), "lora.trained: the model has no part"),
        (lambda m: (freeze(m, ["encoder"]), with_adapters(m.encoder, LORA)), "every such layer is frozen"),
    ],
)  # fmt: skip
def test_what_the_model_has_not_is_named(act, said):
    with pytest.raises(AttendoError, match=said) as refused:
        act(tiny_model())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": -1}, "rank=-1 must be at least 0"),
        ({"rank": 1, "alpha": 0.0}, "alpha=0.0 must be above 0"),
        ({"rank": 1, "dropout": 1.0}, "dropout=1.0 must be"),
        ({"rank": 1, "targets": ()}, "leaves nothing to adapt"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ValueError, match=said):
        LoraConfig(**settings)


# ---- training


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "accumulation": 2},
        {"optimizer": "muon", "ema_decay": 0.5},
        {"average_last": 2, "evaluate_every": 3, "activation_checkpointing": True},
    ],
    ids=str,
)
def test_what_is_not_trained_stays_to_the_bit_and_has_no_state(tmp_path, options):
    lora = LoraConfig(rank=2, dropout=0.1, trained=("decoder.blocks.0.feed_forward_residual",))
    run = tiny_run(tmp_path, TinyTask(values=[1.0, 2.0, 3.0, 4.0]), lora=lora, steps=6, **options, frozen=("encoder",))
    before, plain = copies(weights_of(run.executor.trained_model)), copies(weights_of(run.model))
    finished(run)
    after = weights_of(run.executor.trained_model)
    learned = differing(before, after)
    assert learned == {name for name, p in run.executor.trained_model.named_parameters() if p.requires_grad}
    assert {name for name in learned if ".lora." not in name} == {
        "decoder.blocks.0.feed_forward_residual.norm.weight",
        "decoder.blocks.0.feed_forward_residual.norm.bias",
    }
    assert not any(name.startswith("encoder") for name in learned)
    states = {name.rpartition("/")[0] for name in optimizer_tensors(run.executor.trained_model, run.optimizer)}
    assert states == learned == run.executor.trained_weights().keys()
    assert differing(plain, weights_of(run.model)) == learned & plain.keys()
    with run.evaluation_weights(), run.executor.whole():
        changed = differing(plain, weights_of(run.model))
    assert changed == (learned & plain.keys()) | {f"{path}.weight" for path, _ in adapters(run.executor.trained_model)}


def test_frozen_parts_alone(tmp_path):
    run = tiny_run(tmp_path, steps=4, frozen=("source_embedding", "encoder"), ema_decay=0.5)
    before = copies(weights_of(run.model))
    finished(run)
    assert run.executor.trained_model is run.model
    assert {name.partition(".")[0] for name in differing(before, weights_of(run.model))} == {"decoder"}


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.full), 2])
def test_a_run_goes_on_from_a_checkpoint_to_the_bit(tmp_path, rank):
    options = {
        "lora": LoraConfig(rank=rank, dropout=0.2),
        "frozen": ("encoder",),
        "accumulation": 2,
        "ema_decay": 0.9,
        "steps": 6,
    }
    whole = finished(tiny_run(tmp_path / "whole", **options))
    run = tiny_run(tmp_path / "cut", **options)
    for report in train(run):
        if report.kind == "evaluation":
            run.stop()
    path, _ = newest_checkpoint(tmp_path / "cut")
    again = tiny_run(tmp_path / "cut", **options)
    assert path.name == "step-4" and load_checkpoint(path, again) == ""
    finished(again)
    assert not differing(weights_of(whole.executor.trained_model), weights_of(again.executor.trained_model))
    assert again.progress.chain == whole.progress.chain


def test_a_checkpoint_of_another_rank_is_refused(tmp_path):
    finished(tiny_run(tmp_path, steps=2, lora=LORA))
    path, _ = newest_checkpoint(tmp_path)
    with pytest.raises(AttendoError, match=r"lora\.down\.weight is only in one of file and model"):
        load_checkpoint(path, tiny_run(tmp_path))
    with pytest.raises(AttendoError, match=r"but config\.toml defines"):
        load_checkpoint(path, tiny_run(tmp_path, lora=LoraConfig(rank=5)))


def test_an_average_keeps_what_is_trained():
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert WeightAverage(model, 0.5).tensors.keys() == {"weight"}


def gradients(ranks, parallel, dtype=torch.float64, onednn=False):
    """Of a batch in unequal shares; also a step, and the merged weights after it."""
    model = tiny_model(0.0)
    freeze(model, ["encoder"])
    if onednn:
        use_onednn(model)
    lora = LoraConfig(rank=2, trained=("decoder.blocks.0.self_attention",))
    training = TrainingConfig(steps=9, parallel=parallel)
    executor = TrainStepExecutor(model.to(dtype), training, ranks, lora)
    optimizer = build_optimizer(executor.trained_model, training)
    [batch] = TinyTask(n_rows=9, rows_per_batch=9).batches(1, 0, 0)
    for _ in range(2):
        own, weight = batch.share(ranks.rank, ranks.world)
        executor.loss(own, weight / batch.n_targets).backward()
        norm = executor.clip(0.5)
        optimizer.step()
        optimizer.zero_grad()
    learned = {name: tensor.sum().item() for name, tensor in executor.trained_weights().items()}
    with executor.whole():
        return [norm, learned, {name: p.detach().sum().item() for name, p in model.named_parameters()}]


@pytest.mark.some(1)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_learn_what_one_process_does(parallel):
    torch.manual_seed(0)
    norm, learned, whole = gradients(ALONE, "ddp")
    for found in in_ranks(2, lambda ranks: gradients(ranks, parallel)):
        assert found[0] == pytest.approx(norm, abs=1e-9)
        assert found[1] == pytest.approx(learned, abs=1e-6)
        assert found[2] == pytest.approx(whole, abs=1e-6)


def test_onednn_computes_the_same_gradients():
    plain, fast = (gradients(ALONE, "ddp", torch.float32, onednn) for onednn in (False, True))
    assert fast[0] == pytest.approx(plain[0], rel=1e-3)


def test_a_twin_of_the_twin_has_adapters_of_its_own():
    twin = with_adapters(tiny_model(), LORA)
    other = copy.deepcopy(twin)
    moved(twin)
    assert all(not adapter.up.weight.any() for _, adapter in adapters(other))
