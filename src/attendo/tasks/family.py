"""What a kind of task is to the commands that train: its sections, its data, its model, and who uses it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attendo.bundle import Bundle, TaskName
from attendo.data.batches import Batch
from attendo.data.store import StoreFacts
from attendo.data.tokenizers import Tokenizer
from attendo.data.trained_rows import TrainedRows
from attendo.model_config import Architecture
from attendo.models import Model
from attendo.training.optimizer import TrainingConfig
from attendo.training.run import Task

Say = Callable[[str], None]


class Material(Protocol):
    """The training data in ids."""

    @property
    def facts(self) -> StoreFacts:
        """Of the store that holds them: other files, other options or another tokenizer have another key."""
        ...

    @property
    def n_rows(self) -> int:
        """Rows: pairs, texts or windows."""
        ...

    @property
    def n_tokens(self) -> int:
        """Tokens of an epoch that decide its batches, specials included."""
        ...

    def batches(self, batch_tokens: int, seed: int, epoch: int) -> Sequence[Batch]:
        """The batches of an epoch, collated when asked for; a pure function."""
        ...


class Corpus(Protocol):
    """The files of a run, read in streams as often as needed, with every row accounted for.

    trained: rows that the run's start was trained on, which therefore do not validate.
    """

    trained: TrainedRows

    @property
    def size(self) -> tuple[int, str]:
        """How much there is to learn from, in rows of about 20 words, and how messages say it ("50,000 pairs")."""
        ...

    def texts(self) -> Iterator[str]:
        """The training texts that a tokenizer is learned from: all, or the first of very many."""
        ...

    def identifying_texts(self) -> Iterator[str]:
        """The text of each training row by which it is known again in another run; none where nothing is compared."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the card says of the data and the model's users need: languages, labels."""
        ...

    def model_facts(self) -> dict[str, Any]:
        """Keys of [model] that the data decide."""
        ...


@dataclass(frozen=True)
class Size:
    """One rung of the ladder of widths, and the rows that a corpus must have to be worth it."""

    d_model: int
    n_heads: int
    n_layers: int
    least_rows: int

    @property
    def table(self) -> dict[str, Any]:
        """The keys of [model] that a size sets."""
        return {
            "d_model": self.d_model,
            "d_ff": 4 * self.d_model,
            "n_heads": self.n_heads,
            "n_encoder_layers": self.n_layers,
            "n_decoder_layers": self.n_layers,
            "norm_first": True,
        }


@dataclass(frozen=True)
class Family:
    """One kind of task. The loop and the commands know nothing else of it.

    model, training, data_keys: keys of the sections that differ from the defaults; what a user sets wins. data: the
    type of [data]; extra: those of sections that only this family has. sizes: largest first. default_epochs: without
    a budget. open: the corpus that a [data] names; material: its training rows in ids, made once and cached, given
    all tables so far. user: what uses a model; task: what the loop is told.
    """

    name: TaskName
    architecture: Architecture
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    data: type[Any]
    extra: Mapping[str, type[Any]]
    sizes: tuple[Size, ...]
    default_epochs: float
    open: Callable[[Any, Say], Corpus]
    material: Callable[[Any, Tokenizer, Mapping[str, Mapping[str, Any]]], Material]
    user: Callable[[Bundle, Model], Any]
    task: Callable[[Any, Any, Any, TrainingConfig], Task]
    data_keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether its models give texts: those with a decoder do."""
        return self.architecture in ("encoder-decoder", "decoder")

    def defaults(self) -> dict[str, dict[str, Any]]:
        """The family's own settings, over which a user's are laid."""
        model = {"architecture": self.architecture, **self.model}
        tables = {"model": model, "training": self.training, "data": self.data_keys}
        return {name: dict(table) for name, table in tables.items() if table}
