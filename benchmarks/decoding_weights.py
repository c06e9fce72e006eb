"""attendo's model in the classes of each peer of the decoding benchmarks, with equal weights.

attendo writes a file (`save_weights`). Each peer reads the file in its own environment.
"""

import json
import tempfile

import numpy as np

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
PAD, UNK, BOS, EOS = range(4)
POSITIONS = 1024


def save_weights(model, path):
    """Write a model to a file that every contender can read: sizes, parameters, and a table of positions."""
    import dataclasses

    import torch

    arrays = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    places = torch.arange(POSITIONS)
    positions = model.source_embedding.positions(places, POSITIONS).detach().float().numpy()
    config = json.dumps(dataclasses.asdict(model.config))
    np.savez(path, config=config, positions=positions, **arrays)


def load_weights(path):
    """Return the sizes and the arrays that `save_weights` wrote, both as dictionaries with attendo's names."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    config = json.loads(str(arrays.pop("config")))
    assert config["positions"] in ("sinusoidal", "learned") and config["tie"] == "all"
    return config, arrays


def attendo_model(file):
    """Return attendo's model as it was trained."""
    import torch

    from attendo.models import EncoderDecoder, ModelConfig

    config, arrays = load_weights(file)
    model = EncoderDecoder(ModelConfig(**config))
    model.load_state_dict({name: torch.from_numpy(arrays[name]) for name in model.state_dict()})
    return model.eval()


def ctranslate2_block(layer, path, weights):
    """Copy a block of attendo's model to a layer of CTranslate2."""

    def linear(target, *names):
        target.weight = np.concatenate([weights[f"{path}.{name}.weight"] for name in names])
        target.bias = np.concatenate([weights[f"{path}.{name}.bias"] for name in names])

    def norm(target, name):
        ctranslate2_norm(target, f"{path}.{name}_residual.norm", weights)

    own, cross = layer.self_attention, "cross_attention"
    linear(own.linear[0], *(f"self_attention.{kind}_proj" for kind in "qkv"))
    linear(own.linear[1], "self_attention.out_proj")
    norm(own.layer_norm, "self_attention")
    if path.startswith("decoder"):
        linear(layer.attention.linear[0], f"{cross}.q_proj")
        linear(layer.attention.linear[1], f"{cross}.k_proj", f"{cross}.v_proj")
        linear(layer.attention.linear[2], f"{cross}.out_proj")
        norm(layer.attention.layer_norm, cross)
    linear(layer.ffn.linear_0, "feed_forward.in_proj")
    linear(layer.ffn.linear_1, "feed_forward.out_proj")
    norm(layer.ffn.layer_norm, "feed_forward")


def ctranslate2_norm(target, name, weights):
    """Copy a normalization layer of attendo's model to CTranslate2."""
    target.gamma, target.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def ctranslate2_spec(config, weights, words):
    """Return attendo's weights in the model format of CTranslate2."""
    from ctranslate2.specs import common_spec, transformer_spec

    spec = transformer_spec.TransformerSpec.from_config(
        (config["n_encoder_layers"], config["n_decoder_layers"]),
        config["n_heads"],
        pre_norm=config["norm_first"],
        activation=common_spec.Activation.RELU,
    )
    embeddings = {"encoder": spec.encoder.embeddings[0], "decoder": spec.decoder.embeddings}
    for side, place in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings[side].weight = weights["output_proj.weight"]
        place.scale_embeddings = config["embedding_scale"]
        place.position_encodings.encodings = weights["positions"]
        if config["norm_first"]:
            ctranslate2_norm(place.layer_norm, f"{side}.norm", weights)
        for number, layer in enumerate(place.layer):
            ctranslate2_block(layer, f"{side}.blocks.{number}", weights)
    spec.decoder.projection.weight = weights["output_proj.weight"]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.add_source_eos = False
    spec.config.decoder_start_token = SPECIALS[BOS]
    spec.config.layer_norm_epsilon = config["norm_eps"]
    spec.validate()
    spec.optimize()
    return spec


def ctranslate2_translator(file, form, threads, words=None, device="cpu"):
    """Return a CTranslate2 Translator with attendo's weights, and its vocabulary. `words` are names of the ids."""
    import ctranslate2

    config, weights = load_weights(file)
    numbered = (f"t{number}" for number in range(len(SPECIALS), config["vocab_size"]))
    words = words or [*SPECIALS, *numbered]
    spec = ctranslate2_spec(config, weights, words)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        made = ctranslate2.Translator(folder, device, compute_type=form, intra_threads=threads, inter_threads=1)
    return made, words


def hugging_face_model(file):
    """Return Hugging Face's MarianMTModel with attendo's weights. A pre-norm model is a Pegasus model.

    The code of both classes is equal, except for the place of the normalization layers.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

    config, weights = load_weights(file)
    kind, sizes = (
        (PegasusForConditionalGeneration, PegasusConfig) if config["norm_first"] else (MarianMTModel, MarianConfig)
    )
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (
            ("layers", config[f"n_{side}_layers"]),
            ("ffn_dim", config["d_ff"]),
            ("attention_heads", config["n_heads"]),
        )
    }
    model = kind(
        sizes(
            vocab_size=config["vocab_size"], d_model=config["d_model"], pad_token_id=PAD, eos_token_id=EOS,
            decoder_start_token_id=BOS, forced_eos_token_id=None, activation_function="relu",
            scale_embedding=config["embedding_scale"], max_position_embeddings=POSITIONS, **sides,
        )
    ).eval()  # fmt: skip
    state = model.state_dict()
    for name, tensor in state.items():
        tensor.copy_(torch.from_numpy(hugging_face_array(name, weights, tuple(tensor.shape))))
    model.load_state_dict(state)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config["norm_eps"]
    return model


def hugging_face_array(name, weights, shape):
    """Return attendo's array for a parameter of MarianMTModel or Pegasus."""
    if name == "final_logits_bias":
        return np.zeros(shape, dtype=np.float32)
    if "embed_positions" in name:
        return weights["positions"]
    if name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
        return weights["output_proj.weight"]
    return weights[renamed(name, HUGGING_FACE, "model.")]


HUGGING_FACE = {
    "self_attn_layer_norm": "self_attention_residual.norm",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
    "final_layer_norm": "feed_forward_residual.norm",
    "self_attn": "self_attention",
    "encoder_attn": "cross_attention",
    "fc1": "feed_forward.in_proj",
    "fc2": "feed_forward.out_proj",
    "layers": "blocks",
    "layer_norm": "norm",
}
JOEY = {
    "src_src_att": "self_attention",
    "trg_trg_att": "self_attention",
    "src_trg_att": "cross_attention",
    "k_layer": "k_proj",
    "v_layer": "v_proj",
    "q_layer": "q_proj",
    "output_layer": "out_proj",
    "feed_forward.layer_norm": "feed_forward_residual.norm",
    "pwff_layer.0": "in_proj",
    "pwff_layer.3": "out_proj",
    "x_layer_norm": "self_attention_residual.norm",
    "dec_layer_norm": "cross_attention_residual.norm",
    "layers": "blocks",
}


def renamed(name, words, prefix=""):
    """Return attendo's name of a parameter. The table renames each part of the path, or two parts, longest match first.

    >>> renamed("model.decoder.layers.2.encoder_attn.k_proj.bias", HUGGING_FACE, "model.")
    'decoder.blocks.2.cross_attention.k_proj.bias'
    """
    path = f".{name.removeprefix(prefix)}."
    for theirs in sorted(words, key=len, reverse=True):
        path = path.replace(f".{theirs}.", f".{words[theirs]}.", 1)
    return path.strip(".")


def joey_model(file):
    """Return JoeyNMT's model with attendo's weights, and a mapping from attendo's ids to JoeyNMT's ids.

    In JoeyNMT, the unknown token has id 0 and padding has id 1.
    """
    from types import SimpleNamespace

    import torch
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    config, weights = load_weights(file)
    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = Vocabulary([f"w{number}" for number in range(4, config["vocab_size"])], special)
    parts = {
        side: {
            "type": "transformer",
            "num_layers": config[f"n_{side}_layers"],
            "num_heads": config["n_heads"],
            "embeddings": {"embedding_dim": config["d_model"], "scale": config["embedding_scale"]},
            "hidden_size": config["d_model"],
            "ff_size": config["d_ff"],
            "dropout": 0.0,
            "layer_norm": "pre" if config["norm_first"] else "post",
        }
        for side in ("encoder", "decoder")
    }
    model = build_model(
        {**parts, "tied_embeddings": True, "tied_softmax": True}, src_vocab=words, trg_vocab=words
    ).eval()
    swapped = np.arange(config["vocab_size"])
    swapped[[PAD, UNK]] = UNK, PAD
    state = model.state_dict()
    for name, tensor in state.items():
        tensor.copy_(torch.from_numpy(joey_array(name, weights, swapped, tuple(tensor.shape))))
    model.load_state_dict(state)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config["norm_eps"]
    return model, swapped


def joey_array(name, weights, swapped, shape):
    """Return attendo's array for a parameter of JoeyNMT's model."""
    if name.endswith(".pe"):
        table = np.zeros(shape, dtype=np.float32)
        table[:, : len(weights["positions"])] = weights["positions"]
        return table
    if "lut" in name or name == "decoder.output_layer.weight":
        return weights["output_proj.weight"][swapped]
    place = name.split(".")
    if (
        place[-2] == "layer_norm" and "feed_forward" not in name
    ):  # the last norm of a stack, or the first norm of an encoder block
        own = "norm" if len(place) == 3 else f"blocks.{place[2]}.self_attention_residual.norm"
        return weights[f"{place[0]}.{own}.{place[-1]}"]
    return weights[renamed(name, JOEY)]
