"""The export to CTranslate2: a folder for its Translator, Generator or Encoder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import linear

from attendo.bundle import Bundle, load_tokenizer
from attendo.config import build
from attendo.data.tokenizers import Kind, Tokenizer
from attendo.decoding.beam import length_norm
from attendo.decoding.options import DecodingConfig
from attendo.files import write_atomic
from attendo.interop.parity import Foreign, Found
from attendo.interop.requirements import required, unknown_option
from attendo.interop.sentencepiece_models import sentencepiece_model, why_no_sentencepiece
from attendo.models import DecoderLM, EncoderClassifier, EncoderDecoder, MaskedLM, Model, ModelConfig
from attendo.nn.attention import Attention
from attendo.nn.blocks import Decoder, DecoderBlock, Encoder, EncoderBlock, Residual
from attendo.nn.layers import ACTIVATIONS, InputEmbedding, layer_norm, pool, rms_norm
from attendo.nn.positions import Alibi, RelativeBias, alibi_slopes

IN_ATTENTION = ("rotary", "alibi", "relative")
"""The position encodings that are part of self-attention. They add nothing to the embedding."""
LONGEST = 1025
"""The default max_input_length of CTranslate2 plus the end token."""
_SPEC_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}


def _specs() -> Any:
    """Return CTranslate2's module of model classes, which is imported on first use."""
    return required("ctranslate2.specs.transformer_spec")


def _spec_of(model: Model, entries: Sequence[str]) -> Any:
    """Return a model as CTranslate2's Transformer, decoder or encoder.

    The head of a classifier or masked model is left out. Ids without a token get generated names. Positions that are
    added to the embedding are written as a table.
    """
    config = model.config
    unused = (f"<unused {number}>" for number in range(len(entries), config.vocab_size))
    entries = [*entries, *unused]
    match model:
        case EncoderDecoder():
            encoder, decoder = _encoder(config), _decoder(config)
            _fill_stack(encoder, encoder.embeddings[0], model.encoder, model.source_embedding, config)
            _fill_stack(decoder, decoder.embeddings, model.decoder, model.target_embedding, config)
            _linear(decoder.projection, model.output_proj)
            spec: Any = _specs().TransformerSpec(encoder, decoder)
            spec.register_source_vocabulary(entries)
            spec.register_target_vocabulary(entries)
        case DecoderLM():
            decoder = _decoder(config)
            _fill_stack(decoder, decoder.embeddings, model.decoder, model.embedding, config)
            _linear(decoder.projection, model.output_proj)
            spec = _specs().TransformerDecoderModelSpec(decoder)
            spec.register_vocabulary(entries)
        case EncoderClassifier() | MaskedLM():
            encoder = _encoder(config)
            _fill_stack(encoder, encoder.embeddings[0], model.encoder, model.embedding, config)
            spec = _specs().TransformerEncoderModelSpec(encoder)
            spec.register_vocabulary(entries)
    spec.validate()
    return spec


def _options(config: ModelConfig) -> dict[str, Any]:
    """Return the options that encoder and decoder share."""
    head_dim = config.head_width
    grouped = config.n_kv_heads not in (None, config.n_heads)
    return {
        "num_heads": config.n_heads,
        "pre_norm": config.norm_first,
        "activation": _specs().common_spec.Activation[_SPEC_ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.embedding_norm_eps is not None,
        "ffn_glu": config.feed_forward_gated,
        "rms_norm": config.norm == "rms",
        "num_heads_kv": config.n_kv_heads if grouped else None,
        "head_dim": None if head_dim * config.n_heads == config.d_model else head_dim,
        "qk_norm": config.attention_norm,
        **({"rotary_dim": 0, "rotary_base": config.wavelength_base} if config.positions == "rotary" else {}),
    }


def _encoder(config: ModelConfig) -> Any:
    biased = config.positions in ("relative", "alibi")
    return _specs().TransformerEncoderSpec(config.n_encoder_layers, relative_attention_bias=biased, **_options(config))


def _decoder(config: ModelConfig) -> Any:
    return _specs().TransformerDecoderSpec(
        config.n_decoder_layers,
        with_encoder_attention=config.n_encoder_layers > 0,
        alibi=config.positions == "alibi",
        alibi_use_positive_positions=True,
        relative_attention_bias=config.positions == "relative",
        **_options(config),
    )


def _fill_stack(
    spec: Any, tokens: Any, stack: Encoder | Decoder, embedding: InputEmbedding, config: ModelConfig
) -> None:
    tokens.weight = _array(embedding.tokens.weight)
    spec.scale_embeddings = config.embedding_scale
    if config.embedding_norm_eps is not None:
        _norm(spec.layernorm_embedding, embedding.norm)
    if config.positions not in IN_ATTENTION:
        spec.position_encodings.encodings = _position_table(embedding, config)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        _fill_layer(layer, block, config)
    if config.norm_first:
        _norm(spec.layer_norm, stack.norm)


def _position_table(embedding: InputEmbedding, config: ModelConfig) -> np.ndarray:
    """Return the position table [positions, d_model], up to the default source length of CTranslate2."""
    n = config.max_len if config.positions == "learned" else max(config.max_len, LONGEST)
    if embedding.positions is None:
        return np.zeros((n, config.d_model), np.float32)
    return _array(embedding.positions(torch.arange(n), n).expand(n, config.d_model))


def _fill_layer(layer: Any, block: EncoderBlock | DecoderBlock, config: ModelConfig) -> None:
    own, net = block.self_attention, block.feed_forward
    _attention(layer.self_attention, own, block.self_attention_residual)
    _linear(layer.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
    if config.attention_norm:
        _norm(layer.self_attention.q_norm, own.q_norm)
        _norm(layer.self_attention.k_norm, own.k_norm)
    if isinstance(own.positions, RelativeBias):
        _bias(layer.self_attention, own.positions.weight, own.positions.reach)
    elif isinstance(own.positions, Alibi) and isinstance(block, EncoderBlock):
        # as T5 buckets [4·max_len, heads], because CTranslate2 supports ALiBi only in decoders
        distances = torch.arange(2 * config.max_len, dtype=torch.float32).repeat(2)
        _bias(layer.self_attention, -distances[:, None] * alibi_slopes(config.n_heads), 2 * config.max_len)
    if isinstance(block, DecoderBlock) and block.cross_attention is not None:
        cross = block.cross_attention
        _attention(layer.attention, cross, block.cross_attention_residual)
        _linear(layer.attention.linear[0], cross.q_proj)
        # CTranslate2 supports grouped heads only in self-attention: each query head gets a copy of its head
        rows = torch.arange(cross.k_proj.out_features).view(cross.n_kv_heads, -1)
        rows = rows.repeat_interleave(cross.n_heads // cross.n_kv_heads, dim=0).flatten()
        _linear(layer.attention.linear[1], cross.k_proj, cross.v_proj, rows=rows)
        vars(layer.attention).pop("num_heads_kv", None)
    if net.gate_proj is None:
        _linear(layer.ffn.linear_0, net.in_proj)
    else:
        _linear(layer.ffn.linear_0, net.gate_proj)  # the projection with the activation
        _linear(layer.ffn.linear_0_noact, net.in_proj)
    _linear(layer.ffn.linear_1, net.out_proj)
    _norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)


def _attention(target: Any, source: Attention, residual: Residual | None) -> None:
    assert residual is not None
    _norm(target.layer_norm, residual.norm)
    _linear(target.linear[-1], source.out_proj)
    if source.attend.scale is not None:
        target.queries_scale = np.float32(source.attend.scale)


def _bias(target: Any, buckets: Tensor, reach: int) -> None:
    target.relative_attention_bias = _array(buckets)
    target.relative_attention_max_distance = np.int32(reach)


def _linear(target: Any, *projections: nn.Module, rows: Tensor | slice = slice(None)) -> None:
    """Set a linear layer to the stacked weights, or to chosen rows of them, of projections of the same input."""
    weights, biases = [], []
    for projection in projections:
        assert isinstance(projection, nn.Linear)
        weights.append(projection.weight[rows])
        biases += [] if projection.bias is None else [projection.bias[rows]]
    target.weight = _array(torch.cat(weights))
    if biases:
        target.bias = _array(torch.cat(biases))


def _norm(target: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    target.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        target.beta = _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    # a copy, because CTranslate2 quantizes in place
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


Quantization = Literal["float32", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16"]
"""The names of CTranslate2's number formats for saved weights."""
CALLS = "attendo.json"
"""The file that describes how to call the exported model."""


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """Return the reason why a model cannot be exported to CTranslate2, or None if it can be exported.

    The result does not depend on the kind of the tokenizer.

    >>> why_not(ModelConfig(vocab_size=11), "bpe")
    >>> why_not(ModelConfig(vocab_size=11, value_dim=32), "bpe")
    'value_dim=32 differs from the query head size 64 (CTranslate2 requires equal sizes)'
    """
    if (unknown := unknown_option(config)) is not None:
        return f"{unknown} is not supported by the export to CTranslate2"
    if config.value_dim not in (None, config.head_width):
        return (
            f"value_dim={config.value_dim} differs from the query head size {config.head_width} (CTranslate2 "
            "requires equal sizes)"
        )
    if config.attention_norm and config.architecture == "encoder-decoder":
        return "attention_norm=True is computed differently by CTranslate2 in an encoder-decoder"
    if config.embedding_norm_eps not in (None, config.norm_eps):
        return (
            f"embedding_norm_eps={config.embedding_norm_eps} differs from norm_eps={config.norm_eps} "
            "(CTranslate2 has one value for all norms)"
        )
    return None


def write(folder: Path, bundle: Bundle, model: Model, out: Path, quantization: Quantization = "float32") -> None:
    """Write the CTranslate2 model, the vocabulary, the tokenizer and attendo.json to the empty folder `out`.

    CTranslate2's Encoder does not support classification heads. The weights of a head are therefore stored in
    head.safetensors. Raise AttendoError if a package is missing.

    >>> import tempfile
    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> from attendo.models import build_model
    >>> sizes = dict(d_model=8, d_ff=8, n_heads=2, n_encoder_layers=1, n_decoder_layers=1)
    >>> model = build_model(ModelConfig(vocab_size=260, **sizes)).eval()
    >>> tokenizer, out = train_tokenizer(["a"], TokenizerConfig(kind="byte")), Path(tempfile.mkdtemp())
    >>> write(out, Bundle({}, tokenizer), model, out)
    >>> sorted(file.name for file in out.iterdir())
    ['attendo.json', 'config.json', 'model.bin', 'shared_vocabulary.json', 'tokenizer.json']
    """
    tokenizer = bundle.tokenizer
    spec: Any = _spec_of(model, tokenizer.entries)
    spec.config.layer_norm_epsilon = model.config.norm_eps
    spec.config.unk_token = tokenizer.entries[tokenizer.unk_id]
    spec.config.bos_token = tokenizer.entries[tokenizer.bos_id]
    spec.config.eos_token = tokenizer.entries[tokenizer.eos_id]
    if isinstance(model, EncoderDecoder):
        spec.config.decoder_start_token = spec.config.bos_token
        spec.config.add_source_eos = True
    spec.optimize(None if quantization == "float32" else quantization)
    spec.save(str(out))
    tokenizer.save(out / "tokenizer.json")
    if why_no_sentencepiece(tokenizer.kind) is None:
        write_atomic(out / "sentencepiece.model", sentencepiece_model(tokenizer, folder / "tokenizer.json"))
        if isinstance(model, EncoderDecoder):
            script = Path(__file__).with_name("ctranslate2.template")
            write_atomic(out / "translate.py", script.read_text(encoding="utf-8"))
    if isinstance(model, EncoderClassifier | MaskedLM):
        state = model.state_dict()  # contains all names, also those of tied weights
        head = {name: tensor.clone() for name, tensor in state.items() if name.startswith("output_")}
        save_file(head, out / "head.safetensors")
    write_atomic(out / CALLS, json.dumps(_calls(bundle, model, quantization), indent=1) + "\n")


def _calls(bundle: Bundle, model: Model, quantization: Quantization) -> dict[str, Any]:
    """Return the contents of attendo.json: the call of the model that reproduces attendo's results."""
    spaced = why_no_sentencepiece(bundle.tokenizer.kind) is None
    said: dict[str, Any] = {
        "task": bundle.card.get("task"),
        "weights": quantization,
        "tokens": (
            'sentencepiece.SentencePieceProcessor(model_file="sentencepiece.model").encode(text, out_type=str)'
            if spaced
            else "the entries of attendo's tokenizer (tokenizer.json) for the ids of the text"
        ),
    }
    if isinstance(model, EncoderDecoder):
        decoding = build(DecodingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        is_plain = decoding.length_norm == "plain"
        length = "len(hypothesis)" if is_plain else "((5 + len(hypothesis)) / 6)"
        return said | {
            "class": "ctranslate2.Translator",
            "call": "translate_batch(tokens, **options)",
            "options": options_of(decoding, model.config.max_len),
            "max_len": model.config.max_len,
            "decoding": dataclasses.asdict(decoding),
            "score": (
                "score * len(hypothesis) ** length_penalty is the log-probability; attendo divides it by "
                f"{length} ** {decoding.length_penalty} and ranks the hypotheses again by the result"
            ),
            "same_search_in_attendo": "attendo translate DIR --set decoding.refill=true",
        }
    if isinstance(model, EncoderClassifier | MaskedLM):
        return said | {
            "class": "ctranslate2.Encoder",
            "call": 'forward_batch([["<s>", *tokens]]).last_hidden_state',
            "head": "head.safetensors contains the remaining layers: " + _head_in_words(model),
            "architecture": model.config.architecture,
            "pooling": model.config.pooling,
            "output_activation": model.config.output_activation,
            "activation": model.config.activation,
            "norm": model.config.norm,
            "norm_eps": model.config.norm_eps,
        }
    return said | {
        "class": "ctranslate2.Generator",
        "call": 'generate_batch([["<s>", *tokens]], include_prompt_in_result=False)',
        "architecture": model.config.architecture,
    }


def options_of(decoding: DecodingConfig, max_len: int, source_len: int | None = None) -> dict[str, Any]:
    """Return the options with which CTranslate2's `translate_batch` reproduces attendo's search with `refill`.

    Lengths include the end token, and an empty translation is allowed.

    >>> [options_of(DecodingConfig(), 512, length)["max_decoding_length"] for length in (10, None)]
    [70, 256]
    """
    longest = min(256, max_len) if source_len is None else decoding.max_length(source_len, max_len)
    return {
        "beam_size": decoding.beam,
        "num_hypotheses": decoding.beam,
        "length_penalty": decoding.length_penalty,
        "return_scores": True,
        "return_end_token": True,
        "min_decoding_length": max(0, int(decoding.min_length) - 1),
        "max_decoding_length": longest,
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "max_input_length": max_len,
    }


def _head_in_words(model: EncoderClassifier | MaskedLM) -> str:
    config = model.config
    if isinstance(model, MaskedLM):
        return f"logits = output_proj · norm({config.activation}(output_hidden · state)) for each token"
    vector = f"the {config.pooling} over the tokens"
    vector = f"{config.output_activation}(output_hidden · {vector})" if config.d_output else vector
    return f"logits = output_proj · {vector}" if config.n_classes else vector


def opened(out: Path) -> Foreign:
    """Load an exported model with CTranslate2. Raise AttendoError if `ctranslate2` is not installed.

    >>> opened(Path("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'nowhere/attendo.json'
    """
    calls = json.loads((out / CALLS).read_text(encoding="utf-8"))
    tokenizer = load_tokenizer(out / "tokenizer.json")
    threads = {"intra_threads": torch.get_num_threads(), "inter_threads": 1}
    package = required("ctranslate2")
    match calls["class"]:
        case "ctranslate2.Translator":
            decoding = build(DecodingConfig, calls["decoding"], f"{out / CALLS} decoding")
            translator = package.Translator(str(out), **threads)
            return _Translator(translator, tokenizer, decoding, calls["max_len"])
        case "ctranslate2.Generator":
            return _Generator(package.Generator(str(out), **threads))
        case _:
            head = load_file(out / "head.safetensors")
            return _Encoder(package.Encoder(str(out), **threads), head, calls)


@dataclass
class _Translator:
    translator: Any
    tokenizer: Tokenizer
    decoding: DecodingConfig
    max_len: int

    @cached_property
    def ids(self) -> dict[str, int]:
        return {entry: number for number, entry in enumerate(self.tokenizer.entries)}

    @property
    def same_search(self) -> Mapping[str, Any]:
        return {"refill": True, "coverage_penalty": 0.0, "beam_groups": 1}

    def translate(self, texts: Sequence[str], beam: int) -> list[Found]:
        """Translate texts in groups of equal length, because one `translate_batch` call has a single length limit."""
        entries = self.tokenizer.entries
        rows = [[entries[i] for i in ids] for ids in self.tokenizer.encode_batch(texts)]
        found: dict[int, Found] = {}
        for length in sorted({len(row) for row in rows}):
            numbers = [number for number, row in enumerate(rows) if len(row) == length]
            options = options_of(replace(self.decoding, beam=beam, n_best=1), self.max_len, length + 1)
            some = [rows[number] for number in numbers]
            results = self.translator.translate_batch(some, max_batch_size=32, **options)
            found |= {number: self._best(result) for number, result in zip(numbers, results, strict=True)}
        return [found[number] for number in range(len(rows))]

    def _best(self, result: Any) -> Found:
        """Return the hypothesis with the highest score by attendo's length normalization."""
        alpha, kind = self.decoding.length_penalty, self.decoding.length_norm
        end = self.tokenizer.entries[self.tokenizer.eos_id]
        ranked = [
            (score * len(pieces) ** alpha / length_norm(len(pieces), alpha, kind), -rank, pieces)
            for rank, (score, pieces) in enumerate(zip(result.scores, result.hypotheses, strict=True))
        ]
        score, _, pieces = max(ranked)
        pieces = [piece for piece in pieces if piece != end]
        return Found(pieces, self.tokenizer.decode([self.ids[piece] for piece in pieces]), score)


@dataclass
class _Generator:
    generator: Any

    def logits(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        found = np.array(self.generator.forward_batch([list(row) for row in rows]))
        return [logits[: len(row)] for logits, row in zip(found, rows, strict=True)]


@dataclass
class _Encoder:
    encoder: Any
    head: Mapping[str, np.ndarray]
    calls: Mapping[str, Any]

    def logits(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        found = np.array(self.encoder.forward_batch([list(row) for row in rows]).last_hidden_state)
        return [self._after(states[: len(row)]) for states, row in zip(found, rows, strict=True)]

    def _after(self, states: np.ndarray) -> np.ndarray:
        """Apply the head to the states of a text's tokens [len, d_model]."""
        head = {name: torch.from_numpy(array) for name, array in self.head.items()}
        hidden = torch.from_numpy(states)
        if self.calls["architecture"] == "classifier":
            hidden = pool(hidden[None], self.calls["pooling"])[0]
            if "output_hidden.weight" in head:
                hidden = linear(hidden, head["output_hidden.weight"], head["output_hidden.bias"])
                hidden = getattr(torch, self.calls["output_activation"])(hidden)
        else:
            inner = linear(hidden, head["output_hidden.weight"], head["output_hidden.bias"])
            weight, eps = head["output_norm.weight"], self.calls["norm_eps"]
            inner = ACTIVATIONS[self.calls["activation"]](inner)
            bias = head.get("output_norm.bias")
            hidden = rms_norm(inner, weight, eps) if bias is None else layer_norm(inner, weight, bias, eps)
        if "output_proj.weight" in head:
            hidden = linear(hidden, head["output_proj.weight"], head.get("output_proj.bias"))
        return hidden.numpy()
