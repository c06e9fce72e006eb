"""Ablations: the small forecasts, the limit against enumeration, intervals against scipy, variants, what is printed."""

import math
from collections import Counter
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attendo.data.tokenizers import Tokenizer
from attendo.display.i18n import Localized
from attendo.display.tables import WIDTH
from attendo.display.width import columns
from attendo.models import EncoderDecoder, parameter_count
from attendo_course.commands.lesson import piece_lines
from attendo_course.lessons import ablate
from attendo_course.lessons.arrays import NO_TARGET, ArrayTask, Training, seeded
from attendo_course.lessons.forecast_grammar import Clause, Forecast, Weather, english, japanese
from attendo_course.lessons.lesson import Options, Table
from attendo_course.pictures import Picture
from attendo_course.residuals import without_residuals

PIECES = ablate.small_pieces()
FORECASTS = st.integers(0, 2**32).map(lambda seed: ablate.small_forecast(np.random.default_rng(seed)))


@given(FORECASTS)
def test_every_forecast_is_spelled_and_decodes_to_itself(forecast):
    for text in (english(forecast), japanese(forecast)):
        ids = PIECES.encode(text)
        assert PIECES.decode(ids) == text
        assert all(Tokenizer.eos_id < i < len(PIECES) for i in ids)


def test_a_text_of_other_pieces_is_refused():
    with pytest.raises(ValueError, match="not in tuple"):
        PIECES.encode("Zürich")


@given(FORECASTS)
def test_turned_round_twice_is_the_same(forecast):
    other = ablate.turned_round(forecast)
    assert ablate.turned_round(other) == forecast
    assert other.main.event == forecast.below[0][1].event != forecast.main.event
    assert (other.date, other.place, other.main.time) == (forecast.date, forecast.place, forecast.main.time)


def every_forecast() -> list[Forecast]:
    """All of two dates, places, certainties, times and connectives."""
    parts = product(
        ("today", "on Monday"),
        ("Tokyo", "Naha"),
        ("will", "may"),
        (0, 4),
        ablate.CONNECTIVES[:2],
        ablate.PHENOMENA,
        ablate.PHENOMENA,
    )
    return [
        Forecast(date, place, certainty, Clause(Weather(main), time), ((word, Clause(Weather(below))),))
        for date, place, certainty, time, word, main, below in parts
        if main != below
    ]


def test_the_limit_without_order_agrees_with_enumeration():
    forecasts = every_forecast()
    bags = [tuple(sorted(PIECES.encode(english(forecast)))) for forecast in forecasts]
    n_alike = Counter(bags)
    assert set(n_alike.values()) == {1, 2}
    nats = sum(math.log(n_alike[bag]) for bag in bags)
    n_targets = sum(len(PIECES.encode(japanese(forecast))) + 1 for forecast in forecasts)
    assert len({japanese(forecast) for forecast in forecasts}) == len(forecasts)
    assert ablate.unordered_limit(forecasts, PIECES) == pytest.approx((nats / n_targets, len(n_alike) / len(forecasts)))


@torch.no_grad()
def test_without_positions_two_forecasts_of_the_same_pieces_are_one():
    forecast = next(
        forecast
        for forecast in every_forecast()
        if sorted(PIECES.encode(english(forecast))) == sorted(PIECES.encode(english(ablate.turned_round(forecast))))
    )
    pair = ablate.translations([forecast, ablate.turned_round(forecast)], PIECES).inputs
    target = pair["tgt"][:1].expand(2, -1)
    for name, alike in (("no positions", True), ("base", False)):
        (config,) = (variant.config for variant in ablate.variants() if variant.name.en == name)
        model = seeded(lambda config=config: EncoderDecoder(config), 1).eval()
        one, other = model(pair["src"], target)
        assert torch.allclose(one, other, atol=1e-5) is alike


@given(st.lists(FORECASTS, min_size=1, max_size=4))
def test_sources_and_targets_stand_between_marks(forecasts):
    examples = ablate.translations(forecasts, PIECES)
    for i, forecast in enumerate(forecasts):
        source, target = PIECES.encode(english(forecast)), PIECES.encode(japanese(forecast))
        src, tgt, wanted = (rows[i].tolist() for rows in (*take(examples.inputs), examples.targets))
        assert src[: len(source) + 1] == [*source, Tokenizer.eos_id]
        assert tgt[: len(target) + 1] == [Tokenizer.bos_id, *target]
        assert wanted[: len(target) + 1] == [*target, Tokenizer.eos_id]
        assert set(src[len(source) + 1 :]) | set(tgt[len(target) + 1 :]) <= {Tokenizer.pad_id}
        assert set(wanted[len(target) + 1 :]) <= {NO_TARGET}
        if "src_lengths" in examples.inputs:
            assert examples.inputs["src_lengths"][i] == len(source) + 1


def take(inputs):
    return inputs["src"], inputs["tgt"]


@given(st.integers(0, 2**31 - 1))
def test_no_seed_learns_from_the_test(seed):
    test = ablate.small_forecasts(np.random.default_rng(ablate.TEST_SEED), 60)
    train = ablate.small_forecasts(np.random.default_rng(seed), 40, test)
    assert len(set(train)) == 40
    assert not set(train) & set(test)


@pytest.mark.parametrize("n", range(2, 11))
def test_intervals_are_scipys(n):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(n).normal(size=n).tolist()
    wanted = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
    assert ablate.interval(values) == pytest.approx(wanted, abs=1e-3)


def test_the_interval_of_one_value_has_no_bounds_and_that_of_many_is_wide_enough():
    stats = pytest.importorskip("scipy.stats")
    assert ablate.interval([3.0]) == (-math.inf, math.inf)
    values = np.random.default_rng(0).normal(size=30).tolist()
    low, high = stats.t.interval(0.95, 29, np.mean(values), stats.sem(values))
    assert ablate.interval(values)[0] < low < high < ablate.interval(values)[1]


def test_each_variant_changes_what_its_name_says():
    base, *others = ablate.variants()
    assert base.config == ablate.base_config()
    assert len({variant.name.en for variant in others}) == 15
    plain = others.pop()
    assert (plain.config, plain.residuals) == (base.config, False)
    assert len({variant.config for variant in others if variant.residuals}) == 14
    fields = asdict(base.config)
    changed = {
        variant.name.en: {name for name, value in asdict(variant.config).items() if value != fields[name]}
        for variant in others
    }
    kinds = {
        "head": {"n_heads"},
        "d_k": {"head_dim", "value_dim"},
        "block": {"n_encoder_layers", "n_decoder_layers"},
        "width": {"d_model", "d_ff"},
        "drop": {"dropout"},
        "learned": {"positions"},
        "no positions": {"positions"},
        "post": {"norm_first"},
    }
    for name, found in changed.items():
        (wanted,) = (fields for word, fields in kinds.items() if word in name)
        assert found == wanted
    sizes = {v.name.en: parameter_count(EncoderDecoder(v.config)) for v in ablate.variants() if v.name.en[1] in "aA"}
    assert len(sizes) == 4
    assert len(set(sizes.values())) == 1  # heads share the same weights


def result(losses, base_losses) -> ablate.Result:
    def runs(values):
        return [Training(nn.Identity(), [1.0], {"loss": x, "exact": 0.5}) for x in values]

    return ablate.Result(ablate.Variant(Localized("x", "x"), ablate.base_config()), runs(losses), runs(base_losses))


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [((1.5, 2.6, 3.5), 1), ((0.5, 1.4, 2.5), -1), ((1.5, 1.6, 3.5), 0), ((1.0, 2.0, 3.0), 0)],
)
def test_a_verdict_is_by_the_differences_run_by_run(losses, verdict):
    assert result(losses, (1.0, 2.0, 3.0)).verdict == verdict


def test_one_run_gives_no_verdict():
    one = result([9.0], [1.0])
    assert one.verdict == 0
    assert "train more seeds" in ablate._verdicts([one, one], 1).en


def test_each_change_is_named_under_its_verdict():
    names = ("base", "a", "b", "c", "d")
    losses = ((1.0, 2.0), (2.0, 3.01), (0.0, 1.01), (1.0, 2.5), (3.0, 4.01))
    results = [
        replace(result(values, losses[0]), variant=ablate.Variant(Localized(name, name), ablate.base_config()))
        for name, values in zip(names, losses, strict=True)
    ]
    assert "worse: a, d; better: b; 2 runs do not tell: c." in ablate._verdicts(results, 2).en


@pytest.mark.full
def test_runs_are_repeatable_and_exact_is_what_greedy_search_finds():
    known, others = (ablate.small_forecasts(np.random.default_rng(seed), 2) for seed in (1, 2))
    config = replace(ablate.base_config(), n_encoder_layers=1, n_decoder_layers=1)
    test = ablate.translations([*known, *others], PIECES)
    task = ArrayTask(ablate.translations(known, PIECES), test, batch_rows=2)
    first, again, other = (ablate.ablated(config, task, 2, seed) for seed in (1, 1, 2))
    assert (first.losses, first.measures) == (again.losses, again.measures)
    assert first.losses != other.losses
    learned = ablate.ablated(config, task, 80, 1)
    right = [greedy(learned.model, f) == PIECES.encode(japanese(f)) for f in (*known, *others)]
    assert right == [True, True, False, False]
    assert learned.measures["exact"] == 0.5


def test_without_residuals_a_run_begins_with_the_weights_of_the_base_and_learns_otherwise():
    train = ablate.small_forecasts(np.random.default_rng(1), 4)
    task = ArrayTask(ablate.translations(train, PIECES), ablate.translations(train, PIECES), batch_rows=4)
    plain, base = (ablate.ablated(ablate.base_config(), task, 1, 1, residuals=keep) for keep in (False, True))
    untrained = seeded(lambda: EncoderDecoder(ablate.base_config()), 1)
    assert without_residuals(untrained) is untrained
    weight = untrained.decoder.blocks[0].cross_attention.v_proj.weight
    found = [run.model.decoder.blocks[0].cross_attention.v_proj.weight for run in (plain, base)]
    assert all(torch.allclose(weight, trained, atol=0.02) for trained in found)  # one step of Adam apart
    assert plain.losses != base.losses


@torch.no_grad()
def greedy(model, forecast) -> list[int]:
    source = torch.tensor([[*PIECES.encode(english(forecast)), Tokenizer.eos_id]])
    found = [Tokenizer.bos_id]
    while found[-1] != Tokenizer.eos_id and len(found) < 30:
        found.append(int(model(source, torch.tensor([found]))[0, -1].argmax()))
    return found[1:-1]


def test_cross_attention_has_a_row_for_each_wanted_piece_and_the_end():
    (forecast,) = ablate.small_forecasts(np.random.default_rng(3), 1)
    weights = ablate.cross_weights(seeded(lambda: EncoderDecoder(ablate.base_config()), 1), forecast, PIECES)
    source, target = english(forecast), japanese(forecast)
    assert weights.shape == (len(PIECES.encode(target)) + 1, len(PIECES.encode(source)) + 1)
    assert weights.sum(1) == pytest.approx(1.0)


def test_the_lesson_shows_a_table_and_says_what_it_means(monkeypatch):
    monkeypatch.setattr(ablate, "TEST_ROWS", 8)
    monkeypatch.setattr(ablate, "TRAIN_ROWS", 16)
    pieces = list(ablate.ABLATE.teach(Options(seeds=2, effort=0.001)))
    (table,) = (piece for piece in pieces if isinstance(piece, Table))
    assert [len(row) for row in table.rows] == [6] * (2 + 15)
    assert [piece.kind for piece in pieces if isinstance(piece, Picture)] == ["curves", "matrix"]
    assert ablate.ABLATE.question not in pieces  # the command prints it
    for language in ("en", "ja"):
        lines = [line for piece in pieces for line in piece_lines(piece, language)]
        assert max(map(columns, lines)) <= WIDTH
        assert "nan" not in "".join(lines)


@pytest.mark.full
def test_positions_matter_and_learned_ones_do_as_well_as_sinusoids():
    task = ablate.small_data().task(1)
    configs = {variant.name.en: variant.config for variant in ablate.variants()}
    exact = {
        name: ablate.ablated(configs[name], task, ablate.STEPS, 1).measures["exact"]
        for name in ("base", "(E) learned", "no positions")
    }
    assert min(exact["base"], exact["(E) learned"]) > 0.7 > 0.5 > exact["no positions"]
