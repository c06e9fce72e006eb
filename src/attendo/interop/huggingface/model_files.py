"""The reading and writing of Hugging Face model folders (config.json and safetensors) by the tables of `families`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from attendo.bundle import embeds_texts
from attendo.config import build
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.interop.gguf_files import GgufFile
from attendo.interop.huggingface.families import FAMILIES
from attendo.interop.huggingface.options import Theirs, repeating
from attendo.interop.huggingface.table import Head, Row, Table, expanded
from attendo.model_config import ModelConfig
from attendo.models import Model, build_model
from attendo.nn.positions import FixedPositions, sinusoidal_encoding

_PICKLES = ("pytorch_model.bin", "model.bin", "*.pt", "*.pth", "*.ckpt", "pytorch_model-*.bin")
_EMBEDDINGS = ("embedding.tokens.weight", "source_embedding.tokens.weight")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise AttendoError if the file is missing or is not a JSON object.

    >>> read_json(Path("nowhere/config.json"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere/config.json: no such file. Give the complete folder of a Hugging Face model
    """
    if not path.is_file():  # also rejects devices and pipes, which may have no end
        raise AttendoError(f"{path}: no such file. Give the complete folder of a Hugging Face model")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise AttendoError(f"{path} is not valid JSON ({error}). Download it again") from None
    if not isinstance(found, dict):
        raise AttendoError(f"{path} is not a JSON object. Download it again")
    return found


def table_of(theirs: Theirs) -> tuple[Table, Head]:
    """Return the family's table and class for a config.json. Raise AttendoError for an unsupported family or class.

    >>> table_of({"model_type": "mamba"})
    Traceback (most recent call last):
    attendo.errors.AttendoError: config.json: model_type="mamba" is not supported (supported: bart, bert, camembert, \
distilbert, eurobert, gemma2, gemma3_text, gpt2, llama, marian, mbart, mistral, modernbert, mt5, pegasus, phi3, \
qwen2, qwen3, roberta, smollm3, t5, xlm-roberta)
    """
    kind = str(theirs.get("model_type"))
    if kind not in FAMILIES:
        raise AttendoError(
            f"config.json: model_type={json.dumps(kind)} is not supported (supported: {', '.join(FAMILIES)})"
        )
    table = next(table for table in FAMILIES[kind] if table.when(theirs))
    names = theirs.get("architectures") or list(table.heads)[:1]
    # XLMRobertaModel and CamembertModel have the structure of RobertaModel
    if (head := table.heads.get(re.sub("^(XLMRoberta|Camembert)", "Roberta", names[0]))) is None:
        raise AttendoError(
            f"config.json: architectures={json.dumps(names)} of {kind} is not supported (supported: "
            f"{', '.join(table.heads)})"
        )
    return table, head


def config_of(theirs: Theirs, output_bias: bool | None = None) -> ModelConfig:
    """Return the ModelConfig for a config.json. Raise AttendoError for an unsupported option.

    >>> config = config_of({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 50})
    >>> config.architecture, config.d_ff, config.activation, config.norm_first
    ('decoder', 32, 'gelu_tanh', True)
    """
    table, head = table_of(theirs)
    theirs = table.filled(theirs)
    found: dict[str, Any] = {"architecture": head.architecture}
    for option in table.options:
        found |= option.read(theirs)
    found |= head.ours
    if head.architecture != "classifier":
        found.pop("pooling", None)
    if head.architecture == "classifier" and "n_classes" not in found:
        found["n_classes"] = len(theirs.get("id2label") or (0, 1))
        found.setdefault("d_output", found["d_model"])
    if output_bias is not None:
        found["output_bias"] = output_bias
    return build(ModelConfig, {k: v for k, v in found.items() if v is not None}, "config.json")


class _Tensors:
    """The tensors of the safetensors files in a folder, by name, memory-mapped."""

    def __init__(self, files: Mapping[str, Any], prefix: str) -> None:
        self._files = dict(files)
        self._prefix = prefix
        self._has_prefix = any(name.startswith(prefix) for name in files)
        self.read: set[str] = set()

    def here(self, name: str) -> str | None:
        """Return the name under which the files contain a tensor, or None if the tensor is missing."""
        if not self._has_prefix:
            name = name.removeprefix(self._prefix)
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return next((known for known in (name, old) if known in self._files), None)

    def __call__(self, name: str) -> Tensor:
        """Return a tensor in float32. Raise AttendoError for a missing or quantized tensor."""
        if (known := self.here(name)) is None:
            raise AttendoError(f"the weights have no {name}, which config.json requires. Download them again")
        self.read.add(known)
        found = self._files[known].get_tensor(known)
        if not found.is_floating_point():
            raise AttendoError(f"{known} is {found.dtype}: quantized weights are not supported. Use the float weights")
        return found if found.dtype == torch.float64 else found.float()

    def left(self, passed_over: tuple[str, ...]) -> list[str]:
        """Return the names of the tensors that the model did not use, except the names to ignore."""
        pattern = re.compile("|".join(passed_over) or r"(?!)")
        rest = (name for name in self._files if name not in self.read)
        return sorted(name for name in rest if not pattern.fullmatch(name.removeprefix(self._prefix)))


@contextmanager
def _opened(folder: Path, prefix: str) -> Iterator[_Tensors]:
    """Open the weight files of a folder. Raise AttendoError for missing, pickled or truncated files."""
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in _weight_files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
                files |= dict.fromkeys(file.keys(), file)
            except FileNotFoundError:
                raise AttendoError(f"{path}: no such file, but {_INDEX} names it. Download it") from None
            except SafetensorError as error:
                raise AttendoError(f"{path} is damaged or truncated ({error}). Download it again") from None
        yield _Tensors(files, prefix)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        table = read_json(folder / _INDEX).get("weight_map")
        names = table.values() if isinstance(table, dict) else [table]
        if strange := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
            raise AttendoError(
                f"{folder / _INDEX} names {strange[0]!r}, which is not a file in its folder. Download it again"
            )
        return [folder / name for name in sorted(set(map(str, names)))]
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    for pattern in _PICKLES:
        for path in folder.glob(pattern):
            raise AttendoError(
                f"{path} is a pickle file, which can run any program when it is opened, so it was not read. "
                "If you trust it, convert it to safetensors (huggingface.co/spaces/safetensors/convert)"
            )
    raise AttendoError(f"{folder} has no {_WEIGHTS}. Give the complete folder of a Hugging Face model")


def read_model(folder: Path, theirs: Theirs | None = None, gguf: GgufFile | None = None) -> Model:
    """Return the model of a Hugging Face folder in evaluation mode, with memory-mapped weights.

    The weights are those of `gguf`, if given. Raise AttendoError if config.json and the weights do not match.

    >>> from tempfile import mkdtemp
    >>> config = ModelConfig(vocab_size=9, d_model=8, d_ff=8, n_heads=2, positions="learned", norm_first=True)
    >>> config = replace(config, architecture="decoder", n_encoder_layers=0, embedding_scale=False)
    >>> folder = Path(mkdtemp())
    >>> write_model(build_model(config), folder)
    'GPT2LMHeadModel'
    >>> read_model(folder).config.n_decoder_layers
    3
    """
    theirs = read_json(folder / "config.json") if theirs is None else theirs
    table, head = table_of(theirs)
    config_of(theirs)  # raises for unsupported options before the weights are read
    if gguf is not None:
        return _model_of(theirs, table, head, _Tensors(dict.fromkeys(gguf.tensors, gguf), table.prefix))
    with _opened(folder, table.prefix) as tensors:
        return _model_of(theirs, table, head, tensors)


def _model_of(theirs: Theirs, table: Table, head: Head, tensors: _Tensors) -> Model:
    rows, theirs = (*table.weights, *head.weights), table.filled(theirs)
    config = config_of(theirs, _has_output_bias(rows, tensors))
    if config.tie == "input" and torch.equal(tensors("lm_head.weight"), tensors("shared.weight")):
        config = replace(config, tie="all")
    with torch.device("meta"):
        model = build_model(config)
    ours = dict(model.named_parameters())
    taken: dict[str, Tensor] = {}
    for row, there in expanded(rows, ours):
        if there and row.theirs.endswith(table.optional) and tensors.here(row.theirs) is None:
            taken |= {name: torch.zeros(ours[name].shape) for name in row.ours}
        elif there:
            shapes = [ours[name].shape for name in row.ours]
            taken |= zip(row.ours, row.read(tensors, shapes, theirs, config.head_width), strict=True)
            _check_aliases(row, tensors)
        elif (name := tensors.here(row.theirs)) is not None:
            _check_unused(row, tensors, name, taken)
    assert taken.keys() == ours.keys(), sorted(taken.keys() ^ ours.keys())
    if left := tensors.left(table.passed_over):
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise AttendoError(f"the weights contain {left[0]}{more}, unlike config.json. Take both from one model")
    _fill(model, taken)
    return model.eval()


def _has_output_bias(rows: tuple[Row, ...], tensors: _Tensors) -> bool | None:
    """Return whether the output bias exists and is not zero, or None if the table has no output bias."""
    row = next((row for row in rows if row.flat), None)
    if row is None:
        return None
    return tensors.here(row.theirs) is not None and bool(tensors(row.theirs).any())


def _check_aliases(row: Row, tensors: _Tensors) -> None:
    """Raise AttendoError if copies of a tensor differ."""
    for alias in row.aliases:
        if tensors.here(alias) is not None and not torch.equal(tensors(alias), tensors(row.theirs)):
            raise AttendoError(
                f"{alias} and {row.theirs} differ, but config.json ties them (tie_word_embeddings). Set "
                "tie_word_embeddings to false if they should differ"
            )


def _check_unused(row: Row, tensors: _Tensors, name: str, taken: Mapping[str, Tensor]) -> None:
    """Raise AttendoError if an unused tensor is neither zero nor a copy of the embedding."""
    tensor = tensors(row.theirs)
    embeddings = [taken[name] for name in _EMBEDDINGS if name in taken]
    if row.ours == ("output_proj.weight",) and any(map(tensor.equal, embeddings)):
        return
    if row.ours == ("output_proj.weight",):
        raise AttendoError(
            f"{name} differs from the embedding, but config.json ties them (tie_word_embeddings). Set "
            "tie_word_embeddings to false if they should differ"
        )
    if not (row.flat and not tensor.any()):
        tensors.read.discard(name)


def _fill(model: Model, taken: Mapping[str, Tensor]) -> None:
    """Set the weights of a model that was built without weights, and compute its position tables."""
    new = {id(parameter): nn.Parameter(taken[name]) for name, parameter in model.named_parameters()}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = new[id(parameter)]
        if isinstance(module, FixedPositions):
            module.table = module.encode(torch.arange(module.start, module.start + len(module.table)))


_WRITTEN = (
    "marian", "pegasus", "bart", "mbart", "t5", "gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3",
    "gemma2", "gemma3_text", "bert", "distilbert", "modernbert", "eurobert",
)  # fmt: skip
"""The families for export, with widely supported families first."""

_WITHOUT_EFFECT = {
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "initialization",
    "pad_id",
    "max_len",
}
"""The options that do not change the logits."""

_BIASES = ("attention_bias", "attention_out_bias", "feed_forward_bias", "output_bias")


@dataclass(frozen=True)
class Place:
    """The format of an exported model: its configuration there, family, table, model class and config.json."""

    config: ModelConfig
    family: str
    table: Table
    name: str
    head: Head
    theirs: Mapping[str, Any]


def place_of(config: ModelConfig) -> Place:
    """Return the first family that supports all options of a model. Raise AttendoError if no family supports them.

    >>> place_of(ModelConfig(vocab_size=9)).name, place_of(ModelConfig(vocab_size=9, norm_first=True)).name
    ('MarianMTModel', 'PegasusForConditionalGeneration')
    >>> place_of(ModelConfig(vocab_size=9, positions="alibi"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: no model of transformers supports positions='alibi' with the other settings here
    """
    nearest: list[str] | None = None
    for place in _places(config):
        differing = _differing(place)
        if not differing:
            return place
        if nearest is None or len(differing) < len(nearest):
            nearest = differing
    names = " and ".join(f"{name}={getattr(config, name)!r}" for name in (nearest or ["architecture"])[:3])
    raise AttendoError(f"no model of transformers supports {names} with the other settings here")


def write_model(model: Model, folder: Path, more: Mapping[str, Any] | None = None) -> str:
    """Write config.json and model.safetensors of a model, and return the name of the `transformers` class.

    `more` contains further keys of config.json, such as the ids of special tokens.

    >>> from tempfile import mkdtemp
    >>> from attendo.models import build_model
    >>> write_model(build_model(ModelConfig(vocab_size=9, d_model=8, n_heads=2, d_ff=8)), Path(mkdtemp()))
    'MarianMTModel'
    """
    place = place_of(model.config)
    theirs = {**place.theirs, **(more or {}), "torch_dtype": "float32"}
    save_file(_tensors_of(model, place), folder / "model.safetensors", {"format": "pt"})
    write_atomic(folder / "config.json", json.dumps(theirs, indent=1, ensure_ascii=False) + "\n")
    return place.name


def _tensors_of(model: Model, place: Place) -> dict[str, Tensor]:
    """Return the tensors by their foreign names.

    If the foreign format stores sines and cosines in halves, the residual stream is permuted. The function of the model
    does not change.
    """
    config, theirs = place.config, place.theirs
    tied = bool(theirs.get("tie_word_embeddings", True))
    named = dict(model.named_parameters(remove_duplicate=False))
    ours = {name: tensor.detach().cpu() for name, tensor in model.named_parameters(remove_duplicate=tied)}
    if model.config.embedding_scale != config.embedding_scale:
        ours[_EMBEDDINGS[0]] = ours[_EMBEDDINGS[0]] * config.d_model**0.5
    if model.config.d_output != config.d_output:
        ours |= _hidden_layer(ours["output_proj.weight"])
    if _is_permuted(place):
        ours = dict(_permuted(ours, config.d_model))
    found: dict[str, Tensor] = {}
    for row, there in expanded((*place.table.weights, *place.head.weights), ours):
        weights = [name.removesuffix("bias") + "weight" for name in row.ours]
        if there:
            found[row.theirs] = row.write([ours[name] for name in row.ours], theirs, config.head_width)
            if row.plus is not None:
                found[row.plus] = found[row.theirs].new_zeros(theirs["type_vocab_size"], config.d_model)
        elif place.table.biased and row.ours[0].endswith(".bias") and weights[0] in named:
            zeros = [torch.zeros(len(named[name])) for name in weights]
            found[row.theirs] = row.write(zeros, theirs, config.head_width)
    if not tied and place.head.architecture == "encoder-decoder":
        # tensors in a file must not share memory
        found = {name: tensor.clone() for name, tensor in found.items()}
    for name in place.table.sinusoids:
        rows = torch.arange(config.max_len)
        found[name] = sinusoidal_encoding(rows, config.d_model, order="halves", dtype=torch.float32)
    return found


def _places(config: ModelConfig) -> Iterator[Place]:
    """Yield the formats of a model, then those of models that compute the same.

    The embedding matrix of the other models contains the factor √d_model, and classifiers have a hidden layer.
    """
    shapes = [config]
    if config.embedding_scale and config.architecture in ("decoder", "classifier"):
        # the output layer has no factor, so the matrices differ
        shapes.append(replace(config, embedding_scale=False, tie="none"))
    if config.pooling != "none" and 0 < 2 * config.n_classes <= config.d_model and config.d_output is None:
        head = {"d_output": config.d_model, "output_activation": "gelu"}
        shapes += [replace(shape, **head) for shape in shapes]
    for shape, family in product(shapes, _WRITTEN):
        for table in filter(lambda table: table.written, FAMILIES[family]):
            for name, head in table.heads.items():
                has_classes = head.ours.get("n_classes") != 0
                if head.architecture != shape.architecture or has_classes == embeds_texts(shape):
                    continue
                if (head.ours.get("pooling") == "none") != (shape.pooling == "none"):
                    continue
                theirs: dict[str, Any] = {"model_type": family, "architectures": [name]}
                for option in table.options:
                    theirs |= option.write(shape)
                if shape.n_classes:
                    theirs["id2label"] = {str(n): f"LABEL_{n}" for n in range(shape.n_classes)}
                if table.when(theirs):
                    yield Place(shape, family, table, name, head, theirs)


def _differing(place: Place) -> list[str]:
    """Return the options that change if a model is exported and imported again."""
    config = place.config
    try:
        has_bias = any(row.flat for row in (*place.table.weights, *place.head.weights))
        back = config_of(place.theirs, (config.output_bias and has_bias) or None)
    except AttendoError:
        return [field for field in asdict(config) if field not in _WITHOUT_EFFECT]
    wanted, found = _computed_options(config), _computed_options(back)
    if place.table.biased:
        for name in _BIASES:  # missing biases are written as zeros
            wanted[name] = wanted[name] or found[name]
    if _is_permuted(place):
        wanted["position_order"] = "halves"
    if wanted["tie"] == "all" and found["tie"] == "input":
        wanted["tie"] = "input"  # the shared matrix is written twice
    lost = [name for name in wanted if wanted[name] != found[name]]
    return [name for name in lost if "positions" not in lost or not name.startswith("position_")]


def _computed_options(config: ModelConfig) -> dict[str, Any]:
    """Return all options that define the computation of a model, with defaults filled in."""
    width, n_layers = config.head_width, config.n_decoder_layers or config.n_encoder_layers
    out_bias = config.attention_bias if config.attention_out_bias is None else config.attention_out_bias
    windows = list(islice(cycle(config.attention_windows), n_layers))
    whole = replace(
        config,
        n_kv_heads=config.n_kv_heads or config.n_heads,
        head_dim=width,
        value_dim=config.value_dim or width,
        attention_out_bias=out_bias,
        attention_scale=width**-0.5 if config.attention_scale is None else config.attention_scale,
        position_base=config.wavelength_base,
        attention_windows=repeating(windows) if any(windows) else (),
    )
    options = {name: value for name, value in asdict(whole).items() if name not in _WITHOUT_EFFECT}
    if config.architecture == "decoder" and options["tie"] == "output":
        options["tie"] = "all"
    if config.architecture == "masked":
        options["d_output"] = options["d_output"] or config.d_model
        options["tie"] = "all" if options["tie"] == "output" else options["tie"]
    return options


def _is_permuted(place: Place) -> bool:
    config, fixed = place.config, config_of(place.theirs)
    orders = config.position_order, fixed.position_order
    return config.positions == "sinusoidal" and orders == ("sincos", "halves")


def _hidden_layer(weight: Tensor) -> dict[str, Tensor]:
    """Return a hidden layer with GELU and an output layer that compute W x, because gelu(x) - gelu(-x) = x."""
    n, d_model = weight.shape
    unused = weight.new_zeros(d_model - 2 * n, d_model)
    one = torch.eye(n, d_model - n)
    return {
        "output_hidden.weight": torch.cat([weight, -weight, unused]),
        "output_hidden.bias": weight.new_zeros(d_model),
        "output_proj.weight": torch.cat([torch.eye(n), -one], 1),
    }


def _permuted(ours: Mapping[str, Tensor], d_model: int) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor with the features of the residual stream permuted into halves."""
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    for name, tensor in ours.items():
        # the rows of output projections and norms are features of the residual stream
        writes = name.endswith(("out_proj.weight", "out_proj.bias")) or "norm" in name
        yield name, tensor[order] if writes else tensor if tensor.ndim == 1 else tensor[:, order]
