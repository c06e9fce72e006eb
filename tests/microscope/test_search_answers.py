"""The tree of a look's search: its best path is what `translate` says, and a text of the user's is judged rightly."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_configs import random_config
from search_definition import trace
from search_table import SPECIAL, Table
from tiny_looks import PAIRS, TOKENIZER, tiny_look, tiny_user
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.decoding.beam import beam_search
from attendo.decoding.options import DecodingConfig
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.trace import SearchTrace, TraceNode, TraceRecorder
from attendo.errors import AttendoError
from attendo.inspecting.edits import Off
from attendo.microscope import search_answers
from attendo.microscope.protocol import EditRequest

WORDS = tiny_tokenizer("word")
"""Whatever ids a model of noise may say, their text has the same ids again."""


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 4))
def test_what_is_passed_over_is_next_best_and_changes_nothing(seed, n):
    rng = np.random.default_rng(seed)
    config = random_config(rng)
    table = Table(seed, vocab=int(rng.integers(3, 7)))
    plain = trace(table, [(5,)], [5], config)
    if config.coverage_penalty:
        return
    cache = table.start([(5,)], config.beam, 5)
    recorder = TraceRecorder(1, n)
    found = beam_search(table.step, cache, [5], config, SPECIAL, recorder=recorder)
    (tree,) = recorder.traces()
    assert (found, tree.steps) == (plain[0], plain[1][0].steps)
    assert plain[1][0].passed_over == () and len(tree.passed_over) == len(tree.steps)
    for step, (kept, passed) in enumerate(zip(tree.steps, tree.passed_over, strict=True)):
        assert len(passed) <= n * config.beam_groups
        taken = {(node.parent, node.token) for node in kept}
        for node in passed:
            assert (node.parent, node.token) not in taken
            assert (node.beam, node.finished) == (None, False)
            before = tree.steps[step - 1] if step else ()
            at = next((number for number, other in enumerate(before) if other.beam == node.parent), None)
            assert step == 0 or at is not None
            ids = () if at is None else tree.path(step - 1, at)[0]
            assert node.log_prob == pytest.approx(table.log_probs((5,), ids)[node.token], abs=1e-12)
        if config.beam_groups == 1 and passed:
            sums = [_sum(tree, step, node) for node in passed]
            assert sums == sorted(sums, reverse=True)
            assert max(sums) <= min(_sum(tree, step, node) for node in kept) + 1e-12


def _sum(tree, step, node):
    before = tree.steps[step - 1] if step else ()
    at = next((number for number, other in enumerate(before) if other.beam == node.parent), None)
    return node.log_prob + (0.0 if at is None else sum(tree.path(step - 1, at)[1]))


def _checked(answer):
    """The best path of a tree, from the root on, once its sums and parents are seen to be right."""
    nodes = {node["id"]: node for node in answer["nodes"]}
    assert len(nodes) == len(answer["nodes"])
    for node in nodes.values():
        before = 0.0 if node["parent"] is None else nodes[node["parent"]]["sum"]
        assert node["sum"] == pytest.approx(before + node["log_prob"], abs=1e-9)
        if node["parent"] is not None:
            parent = nodes[node["parent"]]
            assert parent["kept"] and not parent["finished"] and parent["step"] == node["step"] - 1
        assert (node["score"] is not None) == (node["finished"] or (node["best"] and _is_last(node, answer)))
    best = [node for node in answer["nodes"] if node["best"]]
    assert [node["step"] for node in best] == list(range(len(best)))
    assert all(after["parent"] == node["id"] for node, after in itertools.pairwise(best))
    assert best[-1]["score"] == pytest.approx(answer["best_score"], abs=1e-9)
    return best


def _is_last(node, answer):
    return not any(other["best"] and other["parent"] == node["id"] for other in answer["nodes"])


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("beam", "options"),
    [(1, {}), (4, {}), (3, {"scale": 0.7, "length_norm": "plain"}), (4, {"beam_groups": 2})],
    ids=["greedy", "beam", "plain", "groups"],
)
def test_the_best_path_is_what_translate_says(beam, options):
    user = tiny_translator(WORDS, **({"scale": 0.4} | options))
    for (text, _), ids in ((PAIRS[0], ()), (PAIRS[1], (40, 41, 50))):
        seen = tiny_look(user=user, text=text, prefix_ids=ids, search="beam", beam=beam)
        answer = search_answers.tree_answer(seen, beam)
        prefixes = WORDS.decode(ids) if ids else None
        (expected,) = user.translate([text], beam=beam, guard=False, prefixes=prefixes)
        assert answer["best_text"] == expected.text
        assert answer["best_score"] == pytest.approx(expected.score, abs=1e-5)
        best = _checked(answer)
        tokens = tuple(node["token"]["id"] for node in best if node["token"]["id"] != WORDS.eos_id)
        assert tokens == expected.candidates[0].token_ids
        assert tokens[: len(ids)] == ids
        assert best[-1]["sum"] == pytest.approx(expected.candidates[0].log_prob, abs=1e-5)


def test_candidates_without_a_place_hang_on_what_they_would_have_continued(monkeypatch):
    eos_id = TOKENIZER.eos_id
    kept = (
        (TraceNode(40, -1.0, 0, 0, False), TraceNode(41, -2.0, 0, 1, False)),
        (TraceNode(eos_id, -0.5, 1, None, True),),
    )
    passed = ((TraceNode(42, -3.0, 0, None, False),), (TraceNode(43, -2.5, 0, None, False),))
    best = Hypothesis((41,), -2.5, -2.0, (-2.0, -0.5), True)
    found = search_answers.Searched(DecodingConfig(beam=2), best, (41, eos_id), SearchTrace(kept, passed))
    monkeypatch.setattr(search_answers, "searched", lambda seen, beam: found)
    nodes = {node["token"]["id"]: node for node in search_answers.tree_answer(tiny_look(), 2)["nodes"]}
    assert [node["id"] for node in nodes.values()] == ["0.0", "0.1", "0.2", "1.0", "1.1"]
    assert [token for token, node in nodes.items() if not node["kept"]] == [42, 43]
    assert [token for token, node in nodes.items() if node["best"]] == [41, eos_id]
    assert (nodes[43]["parent"], nodes[43]["sum"], nodes[43]["score"]) == ("0.0", -3.5, None)
    assert (nodes[42]["parent"], nodes[eos_id]["parent"]) == (None, "0.1")
    assert nodes[eos_id]["score"] == pytest.approx(-2.5 / (7 / 6) ** 0.6)


def test_scores_have_the_coverage_penalty_of_translate():
    user, target = tiny_user(coverage_penalty=0.3), PAIRS[0][1]
    (expected,) = user.score([PAIRS[0]])
    (plain,) = tiny_user().score([PAIRS[0]])
    found = search_answers.Searched(user.config(), Hypothesis((), 0.0, 0.0, (), True), (), SearchTrace(()))
    seen = tiny_look(user=user)
    covered = search_answers.covered_scores(seen, found, [tuple(TOKENIZER.encode(target)), ()])
    assert covered[0] == pytest.approx(expected.score - plain.score, abs=1e-5)
    assert covered[1] < covered[0] < 0.0


def test_the_tree_is_that_of_the_edited_model():
    user, path = tiny_user(), "decoder.blocks.1.cross_attention"
    plain = search_answers.tree_answer(tiny_look(user=user), 2)
    seen = tiny_look(user=user, edits=(EditRequest(kind="off", path=path),))
    with seen.edited() as view:
        edited = tiny_user()
        edited.model = view
        expected = edited.translate([PAIRS[0][0]], beam=2, guard=False)[0]
    found = search_answers.tree_answer(seen, 2)
    assert seen.edits == (Off(path),)
    assert found["best_text"] == expected.text != plain["best_text"]
    assert found["best_score"] == pytest.approx(expected.score, abs=1e-5)


def test_a_language_models_tree_finds_the_likeliest_two_tokens():
    """Of all there are: exact wherever the first token of the likeliest is among the beam's first ones."""
    exact = 0
    for text, scale in (("a", 0.5), ("rain", 0.8), ("snow and", 0.3)):
        user = tiny_user("language-model", scale=scale)
        seen = tiny_look(user=user, text=text, max_tokens=2)
        prompt, eos_id = seen.target[: seen.prompt_tokens], TOKENIZER.eos_id
        never = [TOKENIZER.pad_id, TOKENIZER.bos_id, TOKENIZER.unk_id]
        with torch.inference_mode():
            first = user.model(torch.tensor([prompt]))[0, -1].double().log_softmax(-1)
            first[never] = -math.inf
            longer = torch.tensor([[*prompt, token] for token in range(len(first))])
            second = user.model(longer)[:, -1].double().log_softmax(-1)
            second[:, never], second[eos_id] = -math.inf, -math.inf
            best, at = (first[:, None] + second).flatten().max(0)
        ids = divmod(int(at), len(first))
        if first[eos_id] > best:
            best, ids = first[eos_id], (eos_id,)
        path = _checked(answer := search_answers.tree_answer(seen, 16))
        assert answer["best_score"] <= float(best) + 1e-5
        if ids[0] in first.topk(16).indices.tolist():
            exact += 1
            assert tuple(node["token"]["id"] for node in path) == ids
            assert answer["best_score"] == pytest.approx(float(best), abs=1e-5)
    assert exact >= 2


def test_families_that_search_for_nothing_say_so():
    for family in ("classification", "masked-language-model"):
        with pytest.raises(AttendoError, match="without a search"):
            search_answers.tree_answer(tiny_look(family), 2)
        with pytest.raises(AttendoError, match="writes no text"):
            search_answers.why_answer(tiny_look(family), "rain", 2)
    with pytest.raises(AttendoError, match="must be 1 to 16"):
        search_answers.tree_answer(tiny_look(), 17)
    with pytest.raises(AttendoError, match="must be 1 or more for a search"):
        search_answers.tree_answer(tiny_look("language-model", max_tokens=0), 2)


def test_a_run_that_searches_in_groups_has_a_tree_of_one_beam_too():
    user = tiny_user()
    user = dataclasses.replace(user, decoding=dataclasses.replace(user.decoding, beam=4, beam_groups=2))
    assert search_answers.tree_answer(tiny_look(user=user), 1)["beam"] == 1


def test_the_same_text_in_other_tokens_is_said_to_be_the_same(monkeypatch):
    seen = tiny_look()
    monkeypatch.setattr("attendo.microscope.search_answers.text_of", lambda seen, best: PAIRS[0][1])
    answer = search_answers.why_answer(seen, PAIRS[0][1], 2)
    assert answer["verdict"] != "same" and "the same text" in answer["sentence_en"]
    assert "the same text" not in search_answers.why_answer(seen, PAIRS[1][1], 2)["sentence_en"]


def test_a_given_text_has_the_score_of_translate_and_the_models_own_ranks():
    user = tiny_user()
    text, target = PAIRS[0]
    seen = tiny_look(user=user)
    answer = search_answers.why_answer(seen, target, 4)
    (expected,) = user.score([(text, target)])
    assert answer["score"] == pytest.approx(expected.score, abs=1e-5)
    assert [token["log_prob"] for token in answer["tokens"]] == pytest.approx(expected.token_log_probs, abs=1e-5)
    assert [token["id"] for token in answer["tokens"]] == [*expected.token_ids, TOKENIZER.eos_id]
    for token in answer["tokens"]:
        assert (token["rank"] == 1) == (token["log_prob"] == token["best"]["log_prob"])
    (best,) = user.translate([text], beam=4, guard=False)
    assert (answer["best_text"], answer["verdict"]) == (best.text, "model")
    assert answer["best_score"] == pytest.approx(best.score, abs=1e-5)
    mine, theirs = expected.token_ids, best.candidates[0].token_ids
    assert answer["diverges_at"] == next(
        i for i, pair in enumerate(zip(mine, theirs, strict=False)) if len({*pair}) == 2
    )
    assert "prefers the text found" in answer["sentence_en"] and answer["sentence_ja"]


def test_the_text_found_is_the_same_and_a_better_one_is_an_error_of_the_search():
    """What a wide beam finds, a narrow one has lost: at the step where its tree has no such beginning any more."""
    verdicts = []
    for seed in range(6):
        user = tiny_translator(WORDS, seed=seed, scale=0.4, max_length_extra=6, output_bias=True)
        user.model.output_proj.bias.data[WORDS.eos_id] = 4.0  # so that texts do end
        seen = tiny_look(user=user)
        wide = search_answers.searched(seen, 8)
        if not wide.best.finished:
            continue
        assert _checked(search_answers.tree_answer(seen, 8))[-1]["finished"]
        text = WORDS.decode(wide.best.token_ids)
        assert search_answers.why_answer(seen, text, 8)["verdict"] == "same"
        narrow, found = search_answers.searched(seen, 1), search_answers.why_answer(seen, text, 1)
        verdicts.append(found["verdict"])
        if found["verdict"] == "search":
            assert found["score"] > found["best_score"] == pytest.approx(narrow.best.score)
            paths = {
                narrow.trace.path(step, number)[0]
                for step, nodes in enumerate(narrow.trace.steps)
                for number in range(len(nodes))
            }
            lost = next(n for n in range(len(wide.best_ids)) if wide.best_ids[: n + 1] not in paths)
            assert found["lost_at"] == lost == search_answers.lost_at(narrow.trace, wide.best_ids)
            assert f"token {lost + 1}." in found["sentence_en"]
    assert verdicts.count("search") >= 2


def test_a_language_models_text_is_compared_over_as_many_tokens():
    user = tiny_user("language-model", scale=0.8)
    seen = tiny_look("language-model", user=user, text="rain")
    best = search_answers.searched(seen, 3).best
    answer = search_answers.why_answer(seen, " snow", 3)
    ids = TOKENIZER.encode_on(" snow")
    assert [token["id"] for token in answer["tokens"]] == ids
    with torch.inference_mode():
        logits = user.model(torch.tensor([[*seen.target[: seen.prompt_tokens], *ids]]))[0].double()
    rows = logits.log_softmax(-1)[seen.prompt_tokens - 1 :]
    expected = sum(float(row[token]) for row, token in zip(rows, ids, strict=False))
    assert answer["score"] == pytest.approx(expected, abs=1e-5)
    assert answer["best_score"] == pytest.approx(math.fsum(best.token_log_probs[: len(ids)]), abs=1e-5)
    with pytest.raises(AttendoError, match="empty"):
        search_answers.why_answer(seen, "", 3)


def test_one_who_forces_other_tokens_is_told_so():
    ids = TOKENIZER.encode("wind")
    answer = search_answers.why_answer(tiny_look(prefix_ids=tuple(ids)), "rain", 2)
    assert "had to begin with other tokens" in answer["sentence_en"]
    assert answer["lost_at"] == 0 or TOKENIZER.encode("rain")[0] == ids[0]
