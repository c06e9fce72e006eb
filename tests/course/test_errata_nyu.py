"""What the errata 1 to 20 (NYU week 12-3) and 44 to 48 (slides) say in words, checked by numbers."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from attendo.models import parameter_count
from attendo.nn.attention import Attention, attention_scores, masked_softmax
from attendo.training.losses import token_losses
from attendo_course.errata import all_errata

ERRATA = {e.number: e for e in all_errata() if e.number <= 20 or 44 <= e.number <= 48}
PRINTED = {"valid": 0.8609349593495935, "test": 0.8047465589787477}  # by the notebook
SLIDE_SCORES = torch.tensor([12.0, 8.0, -1.0, 19.0]).double()
SLIDE_WEIGHTS = torch.tensor([0.3, 0.2, 0.01, 0.49]).double()


def test_they_are_of_these_sources():
    for number, erratum in ERRATA.items():
        assert re.match("NYU|Notebook" if number <= 20 else "Slides", erratum.source.en)
        assert erratum.mark == "run" or number == 18  # slips of a translation


@pytest.mark.parametrize("number", ERRATA)
def test_the_texts_are_in_two_languages(number):
    for words in (ERRATA[number].title, ERRATA[number].wrong, ERRATA[number].right):
        assert any("぀" <= letter <= "ヿ" for letter in words.ja)
        assert words.en[0].isascii() or words.en[0] == "‖"
        assert words.en != words.ja


@given(st.integers(0, 10_000))
def test_two_class_cross_entropy_is_the_binary_one_of_the_difference(seed):
    """Erratum 10."""
    generator = torch.Generator().manual_seed(seed)
    z = 5 * torch.randn(4, 2, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (4,), generator=generator)
    binary = F.binary_cross_entropy_with_logits(z[:, 1] - z[:, 0], y.double(), reduction="none")
    assert torch.allclose(token_losses(z, y), binary, atol=1e-12)


@pytest.mark.parametrize(("d", "h"), [(8, 2), (12, 3), (32, 1)])
def test_heads_of_full_width_have_h_times_the_weights(d, h):
    """Erratum 16: 4hd² and 4d²."""
    assert parameter_count(Attention(d, h, head_dim=d, bias=False)) == 4 * h * d * d
    assert parameter_count(Attention(d, h, bias=False)) == 4 * d * d


def test_only_an_orthogonal_matrix_keeps_lengths():
    """Erratum 17; a reflection keeps them too, and is no rotation."""
    x = torch.randn(3, 100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    orthogonal, _ = torch.linalg.qr(x[:, :3])
    reflection = torch.diag(torch.tensor([1.0, 1.0, -1.0]).double())
    for matrix in (orthogonal, reflection):
        assert torch.allclose((matrix @ x).norm(dim=0), x.norm(dim=0), atol=1e-12)
    assert torch.linalg.det(reflection).item() == -1.0
    assert ((x[:, :3] @ x).norm(dim=0) - x.norm(dim=0)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "n_texts", "by_batches", "least", "most"),
    [("valid", 2500, 0.8071, 0.7988, 0.8360), ("test", 25000, 0.7995, 0.7988, 0.8016)],
)
def test_printed_accuracies_were_divided_by_one_batch_too_few(name, n_texts, by_batches, least, most):
    """Erratum 20: only so are they sums of right answers over whole batches and a short one."""
    n_batches = -(-n_texts // 164)
    full, last = 164 * (n_batches - 1), n_texts - 164 * (n_batches - 1)
    total = PRINTED[name] * (n_batches - 1)
    possible = [
        (round(a) + b) / n_texts
        for b in range(last + 1)
        if abs((a := 164 * (total - b / last)) - round(a)) < 1e-6 and 0 <= a <= full
    ]
    assert (min(possible), max(possible)) == pytest.approx((least, most), abs=5e-5)
    assert total / n_batches == pytest.approx(by_batches, abs=5e-5)
    as_they_stand = PRINTED[name] * n_batches
    off = [abs((a := 164 * (as_they_stand - b / last)) - round(a)) for b in range(last + 1)]
    assert min(off) > 1e-3


def test_rows_and_columns_mixed_go_unnoticed_where_n_is_d():
    """Erratum 44: QKᵀ of column vectors has the right shape then, and other numbers."""
    Q, K = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = attention_scores(Q.mT, K.mT, scale=1.0)
    assert (Q @ K.mT).shape == right.shape
    assert (Q @ K.mT - right).abs().max() > 0.1


def test_no_temperature_gives_the_weights_of_the_slide():
    """Erratum 46: the nearest τ is 9.3, measured by the largest difference."""
    taus = torch.arange(1.0, 30.0, 0.01, dtype=torch.float64)
    weights = masked_softmax(SLIDE_SCORES / taus[:, None])
    distance, best = (weights - SLIDE_WEIGHTS).abs().amax(-1).min(0)
    assert taus[best].item() == pytest.approx(9.29, abs=0.005)
    assert distance.item() == pytest.approx(0.0513, abs=1e-4)
    nearest = masked_softmax(SLIDE_SCORES[None], inverse_temperature=1 / taus[best].item())[0]
    assert nearest.tolist() == pytest.approx([0.249, 0.162, 0.061, 0.528], abs=5e-4)
    exact = masked_softmax(SLIDE_SCORES[None])[0]
    assert exact.tolist() == pytest.approx([9.1e-4, 1.7e-5, 2.1e-9, 0.99907], rel=0.03)
