"""Activation patching and direct logit attribution of attendo and TransformerLens on the same GPT-2 model.

    python benchmarks/interpretability.py --peer-python PYTHON [--size small|gpt2] [--tokens N]

PYTHON belongs to an environment with TransformerLens: `python -m venv peer && peer/bin/pip install transformer_lens`.
The benchmark builds a random model of GPT-2's architecture and writes it in Hugging Face's format. attendo imports the
files. TransformerLens loads them without changes of the weights for patching, and with folded LayerNorm weights for the
attribution. Both programs patch the activations of a clean text into a run of a corrupted text with other tokens at two
positions. The table contains the largest difference of a logit difference. Nothing is downloaded.
"""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from turns import asked, clock, contenders, orders, shared_options, store, tell

SIZES = {
    "small": {"n_embd": 64, "n_head": 4, "n_layer": 4, "vocab_size": 512},
    "gpt2": {"n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257},
}
PATCHES = {
    "residual stream by position": ("resid_post", "", "output"),
    "attention output by position": ("attn_out", "self_attention", "output"),
    "feed-forward output by position": ("mlp_out", "feed_forward", "output"),
    "head outputs": ("z", "self_attention", "mixed"),
}
"""The activation in TransformerLens, and the layer and the part in attendo."""


def lens(folder):
    """Answer the request of the benchmark with TransformerLens."""
    import torch

    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.stdout = sys.stderr  # the standard output is the channel to the comparing process
    from tokenizers import Tokenizer, models
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))  # required, but texts are token ids
    special = {"bos_token": "b", "eos_token": "b", "pad_token": "b"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)

    def model_of(dtype):
        theirs = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
        return TransformerBridge.boot_transformers(str(folder), hf_model=theirs, device="cpu", dtype=dtype)

    tell({"versions": {name: version(name) for name in ("transformer_lens", "transformers", "torch")}})
    for order in orders():
        clean, corrupted = (torch.tensor([order[name]]) for name in ("clean", "corrupted"))
        dtype, (token, other) = getattr(torch, order["dtype"]), order["tokens"]

        def metric(logits, token=token, other=other):
            return logits[0, -1, token] - logits[0, -1, other]

        _, now = clock(1)
        with torch.no_grad():
            model = model_of(dtype)
            before, (logits, cache) = metric(model(corrupted)), model.run_with_cache(clean)
            found, began = {"metrics": [float(metric(logits)), float(before)]}, now()
            for name, (activation, _, part) in PATCHES.items():
                setter = patching.layer_head_vector_patch_setter
                axes = "layer", "head" if part == "mixed" else "pos"
                patched = patching.generic_activation_patch(
                    model,
                    corrupted,
                    cache,
                    metric,
                    setter if part == "mixed" else patching.layer_pos_patch_setter,
                    activation,
                    axes,
                )
                found[name] = (patched - before).tolist()
            found["seconds"] = now() - began
            model = model_of(dtype)
            model.enable_compatibility_mode(center_writing_weights=False, center_unembed=False, fold_value_biases=False)
            _, cache = model.run_with_cache(clean)
            heads = cache.stack_head_results(pos_slice=-1)
            rest, labels = cache.decompose_resid(mode="mlp", pos_slice=-1, return_labels=True)
            shares = [
                cache.logit_attrs(stack, torch.tensor(token), torch.tensor(other), pos_slice=-1)[:, 0]
                for stack in (heads, rest)
            ]
            found["heads"] = shares[0].tolist()
            found["rest"] = dict(zip(labels, shares[1].tolist(), strict=True))
        tell(found)


def ours(folder, order):
    """Return the same numbers of attendo."""
    import torch

    from attendo.inspecting import logit_attribution, logit_difference, patching_effects
    from attendo.interop.huggingface.model_files import read_model

    model = read_model(folder).to(getattr(torch, order["dtype"]))
    inputs = [{"token_ids": torch.tensor([order[name]])} for name in ("clean", "corrupted")]
    token, other = order["tokens"]
    _, now = clock(1)
    found, began = {}, now()
    for name, (_, layer, part) in PATCHES.items():
        effects = patching_effects(model, *inputs, logit_difference(token, other), layer=layer, part=part)
        found[name] = effects.effects.tolist()
    found["seconds"] = now() - began
    found["metrics"] = [effects.clean, effects.corrupted]
    parts = logit_attribution(model, inputs[0], token, other)
    found["heads"] = [part.value for part in parts if part.head is not None]
    found["rest"] = {
        f"{part.path.split('.')[2]}_mlp_out": part.value for part in parts if part.path.endswith("feed_forward")
    } | {"embedding": parts[0].value}
    found["sum_error"] = abs(sum(part.value for part in parts) - effects.clean)
    return found


def apart(mine, theirs):
    """Return the largest difference of numbers in lists of equal shapes."""
    if isinstance(mine, list):
        return max(apart(*pair) for pair in zip(mine, theirs, strict=True))
    return abs(mine - theirs)


def compare(options, folder, dtype, peer):
    """Return the largest difference of each measurement in a precision."""
    import torch

    vocab_size = SIZES[options.size]["vocab_size"]
    clean, *others = torch.randint(
        0, vocab_size, (2, options.tokens), generator=torch.Generator().manual_seed(0)
    ).tolist()
    corrupted = list(clean)
    for at in (1, options.tokens // 2):
        corrupted[at] = others[0][at]
    order = {"dtype": dtype, "clean": clean, "corrupted": corrupted, "tokens": [3, 7]}
    theirs, mine = asked("transformer_lens", peer, order), ours(folder, order)
    found = {name: apart(mine[name], theirs[name]) for name in ("metrics", *PATCHES)}
    found["attribution of heads"] = apart(mine["heads"], theirs["heads"])
    embedding = theirs["rest"].pop("embed") + theirs["rest"].pop("pos_embed")
    rest = theirs["rest"] | {"embedding": embedding}
    found["attribution of other components"] = max(apart(mine["rest"][name], rest[name]) for name in mine["rest"])
    largest = max(abs(x) for rows in (mine["residual stream by position"],) for row in rows for x in row)
    seconds = {"attendo": mine["seconds"], "transformer_lens": theirs["seconds"]}
    return {
        "largest_difference": found,
        "sum_of_attribution_minus_logit": mine["sum_error"],
        "largest_effect": largest,
        "cpu_seconds_of_patching": seconds,
    }


def main():
    """Compare both programs, and print and store the differences."""
    parser = shared_options(__doc__, rounds=1)
    parser.add_argument("--peer-python", help="python of an environment with transformer_lens")
    parser.add_argument("--size", choices=SIZES, default="small", help="size of the model (default: small)")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of the text (default: 12)")
    options = parser.parse_args()
    if options.work:
        lens(options.file)
        return
    if not options.peer_python:
        parser.error("give --peer-python, the python of an environment with transformer_lens")
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_positions=64, bos_token_id=0, eos_token_id=0, **SIZES[options.size])
        )
        for parameter in model.parameters():
            parameter.data += 1.6 * SIZES[options.size]["n_embd"] ** -0.5 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        peer = {"transformer_lens": [options.peer_python, __file__, "--work", "lens", "--file", folder]}
        with contenders(peer, 1) as (workers, facts):
            rows = {
                dtype: compare(options, Path(folder), dtype, workers["transformer_lens"])
                for dtype in ("float32", "float64")
            }
    result = {
        "versions": facts["transformer_lens"]["versions"],
        "size": options.size,
        "tokens": options.tokens,
    }
    store("interpretability", result | {"precision": rows}, options.out)


if __name__ == "__main__":
    main()
