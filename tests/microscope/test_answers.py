"""A look: what the page is told is what the model computes, for every family, with and without edits."""

import base64
import json

import numpy as np
import pytest
import torch
from looked_models import FAMILIES, HOSTILE, looked_model, text_of

from attendo.errors import AttendoError
from attendo.microscope import session as session_module
from attendo.microscope.answers import outcome, tensor_answer
from attendo.microscope.protocol import LookRequest
from attendo.microscope.run_model import attention_paths, effect_paths, look
from attendo.microscope.search_answers import tree_answer
from attendo.microscope.session import Session, look_answer, request_of
from attendo.nn.attention import attention_scores, masked_softmax, share_heads
from attendo.nn.masks import Mask


def answered(user, **body):
    ask = request_of("look", {"text": text_of(user.tokenizer, 12), **body})
    seen = look(user, ask)
    return seen, look_answer(seen, look(user, ask.without_edits()) if ask.edits else None, 0.0)


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_pass_is_the_models_own(users, family):
    seen, told = answered(users[family])
    with torch.no_grad():
        torch.testing.assert_close(seen.logits, seen.model(**seen.inputs)[0], rtol=0, atol=1e-5)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    paths = [layer["path"] for stack in told["stacks"] for layer in stack["layers"]]
    assert paths == [path for group in attention_paths(seen.model).values() for path in group]


@pytest.mark.some(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "alibi"}, {"positions": "rotary", "n_kv_heads": 1}, {"positions": "relative"}],
)
def test_a_page_can_compute_the_weights_from_the_numbers_of_a_layer(tokenizer, family, options):
    """softmax(β(q·k·scale + bias)) over the keys that the mask allows, as numbers.js does it.

    bias: −slope·|i−j|, or a trained one of j − i.
    """
    seen, told = answered(looked_model(family, tokenizer, **options))
    for stack in told["stacks"]:
        for layer in stack["layers"]:
            data = torch.from_numpy(np.frombuffer(tensor_answer(seen, layer["path"]), "<f4").copy())
            heads, kv, q, k = (layer[name] for name in ("heads", "kv_heads", "q_len", "k_len"))
            sizes = [
                heads * q * layer["head_dim"],
                kv * k * layer["head_dim"],
                kv * k * layer["value_dim"],
                heads * k,
            ]
            query, key, value, norms = data.split(sizes)
            key = key.view(1, kv, k, -1)
            scores = attention_scores(query.view(1, heads, q, -1), share_heads(key, heads), layer["scale"])
            if layer["slopes"] is not None:
                apart = (torch.arange(q)[:, None] - torch.arange(k)).abs()
                scores = scores - torch.tensor(layer["slopes"])[:, None, None] * apart
            if layer["biases"] is not None:
                apart = torch.arange(k) - torch.arange(q)[:, None]
                scores = scores + torch.tensor(layer["biases"])[:, apart + k - 1]
            mask = Mask(causal=True).dense(q, k, scores.device) if layer["causal"] else None
            weights = masked_softmax(scores, mask)[0]
            found = seen.record[layer["path"]].weights[0]
            torch.testing.assert_close(weights, found, rtol=0, atol=1e-5)
            assert (found.sum(-1) - 1).abs().max() < 1e-6
            assert mask is None or not found[(~mask).expand_as(found[None])[0]].any()
            means = found[:, 1:].mean(1) if layer["causal"] else found.mean(1)
            assert [sink["key"] for sink in layer["sinks"]] == means.argmax(-1).tolist()
            assert [sink["share"] for sink in layer["sinks"]] == pytest.approx(means.amax(-1).tolist())
            value = share_heads(value.view(1, kv, k, -1), heads)[0]
            out = seen.model.get_submodule(layer["path"]).out_proj.weight.unflatten(1, (heads, -1))
            by_head = torch.einsum("hkv,ohv->hko", value, out).norm(dim=-1)
            torch.testing.assert_close(norms.view(heads, k), by_head, rtol=1e-4, atol=1e-5)


@pytest.mark.some(2)
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "positions": "rotary", "norm_first": True}])
def test_a_translation_is_that_of_translate(tokenizer, beam, options):
    user = looked_model("translation", tokenizer, **options)
    seen, told = answered(user, search="beam" if beam > 1 else "greedy", beam=beam)
    found = user.translate([seen.request.text], beam=beam, guard=False)[0]
    assert told["outcome"]["text"] == found.text
    assert told["outcome"]["score"] == pytest.approx(found.score, abs=1e-5)
    assert told["outcome"]["log_prob"] == pytest.approx(found.candidates[0].log_prob, abs=1e-4)


def test_a_forced_target_has_the_numbers_of_score(users):
    user = users["translation"]
    _, told = answered(user, search="forced", target="snow in Oslo")
    scored = user.score([(text_of(user.tokenizer, 12), "snow in Oslo")])[0]
    assert told["outcome"]["log_prob"] == pytest.approx(scored.log_prob, abs=1e-4)
    assert told["outcome"]["score"] == pytest.approx(scored.score, abs=1e-5)
    assert [token["out"]["log_prob"] for token in told["target"]] == pytest.approx(scored.token_log_probs, abs=1e-5)


@pytest.mark.parametrize("head", [None, 0])
def test_a_greedy_text_takes_the_likeliest_token_each_time(users, head):
    off = {"kind": "off", "path": "decoder.blocks.0.self_attention", "head": head}
    seen, told = answered(users["language-model"], max_tokens=6, edits=[] if head is None else [off])
    written = told["target"][told["prompt_tokens"] - 1 :]
    ranks = [token["out"]["rank"] for token in written if token["out"] is not None]
    banned = (seen.tokenizer.pad_id, seen.tokenizer.bos_id)  # no text has them
    assert len(ranks) == 6 and max(ranks) <= 1 + len(banned)


def test_a_forced_beginning_stays_and_the_rest_is_searched(users):
    for family in ("translation", "language-model"):
        user = users[family]
        ids = user.tokenizer.encode("snow rain")
        _, told = answered(user, prefix_ids=ids)
        begin = told["prompt_tokens"]
        assert [token["id"] for token in told["target"]][begin : begin + 2] == ids


def test_labels_are_those_of_classify(users):
    user = users["classification"]
    seen, told = answered(user)
    found = user.classify([seen.request.text])[0]
    assert {row["label"]: row["probability"] for row in told["outcome"]["labels"]} == pytest.approx(found.probabilities)
    assert told["outcome"]["labels"][0]["label"] == found.label


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_edits_that_change_nothing_change_nothing_to_the_bit(users, family):
    plain, _ = answered(users[family])
    seen, told = answered(users[family], edits=[{"kind": "beta", "path": "*", "beta": 1}])
    assert torch.equal(seen.logits, plain.logits)
    assert told["baseline"]["total"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_switched_off_shows_in_the_answer_and_the_difference_adds_up(users, family):
    user = users[family]
    path = effect_paths(user.model)[0]
    edits = [{"kind": "off", "path": path, "head": 1}, {"kind": "beta", "path": "*", "beta": "inf"}]
    seen, told = answered(user, edits=edits)
    layer = next(one for stack in told["stacks"] for one in stack["layers"] if one["path"] == path)
    assert layer["off"] == [1] and set(layer["beta"]) == {"inf"}
    assert set(seen.record[path].weights.unique().tolist()) == {0.0, 1.0}  # hard
    baseline = look(user, seen.request.without_edits())
    assert (
        told["baseline"]["text" if family != "classification" else "labels"]
        == outcome(baseline)["text" if family != "classification" else "labels"]
    )
    if family == "classification":
        assert sum(told["baseline"]["deltas"].values()) == pytest.approx(0, abs=1e-6)
    else:
        assert told["baseline"]["total"] == pytest.approx(sum(told["baseline"]["deltas"]), abs=1e-5)
        assert told["baseline"]["total"] != 0


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("beam", [2, 4])
def test_a_compiled_search_with_edits_finds_what_the_view_does(tokenizer, beam, how):
    user = looked_model("translation", tokenizer)
    edits = [
        {"kind": "off", "path": "decoder.blocks.0.cross_attention", "head": 1, "how": how},
        {"kind": "off", "path": "encoder.blocks.0.feed_forward", "how": how},
        {"kind": "beta", "path": "*", "beta": 0.6},
    ]
    asked = {"search": "beam", "beam": beam, "edits": edits}
    plain, _ = answered(user, **asked)
    begin = list(plain.target[1:3])
    tree, begun = tree_answer(plain, beam), answered(user, **asked, prefix_ids=begin)[0].target
    user.prepare()
    if user.why_not_compiled is not None:
        pytest.skip(user.why_not_compiled)
    seen, told = answered(user, **asked)
    assert seen.target == plain.target and seen.score == pytest.approx(plain.score, abs=1e-5)
    assert told["outcome"]["text"] != told["baseline"]["text"]
    found = tree_answer(seen, beam)
    assert [node["token"] for node in found["nodes"]] == [node["token"] for node in tree["nodes"]]
    assert answered(user, **asked, prefix_ids=begin)[0].target == begun


def test_a_head_can_be_held_at_its_mean(users):
    path = "encoder.blocks.0.self_attention"
    seen, _ = answered(users["classification"], edits=[{"kind": "off", "path": path, "head": 0, "how": "mean"}])
    (edit,) = seen.edits
    plain, _ = answered(users["classification"])
    mixed = plain.record[path].weights[0] @ share_heads(plain.record[path].value, 2)[0]
    torch.testing.assert_close(edit.value.reshape_as(mixed.mean(1)), mixed.mean(1))
    path = "encoder.blocks.1.feed_forward"
    seen, _ = answered(users["classification"], edits=[{"kind": "off", "path": path, "how": "mean"}])
    torch.testing.assert_close(seen.record[path].output[0], plain.record[path].output[0].mean(0).expand(13, -1))
    with pytest.raises(AttendoError, match="has no mean"):
        answered(users["classification"], edits=[{"kind": "off", "path": "*", "how": "mean"}])


def test_nothing_is_cut_without_a_word(tokenizer):
    for family in FAMILIES:
        user = looked_model(family, tokenizer, max_len=16)
        whole = look(user, LookRequest(text=text_of(tokenizer, 9), max_tokens=4)).note
        assert whole is None or "tokens" not in whole.en
        seen = look(user, LookRequest(text=text_of(tokenizer, 40), max_tokens=4))
        assert "of 40 tokens" in seen.note.en or "the first 29 tokens are left out" in seen.note.en, (
            family,
            seen.note,
        )
        assert "40 トークン" in seen.note.ja or "先頭の 29 トークン" in seen.note.ja


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "look.text is missing"),
        ({"text": "a", "beem": 3}, "did you mean beam"),
        ({"text": "a", "search": "best"}, "search"),
        ({"text": "a", "search": "forced"}, "requires a target"),
        ({"text": "a", "beam": 99}, "beam=99 must be 1 to 16"),
        ({"text": "a", "edits": [{"kind": "off"}]}, "path"),
        ({"text": "a", "edits": [{"kind": "off", "path": "x", "hed": 1}]}, "did you mean head"),
        ({"text": "a", "edits": [{"kind": "beta", "path": "x", "beta": -1}]}, "0 or more"),
        ({"text": "a", "edits": "off"}, "must be a list"),
        ({"text": ""}, "the text is empty"),
        ({"text": "a", "prefix_ids": [10**6]}, "prefix_ids"),
        ({"text": "rain", "edits": [{"kind": "off", "path": "nowhere"}]}, "nowhere"),
        ({"text": "rain", "edits": [{"kind": "off", "path": "*self_attention", "head": 7}]}, "head"),
    ],
)
def test_a_wrong_question_is_told_what_is_right(users, body, message):
    with pytest.raises(AttendoError, match=message):
        Session(users["translation"]).answer("look", body)


def test_a_session_knows_its_questions(users):
    session = Session(users["translation"])
    with pytest.raises(AttendoError, match="unknown question 'lok'"):
        session.answer("lok", {})
    with pytest.raises(AttendoError, match=r"tree\.beam = 0"):
        session.answer("tree", {"key": "a", "beam": 0})
    with pytest.raises(AttendoError, match="Look again"):
        session.answer("lens", {"key": "0", "stack": "decoder"})
    key = session.answer("look", {"text": "rain"})["key"]
    with pytest.raises(AttendoError, match="not one of encoder"):
        session.answer("tensor", {"key": key, "path": "encoder.blocks.9.self_attention"})
    with pytest.raises(AttendoError, match=r"film\.head = "):
        session.answer("film", {"key": key, "path": "encoder.blocks.0.self_attention", "head": "x"})


def test_old_looks_are_looked_at_anew(users, monkeypatch):
    monkeypatch.setattr(session_module, "REMEMBERED", 0)
    session = Session(users["classification"])
    keys = [session.answer("look", {"text": f"rain {'snow ' * n}"})["key"] for n in range(9)]
    assert len(set(keys)) == 9 and len(session._results) == 2
    assert isinstance(session.answer("tensor", {"key": keys[0], "path": "encoder.blocks.0.self_attention"}), bytes)


def test_hostile_words_are_tokens_like_others(users):
    user = users["translation"]
    seen = look(user, LookRequest(text=" ".join(HOSTILE), search="forced", target=" ".join(HOSTILE)))
    assert [seen.token(token)["text"] for token in seen.source[:-1]] == list(HOSTILE)
    pieces = {seen.token(token)["piece"] for token in seen.source}
    assert set(HOSTILE[:6]) <= pieces  # emoji of several code points stay whole
    assert "e\u0301<U+202E>" in pieces  # what would turn the text around is shown


def test_thumbnails_keep_the_largest_weights(users):
    seen, told = answered(users["classification"])
    layer = told["stacks"][0]["layers"][0]
    small = np.frombuffer(base64.b64decode(layer["thumb"]["data"]), np.uint8).reshape(2, layer["thumb"]["rows"], -1)
    weights = seen.record[layer["path"]].weights[0].numpy()
    np.testing.assert_allclose(small / 255, weights, atol=0.003)  # small enough to be there whole
