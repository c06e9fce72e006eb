import json
import random
from dataclasses import replace

import pytest
from coach_curves import (
    COLLAPSED_OUTPUTS,
    FEW_TOKENS,
    HEALTHY_OUTPUTS,
    HOT,
    MASKED,
    SENTIMENT,
    TRANSLATION,
    evaluation,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from attendo.cli.reporting import with_flags
from attendo.training.coach import (
    Advice,
    Coach,
    Evaluated,
    HeadMeasure,
    dead_heads,
    long_warmup,
    loss_jump,
    names_of_dead,
    no_fall,
    output_collapse,
    outputs,
    overfitting,
    small_batch,
)
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import advice_lines

CONFIG = TrainingConfig(steps=100_000, warmup_steps=60, learning_rate=0.002, batch_tokens=2048)


def said(coach, reports, heads=()):
    return [advice.rule for report in reports for advice in coach.hear(report, heads)]


# ---- losses


@pytest.mark.parametrize("blocks", [TRANSLATION, SENTIMENT], ids=["translation", "sentiment"])
def test_nothing_is_said_of_the_losses_of_sound_runs(blocks):
    assert said(Coach(CONFIG, 0.1), steps(blocks)) == []
    assert said(Coach(CONFIG, 0.1), steps(blocks, tokens=60)) == []  # few tokens alone are no fault


def test_a_rate_that_is_far_too_high_is_seen_after_400_steps():
    coach = Coach(CONFIG, 0.1)
    heard = [(report.progress.step, a) for report in steps(HOT) for a in coach.hear(report)]
    [(step, advice)] = heard
    assert (step, advice.rule) == (400, "no_fall")
    assert "5.33" in advice.seen and "`training.learning_rate=0.0002`" in advice.remedy


def test_a_rate_that_is_far_too_low_gets_another_remedy():
    advice = no_fall([8.3] * 20, 8.35, 8.4, 1000, 100, 1e-7)
    assert advice is not None and "learning_rate=0.001`" in advice.remedy


def test_no_fall_waits_for_the_warm_up_and_takes_any_fall_for_learning():
    assert no_fall([5.3] * 20, 5.3, 5.4, 1000, 100, 0.002) is not None
    assert no_fall([5.3] * 20, 5.3, 5.4, 1000, 900, 0.002) is None
    assert no_fall([5.1] * 20, 5.3, 5.4, 1000, 100, 0.002) is None
    assert no_fall([5.3] * 9, 5.3, 5.4, 1000, 100, 0.002) is None


def test_a_loss_that_has_left_the_untrained_model_s_behind_may_stand_still_and_not_rise():
    assert no_fall([6.3] * 20, 6.31, 8.9, 1000, 100, 0.002) is None
    assert no_fall([6.5] * 20, 6.31, 8.9, 1000, 100, 0.002) is not None
    assert no_fall([6.3] * 20, 6.31, 8.9, 1000, 100, 0.1) is not None  # at no sound rate
    assert no_fall([*[6.3] * 16, 7.9, 6.3, 7.0, 6.3], 6.31, 8.9, 1000, 100, 0.002) is None  # with leaps in it
    assert said(Coach(CONFIG, 0.1), steps(MASKED)) == []


def test_a_run_whose_start_the_coach_has_not_heard_is_not_compared_with_it():
    flat = [replace(r, progress=replace(r.progress, step=r.progress.step + 700)) for r in steps([1.2] * 120)]
    assert said(Coach(CONFIG, 0.1), flat) == []


def test_weights_taken_from_another_run_need_not_fall_nor_be_high():
    flat = [1.2, *[1.19] * 120]
    assert said(Coach(CONFIG, 0.1), steps(flat)) == ["no_fall"]
    assert said(Coach(CONFIG, 0.1, fresh=False), steps(flat, tokens=60)) == []


@pytest.mark.parametrize("blocks", [TRANSLATION, SENTIMENT], ids=["translation", "sentiment"])
@given(place=st.integers(12, 50), times=st.floats(2.0, 8.0))
@settings(max_examples=8, deadline=None)
def test_a_leap_is_seen_wherever_it_stands(blocks, place, times):
    leapt = [*blocks[:place], times * max(blocks[:place]), *blocks[place:]]
    assert "loss_jump" in said(Coach(CONFIG, 0.1), steps(leapt))


def test_one_bad_batch_among_ten_is_a_leap_only_if_it_is_far_off():
    before = TRANSLATION[:40]
    assert loss_jump([*before, 3.3 + 0.1 * 5.0], 8.7, 410, 0.002) is None
    assert loss_jump([*before, 3.3 + 0.1 * 40.0], 8.7, 410, 0.002) is not None


def test_a_loss_above_the_untrained_model_s_is_seen_before_there_is_much_to_compare():
    advice = loss_jump([8.7, 9.0, 12.0, 12.0, 12.5], 8.7, 50, 0.14)
    assert advice is not None and "above the 8.70" in advice.seen and "=0.014" in advice.remedy
    assert loss_jump([0.71, 0.82, 0.80, 0.78], 0.71, 40, 0.002) is None  # a classifier's noise


@given(
    start=st.floats(0.5, 12.0),
    power=st.floats(0.12, 0.8),
    noise=st.floats(0.0, 0.06),
    seed=st.integers(0, 1000),
    tokens=st.integers(256, 10_000),
)
@settings(max_examples=15, deadline=None)
def test_nothing_is_said_of_a_power_law_with_noise(start, power, noise, seed, tokens):
    draw = random.Random(seed)
    blocks = [start * (1 + i) ** -power * (1 + noise * draw.uniform(-1, 1)) for i in range(150)]
    assert said(Coach(CONFIG, 0.1), steps(blocks, tokens=tokens)) == []


def test_batches_of_60_tokens_are_too_small_once_the_loss_stands_still():
    config = replace(CONFIG, batch_tokens=64, warmup_steps=200)
    coach = Coach(config, 0.1)
    heard = [(r.progress.step, a) for r in steps(FEW_TOKENS, warmup=200, tokens=60) for a in coach.hear(r)]
    [(step, advice)] = heard
    assert advice.rule == "small_batch" and 800 <= step <= 1200
    assert "batch_tokens=1024" in advice.remedy and "accumulation=16" in advice.remedy
    assert said(Coach(config, 0.1), steps(FEW_TOKENS, warmup=200, tokens=600)) == []


def test_small_batches_that_have_learned_all_there_is_are_left_alone():
    assert small_batch([0.57] * 60, 5.4, 60.0, 64, 1) is None
    assert small_batch([4.1] * 60, 5.4, 60.0, 64, 1) is not None
    assert small_batch([4.1] * 59, 5.4, 60.0, 64, 1) is None


def test_small_batches_are_not_blamed_while_the_rate_decays():
    reports = list(steps(FEW_TOKENS, warmup=200, tokens=60))
    decaying = [replace(r, rate=0.002 * (1 - r.done)) if r.progress.step > 500 else r for r in reports]
    assert said(Coach(replace(CONFIG, warmup_steps=200), 0.1), decaying) == []


def test_a_warm_up_that_outlasts_the_run_is_said_at_once_and_once():
    coach = Coach(replace(CONFIG, warmup_steps=400), 0.1)
    reports = list(steps(TRANSLATION[:30], warmup=400, end=300))
    assert [a.rule for a in coach.hear(reports[0])] == ["long_warmup"]
    assert said(coach, reports[1:]) == []
    assert long_warmup(400, 401, 0.002) is None


# ---- validation

OVERFITTED = [(0.751, 0.627), (0.593, 0.536), (0.501, 0.508), (0.445, 0.481), (0.403, 0.489), (0.359, 0.488)]
OVERFITTED += [(0.318, 0.497), (0.296, 0.507), (0.273, 0.508), (0.261, 0.508)]
"""Training and validation losses of a classifier of sentences, evaluated every 179 steps."""


def evaluated(losses, best_at):
    return [
        Evaluated(179 * (i + 1), training, valid, is_best=i <= best_at) for i, (training, valid) in enumerate(losses)
    ]


def test_overfitting_is_seen_when_validation_parts_from_training():
    rows = evaluated(OVERFITTED, best_at=3)
    assert overfitting(rows[3:8], 0.1) is None  # 3 and 5 percent: not yet for sure
    advice = overfitting(rows[3:9], 0.1)
    assert advice is not None and "since step 716" in advice.seen and "model.dropout=0.2" in advice.remedy
    at_most = overfitting(rows[3:9], 0.5)
    assert at_most is not None and "dropout" not in at_most.remedy


def test_a_rising_validation_loss_is_no_overfitting_while_the_deciding_measure_gets_better():
    rows = evaluated(OVERFITTED, best_at=8)
    assert overfitting(rows[3:9], 0.1) is None
    far = evaluated([(3.4, 4.1), (2.0, 5.2), (1.5, 5.3), (1.2, 5.4)], best_at=9)
    assert overfitting(far, 0.1) is not None  # unless it is far above


def test_a_rising_training_loss_is_no_overfitting():
    rows = [replace(row, training_loss=0.5) for row in evaluated(OVERFITTED, best_at=3)]
    assert overfitting(rows[3:9], 0.1) is None


def test_small_losses_may_double():
    assert overfitting(evaluated([(0.60, 0.010), *[(0.5, 0.020)] * 5], best_at=0), 0.1) is None


def curve(losses, best_at, blocks=10):
    """Steps and evaluations as a run reports them."""
    for i, (training, valid) in enumerate(losses):
        for report in steps([training] * blocks, warmup=1):
            yield replace(report, progress=replace(report.progress, step=report.progress.step + 100 * i))
        yield evaluation(100 * (i + 1), valid, i <= best_at)


def test_the_coach_tells_overfitting_from_the_reports_of_a_run():
    coach = Coach(CONFIG, 0.1)
    assert said(coach, curve(OVERFITTED, best_at=3)) == ["overfitting"]
    assert coach.memory.evaluations[0].training_loss == pytest.approx(0.445)
    assert said(Coach(CONFIG, 0.1), curve([*OVERFITTED[:4], (0.4, 0.47), (0.36, 0.465)], best_at=9)) == []


def test_an_evaluation_of_averaged_weights_is_not_the_run_s():
    coach = Coach(CONFIG, 0.1)
    assert said(coach, curve(OVERFITTED[:4], best_at=3)) == []
    before = coach.as_json()
    coach.hear(evaluation(400, 9.0, False, note="mean of the last 5 checkpoints"))
    assert coach.as_json() == before


# ---- outputs


def test_collapsed_outputs_are_seen_after_three_evaluations_and_not_in_the_first_quarter():
    coach = Coach(CONFIG, 0.1)
    early = [evaluation(100 * i, 3.0, True, 0.2, COLLAPSED_OUTPUTS) for i in range(1, 9)]
    assert said(coach, early) == []
    late = [evaluation(100 * i, 3.0, True, 0.3, COLLAPSED_OUTPUTS) for i in range(9, 13)]
    assert [said(coach, [report]) for report in late] == [[], [], ["output_collapse"], []]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda i: "no", "32 of 32 sample outputs are the same"),
        (lambda i: "", "32 of 32 sample outputs are empty"),
        (lambda i: f"text {i % 12}", "32 sample outputs contain only 12 different texts"),
        (lambda i: f"start {i}" + " of" * 20, "32 of 32 sample outputs repeat one word"),
        (lambda i: f"{i}" + "の" * 20, "32 of 32 sample outputs repeat one word"),
        (lambda i: f"source {i}", "32 of 32 sample outputs are copies of their input"),
    ],
)
def test_each_way_to_collapse(given, words):
    found = outputs([(f"source {i}", f"target {i}", given(i)) for i in range(32)])
    advice = output_collapse([found] * 3, 0.002)
    assert advice is not None and advice.seen == words
    assert output_collapse([found] * 2, 0.002) is None
    assert output_collapse([outputs(HEALTHY_OUTPUTS), found, found], 0.002) is None


def test_outputs_that_are_wanted_so_are_no_collapse():
    yes = outputs([(f"text {i}", "yes" if i else "no", "yes") for i in range(32)])  # nearly all are yes
    copies = outputs([(f"text {i}", f"text {i}", f"text {i}") for i in range(32)])
    few = outputs(COLLAPSED_OUTPUTS[:7])
    labels = outputs([(f"text {i}", "ab"[i % 2], "ab"[i % 3 == 0]) for i in range(32)])
    for sound in (yes, copies, few, labels, outputs(HEALTHY_OUTPUTS), outputs([])):
        assert output_collapse([sound] * 3, 0.002) is None


def test_a_classifier_that_knows_one_class_only():
    one = outputs([(f"text {i}", "ab"[i % 2], "a") for i in range(32)])
    assert output_collapse([one] * 3, 0.002) is not None


# ---- heads

ALIVE = [HeadMeasure(f"decoder.blocks.{i}.cross_attention", j, 0.4, 0.1) for i in range(2) for j in range(4)]


def test_a_head_is_dead_if_it_neither_looks_nor_adds():
    rests = replace(ALIVE[0], share=0.001)  # on a delimiter, say: Clark et al. 2019
    by_position = replace(ALIVE[0], spread=0.0)
    assert names_of_dead([rests, *ALIVE[1:]]) == names_of_dead([by_position, *ALIVE[1:]]) == []
    assert names_of_dead([replace(rests, spread=0.0), *ALIVE[1:]]) == ["decoder.blocks.0.cross_attention[0]"]


def test_a_layer_that_adds_nothing_is_dead_wherever_it_looks():
    silent = [replace(head, share=0.001) if head.layer.startswith("decoder.blocks.1") else head for head in ALIVE]
    assert names_of_dead(silent) == [f"decoder.blocks.1.cross_attention[{i}]" for i in range(4)]


def test_heads_are_told_when_they_are_dead_twice():
    coach = Coach(CONFIG, 0.1)
    dead = [replace(ALIVE[0], spread=0.0, share=0.0), *ALIVE[1:]]
    other = [*ALIVE[:-1], replace(ALIVE[-1], spread=0.0, share=0.0)]
    reports = [evaluation(100 * i, 3.0, True) for i in range(1, 5)]
    assert [said(coach, [r], h) for r, h in zip(reports, [dead, other, other, other], strict=True)] == [
        [], [], ["dead_heads"], [],
    ]  # fmt: skip
    assert said(Coach(CONFIG, 0.1), reports, ALIVE) == []
    two = dead_heads(["a[0]", "a[1]"], ["a[0]", "a[1]"], 8, 0.1, 9)
    assert two is not None and two.seen == "2 of 8 heads have no effect: a[0] and 1 more"


# ---- the coach


def whole_run():
    """Everything goes wrong in it."""
    yield from steps([*HOT, 20.0, *HOT], end=50)
    for i, (_, valid) in enumerate(OVERFITTED):
        for report in steps([5.0 / (1 + i)] * 10):
            yield replace(report, progress=replace(report.progress, step=1000 + 100 * i))
        yield evaluation(1100 + 100 * i, valid, i < 3, 0.5, COLLAPSED_OUTPUTS)


def test_each_rule_speaks_once_and_a_resumed_coach_as_the_unbroken_one():
    reports = list(whole_run())
    unbroken = [(i, a) for coach in [Coach(CONFIG, 0.1)] for i, r in enumerate(reports) for a in coach.hear(r)]
    rules = [advice.rule for _, advice in unbroken]
    assert rules == ["long_warmup", "no_fall", "loss_jump", "output_collapse", "overfitting"]
    for cut in range(0, len(reports), 101):
        first = Coach(CONFIG, 0.1)
        heard = [(i, a) for i, r in enumerate(reports[:cut]) for a in first.hear(r)]
        saved = json.dumps(first.as_json())
        assert len(saved) < 8000
        second = Coach(CONFIG, 0.1, json.loads(saved))
        heard += [(cut + i, a) for i, r in enumerate(reports[cut:]) for a in second.hear(r)]
        assert heard == unbroken
        assert json.loads(saved) == json.loads(json.dumps(Coach(CONFIG, 0.1, json.loads(saved)).as_json()))


def test_what_was_saved_does_not_change_any_more():
    coach = Coach(CONFIG, 0.1)
    reports = list(whole_run())
    said(coach, reports[:555])
    saved = coach.as_json()
    as_it_was = json.dumps(saved)
    said(coach, reports[555:])
    assert json.dumps(saved) == as_it_was


@given(large=st.floats(1.0, 99.0), steps=st.integers(1, 10**7), rate=st.floats(1e-7, 1.0))
@settings(max_examples=20, deadline=None)
def test_each_advice_fits_three_lines_of_79_columns(large, steps, rate):
    rows = [Evaluated(steps + i, large / (1 + i), large * (1 + i), i == 0) for i in range(5)]
    collapsed = outputs([(f"s {i}", f"t {i}", "x" * 99) for i in range(32)])
    long = "decoder.blocks.99.cross_attention[99]"
    found = [
        loss_jump([large] * 10 + [9 * large], large, steps, rate),
        loss_jump([2 * large] * 10, large, steps, rate),
        no_fall([large] * 60, large, large, steps + 5000, 4000, rate),
        long_warmup(steps + 1, steps, rate),
        small_batch([large] * 60, large, 200.0, 200, 128),
        overfitting(rows, 0.1),
        output_collapse([collapsed] * 3, rate),
        dead_heads([long] * 999, [long], 9999, rate, 40_000),
    ]
    for advice in found:
        assert isinstance(advice, Advice)
        lines = advice_lines(with_flags(advice.note))
        assert len(lines) <= 3 and max(map(len, lines)) <= 79
        assert not any(line.rstrip().endswith(("--set", "attendo")) for line in lines)
