"""The cost model on paper, held to what torch builds, counts and keeps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attendo.data.batches import Batch, pad_rows
from attendo.models import ModelConfig, build_model, parameter_count
from attendo.training import costs
from attendo.training.acceleration import autocast
from attendo.training.lora import freeze, with_adapters
from attendo.training.losses import token_losses
from attendo.training.optimizer import LoraConfig, TrainingConfig, build_optimizer

FAMILIES = {
    "encoder-decoder": {},
    "classifier": {"n_decoder_layers": 0, "n_classes": 3},
    "decoder": {"n_encoder_layers": 0, "positions": "rotary", "tie": "output"},
    "masked": {"n_decoder_layers": 0, "activation": "gelu", "output_bias": True, "tie": "output"},
}
VARIANTS = [
    {},
    {"tie": "none", "attention_bias": False},
    {"n_kv_heads": 2, "head_dim": 24, "value_dim": 40},
    {"norm_first": True, "norm": "rms", "feed_forward_gated": True, "activation": "silu"},
]


def config_of(family, **settings):
    small = {"vocab_size": 100, "d_model": 64, "d_ff": 96, "n_heads": 4}
    return ModelConfig(architecture=family, **{**small, **FAMILIES[family], **settings})


def batch_of(family, rows, padded=False):
    """Rows of (source length, target length); full ones where not padded."""
    torch.manual_seed(1)
    src, lengths = pad_rows([torch.randint(4, 99, (n,)).tolist() for n, _ in rows], 0)
    tgt, _ = pad_rows([torch.randint(4, 99, (n,)).tolist() for _, n in rows], 0)
    ids = np.arange(len(rows))
    given = {} if lengths is None else {"src_lengths": lengths}
    n_targets = sum(n for _, n in rows)
    match family:
        case "encoder-decoder":
            return Batch({"src": src, "tgt": tgt, **given}, tgt, n_targets, ids)
        case "decoder":
            segments = {"segments": torch.zeros_like(tgt)} if padded else {}
            return Batch({"token_ids": tgt, **segments}, tgt, n_targets, ids)
        case "masked":
            return Batch({"src": src, **given}, src, int((src != 0).sum()), ids)
        case _:
            return Batch({"src": src, **given}, torch.arange(len(rows)) % 3, len(rows), ids, pad_id=-1)


# ---- parameters


@pytest.mark.some(8)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_parameters_are_those_of_the_model_that_is_built(family, variant):
    variant = {key: value for key, value in variant.items() if (family, key) != ("classifier", "tie")}
    config = config_of(family, **variant)
    groups = costs.parameter_groups(costs.on_paper(config))
    assert sum(groups.values()) == parameter_count(build_model(config))
    assert ("decoder" in groups) == bool(config.n_decoder_layers)


def test_the_paper_model_holds_no_memory():
    huge = ModelConfig(
        architecture="decoder", vocab_size=32_000, d_model=4096, d_ff=11_008, n_heads=32,
        n_encoder_layers=0, n_decoder_layers=32, norm="rms", norm_first=True, feed_forward_gated=True,
        attention_bias=False, feed_forward_bias=False, activation="silu", positions="rotary", tie="none",
    )  # fmt: skip
    model = costs.on_paper(huge)
    assert next(model.parameters()).is_meta
    assert sum(costs.parameter_groups(model).values()) == 6_738_415_616  # Touvron et al. 2023, the 7B model


# ---- operations


@pytest.mark.some(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", [{}, {"head_dim": 24, "value_dim": 40, "n_kv_heads": 2}], ids=str)
def test_operations_are_those_that_torch_counts(family, variant):
    """torch computes the half of causal attention that no query sees; all else is equal to the last operation."""
    model, batch = build_model(config_of(family, **variant)), batch_of(family, [(7, 9)] * 3)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        hidden = model.hidden(**batch.inputs).flatten(0, -2)
        token_losses(model.output(hidden), batch.targets.flatten()).sum().backward()
    passed, load = costs.training_multiplications(costs.on_paper(model.config)), costs.load_of(batch)
    unseen = 6 * passed.target_pairs * load.target_pairs
    assert counter.get_total_flops() == costs.training_flops(passed, load) + unseen


def partly_trained(model, frozen, lora):
    """With adapters, and without gradients for the embeddings or a stack's first block."""
    parts = {"embeddings": "embedding", "first blocks": "blocks.0"}
    names = [n for n, _ in model.named_modules() if n.endswith(parts[frozen])] if frozen else []
    freeze(model, names)
    return with_adapters(model, LoraConfig(**lora))


@pytest.mark.parametrize(
    "family",
    [
        "encoder-decoder",
        *(pytest.param(f, marks=pytest.mark.full) for f in ("classifier", "decoder", "masked")),
    ],
)
@pytest.mark.parametrize(
    ("frozen", "lora"),
    [
        ("embeddings", {}),
        ("first blocks", {}),
        ("", {"rank": 3}),
        ("embeddings", {"rank": 3, "targets": ("q_proj",)}),
    ],
    ids=str,
)
@pytest.mark.parametrize("norm_first", [pytest.param(False, marks=pytest.mark.full), True])
def test_operations_and_activations_of_a_model_that_is_trained_in_parts(family, frozen, lora, norm_first):
    config = config_of(family, norm_first=norm_first)
    model, paper = (partly_trained(m, frozen, lora) for m in (build_model(config), costs.on_paper(config)))
    batch = batch_of(family, [(7, 9)] * 3)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        hidden = model.hidden(**batch.inputs).flatten(0, -2)
        token_losses(model.output(hidden), batch.targets.flatten()).sum().backward()
    passed, load = costs.training_multiplications(paper), costs.load_of(batch)
    counted = counter.get_total_flops() - 6 * passed.target_pairs * load.target_pairs
    # of scores that get a gradient only for the queries, half of a pass is left out
    assert costs.training_flops(passed, load) == pytest.approx(counted, rel=0.015)
    batch = batch_of(family, [(20, 24)] * 30)
    ratio = costs.activation_bytes(paper, costs.cells_of(batch)) / kept_by_torch(model.train(), batch, False)
    assert 0.98 < ratio < (1.35 if "targets" in lora else 1.1)
    assert costs.training_memory(paper, costs.cells_of(batch)).gradients == 4 * parameter_count(model)


def test_operations_by_the_definition():
    d, f, v, s, t = 64, 96, 100, 11, 7
    flops = costs.training_flops(
        costs.training_multiplications(costs.on_paper(config_of("encoder-decoder"))),
        costs.load_of(batch_of("encoder-decoder", [(s, t)])),
    )
    weights = s * 3 * (4 * d * d + 2 * d * f) + t * 3 * (6 * d * d + 2 * d * f) + s * 3 * 2 * d * d + t * v * d
    assert flops == 6 * weights + 12 * d * 3 * (s * s + t * t / 2 + s * t)


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4))
def test_padding_is_no_load_and_rows_add_up(rows):
    for family in FAMILIES:
        whole = costs.load_of(batch_of(family, rows))
        apart = costs.mean_load([costs.load_of(batch_of(family, [row])) for row in rows])
        for name, value in vars(whole).items():
            assert value == pytest.approx(len(rows) * getattr(apart, name))


# ---- memory


def kept_by_torch(model, batch, half):
    """Bytes of the storages that autograd keeps of a forward pass, parameters and their copies aside."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {shape for p in model.parameters() if p.ndim == 2 for shape in (p.shape, p.shape[::-1])}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        copy = tensor.dtype == torch.bfloat16 and tensor.shape in shapes
        if storage.data_ptr() not in weights and not copy:
            kept[storage.data_ptr()] = storage  # holding on to it, so that its place is not given away
        return tensor

    precision = "bfloat16" if half else "float32"
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, autocast(precision, torch.device("cpu")):
        model.hidden(**batch.inputs)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.some(4)
@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # of an RMSNorm that reads bfloat16
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"norm_first": True, "activation": "gelu", "dropout": 0.0},
        {"norm": "rms", "feed_forward_gated": True, "activation": "silu", "activation_dropout": 0.1},
        {"n_kv_heads": 2, "activation_dropout": 0.1},
    ],
    ids=str,
)
def test_activations_are_what_autograd_keeps(family, variant):
    """Within 3 %: position tables, ids and what the classifier's pooling keeps are left out."""
    model = build_model(config_of(family, **variant)).train()
    for padded in (False, True):
        rows = [(20, 24)] * 30 + [(9, 24)] if padded else [(20, 24)] * 30
        batch = batch_of(family, rows, padded)
        for half in (False, True):
            predicted = costs.activation_bytes(model, costs.cells_of(batch), costs.Formats(half))
            assert predicted == pytest.approx(kept_by_torch(model, batch, half), rel=0.03)


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("variant", [{"attention_softcap": 5.0}, {"attention_windows": (16, 0)}], ids=str)
def test_activations_of_limited_scores_windows_and_norms_of_heads(variant):
    """Within 5 %: of the masks of limited scores, the booleans are left out."""
    model = build_model(config_of("decoder", attention_norm=True, norm="rms", **variant)).train()
    for rows, padded in ((1, False), (4, True)):
        batch = batch_of("decoder", [(1, 150)] * rows, padded)
        for half in (False, True):
            predicted = costs.activation_bytes(model, costs.cells_of(batch), costs.Formats(half))
            assert predicted == pytest.approx(kept_by_torch(model, batch, half), rel=0.05)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_states_are_those_of_the_optimizer(optimizer):
    model = build_model(config_of("encoder-decoder"))
    built = build_optimizer(model, TrainingConfig(steps=1, optimizer=optimizer))
    batch = batch_of("encoder-decoder", [(5, 5)])
    token_losses(model(**batch.inputs).flatten(0, 1), batch.targets.flatten()).sum().backward()
    built.step()
    states = [value for state in built.state.values() for name, value in state.items() if name != "step"]
    memory = costs.training_memory(model, costs.cells_of(batch), muon=optimizer == "muon")
    assert memory.states == sum(state.numel() * state.element_size() for state in states)
    assert memory.gradients == sum(4 * p.grad.numel() for p in model.parameters())


def test_checkpointing_keeps_the_inputs_of_the_blocks_and_one_block():
    model = costs.on_paper(config_of("decoder", n_decoder_layers=10))
    cells = costs.Cells(target=1000.0, output=1000.0)
    one = costs.activation_bytes(costs.on_paper(config_of("decoder", n_decoder_layers=1)), cells)
    outside = 2 * one - costs.activation_bytes(costs.on_paper(config_of("decoder", n_decoder_layers=2)), cells)
    kept = costs.activation_bytes(model, cells, checkpointing=True)
    assert kept == pytest.approx(10 * 1000 * 64 * 4 + one)
    assert costs.activation_bytes(model, cells) == pytest.approx(10 * (one - outside) + outside)


def test_memory_grows_with_the_batch_and_its_peak_is_at_one_end_of_the_backward_pass():
    model, cells = costs.on_paper(config_of("encoder-decoder")), costs.Cells(100.0, 100.0, 100.0)
    small, large = (
        costs.training_memory(model, cells),
        costs.training_memory(model, costs.times(cells, 100.0)),
    )
    assert large.activations == pytest.approx(100 * small.activations)
    assert large.peak == large.weights + large.states + large.activations + large.loss
    few = costs.training_memory(model, costs.times(cells, 0.01))
    assert few.peak == few.weights + few.states + few.gradients + few.spare


# ---- many accelerators

LINK = costs.Accelerator("link", flops=100e12, memory=80e9, bandwidth=10e9, latency=5e-6)


@given(st.integers(2, 7), st.integers(1, 5), st.integers(0, 1000))
def test_ring_bytes_are_those_of_a_ring_that_is_played_through(world, per_part, seed):
    """Reduce-scatter, then all-gather, a part to the right neighbor at a time (Patarasuk & Yuan 2009)."""
    parts = np.random.default_rng(seed).integers(0, 9, (world, world, per_part))  # [process, part, number]
    wanted, sent = parts.sum(0), np.zeros(world)
    for gathering in (False, True):
        for step in range(world - 1):
            moves = [(rank, (rank - step + gathering) % world) for rank in range(world)]
            on_the_way = [parts[rank, part].copy() for rank, part in moves]
            for (rank, part), numbers in zip(moves, on_the_way, strict=True):
                right = (rank + 1) % world
                parts[right, part] = numbers if gathering else parts[right, part] + numbers
                sent[rank] += numbers.size
    assert (parts == wanted).all()
    assert sent == pytest.approx(costs.ring_bytes(world * per_part, world))


@given(st.integers(1, 4096), st.floats(1e3, 1e11))
def test_an_all_reduce_is_never_faster_than_its_bytes_and_a_gather_is_half_of_it(world, n_bytes):
    seconds = costs.all_reduce_seconds(n_bytes, world, LINK)
    assert seconds >= costs.ring_bytes(n_bytes, world) / LINK.link(world)
    assert 2 * costs.gather_seconds(n_bytes, world, LINK) <= seconds * (1 + 1e-9)


jobs = st.builds(costs.Job, st.floats(1e6, 1e10), st.integers(2, 80), st.floats(1e4, 1e6), st.floats(1e12, 1e18))


@given(jobs, st.integers(2, 2048), st.sampled_from(["ddp", "fsdp2"]))
def test_traffic_is_hidden_from_where_it_is_said_to_be(job, world, sharding):
    needed = costs.hidden_from(job, world, LINK, sharding)
    enough = costs.update_time(replace(job, flops=1.001 * needed * job.flops), world, LINK, sharding)
    assert enough.total == pytest.approx(enough.compute) and enough.binds == "products"
    short = costs.update_time(replace(job, flops=0.9 * needed * job.flops), world, LINK, sharding)
    assert short.total > short.compute
    assert short.total <= short.compute + short.traffic


def test_an_accelerator_alone_waits_for_nothing():
    job = costs.Job(1e8, 13, 1e7, 1e15)
    for sharding in ("ddp", "fsdp2"):
        alone = costs.update_time(job, 1, LINK, sharding, mfu=0.5)
        assert (alone.total, alone.traffic) == (pytest.approx(20.0), 0.0)


def test_sharding_divides_the_states():
    job = costs.Job(1e9, 25, 5e7, 1e15)
    assert costs.sharded_bytes(job, 8, 16e9, 2e9, "ddp") == 18e9
    assert costs.sharded_bytes(job, 8, 16e9, 2e9, "fsdp2") == 2e9 + 12 * 5e7 + 2e9


def test_machines_of_several_have_quicker_links():
    in_nodes = costs.Accelerator("", 1.0, 1.0, bandwidth=50.0, inner=450.0, per_node=8)
    assert [in_nodes.link(world) for world in (2, 8, 9, 1000)] == [450.0, 450.0, 400.0, 400.0]
    assert LINK.link(2) == LINK.link(1000) == LINK.bandwidth


def test_an_accelerator_by_name():
    assert costs.named_accelerator("h100", {"memory": 1.0, "flops": None}).memory == 1.0
    with pytest.raises(Exception, match="expected one of a100, h100"):
        costs.named_accelerator("h1000")
