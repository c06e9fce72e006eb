"""Activation patching and direct logit attribution of an imported GPT-2, against hooks on the model of `transformers`.

`benchmarks/interpretability.py` compares the same numbers with TransformerLens.
"""

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

from attendo.inspecting import logit_attribution, logit_difference, patching_effects  # noqa: E402
from attendo.interop.huggingface.model_files import read_model  # noqa: E402

CLEAN, CORRUPTED = torch.tensor([[3, 5, 8, 2, 9]]), torch.tensor([[3, 7, 8, 1, 9]])
N_HEADS, TOKEN, OTHER = 4, 6, 2


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 16, "n_head": N_HEADS, "n_layer": 3}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    theirs.save_pretrained(folder)
    return read_model(folder)


def patched(model, places, change):
    """The effect of each change of the inputs or outputs of modules, by module and number."""
    kept = []

    def keep(module, given, output=None):
        kept.append((given[0] if output is None else output[0] if isinstance(output, tuple) else output).clone())

    def run(ids, place, hook):
        module, before = place
        handle = (module.register_forward_pre_hook if before else module.register_forward_hook)(hook)
        logits = model(ids).logits[0, -1]
        handle.remove()
        return float(logits[TOKEN] - logits[OTHER])

    with torch.no_grad():
        for place in places:
            run(CLEAN, place, keep)
        plain = run(CORRUPTED, places[0], lambda *given: None)
        return torch.tensor(
            [
                [run(CORRUPTED, place, change(clean, n)) - plain for n in range(N_HEADS if place[1] else 5)]
                for place, clean in zip(places, kept, strict=True)
            ]
        )


def put_position(clean, n):
    def hook(module, given, output):
        found = (output[0] if isinstance(output, tuple) else output).clone()
        found[:, n] = clean[:, n]
        return (found, *output[1:]) if isinstance(output, tuple) else found

    return hook


def put_head(clean, n):
    def hook(module, given):
        found = given[0].clone().unflatten(-1, (N_HEADS, -1))
        found[:, :, n] = clean.unflatten(-1, (N_HEADS, -1))[:, :, n]
        return (found.flatten(2), *given[1:])

    return hook


@pytest.mark.parametrize("kind", ["residual", "self_attention", "feed_forward", "heads"])
def test_patching_is_that_of_hooks(theirs, ours, kind):
    blocks = theirs.transformer.h
    places, change, options = {
        "residual": ([(block, False) for block in blocks], put_position, {}),
        "self_attention": ([(block.attn, False) for block in blocks], put_position, {"layer": kind}),
        "feed_forward": ([(block.mlp, False) for block in blocks], put_position, {"layer": kind}),
        "heads": (
            [(block.attn.c_proj, True) for block in blocks],
            put_head,
            {"layer": "self_attention", "part": "mixed"},
        ),
    }[kind]
    metric, inputs = logit_difference(TOKEN, OTHER), ({"token_ids": CLEAN}, {"token_ids": CORRUPTED})
    found = patching_effects(ours, *inputs, metric, **options).effects
    wanted = patched(theirs, places, change)
    assert wanted.abs().max() > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_direct_logit_attribution_is_the_last_norm_of_each_output(theirs, ours):
    outputs = {}
    handles = [
        module.register_forward_hook(lambda m, given, output, name=name: outputs.update({name: (given, output)}))
        for name, module in theirs.named_modules()
    ]
    with torch.no_grad():
        theirs(CLEAN)
    for handle in handles:
        handle.remove()
    last, norm = outputs["transformer.ln_f"][0][0][0, -1], theirs.transformer.ln_f
    direction = (norm.weight * (theirs.lm_head.weight[TOKEN] - theirs.lm_head.weight[OTHER])).detach()
    scale = (last.var(unbiased=False) + norm.eps) ** -0.5
    parts = logit_attribution(ours, {"token_ids": CLEAN}, TOKEN, OTHER)
    for n, block in enumerate(theirs.transformer.h):
        mixed = outputs[f"transformer.h.{n}.attn.c_proj"][0][0][0, -1].view(N_HEADS, -1)
        heads = torch.einsum("hv,hvd->hd", mixed, block.attn.c_proj.weight.detach().view(N_HEADS, -1, 16))
        feed_forward = outputs[f"transformer.h.{n}.mlp"][1][0, -1]
        for vector, path, head in [
            *((vector, "self_attention", head) for head, vector in enumerate(heads)),
            (feed_forward, "feed_forward", None),
        ]:
            wanted = float((vector - vector.mean()) @ direction * scale)
            (found,) = [part.value for part in parts if (part.path, part.head) == (f"decoder.blocks.{n}.{path}", head)]
            assert found == pytest.approx(wanted, abs=1e-5)
