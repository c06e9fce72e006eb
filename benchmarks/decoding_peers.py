"""The contenders of the decoding benchmarks: attendo and the peers, all with attendo's weights.

Each `..._search` returns a function (rows, beam, least, most) → generated token ids without the end. The rows are
sources as lists of ids with the end id. A generated text has `least` to `most` tokens. If both numbers are equal, the
end is forbidden, so every text has exactly this length. `decoding_weights.save_weights` writes the model files.
"""

import numpy as np
from decoding_weights import (
    BOS,
    EOS,
    PAD,
    attendo_model,
    ctranslate2_translator,
    hugging_face_model,
    joey_model,
)

ALPHA = 0.6
PACKAGES = {
    "attendo": ["torch"],
    "ctranslate2": ["ctranslate2"],
    "marian": ["torch", "transformers"],
    "joeynmt": ["torch", "joeynmt"],
}


def peer_of(name):
    """Return the peer and the number format of a name: "int8" for "ctranslate2-int8", none for "marian"."""
    peer, _, form = name.partition("-")
    return peer, form


def pythons(options, mine):
    """Return the Python executable of each peer, and this Python for attendo. Peers without a Python are left out."""
    found = {
        "attendo": mine,
        "ctranslate2": options.peer_python,
        "marian": options.peer_python,
        "joeynmt": options.joey_python,
    }
    return {peer: python for peer, python in found.items() if python}


def search_of(name, file, threads):
    """Return the search function of the contender with this name."""
    peer, form = peer_of(name)
    if "torch" in PACKAGES[peer]:
        import torch

        torch.set_num_threads(threads)
    match peer:
        case "attendo":
            return attendo_search(file, form)
        case "ctranslate2":
            return ctranslate2_search(file, form, threads)
        case "marian":
            return marian_search(file)
        case "joeynmt":
            return joey_search(file)
        case _:
            raise SystemExit(f"no contender is named {name}; there are {', '.join(PACKAGES)}")


def padded(rows):
    """Return the ids with padding at the end, and a mask of the real ids, as tensors."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
    return ids, torch.arange(longest) < torch.tensor([[len(row)] for row in rows])


def attendo_search(file, form, device="cpu"):
    """Return attendo's search. `form` is "plain" (the model as trained), or "float32" or "int8" (prepared).

    On a GPU, a prepared model computes in bfloat16.
    """
    import torch

    from attendo.decoding.backends import best_backend, eager_backend
    from attendo.decoding.beam import DecodingConfig, beam_search
    from attendo.decoding.options import SpecialIds

    model = attendo_model(file).to(device)
    member = (
        eager_backend(model, PAD) if form == "plain" else best_backend(model, PAD, bits=8 if form == "int8" else 32)
    )
    special = SpecialIds(bos_id=BOS, eos_id=EOS, banned_ids=(PAD, BOS))

    def forced(token_ids, cache):
        logits = member.step(token_ids, cache)
        logits[:, EOS] = -torch.inf
        return logits

    def search(rows, beam, least, most):
        config = DecodingConfig(beam=beam, length_penalty=ALPHA, length_norm="plain")
        step = forced if least == most else member.step
        with torch.inference_mode():
            cache = member.start(rows, beam, most)
            found = beam_search(step, cache, [most] * len(rows), config, special, device, top_k_fn=member.top_k_fn)
        return [list(hypotheses[0].token_ids) for hypotheses in found]

    return search


def ctranslate2_search(file, form, threads, device="cpu"):
    """Return CTranslate2's search. `form` is its compute type."""
    translator, words = ctranslate2_translator(file, form, threads, device=device)
    ids = {word: number for number, word in enumerate(words)}

    def search(rows, beam, least, most):
        found = translator.translate_batch(
            [[words[i] for i in row] for row in rows],
            beam_size=beam,
            length_penalty=ALPHA,
            min_decoding_length=least,
            max_decoding_length=most,
        )
        return [[ids[word] for word in result.hypotheses[0]] for result in found]

    return search


def marian_search(file):
    """Return the search with Hugging Face's `generate`."""
    import torch

    model = hugging_face_model(file)

    def search(rows, beam, least, most):
        src, real = padded(rows)
        with torch.inference_mode():
            found = model.generate(
                src,
                attention_mask=real.long(),
                do_sample=False,
                min_new_tokens=least or None,
                max_new_tokens=most,
                **({"num_beams": beam, "length_penalty": ALPHA} if beam > 1 else {}),
            )
        return [[i for i in row[1:].tolist() if i not in (PAD, EOS)] for row in found]

    return search


def joey_search(file):
    """Return the search with JoeyNMT's `greedy` or `beam_search`. The encoder output of the last rows is cached."""
    import torch
    from joeynmt.search import beam_search, greedy

    model, swapped = joey_model(file)
    kept = {}

    def encoded(rows):
        if kept.get("rows") is not rows:
            src, real = padded(rows)
            src = torch.from_numpy(swapped)[src]
            mask = real[:, None]
            with torch.inference_mode():
                output, _, _, _ = model(return_type="encode", src=src, src_length=real.sum(1), src_mask=mask)
            kept.update(rows=rows, state=(mask, output))
        return kept["state"]

    def search(rows, beam, least, most):
        mask, output = encoded(rows)
        given = {
            "src_mask": mask,
            "model": model,
            "encoder_output": output,
            "encoder_hidden": None,
            "max_output_length": most,
            "min_output_length": least,
        }
        with torch.inference_mode():
            found, _, _ = greedy(**given) if beam == 1 else beam_search(**given, beam_size=beam, alpha=ALPHA)
        texts = swapped[np.asarray(found).astype(np.int64)].tolist()
        return [row[: row.index(EOS)] if EOS in row else row for row in texts]

    return search
