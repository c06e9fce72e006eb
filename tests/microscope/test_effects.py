"""The worth of heads: the batched sweep against one head at a time, and the mean over rows against each row."""

import math

import pytest
import torch
from tiny_looks import FAMILIES, PAIRS, TOKENIZER, tiny_look, tiny_user

from attendo.errors import AttendoError
from attendo.inspecting.edits import Off
from attendo.inspecting.measures import parse_links
from attendo.inspecting.recording import recording
from attendo.microscope import effects
from attendo.microscope.answers import stacks_of
from attendo.microscope.effects import (
    effects_answer,
    head_alignment_errors,
    importance,
    is_quick,
    opened_head,
)
from attendo.microscope.protocol import EditRequest

PATHS = {
    "translation": ("encoder.blocks.1.self_attention", "decoder.blocks.1.cross_attention"),
    "classification": ("encoder.blocks.1.self_attention",),
    "language-model": ("decoder.blocks.0.self_attention",),
    "masked-language-model": ("encoder.blocks.0.self_attention",),
}


def _answer_log_probs(seen, edits):
    """One plain pass: the log-probability of each token of the answer, or of a classifier's label."""
    with torch.inference_mode(), recording(seen.model, keep=(), edits=(*seen.edits, *edits)) as record:
        logits = record.model(**seen.inputs)[0].double()
    if seen.family == "classification":
        label = int(seen.logits.argmax())
        return [float((logits / seen.user.temperature).log_softmax(-1)[label])]
    rows = enumerate(zip(logits.log_softmax(-1), seen.wanted, strict=True))
    first = seen.prompt_tokens - 1
    return [float(row[token]) for at, (row, token) in rows if token is not None and at >= first]


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_head_of_the_sweep_is_that_head_switched_off_alone(family, monkeypatch):
    monkeypatch.setattr(effects, "MOST_POSITIONS", 1)  # a head at a time: the chunks are put together in order
    edits = [EditRequest(kind="beta", path="*", beta=0.5)]
    for chunked, edit in ((True, []), (False, edits)):
        if not chunked:
            monkeypatch.undo()
        seen = tiny_look(family, edits=tuple(edit))
        before = _answer_log_probs(seen, [])
        for path in PATHS[family]:
            answer = effects_answer(seen, path)
            assert [head["head"] for head in answer["heads"]] == [0, 1]
            for head in answer["heads"]:
                after = _answer_log_probs(seen, [Off(path, (head["head"],))])
                expected = [new - old for new, old in zip(after, before, strict=True)]
                assert head["deltas"] == pytest.approx(expected, abs=2e-5)
                assert head["delta"] == pytest.approx(sum(expected), abs=1e-4)
                assert max(map(abs, expected)) > 1e-3
                if family == "classification":
                    assert head["label_probability"] == pytest.approx(math.exp(after[0]), abs=1e-5)
            whole = sum(_answer_log_probs(seen, [Off(path)])) - sum(before)
            assert answer["layer"]["delta"] == pytest.approx(whole, abs=1e-4)


def test_a_feed_forward_net_has_a_layer_and_no_heads():
    seen, path = tiny_look(), "decoder.blocks.0.feed_forward"
    answer = effects_answer(seen, path)
    expected = sum(_answer_log_probs(seen, [Off(path)])) - sum(_answer_log_probs(seen, []))
    assert answer == {"path": path, "layer": {"delta": pytest.approx(expected, abs=1e-4)}}
    with pytest.raises(AttendoError, match="not an attention or feed-forward layer"):
        effects_answer(seen, "decoder.blocks.0")


CROSS = [f"decoder.blocks.{n}.cross_attention" for n in (0, 1)]


def _off(path, head=None):
    return EditRequest(kind="off", path=path, head=head)


def test_a_translators_first_head_is_the_one_whose_removal_costs_most():
    seen = tiny_look()
    before = sum(_answer_log_probs(seen, []))
    cost = {
        (path, head): before - sum(_answer_log_probs(seen, [Off(path, (head,))])) for path in CROSS for head in (0, 1)
    }
    layer, head = max(cost, key=lambda place: cost[place])
    assert opened_head(seen, stacks_of(seen)) == {"layer": layer, "head": head}


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_first_head_is_sharp_but_looks_at_different_keys(family, monkeypatch):
    """By loops over the recorded weights; heads that are off are left out."""
    monkeypatch.setattr(effects, "MOST_FIRST_WORK", 0)
    seen = tiny_look(family, edits=(_off("*.1.*attention", 0),))
    paths = [path for path in seen.record if path.endswith("attention")]
    apart = {}
    for path in [path for path in paths if path in CROSS] or paths:
        weights = seen.record[path].weights[0].double()
        for head in range(2):
            if path.split(".")[2] == "0" or head == 1:
                share = float(weights[head, family == "language-model" :].mean(0).max())
                apart[path, head] = float(weights[head].amax(-1).mean()) - share
    path, head = max(apart, key=lambda place: apart[place])
    assert opened_head(seen, stacks_of(seen)) == {"layer": path, "head": head}


def test_with_all_heads_off_a_page_opens_a_head():
    seen = tiny_look(edits=(_off("*attention"),))
    assert opened_head(seen, stacks_of(seen))["layer"] in CROSS


def test_effects_are_measured_unasked_only_where_they_are_cheap(monkeypatch):
    seen = tiny_look()
    n = 2 * 6 + 10  # heads of 6 attention layers, and 6 + 4 layers
    work = sum(p.numel() for p in seen.model.parameters()) * (len(seen.source) + len(seen.target)) * n
    for most, quick in ((work, True), (work - 1, False)):
        monkeypatch.setattr(effects, "MOST_QUICK_WORK", most)
        assert is_quick(seen, stacks_of(seen)) is quick
    monkeypatch.setattr(effects, "effects_answer", lambda *given: pytest.fail("too much work"))
    monkeypatch.setattr(effects, "MOST_FIRST_WORK", work / n * 4 - 1)
    assert opened_head(seen, stacks_of(seen))["layer"] in CROSS


def _rows(family):
    if family == "classification":
        return [(text, label) for (text, _), label in zip(PAIRS, ("rain", "sun", "snow", "sun", "rain"), strict=True)]
    return PAIRS if family == "translation" else [text for text, _ in PAIRS]


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_importance_is_the_mean_over_rows_whatever_they_are_batched_with(family):
    user = tiny_user(family)
    told = []
    found = importance(user, _rows(family), say=lambda done, of: told.append((done, of)))
    n_heads = {"translation": 12}.get(family, 4)
    assert (len(found.heads), found.n_rows, found.n_cut) == (n_heads, 5, 0)
    assert told == [(n, n_heads + 1) for n in range(n_heads + 2)]
    values = [head.effect for head in found.heads]
    assert values == sorted(values)
    told.clear()
    alone = importance(user, _rows(family), batch_tokens=1, say=lambda done, of: told.append((done, of)))
    assert told == [(n, 5 * (n_heads + 1)) for n in range(5 * (n_heads + 1) + 1)]
    by_place = {(head.path, head.head): head for head in alone.heads}
    assert alone.n_tokens == found.n_tokens
    for head in found.heads:
        other = by_place[head.path, head.head]
        assert head.effect == pytest.approx(other.effect, abs=1e-4)
        assert head.standard_error == pytest.approx(other.standard_error, abs=1e-4)


def test_importance_leaves_the_model_as_it_was():
    """In training: what is measured is without dropout, and the model's mode stays."""
    user = tiny_user(dropout=0.5)
    expected = importance(user, PAIRS)
    user.model.train()
    assert importance(user, PAIRS, links=[parse_links(["0-0"], "gold")[0]] * 5).log_prob == expected.log_prob
    assert all(module.training for module in user.model.modules())


def test_importance_of_a_translator_is_what_its_score_loses():
    user = tiny_user()
    found = importance(user, PAIRS)
    plain = [candidate.log_prob for candidate in user.score(PAIRS)]
    assert found.log_prob == pytest.approx(sum(plain) / 5, abs=1e-4)
    assert found.n_tokens == sum(len(TOKENIZER.encode(target)) + 1 for _, target in PAIRS)
    worst = found.heads[0]
    with recording(user.model, keep=(), edits=[Off(worst.path, (worst.head,))]) as record:
        edited = tiny_user()
        edited.model = record.model
        without = [candidate.log_prob for candidate in edited.score(PAIRS)]
    changes = torch.tensor(without) - torch.tensor(plain)
    assert worst.effect == pytest.approx(float(changes.mean()), abs=1e-4)
    assert worst.standard_error == pytest.approx(float(changes.std()) / math.sqrt(5), abs=1e-4)


def test_importance_of_a_classifier_is_of_the_given_label():
    user, rows = tiny_user("classification"), _rows("classification")
    found = user.classify([text for text, _ in rows])
    expected = sum(math.log(one.probabilities[label]) for one, (_, label) in zip(found, rows, strict=True)) / 5
    assert importance(user, rows).log_prob == pytest.approx(expected, abs=1e-5)
    with pytest.raises(AttendoError, match="row 1: the label"):
        importance(user, [("rain", "hail")] * 2)
    with pytest.raises(AttendoError, match="1 usable rows are too few"):
        importance(user, rows[:1])


def test_rows_too_long_are_cut_and_counted():
    user = tiny_user("language-model", max_len=8)
    found = importance(user, ["a", PAIRS[0][0]])
    assert (found.n_cut, found.n_rows) == (1, 2)


def test_a_head_that_looks_where_people_link_has_no_alignment_error():
    """The links of one head's own largest weights, given as gold, are all found by that head."""
    user, pairs = tiny_user(), [("rain snow sun", "wind hail fog")]
    path, head = "decoder.blocks.0.cross_attention", 1
    ids = [TOKENIZER.encode(text) for text in pairs[0]]
    with torch.inference_mode(), recording(user.model, keep=f"{path}.weights") as record:
        record.model(torch.tensor([[*ids[0], TOKENIZER.eos_id]]), torch.tensor([[TOKENIZER.bos_id, *ids[1][:-1]]]))
    weights = record[path].weights[0, head, :, : len(ids[0])]
    words = [_word_of_each_token(row) for row in ids]
    own = {(words[0][int(row.argmax())], words[1][at]) for at, row in enumerate(weights)}
    links = parse_links([" ".join(f"{i}-{j}" for i, j in own)], "gold")
    found = head_alignment_errors(user, pairs, links)
    assert found[path, head] == 0.0
    assert len(found) == 4 and max(found.values()) > 0.0
    ranked = importance(user, pairs * 2, links=links * 2)
    assert {(h.path, h.head): h.alignment_error for h in ranked.heads if h.alignment_error is not None} == found
    with pytest.raises(AttendoError, match="only to the heads of a translator"):
        head_alignment_errors(tiny_user("language-model"), pairs, links)


def _word_of_each_token(ids):
    words, number = [], -1
    for piece in TOKENIZER.pieces(ids):
        number += piece.startswith("▁")
        words.append(number)
    return words
