"""The export to ONNX graphs, which onnxruntime runs on any system and from any programming language.

The file encoder.onnx maps the source ids of a translator to the keys and values of the encoder output. The file
decoder.onnx maps the next n token ids of every row, and earlier keys and values, to logits. The file model.onnx maps
the token ids of a classifier or masked model to logits. The file weights.bin contains the weights of all graphs. The
file onnx.json describes the inputs and outputs of the graphs, the special ids, and the decoding loop.

The folder also contains tokenizer.json and card.json. `onnx_models` builds the graphs from the modules of the model,
without tracing. `opened` runs an exported model with onnxruntime and attendo's search. `opened` also shows how to
implement the decoding loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attendo.bundle import Bundle, load_tokenizer, save_card
from attendo.config import build
from attendo.data.batches import pad_rows
from attendo.data.tokenizers import Around, Kind, Tokenizer
from attendo.decoding.backends import DecoderBackend
from attendo.decoding.beam import DecodingConfig
from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.options import SpecialIds
from attendo.decoding.searcher import SearchBackend, Searcher
from attendo.errors import AttendoError
from attendo.files import write_atomic
from attendo.inference.generation import Generation, Writing, WrittenText, special_ids, written
from attendo.inference.translations import Translation, sources_of
from attendo.interop.onnx_graph import Weights
from attendo.interop.onnx_models import graphs_of
from attendo.interop.parity import Found
from attendo.interop.requirements import required, unknown_option
from attendo.model_config import Architecture, ModelConfig
from attendo.models import Model

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto


Arrays = dict[str, np.ndarray]
MOST_LOGITS = 1 << 24  # maximum number of logits that a step computes at once
_AHEAD = 2  # the axis of keys and values along which a text grows


class Session:
    """A loaded graph, which is a function of named arrays. Raises AttendoError if the graph cannot be loaded."""

    def __init__(self, path: Path):
        onnxruntime = required("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 4  # errors are raised instead
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads sleep
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001  onnxruntime's errors have no common class
            reason = str(error).splitlines()[0]
            raise AttendoError(f"{path} cannot be run ({reason}). Export the model again") from None
        self.outputs = {value.name: value.shape for value in self._session.get_outputs()}
        self.inputs = {value.name: value.shape for value in self._session.get_inputs()}

    def __call__(self, **feeds: np.ndarray) -> Arrays:
        """Run the graph and return all its outputs by name."""
        found = cast("list[np.ndarray]", self._session.run(None, feeds))
        return dict(zip(self.outputs, found, strict=True))


class Rows:
    """The state of texts that are being generated, one per row, with left-padded keys and values."""

    def __init__(self, lengths: np.ndarray, past: Arrays, memory: Arrays):
        self.lengths, self.past, self.memory = lengths, past, memory

    def reorder(self, rows: Int[Tensor, " new_rows"]) -> None:
        """Replace each row i by the old row `rows[i]`, which must have the same source."""
        self.lengths = self.lengths[rows.numpy()]
        self.past = {name: values[rows.numpy()] for name, values in self.past.items()}

    def keep(self, rows: Int[Tensor, " kept_rows"]) -> None:
        """Keep only the given rows, and remove padding that is no longer needed."""
        self.reorder(rows)
        self.memory = {name: values[rows.numpy()] for name, values in self.memory.items()}
        longest = int(self.lengths.max(initial=0))
        self.past = {name: values[:, :, values.shape[_AHEAD] - longest :] for name, values in self.past.items()}

    def join(self, other: Rows) -> None:
        """Append the rows of another state."""
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self.past = {name: _joined(values, other.past[name], False) for name, values in self.past.items()}
        self.memory = {name: _joined(values, other.memory[name], True) for name, values in self.memory.items()}


def _joined(first: np.ndarray, second: np.ndarray, behind: bool) -> np.ndarray:
    """Return the rows of both arrays. The shorter keys and values are padded at the start or at the end."""
    if first.ndim == 1:
        return np.concatenate([first, second])
    longest = max(first.shape[_AHEAD], second.shape[_AHEAD])

    def padded(values: np.ndarray) -> np.ndarray:
        missing = longest - values.shape[_AHEAD]
        ahead = (0, missing) if behind else (missing, 0)
        return np.pad(values, ((0, 0), (0, 0), ahead, (0, 0)))

    return np.concatenate([padded(first), padded(second)])


def check_lengths(lengths: np.ndarray, max_len: int) -> None:
    """Raise AttendoError for a text without tokens, or with more than `max_len` tokens.

    >>> check_lengths(np.array([3, 9]), 8)
    Traceback (most recent call last):
    attendo.errors.AttendoError: a text has 9 tokens, but the exported model reads at most max_len=8. Split the text
    """
    if lengths.min(initial=1) < 1:
        raise AttendoError("a text has no tokens (expected at least one, for example the end token)")
    if (most := lengths.max(initial=0)) > max_len:
        raise AttendoError(
            f"a text has {most} tokens, but the exported model reads at most max_len={max_len}. Split the text"
        )


class Stepper:
    """A wrapper of decoder.onnx, whose methods a search or a `DecoderBackend` calls."""

    def __init__(self, path: Path, max_len: int):
        self.session, self.max_len = Session(path), max_len
        self.vocab_size: int = self.session.outputs["logits"][-1]

    def begin(self, rows: int, memory: Arrays) -> Rows:
        """Return the state of `rows` texts without tokens."""
        past = {
            name: np.zeros((rows, shape[1], 0, shape[3]), np.float32)
            for name, shape in self.session.inputs.items()
            if name.startswith("past_")
        }
        return Rows(np.zeros(rows, np.int64), past, memory)

    def step(self, token_ids: Int[Tensor, "rows n"], rows: Rows, /) -> Float[Tensor, "rows vocab"]:
        """Process the next n tokens of every row, in parts if necessary, and return the logits after the last token."""
        *read, last = token_ids.split(max(1, MOST_LOGITS // (len(token_ids) * self.vocab_size)), dim=1)
        for part in read:
            self.logits(part, rows)
        return self.logits(last, rows)[:, -1]

    def logits(self, token_ids: Int[Tensor, "rows n"], rows: Rows) -> Float[Tensor, "rows n vocab"]:
        """Process the next n tokens of every row, and return the logits after each of these tokens."""
        lengths = rows.lengths + token_ids.shape[1]
        check_lengths(lengths, self.max_len)
        rows.lengths = lengths
        found = self.session(token_ids=token_ids.numpy(), lengths=rows.lengths, **rows.past, **rows.memory)
        logits = torch.from_numpy(found.pop("logits"))
        rows.past = {name.replace("present_", "past_"): values for name, values in found.items()}
        return logits


@dataclass
class Exported:
    """An exported model: its folder, description, tokenizer and model card."""

    folder: Path
    description: dict[str, Any]
    tokenizer: Tokenizer
    card: dict[str, Any]

    @property
    def max_len(self) -> int:
        """The maximum number of tokens of a text."""
        return self.description["max_len"]

    @property
    def special_ids(self) -> SpecialIds:
        """The special token ids for the search."""
        own = self.tokenizer
        return SpecialIds(bos_id=own.specials.begin[-1], eos_id=own.eos_id, banned_ids=own.never)

    @cached_property
    def decoder(self) -> Stepper:
        """The decoder in decoder.onnx, loaded on first use."""
        return Stepper(self.folder / "decoder.onnx", self.max_len)


class ExportedTranslator(Exported):
    """An exported translator that uses attendo's beam search."""

    @cached_property
    def encoder(self) -> Session:
        """The encoder in encoder.onnx, loaded on first use."""
        return Session(self.folder / "encoder.onnx")

    def start(self, sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int = 0, /) -> Rows:
        """Encode the sources, and return a state with `rows_per_source` rows without tokens per source."""
        del capacity
        src, lengths = pad_rows(sources, self.tokenizer.pad_id)
        lengths = np.array([len(source) for source in sources])
        check_lengths(lengths, self.max_len)
        memory = self.encoder(source_ids=src.numpy(), source_lengths=lengths)
        del memory["memory"]
        memory["memory_lengths"] = lengths
        memory = {name: np.repeat(values, rows_per_source, axis=0) for name, values in memory.items()}
        return self.decoder.begin(len(sources) * rows_per_source, memory)

    @property
    def same_search(self) -> Mapping[str, Any]:
        """The changed DecodingConfig options: no coverage penalty, because the graphs return no attention."""
        return {"coverage_penalty": 0.0}

    def translations(self, texts: Sequence[str], beam: int | None = None) -> list[Translation]:
        """Translate texts. The results equal those of `Translator.translate` with guard=False and `same_search`."""
        own = build(DecodingConfig, self.description["decoding"], "onnx.json decoding")
        beam = own.beam if beam is None else beam
        config = replace(own, **self.same_search, beam=beam, n_best=min(beam, own.n_best))
        specials, step = self.tokenizer.specials, self.decoder.step
        longest = self.max_len - specials.n_reserved
        sources = sources_of(self.tokenizer, texts, longest)
        backend = SearchBackend(self.start, step).with_decoder_prefix(specials.begin)
        found = Searcher(backend, self.special_ids, longest + 1).search(sources.rows, config)
        return sources.translations([(one, "none") for one in found], self.tokenizer, config.n_best, None)

    def translate(self, texts: Sequence[str], beam: int | None = None) -> list[Found]:
        """Return the best translation of each text."""
        best = [found.candidates[0] for found in self.translations(texts, beam)]
        entries = self.tokenizer.entries
        return [Found([entries[i] for i in one.token_ids], one.text, one.score) for one in best]


class ExportedGenerator(Exported):
    """An exported language model that uses attendo's sampling."""

    def reader(self) -> DecoderBackend:
        """Return the decoder as an object that `Writing` and `Windows` accept."""
        return DecoderBackend(
            lambda rows, _capacity: self.decoder.begin(rows, {}),
            self.decoder.step,
            self.max_len,
            torch.device("cpu"),
        )

    def generate(self, prompts: Sequence[str], config: SamplingConfig) -> list[Generation]:
        """Generate a text for each prompt. Temperature 0 selects greedy decoding."""
        texts = [WrittenText(self.tokenizer, self.max_len, prompt, config) for prompt in prompts]
        steps: Iterator[Any] = written(Writing(self.reader(), self.tokenizer), texts, len(texts))
        found = {step.number: step.generation for step in steps if step.generation is not None}
        return [found[number] for number in sorted(found)]

    def logits(self, rows: Sequence[Sequence[int]]) -> list[Float[np.ndarray, "len vocab"]]:
        """Return the logits after each token of each row. All rows are processed in one left-padded batch."""
        longest = max(map(len, rows))
        ids = [[*[self.tokenizer.pad_id] * (longest - len(row)), *row] for row in rows]
        state = self.decoder.begin(len(rows), {})
        state.lengths = np.array([len(row) - longest for row in rows])  # the padding does not count
        logits = self.decoder.logits(torch.tensor(ids), state).numpy()
        return [found[longest - len(row) :] for found, row in zip(logits, rows, strict=True)]


class ExportedReader(Exported):
    """An exported classifier or masked language model."""

    @cached_property
    def model(self) -> Session:
        """The graph in model.onnx, loaded on first use."""
        return Session(self.folder / "model.onnx")

    def outputs(self, rows: Sequence[Sequence[int]]) -> Arrays:
        """Return padded hidden states `[rows, len, d_model]` and logits `[rows, classes]` or `[rows, len, vocab]`."""
        token_ids, lengths = pad_rows(rows, self.tokenizer.pad_id)[0], np.array([len(row) for row in rows])
        check_lengths(lengths, self.max_len)
        return self.model(token_ids=token_ids.numpy(), lengths=lengths)

    def logits(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the logits of each row of token ids: one vector for a classifier, or one per position."""
        found = self.outputs(rows)["logits"]
        return [one if found.ndim == 2 else one[: len(row)] for one, row in zip(found, rows, strict=True)]


def opened(out: Path) -> ExportedTranslator | ExportedGenerator | ExportedReader:
    """Load an exported model with onnxruntime. Raise AttendoError for a missing or damaged file.

    >>> opened(Path("nowhere"))
    Traceback (most recent call last):
    attendo.errors.AttendoError: nowhere has no onnx.json. Give the folder that `attendo export … --to onnx` wrote
    """
    if not (out / "onnx.json").is_file():
        raise AttendoError(f"{out} has no onnx.json. Give the folder that `attendo export … --to onnx` wrote")
    try:
        description, card = (json.loads((out / name).read_text("utf-8")) for name in ("onnx.json", "card.json"))
    except (OSError, ValueError):
        raise AttendoError(f"{out}: onnx.json or card.json is damaged. Export the model again") from None
    kinds = {"encoder-decoder": ExportedTranslator, "decoder": ExportedGenerator}
    kind = kinds.get(description["architecture"], ExportedReader)
    return kind(out, description, load_tokenizer(out / "tokenizer.json"), card)


FORMAT = 1
LOOPS = Path(__file__).with_name("onnx_loops.json")
"""The steps of a program that runs the graphs, by architecture."""
_CHOICES = {
    "architecture": ("encoder-decoder", "classifier", "decoder", "masked"),
    "norm": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "positions": ("sinusoidal", "learned", "ramp", "inverse", "rotary", "alibi", "relative", "none"),
    "output_activation": ("tanh", "relu"),
    "pooling": ("max", "mean", "first"),
}


def why_not(config: ModelConfig, kind: Kind) -> str | None:
    """Return the reason why a model cannot be exported to ONNX, or None if it can be exported.

    >>> why_not(ModelConfig(vocab_size=11, positions="rotary"), "bpe") is None
    True
    """
    del kind
    choices = ((name, getattr(config, name)) for name in _CHOICES)
    later = next((f"{name}={value!r}" for name, value in choices if value not in _CHOICES[name]), None)
    unknown = unknown_option(config) or later
    return None if unknown is None else f"{unknown} is not supported by the export to ONNX"


def write(folder: Path, bundle: Bundle, model: Model, out: Path) -> None:
    """Write the graphs, the weights and the description of a model to `out`. Raise AttendoError if `onnx` is missing.

    >>> import tempfile
    >>> from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
    >>> from attendo.models import build_model
    >>> tokenizer = train_tokenizer(["a b"], TokenizerConfig(kind="byte", vocab_size=260))
    >>> model = build_model(ModelConfig(architecture="decoder", vocab_size=260, d_model=8, n_encoder_layers=0)).eval()
    >>> with tempfile.TemporaryDirectory() as out:
    ...     write(Path(), Bundle({}, tokenizer), model, Path(out))
    ...     theirs, names = opened(Path(out)).logits([[2, 70]])[0], sorted(path.name for path in Path(out).iterdir())
    >>> names
    ['card.json', 'decoder.onnx', 'onnx.json', 'tokenizer.json', 'weights.bin']
    >>> bool(abs(theirs - model(torch.tensor([[2, 70]]))[0].detach().numpy()).max() < 1e-5)
    True
    """
    del folder
    required("onnx")
    config, graphs = model.config, dict[str, Any]()
    with Weights(out / "weights.bin", model) as weights, torch.no_grad():
        for name, graph in graphs_of(model, weights):
            made = graph.model(name)
            write_atomic(out / f"{name}.onnx", made.SerializeToString())
            graphs[f"{name}.onnx"] = _described(made)
    description = {
        "format": FORMAT,
        "architecture": config.architecture,
        "weights": "weights.bin",
        "vocab_size": config.vocab_size,
        "max_len": config.max_len,
        **_special_ids(bundle.tokenizer, config.architecture),
        "decoding": bundle.tables.get("decoding", {}),
        "graphs": graphs,
        "loop": json.loads(LOOPS.read_text("utf-8"))[config.architecture],
    }
    write_atomic(out / "onnx.json", json.dumps(description, indent=1, ensure_ascii=False) + "\n")
    bundle.tokenizer.save(out / "tokenizer.json")
    save_card(out, bundle.card)


def _special_ids(tokenizer: Tokenizer, architecture: Architecture) -> dict[str, Any]:
    """Return the ids of special tokens, and their roles."""
    own = tokenizer.specials
    ids = {"pad": own.pad_id, "unk": own.unk_id, "bos": own.bos_id, "eos": own.eos_id}
    match architecture:
        case "encoder-decoder":
            return {
                "ids": {**ids, "never": [*tokenizer.never]},
                "source": _around(own.around_source),
                "begin": [*own.begin],
            }
        case "decoder":
            never = [*special_ids(tokenizer).banned_ids]
            return {"ids": {**ids, "never": never}, "prompt": {"before": [*own.before_prompt]}}
        case "classifier" | "masked":
            return {"ids": ids, "text": _around(own.around_text)}


def _around(ids: Around) -> dict[str, list[int]]:
    return {"before": [*ids[0]], "behind": [*ids[1]]}


def _described(graph: ModelProto) -> dict[str, Any]:
    """Return the names, types and axes of a graph's inputs and outputs."""

    def axes(value: ValueInfoProto) -> list[str | int]:
        return [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]

    def listed(values: Iterable[ValueInfoProto]) -> list[dict[str, Any]]:
        kinds = {1: "float32", 7: "int64"}
        return [
            {"name": value.name, "type": kinds[value.type.tensor_type.elem_type], "shape": axes(value)}
            for value in values
        ]

    return {"inputs": listed(graph.graph.input), "outputs": listed(graph.graph.output)}
