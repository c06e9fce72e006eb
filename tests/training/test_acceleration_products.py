"""Linear layers by oneDNN: the same function and gradients, the same names, and chosen only where it is faster."""

import pytest
import torch
from tiny_task import TinyTask, tiny_model, tiny_run
from torch import nn

from attendo.training import acceleration
from attendo.training.acceleration import (
    OneDnnLinear,
    fastest_precision,
    fastest_products,
    has_onednn,
    onednn_product,
    use_onednn,
    weight_gradient,
)
from attendo.training.loop import train
from attendo.training.losses import batch_loss

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this build of torch has no oneDNN")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(40,), (5, 8), (3,), (2, 3)])
def test_value_and_gradients_are_those_of_the_plain_layer(bias, shape):
    torch.manual_seed(0)
    plain = nn.Linear(24, 17, bias=bias)
    fast = OneDnnLinear(plain)
    assert fast.weight is plain.weight and fast.bias is plain.bias
    found = []
    for layer in (plain, fast):
        plain.zero_grad()
        x = torch.linspace(-1, 1, 24 * torch.Size(shape).numel()).view(*shape, 24).requires_grad_()
        layer(x).square().sum().backward()
        found.append([x.grad, *(p.grad.clone() for p in plain.parameters() if p.grad is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("d_out", "d_in"), [(17, 24), (24, 17), (24, 24), (1, 30)])
def test_the_weights_gradient_is_the_product_in_either_order_and_laid_out_as_the_weight(d_out, d_in):
    torch.manual_seed(0)
    grad, x = torch.randn(40, d_out), torch.randn(40, d_in)
    found = weight_gradient(grad, x)
    assert found.is_contiguous()
    torch.testing.assert_close(found, grad.mT @ x, rtol=1e-4, atol=1e-5)


def test_a_model_keeps_its_names_and_its_loss():
    plain, fast = tiny_model(0.0), tiny_model(0.0)
    use_onednn(fast)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in fast.named_parameters()]
    assert isinstance(fast.output_proj, OneDnnLinear)
    assert fast.output_proj.weight is fast.target_embedding.tokens.weight
    (batch,) = TinyTask(n_rows=12, rows_per_batch=12).batches(1, 0, 0)
    found = []
    for model in (plain, fast):
        loss = batch_loss(model, batch, 0.1, 1 / batch.n_targets)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_run_trains_with_it(tmp_path):
    run = tiny_run(tmp_path, products="onednn", steps=3)
    assert all(report.kind != "end" or report.progress.step == 3 for report in train(run))
    assert isinstance(run.model.output_proj, OneDnnLinear)


@pytest.mark.parametrize(
    ("own", "other", "chosen"), [(1.0, 0.5, "onednn"), (1.0, 0.95, "torch"), (1.0, 2.0, "torch")]
)
def test_what_is_clearly_faster_is_chosen(monkeypatch, own, other, chosen):
    monkeypatch.setattr(
        acceleration, "_product_seconds", lambda product, *_: other if product is onednn_product else own
    )
    assert fastest_products(torch.device("cpu")) == chosen


@pytest.mark.parametrize(("half", "chosen"), [(0.3, "bfloat16"), (0.9, "float32")])
def test_bfloat16_is_chosen_where_it_is_clearly_faster(monkeypatch, half, chosen):
    monkeypatch.setattr(
        acceleration, "_product_seconds", lambda _, m, __: half if m.dtype == torch.bfloat16 else 1.0
    )
    assert fastest_precision(torch.device("cpu")) == chosen
