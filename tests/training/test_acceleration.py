"""Number formats, the scaler of float16, and what is compiled, recomputed or kept to be fast and small."""

import json
import subprocess
import sys

import pytest
import torch
from tiny_task import TinyTask, tiny_model, tiny_run
from torch import nn

from attendo.inspecting.recording import view
from attendo.nn.blocks import DecoderBlock, EncoderBlock
from attendo.training import acceleration
from attendo.training.loop import train
from attendo.training.losses import batch_loss

CPU = torch.device("cpu")
onednn = pytest.mark.skipif(not acceleration.has_onednn(), reason="this build of torch has no oneDNN")


@pytest.mark.parametrize(
    ("precision", "format"),
    [
        ("float32", torch.float32),
        ("tf32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
    ],
)
def test_products_run_in_the_format_and_the_loss_stays_float32(precision, format):
    model = tiny_model(0.0)
    (batch,) = TinyTask(n_rows=12, rows_per_batch=12).batches(1, 0, 0)
    with acceleration.autocast(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == format
        loss = batch_loss(model, batch, 0.1, 1 / batch.n_targets)
    loss.backward()
    exact = batch_loss(model, batch, 0.1, 1 / batch.n_targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(("precision", "wanted"), [("tf32", "high"), ("float32", "highest")])
def test_tf32_is_set_for_gpus_alone(monkeypatch, precision, wanted):
    told = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", told.append)
    acceleration.set_tf32(precision, CPU)
    assert told == []
    acceleration.set_tf32(precision, torch.device("cuda"))
    assert told == [wanted]


def scaler_of_float16():
    scaler = acceleration.build_scaler("float16", CPU)
    assert scaler is not None
    return scaler


def scaled_steps(scaler, gradients):
    """The weight after each of these gradients, as the loop steps with a scaler."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    found = []
    for gradient in gradients:
        scaler.scale((weight * gradient).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(weight.item())
    return found


def test_only_float16_has_a_scaler_and_it_leaves_out_what_overflows():
    assert all(acceleration.build_scaler(precision, CPU) is None for precision in ("float32", "tf32", "bfloat16"))
    scaler = scaler_of_float16()
    assert scaled_steps(scaler, [1.0, float("inf"), 2.0]) == [-1.0, -1.0, -3.0]
    assert scaler.get_scale() == 2.0**15


def test_the_state_of_a_scaler_is_json_and_goes_on_where_it_was():
    scaler, later = scaler_of_float16(), scaler_of_float16()
    scaler.set_growth_interval(3)
    scaled_steps(scaler, [1.0, float("inf"), 1.0, 1.0])
    state = json.loads(json.dumps(scaler.state_dict()))
    assert (state["scale"], state["_growth_tracker"]) == (2.0**15, 2)
    later.load_state_dict(state)
    for each in (scaler, later):
        scaled_steps(each, [1.0])
        assert each.state_dict() == state | {"scale": 2.0**16, "_growth_tracker": 0}


def gradients(model, batch):
    torch.manual_seed(4)
    model.zero_grad()
    batch_loss(model, batch, 0.1, 1 / batch.n_targets).backward()
    return [p.grad for p in model.parameters()]


def test_recomputed_blocks_give_the_same_gradients_with_dropout_on():
    plain, again = tiny_model(0.3).double(), tiny_model(0.3).double()
    acceleration.recompute_blocks(again)
    acceleration.recompute_blocks(again)  # once is enough: the second time changes nothing
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in again.named_parameters()]
    kinds = {type(block) for stack in (again.encoder, again.decoder) for block in stack.blocks}
    assert kinds == {acceleration.recomputed(EncoderBlock), acceleration.recomputed(DecoderBlock)}
    (batch,) = TinyTask(n_rows=12, rows_per_batch=12).batches(1, 0, 0)
    for one, other in zip(gradients(plain, batch), gradients(again, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    after = torch.get_rng_state()
    gradients(plain, batch)
    assert torch.get_rng_state().equal(after)  # what training draws next is the same too
    looked_at = view(again.eval())
    plain.eval()
    with torch.no_grad():
        for one, other in zip(plain.encoder.blocks, looked_at.encoder.blocks, strict=True):
            x = torch.ones(1, 3, 16, dtype=torch.float64)
            assert one(x).equal(other(x))


def test_recomputed_blocks_keep_their_input_alone():
    def kept(model):
        saved = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
            model(torch.randn(5, 7, 16, requires_grad=True))
        parameters = {p.data_ptr() for p in model.parameters()}
        return sum(t.nbytes for pointer, t in saved.items() if pointer not in parameters)

    model = tiny_model(0.1).encoder
    before = kept(model)
    acceleration.recompute_blocks(model)
    assert kept(model) < before / 5


@pytest.fixture
def compiled_calls(monkeypatch):
    """The options of each call of a module's `compile`, which then compiles nothing."""
    calls = []

    def note(module, **options):
        calls.append(options)
        module._compiled_call_impl = module._call_impl

    monkeypatch.setattr(nn.Module, "compile", note)
    return calls


def test_blocks_are_compiled_in_place_for_any_length_and_forgotten(compiled_calls):
    plain, compiled = tiny_model(0.0), tiny_model(0.0)
    acceleration.recompute_blocks(compiled)
    acceleration.compile_blocks(compiled)
    assert compiled_calls == [{}] * 2
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in compiled.named_parameters()]
    acceleration.forget_compiled(compiled)
    assert all(module._compiled_call_impl is None for module in compiled.modules())


COMPILED = """
import torch
from attendo.models import EncoderDecoder, ModelConfig
sizes = dict(vocab_size=11, d_model=8, d_ff=16, n_heads=2, n_encoder_layers=2, n_decoder_layers=2, dropout=0.0)
models = []
for compiled in (False, True):
    torch.manual_seed(0)
    models.append(EncoderDecoder(ModelConfig(**sizes)))
    if compiled:
        for stack in (models[-1].encoder, models[-1].decoder):
            for block in stack.blocks:
                block.compile(fullgraph=True, backend="aot_eager")
for length in (3, 5, 8):
    found = []
    for model in models:
        model.zero_grad()
        lengths = torch.tensor([length, 2])
        model(torch.ones(2, length).long(), torch.ones(2, length + 1).long(), lengths).square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
"""


@pytest.mark.full
def test_compiled_blocks_are_one_graph_with_the_same_gradients():
    """In a process without the checks of types, which the tests put around each call and the compiler can't trace."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("times", "pays"), [([1.0, 0.5], True), ([1.0, 0.97], False)])
def test_compiling_pays_where_it_is_clearly_faster_on_a_gpu(monkeypatch, compiled_calls, times, pays):
    model = tiny_model()
    monkeypatch.setattr(acceleration, "_step_seconds", lambda step: times.pop(0))
    assert acceleration.compiling_pays(model, lambda: None) is pays
    assert all(module._compiled_call_impl is None for module in model.modules())


@onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40,), (5, 8), (3,), (2, 3)])
def test_value_and_gradients_are_those_of_the_plain_layer(bias, shape):
    torch.manual_seed(0)
    plain = nn.Linear(24, 17, bias=bias)
    fast = acceleration.OneDnnLinear(plain)
    assert fast.weight is plain.weight and fast.bias is plain.bias
    found = []
    for layer in (plain, fast):
        plain.zero_grad()
        x = torch.linspace(-1, 1, 24 * torch.Size(shape).numel()).view(*shape, 24).requires_grad_()
        layer(x).square().sum().backward()
        found.append([x.grad, *(p.grad.clone() for p in plain.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@onednn
@pytest.mark.parametrize(("d_out", "d_in"), [(17, 24), (24, 17), (24, 24), (1, 30)])
def test_the_weights_gradient_is_the_product_in_either_order_and_laid_out_as_the_weight(d_out, d_in):
    torch.manual_seed(0)
    grad, x = torch.randn(40, d_out), torch.randn(40, d_in)
    found = acceleration.weight_gradient(grad, x)
    assert found.is_contiguous()
    torch.testing.assert_close(found, grad.mT @ x, rtol=1e-4, atol=1e-5)


@onednn
def test_a_model_keeps_its_names_and_its_loss():
    plain, fast = tiny_model(0.0), tiny_model(0.0)
    acceleration.use_onednn(fast)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in fast.named_parameters()]
    assert isinstance(fast.output_proj, acceleration.OneDnnLinear)
    assert fast.output_proj.weight is fast.target_embedding.tokens.weight
    (batch,) = TinyTask(n_rows=12, rows_per_batch=12).batches(1, 0, 0)
    found = []
    for model in (plain, fast):
        loss = batch_loss(model, batch, 0.1, 1 / batch.n_targets)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@onednn
def test_a_run_trains_with_it(tmp_path):
    run = tiny_run(tmp_path, products="onednn", steps=3)
    assert all(report.kind != "end" or report.progress.step == 3 for report in train(run))
    assert isinstance(run.model.output_proj, acceleration.OneDnnLinear)


@onednn
@pytest.mark.parametrize(("own", "other", "chosen"), [(1.0, 0.5, "onednn"), (1.0, 0.95, "torch"), (1.0, 2.0, "torch")])
def test_what_is_clearly_faster_is_chosen(monkeypatch, own, other, chosen):
    monkeypatch.setattr(
        acceleration,
        "_product_seconds",
        lambda product, *_: other if product is acceleration.onednn_product else own,
    )
    assert acceleration.fastest_products(torch.device("cpu")) == chosen


@pytest.mark.parametrize(("half", "chosen"), [(0.3, "bfloat16"), (0.9, "float32")])
def test_bfloat16_is_chosen_where_it_is_clearly_faster(monkeypatch, half, chosen):
    monkeypatch.setattr(acceleration, "_product_seconds", lambda _, m, __: half if m.dtype == torch.bfloat16 else 1.0)
    assert acceleration.fastest_precision(torch.device("cpu")) == chosen
