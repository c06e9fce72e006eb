"""Layers whose numbers are many: a page takes those of the open head alone, from a program or from its file."""

import numpy as np
import pytest
from browser_looking import Looking, address_of
from looked_models import looked_model, text_of

from attendo.inspecting.residual_stream import value_norms
from attendo.microscope.look_page import saved_page
from attendo.microscope.protocol import LookRequest
from attendo.microscope.session import Session
from attendo.nn.attention import Attention

N_HEADS, N_SHARED = 8, 2


@pytest.fixture(scope="module")
def session(tokenizer):
    """A language model whose heads share keys, of one wide layer; each layer has more than 1 MB at 400 tokens."""
    shape = {"d_model": 512, "n_heads": N_HEADS, "n_kv_heads": N_SHARED, "positions": "alibi"}
    return Session(looked_model("language-model", tokenizer, scale=0.05, n_decoder_layers=1, **shape))


@pytest.mark.full
@pytest.mark.parametrize("live", [True, False])
def test_the_open_head_alone_is_asked_for(visit, served, session, tokenizer, tmp_path, live):
    text = text_of(tokenizer, 400)
    if live:
        visited = visit(address_of(served(session), text=text, max_tokens=0))
    else:
        path = tmp_path / "page.html"
        path.write_text(saved_page(session, LookRequest(text=text, max_tokens=0)), encoding="utf-8")
        visited = visit(path.as_uri())
    at = Looking(visited, session)
    (path,) = at.js("app.look.stacks.flatMap(stack => stack.layers.map(layer => layer.path))")
    seen = at.seen()
    attention = seen.model.get_submodule(path)
    assert isinstance(attention, Attention)
    norms = value_norms(attention, seen.record[path].value)[0].tolist()
    weights = seen.record[path].weights[0]
    n = weights.shape[-1]
    for head, row in ((0, 9), (3, 150), (7, n - 2)):
        at.page.click(f'.head[data-head="{head}"]')
        at.until(f"app.numbersNow('{path}') && app.state.get('head') === {head}")
        shown, key = weights[head, row].numpy(), int(weights[head, row].argmax())
        at_row = f"subarray({row * n}, {(row + 1) * n})]"
        assert np.allclose(at.js(f"[...app.numbersNow('{path}').weights({head}).{at_row}"), shown, atol=1e-5)
        scores = np.array(at.js(f"[...app.numbersNow('{path}').scores({head}).{at_row}"))
        powers = np.exp(scores[: row + 1] - scores[: row + 1].max())
        assert np.allclose(powers / powers.sum(), shown[: row + 1], atol=1e-5)
        assert len(set(scores[row + 1 :])) > 0.9 * (n - row - 2)  # behind the mask they have scores, too
        assert np.isclose(at.js(f"app.numbersNow('{path}').valueNorm({head}, {key})"), norms[head][key], rtol=1e-4)
        value = at.js(f"[...app.numbersNow('{path}').value({head}, {key})]")
        assert np.allclose(value, seen.record[path].value[0, head * N_SHARED // N_HEADS, key], atol=1e-5)
    visited.check()
