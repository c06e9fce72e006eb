"""A model on disk: config.toml, model.safetensors, tokenizer.json and card.json, checked to belong together."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from attendo.config import LONGEST, bounded_int, build, dump_toml, read_toml
from attendo.custom_modules import (
    LOAD,
    CustomModules,
    custom_buffers,
    insert_custom_modules,
    name_of_custom_modules,
    python_line,
)
from attendo.data.imported_tokenizers import ImportedTokenizer
from attendo.data.tokenizers import LearnedTokenizer, Tokenizer
from attendo.errors import AttendoError, is_failure
from attendo.files import with_facts, write_atomic
from attendo.model_config import Architecture
from attendo.models import Model, ModelConfig, build_model
from attendo.quantized import SCALE, QuantizedLinear

FORMAT = 1
DTYPES = ("F64", "F32", "F16", "BF16")
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.uint8: "U8",
}
"""The name of each type in a safetensors file, in the order in which tensors are stored."""
Bits = Literal[32, 16, 8, 4]
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""The exceptions that an invalid header causes, or a header that changed while it was read."""
TaskName = Literal[
    "translation",
    "classification",
    "multi-label",
    "regression",
    "tagging",
    "language-model",
    "chat",
    "preference",
    "reward",
    "masked-language-model",
]

USES: dict[Architecture, str] = {
    "encoder-decoder": "translate",
    "classifier": "classify",
    "decoder": "generate",
    "masked": "embed",
}
"""The command that applies a model, by the architecture of the model."""

ModelT = TypeVar("ModelT", bound=Model)


class TextModel:
    """The base class of Translator, Classifier, Generator and Embedder.

    A call of another task's method, for example `classifier.translate`, raises an AttributeError that names the task.

    >>> TextModel().translate
    Traceback (most recent call last):
    AttributeError: 'TextModel' object has no attribute 'translate'. Load a run that was trained for translation
    """

    model: Any

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    if not TYPE_CHECKING:  # so that type checkers still report unknown attributes

        def __getattr__(self, name: str) -> Any:
            tasks = {"translate": "translation", "classify": "classification", "generate": "language-model"}
            remedy = f". Load a run that was trained for {tasks[name]}" if name in tasks else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{remedy}")


def embeds_texts(config: ModelConfig) -> bool:
    """Return whether a model only outputs embedding vectors of texts, as a classifier without classes does."""
    return config.architecture == "classifier" and config.n_classes == 0


def use_of(task: str | None, architecture: Architecture) -> str:
    """Return the name of the command that runs a model of this task and architecture.

    >>> use_of("embedding", "classifier"), use_of("classification", "classifier"), use_of("chat", "decoder")
    ('embed', 'classify', 'chat')
    """
    own = {"embedding": "embed", "chat": "chat", "preference": "chat", "reward": "chat"}
    return own.get(task or "", USES[architecture])


def usage(task: str | None, architecture: Architecture, folder: Path) -> str:
    """Return an example of the command that runs a model.

    >>> usage("translation", "encoder-decoder", Path("runs/mine"))
    'attendo translate runs/mine "your text"'
    """
    use = use_of(task, architecture)
    return f"attendo {use} {folder}" + ("" if use == "chat" else ' "your text"')


@dataclass(frozen=True)
class Card:
    """The fields of card.json that attendo reads, with their types."""

    task: str = ""
    started: str = ""
    languages: dict[str, str | None] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    n_rows: int = 0
    values: list[float] = field(default_factory=list)
    parameters: int = 0
    trained_parameters: int = 0
    own_parts: str = ""
    own_buffers: dict[str, list[int]] = field(default_factory=dict)
    init_from: str = ""
    imported: dict[str, str | None] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    deciding: str = ""
    files: dict[str, str] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    bits: Bits = 32
    versions: dict[str, str] = field(default_factory=dict)


@dataclass
class Bundle:
    """The contents of a run folder without the weights: the tables of config.toml, the tokenizer and card.json.

    `own_parts` is the function that inserts the custom modules. `folder` is None for a bundle that is not on disk.
    """

    tables: dict[str, dict[str, Any]]
    tokenizer: Tokenizer
    card: dict[str, Any] = field(default_factory=dict)
    own_parts: CustomModules | None = None
    folder: Path | None = None

    @property
    def model_config(self) -> ModelConfig:
        """The [model] table of config.toml."""
        return build(ModelConfig, self.tables["model"], "config.toml [model]")

    def chosen_bits(self, bits: Bits | None, device: str) -> Bits:
        """Return `bits`, by default those of a quantized run, or 32. On other devices than a CPU, return 32."""
        return (bits or self.card.get("bits", 32)) if device == "cpu" else 32

    def new_model(self) -> Model:
        """Return a new model with the bundle's configuration, random weights and custom modules, on the CPU."""
        model = build_model(self.model_config)
        if self.own_parts is not None:
            insert_custom_modules(self.own_parts, model)
        return model

    def sized_model(self, where: Path, stored: Mapping[str, Sequence[int]], *, empty: bool = False) -> Model:
        """Return a new model. Raises AttendoError if its shapes differ from the shapes `stored` in the file `where`.

        With `empty`, the parameters have no memory if the model has neither custom modules nor buffers.
        """
        config = self.model_config
        if config.n_encoder_layers + config.n_decoder_layers > len(stored):
            raise AttendoError(
                f"{where} has {len(stored)} parameters, fewer than the layers in config.toml. Restore both files"
            )
        if self.own_parts is None:
            try:
                with torch.device("meta"):
                    paper = build_model(config)
            except (RuntimeError, OverflowError, TypeError) as error:
                words = str(error).splitlines()[0][:LONGEST]
                raise AttendoError(
                    f"config.toml [model] next to {where} has invalid sizes: {words}. Restore the file"
                ) from None
            self.require_shapes(where, stored, paper)
            if empty and not any(True for _ in paper.buffers()):
                return paper
        model = self.new_model()
        self.require_shapes(where, stored, model)
        return model

    def require_own_parts(self, folder: Path, call: str = LOAD) -> None:
        """Raise AttendoError if custom modules are missing. The message suggests the Python line `call`."""
        if self.own_parts is None and (name := self.card.get("own_parts")) is not None:
            raise AttendoError(
                f"{folder} was trained with custom modules ({name}). Their code is not stored in the run "
                f"folder. Load the run from Python: {python_line(name, folder, call)}"
            )

    def require_shapes(self, where: Path, stored: Mapping[str, Sequence[int]], model: nn.Module) -> None:
        """Raise AttendoError if a parameter or custom buffer of `model` differs from the weights file `where`.

        `stored` contains the shape of each parameter in the file. The message names the first difference.
        """
        made: dict[str, Sequence[int]] = {name: p.shape for name, p in model.named_parameters()}
        if (buffers := self.card.get("own_buffers")) is not None:
            made = made | custom_buffers(model)
            stored = {**stored, **buffers}
        if differing := sorted(made.keys() ^ stored.keys()):
            raise AttendoError(f"{where}: {differing[0]} is not in both file and model. Restore the file")
        maker = "config.toml" if self.own_parts is None else name_of_custom_modules(self.own_parts)
        for name, shape in made.items():
            if tuple(shape) != tuple(stored[name]):
                raise AttendoError(
                    f"{where}: {name} has shape {tuple(stored[name])}, but {maker} defines {tuple(shape)}. "
                    "Restore the config.toml or code that this run was trained with"
                )


def save_description(folder: Path, bundle: Bundle, texts: Iterable[str] | None = None) -> None:
    """Write config.toml, tokenizer.json, card.json and examples of `texts` to a run folder, each file atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "config.toml", dump_toml(bundle.tables))  # marks the folder as a run
    bundle.tokenizer.save(folder / "tokenizer.json")
    save_card(folder, bundle.card)
    if texts is not None:
        save_examples(folder, texts, 30 if bundle.card.get("task") == "language-model" else 80)


def save_card(folder: Path, card: dict[str, Any]) -> None:
    """Replace card.json atomically."""
    write_atomic(folder / "card.json", json.dumps({"format": FORMAT, **card}, indent=1, ensure_ascii=False) + "\n")


EXAMPLES = "examples.json"  # not in the card, because exports contain the card, and the texts may be private


def save_examples(folder: Path, texts: Iterable[str], most: int) -> None:
    """Write 3 texts, cut to `most` characters at a word boundary. Texts of 15 to 80 characters are preferred."""
    is_short = {shorten(text, most, placeholder="", break_on_hyphens=False): 15 <= len(text) <= 80 for text in texts}
    chosen = sorted(filter(None, is_short), key=lambda text: not is_short[text])[:3]
    write_atomic(folder / EXAMPLES, json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")


def examples_of(folder: Path | None) -> list[str]:
    """Return the example texts of a run folder, or no texts if examples.json is missing or damaged."""
    try:
        texts = [] if folder is None else json.loads((folder / EXAMPLES).read_bytes())
        "".join(texts).encode()  # raises an exception for other values than valid texts
    except (OSError, ValueError, TypeError, RecursionError):
        return []  # a page must not fail because of its examples
    return texts if isinstance(texts, list) else []


def save_weights(folder: Path, model: nn.Module, bundle: Bundle, step: int) -> None:
    """Save model.safetensors atomically. The header contains the step and hashes of config, tokenizer and weights.

    The weights are stored in bfloat16 if this changes no matrix, as for most imported language models. Vectors that
    bfloat16 would change remain as they are.
    """
    tensors = {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}
    matrices = [tensor for tensor in tensors.values() if tensor.ndim > 1]
    if all(map(_is_bfloat16, matrices)):  # the norms of Gemma, 1 + bfloat16, remain in float32
        tensors = {name: t.bfloat16() if _is_bfloat16(t) else t for name, t in tensors.items()}
    save_tensors(folder, tensors, bundle, step)


def _is_bfloat16(tensor: Tensor) -> bool:
    return torch.equal(tensor.bfloat16().to(tensor.dtype), tensor)


def save_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    bundle: Bundle,
    step: int,
    computed: Iterable[Tensor] | None = None,
) -> None:
    """Save model.safetensors atomically: a tensor for each parameter, or the numbers and scales of a quantized one.

    With `computed`, `tensors` contains only types and shapes in the order of the file, and each tensor of `computed` is
    written before the next one is computed.
    """
    if computed is None:
        # wide types first, which aligns all tensors
        types = list(_NAMES)
        tensors = dict(sorted(tensors.items(), key=lambda one: (types.index(one[1].dtype), one[0])))
        # copies, because `numpy` fixes the size of a storage, which FSDP changes
        computed = (tensor.clone() for tensor in tensors.values())
    header: dict[str, Any] = {"__metadata__": {"format": f"attendo {FORMAT}", "step": str(step), **_hashes(bundle)}}
    end = 0
    for name, tensor in tensors.items():
        place = [end, end := end + tensor.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
    digest = _begun_hash(header)
    plain = json.dumps(header).encode()

    def begin() -> bytes:
        whole = with_facts(len(plain).to_bytes(8, "little") + plain, weights_sha256=digest.hexdigest())
        return b"".join(whole)

    def parts() -> Iterator[bytes | memoryview]:
        yield begin()
        for planned, tensor in zip(tensors.values(), computed, strict=True):
            assert (planned.shape, planned.dtype) == (tensor.shape, tensor.dtype)
            data = tensor.reshape(-1).view(torch.uint8).numpy().data
            digest.update(data)
            yield data

    # the hash is known when the weights are written
    write_atomic(folder / "model.safetensors", parts(), begin)


def no_such_run(folder: Path) -> AttendoError:
    """Return the error for a missing run folder. For runs/demo, the message names the command that creates the folder.

    >>> str(no_such_run(Path("runs/demo")))
    'runs/demo: no such run folder; `attendo demo` creates it'
    """
    is_demo = folder.parts[-2:] == ("runs", "demo")
    remedy = "`attendo demo` creates it" if is_demo else "give the folder that `attendo train … --out` wrote"
    return AttendoError(f"{folder}: no such run folder; {remedy}")


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a learned or imported tokenizer. Raises AttendoError if the file is missing, damaged or not a tokenizer."""
    try:
        text = path.read_bytes().decode("utf-8")
        imported = text[:100].lstrip().removeprefix("{").lstrip().startswith('"attendo_tokenizer"')
        return ImportedTokenizer(text) if imported else LearnedTokenizer(text)
    except FileNotFoundError:
        raise AttendoError(f"{path}: no such file. Restore it from the run folder") from None
    except UnicodeDecodeError as error:
        raise AttendoError(f"{path}: not a tokenizer file: {error}") from error
    except AttendoError as error:
        raise AttendoError(f"{path}: {error}") from error
    except BaseException as error:
        if not is_failure(error):
            raise
        raise AttendoError(f"{path}: not a tokenizer file ({type(error).__name__}: {error})") from error


def load_bundle(folder: Path, own_parts: CustomModules | None = None) -> Bundle:
    """Read and check config.toml, tokenizer.json and card.json. Raises AttendoError if a file is missing or damaged.

    The argument `own_parts` is rejected for a model that was trained without custom modules.
    """
    if not folder.is_dir():
        raise no_such_run(folder)
    path = folder / "card.json"
    card = _card(path) if path.is_file() else {}  # first, since later formats may differ
    for name in ("config.toml", "tokenizer.json", "card.json"):
        if not (folder / name).is_file():
            raise AttendoError(
                f"{folder} has no {name}, so it is not a run folder. For a Hugging Face model, use attendo import"
            )
    tables = _whole_config(folder / "config.toml", card)
    config = build(ModelConfig, tables["model"], f"{folder / 'config.toml'} [model]")
    if own_parts is not None and "own_parts" not in card:
        raise AttendoError(f"{folder} was trained without custom modules. Load it without own_parts")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    reserved = max(tokenizer.specials.n_reserved, tokenizer.specials.n_around_text)
    for name, least in {"vocab_size": tokenizer.vocab_size, "max_len": reserved + 1}.items():
        if getattr(config, name) < least:
            raise AttendoError(
                f"{folder / 'config.toml'} [model]: {name}={getattr(config, name)} is too small for "
                f"tokenizer.json (expected at least {least}). Restore both files"
            )
    return Bundle(tables, tokenizer, card, own_parts, folder)


def _card(path: Path) -> dict[str, Any]:
    """Return the contents of card.json. Raises AttendoError if the file is damaged or has an unknown format."""
    try:
        card = json.loads(path.read_text(encoding="utf-8"), parse_int=bounded_int)
        found = card.get("format")
    except (ValueError, AttributeError, RecursionError):
        raise AttendoError(f"{path} is damaged (not valid JSON). Restore the file") from None
    if found != FORMAT:
        raise AttendoError(
            f"{path}: format {str(found)[:LONGEST]} is unknown (this version reads {FORMAT}). Upgrade attendo"
        )
    build(Card, card, f"{path} [card]", others=True)
    return card


def _whole_config(path: Path, card: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables of config.toml. Raises AttendoError if the file is truncated."""
    tables = read_toml(path)
    if value := next((name for name, table in tables.items() if not isinstance(table, dict)), None):
        raise AttendoError(f"{path}: {value} is a single value (expected a table). Restore the file")
    # the card also contains the keys of [decoding], the last table
    lost = [key for key in card.get("decoding", {}) if key not in tables.get("decoding", {})]
    if "model" not in tables or lost or not path.read_bytes().endswith(b"\n"):
        end = "line break at its end" if "model" in tables else "table [model]"
        what = f"key decoding.{lost[0]}" if lost else end
        raise AttendoError(f"{path} is truncated: it has no {what}. Restore the file")
    return tables


def load_model(folder: Path, bundle: Bundle, *, mapped: bool = False, quantized: bool = False) -> Model:
    """Return a run folder's trained model in evaluation mode, in float32 (or in float64, if the file is).

    With `mapped`, the parameters have the type of the file and are read from disk when they are used, unless the model
    has custom modules. With `quantized`, quantized layers remain quantized and are read in the same way. Raises
    AttendoError if the weights are missing or damaged.
    """
    path = folder / "model.safetensors"
    if not path.is_file():
        raise AttendoError(
            f"{folder} has no model.safetensors yet, as no evaluation was reached. Run: attendo resume {folder}"
        )
    bundle.require_own_parts(folder)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            for key, value in _hashes(bundle).items():
                if header.get(key) != value:
                    part = key.removesuffix("_sha256")
                    raise AttendoError(
                        f"{path} was trained with a different {part} than the one in its folder. Restore both"
                    )
            if header.get("weights_sha256") not in (None, _weights_sha256(path.open("rb"))):
                raise AttendoError(f"{path} is damaged: its weights do not match their hash. Restore it, or resume")
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            layers = {
                name: QuantizedLinear(file.get_tensor(name), file.get_tensor(name + SCALE), None)
                for name, found in slices.items()
                if found.get_dtype() in ("I8", "U8") and name + SCALE in slices
            }
            for name in layers:
                del slices[name + SCALE]
            for name, found in slices.items():
                if name not in layers and found.get_dtype() not in DTYPES:
                    raise AttendoError(f"{path}: {name} has type {found.get_dtype()} (expected F32). Restore the file")
            stored = {name: found.get_shape() for name, found in slices.items()}
            stored |= {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}
            model = bundle.sized_model(path, stored, empty=mapped)
            if quantized and bundle.own_parts is None:
                _insert(model, layers)
            if mapped and bundle.own_parts is None:
                _map(model, {name: file.get_tensor(name) for name, _ in model.named_parameters()})
            else:
                for name, parameter in model.named_parameters():  # with copies: the file may be replaced
                    found = layers[name].weight if name in layers else file.get_tensor(name)
                    is_wide = found.dtype in (torch.float32, torch.float64)
                    parameter.data = found.clone() if is_wide else found.float()
    except (SafetensorError, *_UNREADABLE) as error:
        raise AttendoError(f"{path} is damaged ({error}). Restore the file, or resume the run") from None
    return model.eval()


def _map(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace all parameters of a model, which may have several places, by tensors."""
    new = {}
    for name, old in model.named_parameters():
        found = tensors[name]
        new[id(old)] = nn.Parameter(found.float() if found.dtype == torch.float16 else found, requires_grad=False)
        new[id(old)].is_mapped = True
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, name, new[id(old)])


def _insert(model: nn.Module, layers: Mapping[str, QuantizedLinear]) -> None:
    """Replace linear layers by quantized layers, which keep the biases. The keys are the names of the weights."""
    for name, layer in layers.items():
        path = name.removesuffix(".weight")
        plain = model.get_submodule(path)
        if not isinstance(plain, nn.Linear):
            raise ValueError(f"{name} is quantized")
        layer.bias = plain.bias
        layer.cap = getattr(plain, "cap", None)
        numbers: Any = layer.numbers
        numbers.is_mapped = True
        model.set_submodule(path, layer)


def weights_hash(folder: Path) -> str:
    """Return the hash of the weights from the header of model.safetensors, or "" if the file or the hash is missing."""
    path = folder / "model.safetensors"
    if not path.is_file():
        return ""
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("weights_sha256", "")
    except SafetensorError as error:
        raise AttendoError(f"{path} is damaged ({error}). Restore the file, or resume the run") from None


def load_as(
    kind: type[ModelT],
    folder: str | Path,
    device: str = "cpu",
    *,
    bits: Bits | None = 32,
    mapped: bool = False,
) -> tuple[Bundle, ModelT]:
    """Return the bundle and the model of a run folder. Raises AttendoError if the model is not of the class `kind`.

    With fewer than 32 `bits`, quantized layers remain quantized, and `mapped` has the effect of `load_model`.
    """
    folder = Path(folder)
    bundle = load_bundle(folder)
    few = bundle.chosen_bits(bits, device) < 32
    model = load_model(folder, bundle, mapped=mapped and few, quantized=few).to(device)
    if not isinstance(model, kind):
        task = bundle.card.get("task", "another task")
        does = use_of(task, bundle.model_config.architecture)
        raise AttendoError(f"{folder} was trained for {task}; use it with `attendo {does}`")
    return bundle, model


def _weights_sha256(file: BinaryIO) -> str:
    """Return the hash of a safetensors file: its weights and its header, except for the hash in the header."""
    with file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header["__metadata__"].pop("weights_sha256", None)
        found = _begun_hash(header)
        while part := file.read(1 << 24):
            found.update(part)
    return found.hexdigest()


def _begun_hash(header: Mapping[str, Any]) -> "hashlib._Hash":
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode())


def _hashes(bundle: Bundle) -> dict[str, str]:
    model = json.dumps(bundle.tables["model"], sort_keys=True)
    return {
        "config_sha256": hashlib.sha256(model.encode()).hexdigest(),
        "tokenizer_sha256": bundle.tokenizer.sha256,
    }


def pick_device(name: str, index: int | None = None) -> torch.device:
    """Return the device with this name: "auto", "cpu" or "cuda".

    "auto" selects the GPU if there is one, otherwise the CPU. `index` selects one of several GPUs, from 0. Raises
    AttendoError for an unknown name or a missing GPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        apple = ". GPUs of Apple are not supported; use cpu" if name == "mps" else ""
        raise AttendoError(f"unknown device {name!r} (expected auto, cpu or cuda){apple}")
    if name == "cuda" and not torch.cuda.is_available():
        raise AttendoError("device cuda: PyTorch finds no GPU. Use cpu, or install a CUDA build")
    return torch.device(name) if name == "cpu" or index is None else torch.device(name, index)
