"""Models that `transformers` made, read: the same logits, states of a cache and texts; and written again.

The oracle is run in float64 throughout for the strict comparison: `transformers` rounds norms, softmax and rotary
angles to float32 whatever the model's type, which `unrounded` undoes.
"""

import contextlib
import os
import random
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from example_counts import examples

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers")

from attendo.decoding.backends import best_backend, best_decoder  # noqa: E402
from attendo.decoding.beam import beam_search  # noqa: E402
from attendo.decoding.native.compiled import CompiledModel  # noqa: E402
from attendo.decoding.native.library import NoLibrary  # noqa: E402
from attendo.decoding.options import DecodingConfig, SpecialIds  # noqa: E402
from attendo.errors import AttendoError  # noqa: E402
from attendo.interop.huggingface.model_files import config_of, read_model, write_model  # noqa: E402
from attendo.interop.huggingface.options import NoRope, RotaryBase, Windows  # noqa: E402
from attendo.model_config import ModelConfig  # noqa: E402
from attendo.nn.masks import Mask  # noqa: E402

transformers.utils.logging.disable_progress_bar()
VOCAB, PAD, EOS, BEGIN, MAX_LEN = 23, 1, 2, 0, 40
ENDS = {"bos_token_id": BEGIN, "eos_token_id": EOS, "pad_token_id": PAD}
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")


def sizes(draw, d_model="hidden_size", heads="num_attention_heads", d_ff="intermediate_size"):
    n_heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": VOCAB,
        d_model: n_heads * draw.choice([4, 6]),
        heads: n_heads,
        d_ff: draw.choice([8, 20]),
    }


def without(found, *names):
    return {name: value for name, value in found.items() if name not in names}


def bert(draw):
    return sizes(draw) | {
        "num_hidden_layers": draw.choice([1, 2]),
        "hidden_act": draw.choice(ACTIVATIONS),
        "max_position_embeddings": MAX_LEN,
        "layer_norm_eps": draw.choice([1e-12, 1e-3]),
        "type_vocab_size": draw.choice([1, 2]),
        "pad_token_id": PAD,
        "num_labels": draw.choice([2, 3]),
    }


def roberta(draw):
    return bert(draw) | {"hidden_act": "gelu"}


def distilbert(draw):
    return sizes(draw, "dim", "n_heads", "hidden_dim") | {
        "n_layers": draw.choice([1, 2]),
        "activation": draw.choice(["relu", "gelu"]),
        "max_position_embeddings": MAX_LEN,
        "sinusoidal_pos_embds": draw.choice([True, False]),
        "pad_token_id": PAD,
        "num_labels": draw.choice([2, 3]),
    }


def gpt2(draw):
    return (
        sizes(draw, "n_embd", "n_head", "n_inner")
        | {
            "n_layer": draw.choice([1, 2]),
            "n_positions": MAX_LEN,
            "activation_function": draw.choice(ACTIVATIONS),
            "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
            "tie_word_embeddings": draw.choice([True, False]),
            **ENDS,
        }
        | draw.choice([{}, {"n_inner": None}])
    )


def llama(draw):
    found = sizes(draw) | {
        "num_hidden_layers": draw.choice([1, 2]),
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": draw.choice([1e-6, 1e-3]),
        "hidden_act": draw.choice(["silu", "gelu"]),
        "tie_word_embeddings": draw.choice([True, False]),
        "rope_parameters": {"rope_theta": draw.choice([100.0, 10000.0]), "rope_type": "default"},
        "attention_bias": draw.choice([True, False]),
        "mlp_bias": draw.choice([True, False]),
        "head_dim": draw.choice([4, 6]),
        **ENDS,
    }
    return found | {"num_key_value_heads": draw.choice([n for n in (1, 2, 4) if found["num_attention_heads"] % n == 0])}


def qwen2(draw):
    return without(llama(draw), "attention_bias", "mlp_bias", "head_dim")


def qwen3(draw):
    return without(llama(draw), "mlp_bias")


def mistral(draw):
    return qwen2(draw) | {"sliding_window": None, "head_dim": draw.choice([None, 6])}


def smollm3(draw):
    return without(llama(draw), "head_dim") | {
        "num_hidden_layers": draw.choice([2, 5]),
        "no_rope_layer_interval": draw.choice([2, 4, 6]),
    }


def phi3(draw):
    return qwen2(draw) | {"sliding_window": None}


def bart(draw):
    n_heads, d_ff = draw.choice([1, 2, 4]), draw.choice([8, 20])
    return {
        "vocab_size": VOCAB,
        "d_model": n_heads * draw.choice([4, 6]),
        "encoder_layers": draw.choice([1, 2]),
        "decoder_layers": draw.choice([1, 2]),
        **{f"{stack}_attention_heads": n_heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": d_ff for stack in ("encoder", "decoder")},
        "max_position_embeddings": MAX_LEN,
        "activation_function": draw.choice(ACTIVATIONS),
        "scale_embedding": draw.choice([True, False]),
        **ENDS,
        "decoder_start_token_id": BEGIN,
        "forced_eos_token_id": None,
    }


def marian(draw):
    return bart(draw) | {
        "decoder_vocab_size": VOCAB,
        "share_encoder_decoder_embeddings": draw.choice([True, False]),
    }


def t5(draw):
    return {
        "vocab_size": VOCAB,
        "d_model": draw.choice([8, 12]),
        "d_kv": draw.choice([4, 6]),
        "d_ff": draw.choice([8, 20]),
        "num_layers": draw.choice([1, 2]),
        "num_decoder_layers": draw.choice([1, 2]),
        "num_heads": draw.choice([2, 3]),
        "relative_attention_num_buckets": draw.choice([8, 32]),
        "relative_attention_max_distance": draw.choice([20, 128]),
        "feed_forward_proj": draw.choice(["relu", "gated-gelu", "gated-silu"]),
        "layer_norm_epsilon": draw.choice([1e-6, 1e-3]),
        "tie_word_embeddings": draw.choice([True, False]),
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": BEGIN,
    }


WINDOW = 5  # less than the length of the texts


def windowed(family):
    """A family whose blocks, or some of them, have windows."""

    def draws(draw):
        found = family(draw)
        kinds = draw.choices(["sliding_attention", "full_attention"], k=found["num_hidden_layers"])
        layers = {"layer_types": kinds} if family is not mistral else {}
        return found | {"sliding_window": WINDOW, "use_sliding_window": True} | layers

    return draws


def gemma2(draw):
    return without(llama(draw), "hidden_act", "mlp_bias") | {
        # norms of small outputs of sublayers enlarge rounding errors
        "hidden_size": draw.choice([16, 24]),
        "rms_norm_eps": draw.choice([1e-3, 1e-2]),
        "num_hidden_layers": draw.choice([2, 3]),
        "hidden_activation": draw.choice(["gelu_pytorch_tanh", "silu"]),
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": draw.choice([4, 7]),
        "attn_logit_softcapping": draw.choice([None, 1.5, 50.0]),
        "final_logit_softcapping": draw.choice([None, 2.0]),
    }


def gemma3(draw):
    bases = {
        "full_attention": draw.choice([1000.0, 10000.0]),
        "sliding_attention": draw.choice([10.0, 100.0]),
    }
    ropes = {name: {"rope_theta": base, "rope_type": "default"} for name, base in bases.items()}
    ropes["full_attention"] |= draw.choice([{}, {"rope_type": "linear", "factor": 8.0}])
    return gemma2(draw) | {
        "num_hidden_layers": draw.choice([2, 3]),
        "rope_parameters": ropes,
        "attn_logit_softcapping": None,
        "sliding_window_pattern": draw.choice([2, 3]),
    }


def modernbert(draw):
    found = sizes(draw) | {
        "num_hidden_layers": draw.choice([1, 2, 4]),
        "max_position_embeddings": MAX_LEN,
        "norm_eps": draw.choice([1e-5, 1e-3]),
        "rope_parameters": {
            name: {"rope_theta": draw.choice([10.0, 1000.0]), "rope_type": "default"}
            for name in ("full_attention", "sliding_attention")
        },
        "local_attention": draw.choice([4, 6]),
        "classifier_pooling": draw.choice(["cls", "mean"]),
        "pad_token_id": PAD,
        "num_labels": draw.choice([2, 3]),
    }
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
    return found | {name: draw.choice([True, False]) for name in biases}


def eurobert(draw):
    found = without(llama(draw), "tie_word_embeddings")
    return found | {"classifier_pooling": draw.choice(["bos", "mean"]), "num_labels": draw.choice([2, 3])}


@dataclass(frozen=True)
class Kind:
    config: str
    model: str
    draw: object


KINDS = {
    "bert": Kind("Bert", "ForMaskedLM", bert),
    "bert-classes": Kind("Bert", "ForSequenceClassification", bert),
    "roberta": Kind("Roberta", "ForMaskedLM", roberta),
    "roberta-classes": Kind("Roberta", "ForSequenceClassification", roberta),
    "xlm-roberta": Kind("XLMRoberta", "ForMaskedLM", roberta),
    "distilbert": Kind("DistilBert", "ForMaskedLM", distilbert),
    "distilbert-classes": Kind("DistilBert", "ForSequenceClassification", distilbert),
    "gpt2": Kind("GPT2", "LMHeadModel", gpt2),
    "llama": Kind("Llama", "ForCausalLM", llama),
    "qwen2": Kind("Qwen2", "ForCausalLM", qwen2),
    "qwen3": Kind("Qwen3", "ForCausalLM", qwen3),
    "marian": Kind("Marian", "MTModel", marian),
    "pegasus": Kind("Pegasus", "ForConditionalGeneration", bart),
    "bart": Kind("Bart", "ForConditionalGeneration", bart),
    "mbart": Kind("MBart", "ForConditionalGeneration", bart),
    "t5": Kind("T5", "ForConditionalGeneration", t5),
    "mt5": Kind("MT5", "ForConditionalGeneration", t5),
    "camembert": Kind("Camembert", "ForMaskedLM", roberta),
    "mistral": Kind("Mistral", "ForCausalLM", mistral),
    "phi3": Kind("Phi3", "ForCausalLM", phi3),
    "smollm3": Kind("SmolLM3", "ForCausalLM", smollm3),
    "mistral-windows": Kind("Mistral", "ForCausalLM", windowed(mistral)),
    "qwen2-windows": Kind("Qwen2", "ForCausalLM", windowed(qwen2)),
    "smollm3-windows": Kind("SmolLM3", "ForCausalLM", windowed(smollm3)),
    "gemma2": Kind("Gemma2", "ForCausalLM", gemma2),
    "gemma3": Kind("Gemma3Text", "ForCausalLM", gemma3),
    "modernbert": Kind("ModernBert", "ForMaskedLM", modernbert),
    "modernbert-classes": Kind("ModernBert", "ForSequenceClassification", modernbert),
    "eurobert-classes": Kind("EuroBert", "ForSequenceClassification", eurobert),
    "eurobert-tags": Kind("EuroBert", "ForTokenClassification", eurobert),
}


def made(name, seed, dtype=torch.float32):
    """A random model of a family whose every parameter counts."""
    kind, draw = {**KINDS, **TURNED}[name], random.Random(f"{name} {seed}")
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind.config}Config")(**kind.draw(draw))
    model = getattr(transformers, f"{kind.config.removesuffix('Text')}{kind.model}")(config).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.3 * torch.randn_like(parameter)
    if (bias := getattr(model, "final_logits_bias", None)) is not None and seed % 2:
        bias.data += torch.randn_like(bias)
    return model.to(dtype)


def saved(name, seed, folder):
    """A random model of a family, and what is read of its files."""
    theirs = made(name, seed)
    theirs.save_pretrained(folder)
    return theirs, read_model(folder)


def batch(seed, rows=3, longest=7):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (rows, longest), generator=generator)
    lengths = torch.tensor([longest, *torch.randint(1, longest, (rows - 1,), generator=generator).tolist()])
    real = torch.arange(longest) < lengths[:, None]
    return torch.where(real, ids, PAD), lengths, real


def both(theirs, ours, seed):
    """Logits of each at every real position, from a batch with padding."""
    ids, lengths, real = batch(seed)
    match ours.config.architecture:
        case "encoder-decoder":
            tgt, _, _ = batch(seed + 1)
            them = theirs(input_ids=ids, attention_mask=real.long(), decoder_input_ids=tgt).logits
            return them, ours(ids, tgt, lengths)
        case "decoder":
            return theirs(input_ids=ids, attention_mask=real.long()).logits[real], ours(ids)[real]
        case "masked":
            return theirs(input_ids=ids, attention_mask=real.long()).logits[real], ours(ids, lengths)[real]
        case _:
            them, us = theirs(input_ids=ids, attention_mask=real.long()).logits, ours(ids, lengths)
            return (them, us) if us.ndim == 2 else (them[real], us[real])


@contextlib.contextmanager
def unrounded(monkeypatch, model):
    """Within it nothing of float64 becomes float32, and rotary angles are exact."""
    to, as_float, softmax = torch.Tensor.to, torch.Tensor.float, F.softmax

    def kept(self, *args, **named):
        down = torch.float32 in (*args, named.get("dtype")) and self.dtype == torch.float64
        return self if down else to(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", kept)
        patch.setattr(torch.Tensor, "float", lambda self: self if self.dtype == torch.float64 else as_float(self))
        patch.setattr(F, "softmax", lambda x, dim=-1, dtype=None, **_: softmax(x, dim))
        net = getattr(model, "model", None)
        if (turns := getattr(net, "rotary_emb", None)) is not None:
            tables = turns.config.rope_parameters
            for name, old in list(turns.named_buffers()):
                if name.endswith("inv_freq"):
                    table = tables.get(name.removesuffix("_inv_freq"), tables)
                    n, factor = old.shape[0], table.get("factor", 1.0)
                    powers = torch.arange(n, dtype=torch.float64) / n
                    setattr(turns, name, table.get("rope_theta", 1.0) ** -powers / factor)
        if (scale := getattr(getattr(net, "embed_tokens", None), "scalar_embed_scale", None)) is not None:
            net.embed_tokens.embed_scale = torch.tensor(scale, dtype=torch.float64)
        yield


def check(name, seed, folder, monkeypatch):
    theirs, ours = saved(name, seed, folder / "single")
    with torch.inference_mode():
        them, us = both(theirs, ours, seed)
        assert (them - us).abs().max() <= 1e-5
    exact = theirs.double()
    exact.save_pretrained(folder / "double")
    ours = read_model(folder / "double").double()
    with torch.inference_mode(), unrounded(monkeypatch, exact):
        them, us = both(exact, ours, seed)
        assert (them - us).abs().max() <= 1e-10
    (again := folder / "again").mkdir()
    write_model(first := read_model(folder / "single"), again, {"pad_token_id": PAD})
    before = dict(first.named_parameters())
    for name, parameter in read_model(again).named_parameters():
        assert torch.equal(parameter, before[name])


SEEDS = range(1, examples(2, 15))
"""Of random configurations: one in each run."""


@pytest.mark.some(14)
@pytest.mark.parametrize("name", KINDS)
def test_the_same_logits_in_float32_and_float64_and_bit_equal_when_written_and_read(name, tmp_path, monkeypatch):
    for seed in SEEDS:
        (folder := tmp_path / str(seed)).mkdir()
        check(name, seed, folder, monkeypatch)


SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 10},
    "yarn, all options": {
        "factor": 4.0,
        "original_max_position_embeddings": 10,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
}
WRITTEN = {"linear", "dynamic"}


@pytest.mark.some(5)
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_positions_give_the_same_logits(name, scaling, tmp_path, monkeypatch):
    kind, draw = scaling.split(",")[0], KINDS[name].draw
    for seed in range(examples(2, 5)):
        table = {"rope_theta": 1000.0, "rope_type": kind, **SCALINGS[scaling]}
        other = Kind(KINDS[name].config, "ForCausalLM", lambda d, t=table: draw(d) | {"rope_parameters": t})
        monkeypatch.setitem(KINDS, "scaled", other)
        theirs, ours = saved("scaled", seed, tmp_path / str(seed))
        ids = batch(seed, 2, 24)[0]  # beyond the original context
        with torch.inference_mode():
            assert (theirs(ids).logits - ours(ids)).abs().max() <= 1e-5
        if kind in WRITTEN:
            (again := tmp_path / f"{seed}-again").mkdir()
            write_model(ours, again, {"pad_token_id": PAD})
            assert read_model(again).config == ours.config
        elif ours.config.head_width > 2:
            with pytest.raises(AttendoError, match="position_frequencies"):
                write_model(ours, tmp_path, {"pad_token_id": PAD})


def longrope(draw, share, longest):
    """A Phi-3 that rotates a share of each head, with other frequencies for contexts above `longest`."""
    found = phi3(draw) | {"original_max_position_embeddings": longest}
    n = int(found["hidden_size"] // found["num_attention_heads"] * share) // 2
    table = {"rope_theta": 100.0, "rope_type": "longrope", "partial_rotary_factor": share}
    short = [draw.uniform(1.0, 2.0) for _ in range(n)]
    return found | {"rope_parameters": table | {"short_factor": short, "long_factor": [9.0] * n}}


def partial(draw, share):
    table = {"rope_theta": 100.0, "rope_type": "default", "partial_rotary_factor": share}
    return phi3(draw) | {"rope_parameters": table}


def check_rotation(name, share, seed, folder, monkeypatch):
    draws = {"longrope": lambda draw: longrope(draw, share, 9), "partial": lambda draw: partial(draw, share)}
    monkeypatch.setitem(KINDS, "rotated", Kind("Phi3", "ForCausalLM", draws[name]))
    theirs, ours = saved("rotated", seed, folder)
    ids, _, real = batch(seed, 3, 9)
    assert ours.config.max_len == (9 if name == "longrope" else MAX_LEN)
    with torch.inference_mode():
        them = theirs(ids, attention_mask=real.long()).logits[real]
        assert (them - ours(ids)[real]).abs().max() <= 1e-5
        cache = ours.start(3)
        steps = torch.cat([ours.step(ids[:, :5], cache), ours.step(ids[:, 5:], cache)], 1)
        assert (them - steps[real]).abs().max() <= 1e-5


LLAMA3 = {"rope_theta": 1000.0, "rope_type": "llama3", **SCALINGS["llama3"]}
TURNED = {
    "llama3": Kind("Llama", "ForCausalLM", lambda draw: llama(draw) | {"rope_parameters": LLAMA3}),
    "phi3-partial": Kind("Phi3", "ForCausalLM", lambda draw: partial(draw, 0.7)),
}


@pytest.mark.parametrize(("name", "share"), [("longrope", 1.0), ("longrope", 0.7), ("partial", 0.7)])
def test_longrope_and_rotated_shares_of_heads_give_the_same_logits(name, share, tmp_path, monkeypatch):
    for seed in SEEDS:
        check_rotation(name, share, seed, tmp_path / str(seed), monkeypatch)


def compiled_logits(model, ids, first):
    """The logits of the compiled step, from `first` tokens at once and then from one at a time."""
    try:
        compiled = CompiledModel(model)
    except NoLibrary:
        return None
    cache = compiled.start([[]] * len(ids), 1, ids.shape[1])
    parts = [ids[:, :first], *ids[:, first:].split(1, 1)]
    return torch.cat([compiled.logits(compiled.states(part, cache)) for part in parts], 1)


def check_windows(name, seed, folder):
    """Texts of up to 24 tokens with padding: at once, with the cache, and compiled."""
    theirs, ours = saved(name, seed, folder)
    ids, _, real = batch(seed, 3, 24)
    assert max(ours.config.attention_windows, default=0) in (0, WINDOW)
    with torch.inference_mode():
        them = theirs(ids, attention_mask=real.long()).logits[real]
        assert (them - ours(ids)[real]).abs().max() <= 1e-5
        cache = ours.start(3, 24)
        steps = torch.cat([ours.step(part, cache) for part in ids.split([4, 9, 1, 10], 1)], 1)
        assert (them - steps[real]).abs().max() <= 1e-5
        compiled = compiled_logits(ours, ids, 11)
        assert compiled is None or (them - compiled[real]).abs().max() <= 1e-5


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["mistral-windows", "qwen2-windows", "smollm3-windows", "gemma2", "gemma3"])
def test_contexts_beyond_the_window_give_the_same_logits_with_cache_and_padding(name, tmp_path):
    for seed in SEEDS:
        check_windows(name, seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", range(3))
def test_texts_of_modernbert_beyond_the_window_give_the_same_states(seed, tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, "states", Kind("ModernBert", "Model", modernbert))
    theirs, ours = saved("states", seed, tmp_path)
    ids, lengths, real = batch(seed, 3, 24)
    with torch.inference_mode():
        them = theirs(ids, attention_mask=real.long()).last_hidden_state
        us = ours.encoder(ours.embedding(ids), Mask(key_lengths=lengths))
        assert (them - us)[real].abs().max() <= 1e-5
        try:
            compiled = CompiledModel(ours)
        except NoLibrary:
            return
        rows = [row[:n].tolist() for row, n in zip(ids, lengths.tolist(), strict=True)]
        assert (them[real] - compiled.encoded(rows)).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "window", "windows"),
    [
        ("mistral", {"sliding_window": 7}, (7,)),
        ("mistral", {"sliding_window": MAX_LEN}, ()),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": False}, ()),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 0}, (7,)),
        ("gemma2", {}, (WINDOW, 0)),
    ],
)
def test_the_windows_of_files_without_a_list_of_layers(name, window, windows):
    config = getattr(transformers, f"{KINDS[name].config}Config")(**KINDS[name].draw(random.Random(1)))
    theirs = {key: value for key, value in config.to_dict().items() if key != "layer_types"} | window
    theirs |= {"num_hidden_layers": 3, "architectures": [f"{KINDS[name].config}ForCausalLM"]}
    ours = config_of(theirs)
    assert (ours.attention_windows, ours.max_len) == (windows, MAX_LEN)


TWO_BASES = {"full_attention": {"rope_theta": 1000.0}, "sliding_attention": {"rope_theta": 10.0}}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gemma3", {"sliding_window": MAX_LEN}),
        ("modernbert", {"local_attention": 128, "num_hidden_layers": 4, "rope_parameters": TWO_BASES}),
        ("gemma2", {"rope_parameters": {"rope_theta": 100.0, "rope_type": "yarn", **SCALINGS["yarn"]}}),
    ],
)
def test_blocks_keep_their_positions_and_scales_beside_other_options(name, change, tmp_path, monkeypatch):
    draw = KINDS[name].draw
    monkeypatch.setitem(KINDS, "changed", Kind(KINDS[name].config, KINDS[name].model, lambda d: draw(d) | change))
    with torch.inference_mode():
        them, us = both(*saved("changed", 1, tmp_path), 1)
    assert (them - us).abs().max() <= 1e-5


def test_the_rope_scaling_of_modernbert_would_scale_blocks_with_windows():
    with pytest.raises(AttendoError, match=r'rope_scaling\.rope_type="linear" is not supported'):
        config_of({"model_type": "modernbert", "rope_scaling": {"type": "linear", "factor": 2.0}})


NAMES = "gemma2 gemma3 modernbert llama mistral phi3 qwen2 qwen3 smollm3"


@pytest.mark.parametrize("name", NAMES.split())
def test_missing_keys_have_the_defaults_of_transformers(name):
    full = getattr(transformers, f"{KINDS[name].config}Config")().to_dict()
    assert config_of({"model_type": full["model_type"]}) == config_of(full)


def test_the_defaults_of_eurobert_and_the_pooling_of_logits_which_is_not_read():
    full = transformers.EuroBertConfig().to_dict()
    base = {"model_type": "eurobert", "architectures": ["EuroBertModel"]}
    assert config_of(base) == config_of(full | base)
    with pytest.raises(AttendoError, match="late"):
        config_of({"model_type": "eurobert"})


def test_the_positions_of_llama_3_are_written_as_they_were_read():
    table = {"rope_theta": 500_000.0, "rope_type": "llama3", **SCALINGS["llama3"]}
    table["original_max_position_embeddings"] = 8192
    theirs = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "max_position_embeddings": 99,
        "rope_parameters": table,
    }
    read = RotaryBase().read(theirs)
    ours = ModelConfig(vocab_size=9, d_model=64, n_heads=2, positions="rotary", **read)
    assert RotaryBase().write(ours)["rope_parameters"] == table


BASES = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}


def test_positions_that_no_option_describes_are_rejected():
    local = Windows(is_local=lambda theirs, n: True)
    for option, theirs, words in (
        (local, {"layer_types": ["chunked_attention"]}, "chunked_attention"),
        (RotaryBase(bases=BASES), {"rope_scaling": {"rope_type": "yarn"}}, 'rope_type="yarn"'),
        (NoRope(), {"no_rope_layers": [1, 0, 0], "num_hidden_layers": 3}, r"no_rope_layers=\[1, 0, 0\]"),
        (RotaryBase(), {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (RotaryBase(partial=True), {"partial_rotary_factor": 0.4}, "partial_rotary_factor=0.375"),
    ):
        with pytest.raises(AttendoError, match=words):
            option.read(theirs | {"hidden_size": 16, "num_attention_heads": 2})


def pieces(ids):
    """What was generated, without the padding behind its end."""
    found = ids.tolist()
    return found[: found.index(EOS) + 1] if EOS in found else found


def texts(theirs, ours, seed, beam, rows, most=15):
    """Their texts and ours, from the same sources, with the cache of each. Ours are compiled where a compiler is."""
    ids, lengths, real = batch(seed, rows, 5 + 2 * seed % 20)
    how = {"num_beams": beam, "do_sample": False, "max_new_tokens": most, "min_new_tokens": 0}
    if beam > 1:
        how |= {"early_stopping": True, "length_penalty": 1.0}
    config = DecodingConfig(beam=beam, length_penalty=1.0, length_norm="plain", refill=beam > 1)
    special_ids, begin = SpecialIds(bos_id=BEGIN, eos_id=EOS, banned_ids=()), 1
    if ours.config.architecture == "decoder":
        ids[:, -1], real = BEGIN, torch.ones_like(ids)  # the search begins with it
        member, begin = best_decoder(ours), ids.shape[1]
        cache = member.start(rows * beam, begin + most)
        member.step(ids[:, :-1].repeat_interleave(beam, 0), cache)
    else:
        how["use_cache"] = False  # `transformers` has caches for as many blocks as the encoder of T5 has
        member = best_backend(ours, PAD)
        cache = member.start([row[:n].tolist() for row, n in zip(ids, lengths, strict=True)], beam, most)
    them = theirs.generate(ids, attention_mask=real.long(), **how)[:, begin:]
    found = beam_search(member.step, cache, [most] * rows, config, special_ids)
    ours_found = [[*best[0].token_ids, *([EOS] if best[0].finished else [])] for best in found]
    return [pieces(row) for row in them], ours_found


WRITERS = [name for name in {**KINDS, **TURNED} if "classes" not in name and "bert" not in name]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_texts_as_generate(name, tmp_path):
    for seed in range(examples(1, 10)):
        theirs = made(name, seed)
        theirs.generation_config = transformers.GenerationConfig(**ENDS, decoder_start_token_id=BEGIN)
        theirs.save_pretrained(tmp_path / str(seed))
        ours = read_model(tmp_path / str(seed))
        for beam in (1, 4):
            them, us = texts(theirs, ours, seed, beam, examples(8, 20))
            assert them == us
