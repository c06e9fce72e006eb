"""Lens, next token, positions, class tokens, rollout and matrices of a look, for every family that has them."""

import base64
import json
import math

import numpy as np
import pytest
import torch
from tiny_looks import FAMILIES, PAIRS, TOKENIZER, tiny_look, tiny_user

from attendo.errors import AttendoError
from attendo.inspecting.attribution import integrated_gradients, log_prob, logit_attribution
from attendo.inspecting.edits import Patch
from attendo.inspecting.measures import rollout
from attendo.inspecting.recording import Given, recording
from attendo.inspecting.residual_stream import head_contributions, head_matrices
from attendo.microscope import effects
from attendo.microscope.answers import layer_of, lens_answer, matrices_answer, next_answer, positions_answer
from attendo.microscope.effects import effects_answer, pooled_shares, tokens_answer
from attendo.microscope.influence import BIASES, STEPS, attribution_answer, influence_answer
from attendo.microscope.protocol import EditRequest
from attendo.microscope.search_answers import tree_answer, why_answer
from attendo.nn.layers import pool


def decoded(text, *shape):
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy()).reshape(shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_of_the_lens_is_the_models_answer(family):
    seen = tiny_look(family, edits=(EditRequest(kind="beta", path="*", beta=2.0),))
    stack = "decoder" if family in ("translation", "language-model") else "encoder"
    answer = lens_answer(seen, stack)
    assert answer["layers"] == ["embedding", "block 1", "block 2"]
    assert [len(row) for row in answer["tokens"]] == [answer["positions"]] * 3
    last = answer["tokens"][-1]
    assert all(token["rank_of_final"] == 1 and token["p"] == token["p_of_final"] for token in last)
    if family == "classification":
        pooled = (seen.logits / seen.user.temperature).softmax(-1)
        assert list(answer["pooled"][-1].values()) == pytest.approx(pooled.tolist(), abs=1e-6)
        assert list(answer["pooled"][-1]) == ["rain", "snow", "sun"]
        assert {token["text"] for token in last} <= {"rain", "snow", "sun"}
    else:
        best, ids = seen.logits.double().softmax(-1).max(-1)
        assert [token["id"] for token in last] == ids.tolist()
        assert [token["p"] for token in last] == pytest.approx(best.tolist(), abs=1e-6)


def test_a_layer_of_the_lens_ranks_the_final_token_among_its_own():
    seen = tiny_look("language-model")
    first, last = (lens_answer(seen, "decoder")["tokens"][layer] for layer in (0, -1))
    with torch.inference_mode():
        logits = seen.model.output(seen.record["embedding"].output[0]).softmax(-1)
    for row, token, final in zip(logits, first, last, strict=True):
        order = row.argsort(descending=True).tolist()
        assert (token["id"], token["rank_of_final"]) == (order[0], order.index(final["id"]) + 1)
        assert token["p_of_final"] == pytest.approx(float(row[final["id"]]), abs=1e-6)


def test_an_encoder_of_a_translator_is_near_its_own_embeddings_at_first():
    seen = tiny_look(user=tiny_user(positions="none"))
    answer = lens_answer(seen, "encoder")
    assert answer["kind"] == "nearest embedding"
    assert [token["id"] for token in answer["tokens"][0]] == list(seen.source)
    assert [token["p"] for token in answer["tokens"][0]] == pytest.approx([1.0] * len(seen.source), abs=1e-5)
    with pytest.raises(AttendoError, match="encoder and decoder"):
        lens_answer(seen, "cross")


@pytest.mark.parametrize("family", ["translation", "language-model", "masked-language-model"])
def test_the_next_tokens_are_those_of_the_logits(family):
    seen = tiny_look(family)
    found = next_answer(seen, 2, 1000)
    row = seen.logits[2].double().softmax(-1)
    assert [token["p"] for token in found["tokens"]] == pytest.approx(sorted(row.tolist(), reverse=True))
    assert found["tokens"][-1]["cumulative"] == pytest.approx(1.0)
    assert found["entropy"] == pytest.approx(-float((row * row.log()).sum()))
    assert found["actual"]["id"] == seen.wanted[2]
    ranks = [token["id"] for token in found["tokens"]]
    assert found["actual"]["rank"] == ranks.index(seen.wanted[2]) + 1
    assert [t["id"] for t in next_answer(seen, 2, 3)["tokens"]] == ranks[:3]
    with pytest.raises(AttendoError, match="position 99"):
        next_answer(seen, 99, 3)


def test_what_follows_the_last_token_has_no_actual_one():
    seen = tiny_look("language-model", max_tokens=0)
    assert next_answer(seen, len(seen.target) - 1, 2)["actual"] is None
    with pytest.raises(AttendoError, match="a label, not a token"):
        next_answer(tiny_look("classification"), 0, 2)


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "ramp", "inverse"])
def test_added_positions_are_what_the_embedding_adds(kind):
    start = {"position_start": 1} if kind == "inverse" else {}
    seen = tiny_look(user=tiny_user(positions=kind, max_len=70, scale=0.1, **start))
    for side, ids in (("source", seen.source), ("target", seen.target)):
        answer = positions_answer(seen, side)
        n, d = answer["n"], answer["d"]
        assert (n, answer["trained"], answer["kind"]) == (64, 70, kind)
        embedding = seen.model.get_submodule(f"{side}_embedding")
        read = torch.tensor([ids])
        added = (embedding(read) - embedding.tokens(read))[0]
        rows = decoded(answer["data"], n, d)
        torch.testing.assert_close(rows[: len(ids)].expand_as(added), added, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(decoded(answer["dots"], n, n), rows @ rows.T, atol=1e-4, rtol=1e-4)


def test_rotary_positions_are_cos_and_sin_and_products_of_the_distance():
    seen = tiny_look("language-model", user=tiny_user("language-model", positions="rotary"))
    answer = positions_answer(seen, "target")
    n, d = answer["n"], answer["d"]
    assert (n, d) == (64, 8)
    rows, dots = decoded(answer["data"], n, d), decoded(answer["dots"], n, n)
    omega = 10000.0 ** (-torch.arange(4) / 4)
    places = torch.arange(n)
    torch.testing.assert_close(rows[:, 0::2], (places[:, None] * omega).cos(), atol=1e-5, rtol=0)
    torch.testing.assert_close(rows[:, 1::2], (places[:, None] * omega).sin(), atol=1e-5, rtol=0)
    apart = (places[:, None] - places)[..., None] * omega
    torch.testing.assert_close(dots, apart.cos().mean(-1), atol=1e-5, rtol=0)


def test_biases_by_distance_and_no_positions():
    user = tiny_user("classification", positions="alibi", max_len=20)
    seen = tiny_look("classification", user=user, text="rain snow")
    answer = positions_answer(seen, "source")
    assert (answer["kind"], answer["n"], answer["d"]) == ("alibi", len(seen.source), 2)
    assert answer["data"] == answer["dots"] == ""  # the layers of the look have what is added
    with pytest.raises(AttendoError, match="has the source only"):
        positions_answer(seen, "target")
    user = tiny_user(positions="relative", position_buckets=8, position_reach=16)
    for side, stack in (("source", user.model.encoder), ("target", user.model.decoder)):
        seen = tiny_look(user=user)
        answer, n = positions_answer(seen, side), len(seen.source if side == "source" else seen.target)
        assert (answer["kind"], answer["n"], answer["d"]) == ("relative", n, 2)
        places = torch.arange(n)
        bias = stack.blocks[0].self_attention.positions(places[None], places)[0]
        name = "encoder" if side == "source" else "decoder"
        added = torch.tensor(layer_of(seen, f"{name}.blocks.0.self_attention")["biases"])
        torch.testing.assert_close(added[:, places - places[:, None] + n - 1], bias.detach())
    nothing = positions_answer(tiny_look(user=tiny_user(positions="none")), "source")
    assert (nothing["kind"], nothing["d"], nothing["data"]) == ("none", 0, "")


@pytest.mark.parametrize("pooling", ["max", "mean", "first"])
def test_gradient_times_input_is_the_slope_along_each_embedding(pooling):
    """A central difference in float64: what a token adds when its embedding grows by a share of itself."""
    user = tiny_user("classification", pooling=pooling, scale=0.3)
    user.model.double()
    edits = (EditRequest(kind="off", path="encoder.blocks.0.self_attention", head=1),)
    seen = tiny_look("classification", user=user, edits=edits)
    answer, label = tokens_answer(seen), int(seen.logits.argmax())
    assert all(parameter.grad is None for parameter in user.model.parameters())
    embedded, step = seen.record["embedding"].output, 1e-5
    for position, slope in enumerate(answer["gradient_times_input"][:6]):
        values = []
        for sign in (1, -1):
            x = embedded.clone()
            x[0, position] *= 1 + sign * step
            with torch.inference_mode(), seen.edited() as view:
                logits = view.output(pool(view.encoder(x), pooling)) / user.temperature
            values.append(float(logits[0].log_softmax(-1)[label]))
        assert slope == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-6)
    assert answer["label"] == user.labels.names[label]
    for shares in (answer["pooled"], answer["rollout"]):
        assert len(shares) == len(seen.source) and sum(shares) == pytest.approx(1.0, abs=1e-5)
    if pooling == "first":
        matrix = rollout([seen.record[f"encoder.blocks.{n}.self_attention"].weights[0] for n in (0, 1)])
        assert answer["rollout"] == pytest.approx(matrix[0].tolist(), abs=1e-6)


@pytest.mark.parametrize("edited", [False, True])
def test_left_out_is_the_label_of_the_text_without_the_token(edited, monkeypatch):
    user = tiny_user("classification", scale=0.3)
    edits = (EditRequest(kind="off", path="encoder.blocks.0.self_attention", head=1),) if edited else ()
    seen = tiny_look("classification", user=user, edits=edits)
    answer, label, ids = tokens_answer(seen), int(seen.logits.argmax()), list(seen.source)
    n_before = len(user.tokenizer.specials.around_text[0])
    assert len(answer["left_out"]) == len(ids) and answer["left_out"][:n_before] == [0.0] * n_before
    for place in (n_before, n_before + 2):
        with torch.inference_mode(), seen.edited() as view:
            logits = view(src=torch.tensor([ids[:place] + ids[place + 1 :]]))[0]
        both = [(x / user.temperature).log_softmax(-1)[label] for x in (seen.logits, logits)]
        assert answer["left_out"][place] == pytest.approx(float(both[0] - both[1]), abs=1e-5)
    monkeypatch.setattr(effects, "MOST_WORK", 10)
    assert tokens_answer(seen)["left_out"] is None


def test_pooled_shares_rebuild_what_was_pooled():
    torch.manual_seed(0)
    states = torch.randn(5, 64)
    shares = pooled_shares(states, "max")
    for position in range(5):
        won = (states[position] == pool(states[None], "max")[0]).float().mean()
        assert float(shares[position]) == pytest.approx(float(won))
    torch.testing.assert_close(pooled_shares(states, "mean") @ states, pool(states[None], "mean")[0])
    torch.testing.assert_close(pooled_shares(states, "first") @ states, pool(states[None], "first")[0])


def test_rollout_of_each_stack_has_rows_of_one():
    seen = tiny_look()
    lengths = {"source": len(seen.source), "target": len(seen.target)}
    for stack, queries, keys in (
        ("encoder", "source", "source"),
        ("decoder", "target", "target"),
        ("cross", "target", "source"),
    ):
        answer = influence_answer(seen, stack)
        assert (answer["q_len"], answer["k_len"]) == (lengths[queries], lengths[keys])
        found = decoded(answer["data"], answer["q_len"], answer["k_len"])
        # two blocks of the decoder leave a quarter to the target's own tokens
        assert torch.allclose(found.sum(-1), torch.tensor(0.75 if stack == "cross" else 1.0), atol=1e-5)
        assert "Abnar" in answer["source"]
        if stack == "decoder":
            assert float(found.triu(1).abs().max()) == 0.0
    with pytest.raises(AttendoError, match="no such attention"):
        influence_answer(tiny_look("language-model"), "cross")


@pytest.mark.some(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_influence_of_activations_of_another_text(family):
    text, other = "it will be T.", "it will be I."
    seen = tiny_look(family, edits=(EditRequest(kind="beta", path="*", beta=2.0),), text=text)
    stack, side = ("decoder", "target") if family == "language-model" else ("encoder", "source")
    old, new = (TOKENIZER.encode(one) for one in (text, other))
    ((before, after),) = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
    at = seen.ids(side).index(before)
    place = at if stack == "decoder" else 1  # earlier predictions do not depend on this token
    clean = {name: tensor.clone() for name, tensor in seen.inputs.items()}
    clean["token_ids" if stack == "decoder" else "src"][0, at] = after
    path = f"{stack}.blocks.0"
    with torch.no_grad(), recording(seen.model, "*.output", seen.edits) as record:
        record.model.eval()(**clean)
    patch = Patch(path, record[path].output, positions=(at,))
    with torch.no_grad(), recording(seen.model, (), [*seen.edits, patch]) as record:
        logits = record.model.eval()(**seen.inputs)[0]
    if family == "classification":
        wanted = (seen.label_log_probs(logits) - seen.label_log_probs(seen.logits))[seen.label]
    else:
        wanted = (logits.log_softmax(-1) - seen.logits.log_softmax(-1))[place, seen.wanted[place]]
    answer = influence_answer(seen, stack, "patching", place, other)
    assert (answer["q_len"], answer["k_len"]) == (2, len(seen.ids(side)))
    found = decoded(answer["data"], answer["q_len"], answer["k_len"])
    assert float(found[0, at]) == pytest.approx(float(wanted), abs=1e-5)
    assert found.abs().max() > 1e-3
    with pytest.raises(AttendoError, match="Use a text with the same number of tokens"):
        influence_answer(seen, stack, "patching", place, "it")


def test_influence_by_integrated_gradients():
    seen = tiny_look(edits=(EditRequest(kind="off", path="encoder.blocks.0.self_attention"),))
    found = {stack: influence_answer(seen, stack, "gradients") for stack in ("cross", "decoder")}
    metric = log_prob(seen.wanted[2], 2)
    own = integrated_gradients(seen.model, seen.inputs, metric, n_steps=STEPS, edits=seen.edits)
    for stack, name in (("cross", "src"), ("decoder", "tgt")):
        rows = decoded(found[stack]["data"], found[stack]["q_len"], found[stack]["k_len"])
        torch.testing.assert_close(rows[2], own.tokens[name].float())
    assert not rows.triu(1).any()
    with pytest.raises(AttendoError, match="a classifier predicts no tokens"):
        influence_answer(tiny_look("classification"), "encoder", "gradients")


def test_only_a_classifier_predicts_a_label():
    for family in ("translation", "language-model", "masked-language-model"):
        with pytest.raises(AttendoError, match="only a classifier predicts a label"):
            tokens_answer(tiny_look(family))


@pytest.mark.parametrize("family", ["translation", "language-model"])
def test_the_parts_of_a_logit_are_its_direct_attribution(family):
    off = EditRequest(kind="off", path="decoder.blocks.1.self_attention", head=1)
    seen = tiny_look(family, edits=(off,))
    token, place = seen.wanted[2], 2
    answer = attribution_answer(seen, place)
    other = answer["others"][0]["id"]
    assert answer["token"]["id"] == token not in [one["id"] for one in answer["others"]]
    for found, against in ((answer, None), (attribution_answer(seen, place, other), other)):
        own = logit_attribution(seen.model, seen.inputs, token, against, place, edits=seen.edits)
        logit = seen.logits[place, token] - (0.0 if against is None else seen.logits[place, against])
        assert found["logit"] == pytest.approx(float(logit), abs=1e-6)
        assert sum(part["value"] for part in found["parts"]) == pytest.approx(found["logit"], abs=1e-4)
        parts = {(part["path"], part["head"]): part["value"] for part in found["parts"]}
        biases = [part.value for part in own if (part.path, part.head) not in parts]
        heads = {(part.path, part.head): part.value for part in own if part.head is not None}
        assert len(heads) == (8 if family == "translation" else 4) and heads[off.path, off.head] == 0.0
        assert {head: parts[head] for head in heads} == pytest.approx(heads, abs=1e-5)
        assert parts[BIASES, None] == pytest.approx(sum(biases), abs=1e-5)
        nets = {f"decoder.blocks.{n}.feed_forward" for n in range(2)}
        embedding = "target_embedding" if family == "translation" else "embedding"
        assert {path for path, head in parts if head is None} == {BIASES, embedding, *nets}


def test_the_attribution_of_an_unwritten_token_is_that_of_the_most_probable():
    seen = tiny_look("language-model", max_tokens=0)
    last = len(seen.target) - 1
    assert attribution_answer(seen, last)["token"]["id"] == int(seen.logits[last].argmax())
    for position, other in ((last + 1, None), (0, 10**9)):
        with pytest.raises(AttendoError, match=r"position \d+ must be"):
            attribution_answer(seen, position, other)


def test_integrated_gradients_of_a_label_are_its_log_probability_and_bounded(monkeypatch):
    user = tiny_user("classification", scale=0.3, activation="gelu", norm_first=True)
    seen = tiny_look("classification", user=user)
    own = tokens_answer(seen)["integrated_gradients"]
    with torch.no_grad(), seen.edited() as view:
        view.embedding.tokens = Given(torch.zeros_like(view.embedding.tokens(seen.inputs["src"])))
        start = seen.label_log_probs(view(**seen.inputs)[0])
    change = (seen.label_log_probs(seen.logits) - start)[seen.label]
    assert sum(own) == pytest.approx(float(change), abs=0.02 * abs(float(change)) + 1e-3)
    monkeypatch.setattr(effects, "MOST_WORK", 1.0)
    assert tokens_answer(seen)["integrated_gradients"] is None


@pytest.mark.some(1)
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "value_dim": 3}], ids=["plain", "grouped"])
def test_matrices_are_those_of_the_formula(options):
    user, path = tiny_user(**options), "decoder.blocks.0.cross_attention"
    layer = user.model.get_submodule(path)
    for head, off in ((None, False), (1, True)):
        edits = (EditRequest(kind="off", path=path, head=head),) if off else ()
        seen = tiny_look(user=user, edits=edits)
        answer = matrices_answer(seen, path)
        full = head_matrices(layer).detach().double()
        assert answer["rank"] == torch.linalg.matrix_rank(full, rtol=1e-5).tolist()
        assert answer["norms"] == pytest.approx(torch.linalg.matrix_norm(full).tolist(), rel=1e-5)
        with torch.inference_mode(), recording(user.model, keep=f"{path}.mixed", edits=seen.edits) as record:
            record.model(**seen.inputs)
            added = head_contributions(record[path].mixed, layer.out_proj.weight)[0]
        expected = [[math.sqrt(float(x @ x)) for x in rows] for rows in added]
        for row, wanted in zip(answer["contribution"], expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5)
        assert not off or max(answer["contribution"][1]) == 0.0
    with pytest.raises(AttendoError, match="not an attention layer"):
        matrices_answer(tiny_look(user=user), "decoder.blocks.0")


def test_the_texts_of_the_answers_are_the_tokenizers():
    """Pieces as the tokenizer shows them, texts as it spells them: nothing is escaped on the way."""
    seen = tiny_look(text=PAIRS[0][0])
    found = next_answer(seen, 0, 1)["tokens"][0]
    assert found["piece"] == TOKENIZER.pieces([found["id"]])[0]
    assert found["text"] == TOKENIZER.decode([found["id"]])


@pytest.mark.some(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_json_or_a_plain_sentence(family):
    seen = tiny_look(family, text="rain", edits=(EditRequest(kind="beta", path="*", beta="inf"),))
    path = next(p for p in seen.record if p.endswith("attention"))
    questions = {
        "effects": lambda: effects_answer(seen, path),
        "lens": lambda: lens_answer(seen, path.partition(".")[0]),
        "next": lambda: next_answer(seen, 0, 3),
        "tree": lambda: tree_answer(seen, 2),
        "why": lambda: why_answer(seen, "snow", 2),
        "positions": lambda: positions_answer(seen, "source" if seen.source else "target"),
        "tokens": lambda: tokens_answer(seen),
        "influence": lambda: influence_answer(seen, path.partition(".")[0]),
        "matrices": lambda: matrices_answer(seen, path),
        "attribution": lambda: attribution_answer(seen, 0),
    }
    refused = {}
    for name, ask in questions.items():
        try:
            json.dumps(ask(), allow_nan=False)
        except AttendoError as error:
            refused[name] = str(error)
    without = {
        "classification": {"next", "tree", "why", "attribution"},
        "masked-language-model": {"tree", "why", "tokens", "attribution"},
    }
    assert set(refused) == without.get(family, {"tokens"})
    assert not any("\n" in sentence for sentence in refused.values())
