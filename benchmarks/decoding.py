"""Decoding speed: attendo's prepared model beside CTranslate2 and Hugging Face, the same sizes, sources and lengths.

    python benchmarks/decoding.py --peer-python PATH [--size small|base] [--threads 1] [--rounds 7]

The peer's python has ctranslate2, transformers and torch. A random model (a vocabulary of 8,000, 20 source tokens, 24
forced steps: the end is forbidden) is run on 1, 8 and 64 sources, greedily and with 4 beams. What is timed is a search
of 24 steps less one of 1 step, so that the encoder is outside of the clock; the tokenizer is not asked. A round gives
each contender the same case, one contender after the other; the result is the median over the rounds of each ratio of
output tokens per CPU second.

attendo and CTranslate2 have the same weights, and how many of the texts they find are equal is counted. Hugging
Face's `MarianMTModel` has the same sizes and weights of its own.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from turns import asked, contenders, orders, ratios, store, tell

SIZES = {
    "small": {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4},
    "base": {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8},
}
VOCABULARY, SOURCE_TOKENS, STEPS, ALPHA = 8000, 20, 24, 0.6
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNK, BOS, EOS = range(4)
CASES = [(sources, beam) for sources in (1, 8, 64) for beam in (1, 4)]
REPEATS = {1: 6, 8: 3, 64: 1}


def attendo_model(size):
    """attendo's model of a size, its weights drawn anew but alike each time."""
    import torch

    from attendo.models import EncoderDecoder, ModelConfig

    torch.manual_seed(1)
    numbers = SIZES[size]
    config = ModelConfig(
        vocab_size=VOCABULARY,
        d_model=numbers["d_model"],
        d_ff=numbers["d_ff"],
        n_heads=numbers["heads"],
        n_encoder_layers=numbers["layers"],
        n_decoder_layers=numbers["layers"],
    )
    return EncoderDecoder(config).eval()


def attendo_search(size, file, form):
    """A search by attendo: form is "plain" (as trained), "float32" (prepared) or "int8"."""
    import torch

    from attendo.decoding.beam import DecodingConfig, beam_search
    from attendo.decoding.prepare import prepared
    from attendo.decoding.step import SpecialIds

    model = attendo_model(size)
    model = model if form == "plain" else prepared(model, int8=form == "int8")
    src = torch.from_numpy(np.load(file)["src"])
    special = SpecialIds(bos_id=BOS, eos_id=EOS, never=(PAD, BOS))

    def step(token_ids, cache):
        logits = model.step(token_ids, cache)[:, -1]
        logits[:, EOS] = -torch.inf
        return logits

    def search(sources, beam, steps):
        config = DecodingConfig(beam=beam, length_penalty=ALPHA)
        with torch.inference_mode():
            cache = model.start(src[:sources], None, beam, steps)
            found = beam_search(step, cache, [steps] * sources, config, special)
        return [list(hypotheses[0].token_ids) for hypotheses in found]

    return search


def ctranslate2_search(size, file, form, threads):
    """A search by CTranslate2 with attendo's weights, converted here."""
    import ctranslate2
    from ctranslate2.specs import common_spec, transformer_spec

    numbers, weights = SIZES[size], np.load(file)
    layers = numbers["layers"]
    spec = transformer_spec.TransformerSpec.from_config(
        (layers, layers), numbers["heads"], pre_norm=False, activation=common_spec.Activation.RELU
    )

    def linear(target, *names):
        target.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        target.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def norm(target, name):
        target.gamma, target.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    embeddings = {"encoder": spec.encoder.embeddings[0], "decoder": spec.decoder.embeddings}
    for side, place in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings[side].weight = weights["output_proj.weight"]
        place.scale_embeddings = True
        place.position_encodings.encodings = weights["positions"]
        for number, layer in enumerate(place.layer):
            path = f"{side}.blocks.{number}"
            own = f"{path}.self_attention"
            linear(layer.self_attention.linear[0], f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj")
            linear(layer.self_attention.linear[1], f"{own}.out_proj")
            norm(layer.self_attention.layer_norm, f"{own}_residual.norm")
            if side == "decoder":
                cross = f"{path}.cross_attention"
                linear(layer.attention.linear[0], f"{cross}.q_proj")
                linear(layer.attention.linear[1], f"{cross}.k_proj", f"{cross}.v_proj")
                linear(layer.attention.linear[2], f"{cross}.out_proj")
                norm(layer.attention.layer_norm, f"{cross}_residual.norm")
            linear(layer.ffn.linear_0, f"{path}.feed_forward.in_proj")
            linear(layer.ffn.linear_1, f"{path}.feed_forward.out_proj")
            norm(layer.ffn.layer_norm, f"{path}.feed_forward_residual.norm")
    spec.decoder.projection.weight = weights["output_proj.weight"]
    words = [*SPECIALS, *(f"t{number}" for number in range(len(SPECIALS), VOCABULARY))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.add_source_eos = False
    spec.config.decoder_start_token = SPECIALS[BOS]
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(folder, compute_type=form, intra_threads=threads, inter_threads=1)
    ids = {word: number for number, word in enumerate(words)}
    texts = [[words[i] for i in row] for row in weights["src"]]

    def search(sources, beam, steps):
        found = translator.translate_batch(
            texts[:sources],
            beam_size=beam,
            length_penalty=ALPHA,
            min_decoding_length=steps,
            max_decoding_length=steps,
        )
        return [[ids[word] for word in result.hypotheses[0]] for result in found]

    return search


def marian_search(size, file, threads):
    """A search by Hugging Face's generate, a MarianMTModel of the same sizes."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(1)
    numbers = SIZES[size]
    sides = {
        f"{side}_{key}": numbers[ours]
        for side in ("encoder", "decoder")
        for key, ours in (("layers", "layers"), ("ffn_dim", "d_ff"), ("attention_heads", "heads"))
    }
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=numbers["d_model"], pad_token_id=PAD, eos_token_id=EOS,
        decoder_start_token_id=BOS, forced_eos_token_id=None, activation_function="relu",
        scale_embedding=True, **sides,
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    src = torch.from_numpy(np.load(file)["src"])

    def search(sources, beam, steps):
        with torch.inference_mode():
            found = model.generate(
                src[:sources],
                attention_mask=torch.ones_like(src[:sources]),
                num_beams=beam,
                do_sample=False,
                length_penalty=ALPHA,
                min_new_tokens=steps,
                max_new_tokens=steps,
            )
        return [row[1:].tolist() for row in found]

    return search


def work(options):
    """A contender: answers each order [sources, beam, repeats] with CPU seconds of 24 steps and what was found."""
    peer, _, form = options.work.partition("-")
    packages = {"attendo": ["torch"], "ctranslate2": ["ctranslate2"], "marian": ["torch", "transformers"]}
    if "torch" in packages[peer]:
        import torch

        torch.set_num_threads(options.threads)
    match peer:
        case "attendo":
            search = attendo_search(options.size, options.file, form)
        case "ctranslate2":
            search = ctranslate2_search(options.size, options.file, form, options.threads)
        case _:
            search = marian_search(options.size, options.file, options.threads)
    tell({"versions": {package: version(package) for package in packages[peer]}})
    for sources, beam, repeats in orders():
        spent = {
            steps: min(seconds(search, sources, beam, steps) for _ in range(repeats))
            for steps in (1, 1 + STEPS)
        }
        found = search(sources, beam, STEPS)
        tell({"seconds": spent[1 + STEPS] - spent[1], "found": found})


def seconds(search, *case):
    """CPU seconds of one search, all threads."""
    began = time.process_time()
    search(*case)
    return time.process_time() - began


def weights_file(size, folder):
    """attendo's weights, positions and the sources as a file that every contender reads."""
    import torch

    model = attendo_model(size)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    places = torch.arange(SOURCE_TOKENS + STEPS + 10)
    positions = model.source_embedding.positions(places, len(places)).detach().numpy()
    src = np.random.default_rng(1).integers(len(SPECIALS) + 1, VOCABULARY, (64, SOURCE_TOKENS))
    src[:, -1] = EOS
    path = Path(folder) / "model.npz"
    np.savez(path, src=src, positions=positions, **arrays)
    return path


def compare(options, names):
    """All contenders in turns: their versions; tokens per CPU second and equal texts, by case and name."""
    speeds = {case: {name: [] for name in names} for case in CASES}
    equal = {case: {} for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        rest = [
            "--file",
            weights_file(options.size, folder),
            "--size",
            options.size,
            "--threads",
            options.threads,
        ]
        commands = {
            name: [
                sys.executable if name.startswith("attendo") else options.peer_python,
                __file__,
                "--work",
                name,
                *rest,
            ]
            for name in names
        }
        with contenders(commands, options.threads) as (workers, facts):
            for sources, beam in CASES:
                case, tokens = (sources, beam), sources * STEPS
                for number in range(options.rounds + 1):
                    found = {
                        name: asked(name, worker, [*case, REPEATS[sources]])
                        for name, worker in workers.items()
                    }
                    if number:  # the first round warms up
                        for name, answer in found.items():
                            speeds[case][name].append(tokens / answer["seconds"])
                for name, answer in found.items():
                    pairs = zip(answer["found"], found["ctranslate2-float32"]["found"], strict=True)
                    equal[case][name] = sum(a == b for a, b in pairs)
                shown = {name: round(statistics.median(values)) for name, values in speeds[case].items()}
                print(f"{sources} sources, beam {beam}: {shown}", file=sys.stderr)
    return facts, speeds, equal


def main():
    """Reads the options, compares, prints and stores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer-python", help="python of an environment with ctranslate2, transformers, torch"
    )
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="file of results; a new one under results/ unless given")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        with contextlib.redirect_stdout(sys.stderr):
            work(options)
        return
    if options.peer_python is None or options.rounds < 2:
        parser.error("give --peer-python, which has ctranslate2 and transformers, and --rounds 2 or more")
    mine = ["attendo-plain", "attendo-float32", "attendo-int8"]
    peers = {"ctranslate2-float32": mine[:2], "ctranslate2-int8": mine[2:], "marian": mine[:2]}
    facts, speeds, equal = compare(options, [*mine, *peers])
    result = {
        "versions": {name: fact["versions"] for name, fact in facts.items()},
        "threads": options.threads,
        "rounds": options.rounds,
        "sizes": SIZES[options.size]
        | {"vocabulary": VOCABULARY, "source_tokens": SOURCE_TOKENS, "steps": STEPS},
        "cases": {
            f"{sources} sources, beam {beam}": {
                "tokens_per_cpu_second": {
                    name: round(statistics.median(values)) for name, values in found.items()
                },
                "ratio_quartiles": {
                    f"{name} / {peer}": ratios(found[name], found[peer])
                    for peer, names in peers.items()
                    for name in names
                },
                "texts_as_ctranslate2_float32": equal[sources, beam],
            }
            for (sources, beam), found in speeds.items()
        },
    }
    store("decoding", result, options.out)


if __name__ == "__main__":
    main()
