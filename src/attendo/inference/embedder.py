"""Embeddings of texts and tokens: the hidden states of any trained model as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attendo.bundle import Bundle, TaskName, TextModel, load_bundle, load_model
from attendo.config import build
from attendo.data.batches import pad_rows, token_batches
from attendo.data.tokenizers import Tokenizer, require_list
from attendo.decoding.native.compiled import CompiledModel
from attendo.decoding.native.library import NoLibrary
from attendo.decoding.protocols import TokenRows
from attendo.errors import AttendoError
from attendo.inspecting.recording import recording
from attendo.models import DecoderLM, EncoderDecoder, Model
from attendo.nn.layers import Pooling, pool

BATCH_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """The default settings for text embeddings.

    Attributes:
        pooling: Method that combines the token vectors of a text: "max", "mean", or "first" (only the first vector).
        normalize: Whether the vector of a text is divided by its Euclidean norm `√Σ x²`.
    """

    pooling: Pooling = "mean"
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"pooling={self.pooling!r} is unknown (expected {', '.join(get_args(Pooling))})")


@dataclass
class Embedder(TextModel):
    """A trained model that embeds texts as vectors, with its encoder or, for a language model, with its decoder.

    Attributes:
        model: The trained model, for any task.
        tokenizer: The tokenizer of the model.
        embedding: The default embedding settings, from the table [embedding] of the run's config.toml.
        folder: Path of the run folder that the embedder was loaded from.
    """

    task: ClassVar[TaskName] = "masked-language-model"

    model: Model
    tokenizer: Tokenizer
    embedding: EmbeddingConfig = EmbeddingConfig()
    folder: Path | None = None
    _compiled: CompiledModel | None = None

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Embedder:
        """Load and return an embedder from a run folder of any task.

        Args:
            folder: Path of the run folder.
            device: Device of the model, "cpu" or "cuda".

        Raises:
            AttendoError: A file is missing or damaged.
        """
        bundle = load_bundle(Path(folder))
        return cls.from_bundle(bundle, load_model(Path(folder), bundle).to(device)).prepare()

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: Model) -> Embedder:
        """Return an embedder for a model that is already in memory.

        Args:
            bundle: The contents of the run folder.
            model: The trained model.
        """
        table = bundle.tables.get("embedding", {})
        embedding = build(EmbeddingConfig, table, "config.toml [embedding]")
        return cls(model, bundle.tokenizer, embedding, bundle.folder)

    def prepare(self) -> Embedder:
        """Compile the encoder if possible, and return the embedder. Do not train the model afterwards."""
        if not isinstance(self.model, DecoderLM):
            with suppress(NoLibrary):
                self._compiled = CompiledModel(self.model)
        return self

    @property
    def n_layers(self) -> int:
        """The number of blocks in the encoder or, for a language model, in the decoder."""
        config = self.model.config
        return config.n_decoder_layers if self._stack == "decoder" else config.n_encoder_layers

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, layer: int | None = None
    ) -> Float[np.ndarray, "texts d_model"]:
        """Embed each text as one vector, pooled over its tokens including the special tokens.

        Args:
            texts: A list of texts. A text longer than `max_len` tokens is read in chunks. For "mean", the vectors of
                the chunks are averaged with the chunk lengths as weights. For "max", the maximum of the chunk vectors
                is used. For "first", only the first chunk is used.
            pooling: Method that combines the token vectors: "mean", "max" or "first" (default: the setting of the run).
            layer: Layer whose output is used: 0 for the input embedding, n for block n (default: the final output).

        Returns:
            An array with one vector per text, `[texts, d_model]`.

        Raises:
            AttendoError: The layer or the pooling does not exist, or `texts` is a single string.
        """
        require_list(texts)
        pooling = self.embedding.pooling if pooling is None else pooling
        if pooling not in get_args(Pooling):
            raise AttendoError(f"`pooling` {pooling!r} is unknown (expected {', '.join(get_args(Pooling))})")
        split = [self._parts(text) for text in texts]
        parts = [part for own in split for part in own]
        lengths = np.array([len(part) for part in parts], np.int64)
        pooled = np.zeros((len(parts), self.model.config.d_model))
        for rows in token_batches(lengths - 1, np.zeros_like(lengths), BATCH_TOKENS, 0, 0) if parts else []:
            states, n_tokens = self._states([parts[row] for row in rows], layer)
            pooled[rows] = pool(states, pooling, n_tokens).double().cpu().numpy()
        found = np.zeros((len(texts), self.model.config.d_model))
        ends = list(accumulate(map(len, split), initial=0))
        for i, (start, end) in enumerate(pairwise(ends)):
            own = slice(start, end)
            match pooling:
                case "mean":
                    found[i] = np.average(pooled[own], axis=0, weights=lengths[own])
                case "max":
                    found[i] = pooled[own].max(axis=0)
                case "first":
                    found[i] = pooled[start]
        if self.embedding.normalize:
            norms = np.linalg.norm(found, axis=1, keepdims=True)
            found = np.divide(found, norms, out=np.zeros_like(found), where=norms > 0)
        return found

    @property
    def _stack(self) -> str:
        return "decoder" if isinstance(self.model, DecoderLM) else "encoder"

    def _parts(self, text: str) -> list[list[int]]:
        """Return the chunks of a text that fit into the context, with the special tokens of training."""
        own = self.tokenizer.specials
        match self.model:
            case EncoderDecoder():
                framed = own.source
            case DecoderLM():
                framed = own.prompt
            case _:
                framed = own.text
        n_around = len(framed([0])) - 1
        ids = self.tokenizer.encode(text)
        most = self.model.config.max_len - n_around
        return [framed(ids[i : i + most]) for i in range(0, len(ids), most)] or [framed([])]

    def _states(self, rows: TokenRows, layer: int | None) -> tuple[Float[Tensor, "rows len d_model"], Tensor | None]:
        path = self._path(layer)
        if layer is None and self._compiled is not None:
            lengths = torch.tensor([len(row) for row in rows])
            states = self._compiled.encoded(rows).split(lengths.tolist())
            return pad_sequence(list(states), batch_first=True), lengths
        token_ids, lengths = pad_rows(rows, self.tokenizer.pad_id, self.device)
        with torch.inference_mode(), recording(self.model, f"{path}.output") as record:
            match record.model:
                case EncoderDecoder():
                    record.model.encode(token_ids, lengths)
                case DecoderLM():
                    record.model.hidden(token_ids)
                case encoder:
                    encoder.hidden(token_ids, lengths)
            return record[path].output, lengths

    def _path(self, layer: int | None) -> str:
        if layer is None:
            return self._stack
        if not 0 <= layer <= self.n_layers:
            raise AttendoError(f"`layer` {layer} must be 0 (the embedding) to {self.n_layers}")
        if layer == 0:
            return "source_embedding" if isinstance(self.model, EncoderDecoder) else "embedding"
        return f"{self._stack}.blocks.{layer - 1}"


def nearest_rows(
    vector: Float[np.ndarray, " d"], vectors: Float[np.ndarray, "rows d"], n: int
) -> list[tuple[float, int]]:
    """Return the n rows with the highest cosine similarity to a vector, as pairs (cosine, row), best first.

    The cosine similarity of a zero vector is 0.

    >>> nearest_rows(np.array([1.0, 0.0]), np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 1.0]]), 2)
    [(1.0, 1), (0.7071067811865475, 2)]
    """
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(vector)
    cosines = np.divide(vectors @ vector, norms, out=np.zeros(len(vectors)), where=norms > 0)
    order = np.argsort(-cosines, kind="stable")[:n]
    return [(float(cosines[row]), int(row)) for row in order]
