"""Translator: a trained encoder-decoder, its tokenizer and its search, with raw text in and raw text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendo.bundle import Bundle, load_as
from attendo.config import build
from attendo.data.batches import pad_rows
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.beam import DecodingConfig, length_norm
from attendo.decoding.engine import decode
from attendo.decoding.step import Hypothesis, SpecialIds
from attendo.errors import AttendoError
from attendo.inspecting.recording import Recording, recording
from attendo.metrics import Score, bleu, bleu_tokenizer, chrf, exact_match, perplexity
from attendo.models import EncoderDecoder
from attendo.nn.cache import DecoderCache


@dataclass(frozen=True)
class Candidate:
    """One translation. log_prob: sum over its tokens, the end token included, in nats; score: normalized by length.

    finished: False where the text met its length limit before its end.
    """

    text: str
    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...]
    finished: bool


@dataclass(frozen=True)
class Translation:
    """A source and the candidates found for it, best first."""

    source: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The best candidate's text."""
        return self.candidates[0].text

    @property
    def score(self) -> float:
        """The best candidate's normalized score."""
        return self.candidates[0].score


@dataclass(frozen=True)
class Assessment:
    """How good translations are: the texts, sacreBLEU's scores with signatures, and all measures by name.

    measures: loss (nats a target token), perplexity, bleu, chrf, exact (percent).
    """

    texts: tuple[str, ...]
    scores: tuple[Score, ...]
    measures: dict[str, float]


@dataclass
class Translator:
    """Translates raw text. `decoding` holds the defaults that `translate` starts from."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    _record: Recording[EncoderDecoder] | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Translator:
        """The translator of a run folder. Raises AttendoError naming what is missing or damaged."""
        return cls.from_bundle(*load_as(EncoderDecoder, folder, device))

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: EncoderDecoder) -> Translator:
        """A translator around a model that is in memory already."""
        decoding = build(DecodingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.output_proj.weight.device

    def translate(
        self,
        texts: Sequence[str],
        beam: int | None = None,
        n_best: int | None = None,
        length_penalty: float | None = None,
    ) -> list[Translation]:
        """One Translation a text, in order; an empty text gives an empty translation.

        Options left out are the run's own. Raises AttendoError for a beam or n_best out of range, and for a text
        beyond what learned positions cover.
        """
        config = self._config(beam=beam, n_best=n_best, length_penalty=length_penalty)
        encoded = [self._encode(text) for text in texts]
        numbers = [
            i for i, (text, ids) in enumerate(zip(texts, encoded, strict=True)) if ids and text.strip()
        ]
        found = self._decode([encoded[i] for i in numbers], config)
        results = [Translation(text, (Candidate("", (), 0.0, 0.0, (), True),)) for text in texts]
        for i, hypotheses in zip(numbers, found, strict=True):
            results[i] = Translation(texts[i], tuple(self._candidate(h) for h in hypotheses))
        if self._record is not None and numbers:
            self._record_pass([encoded[i] for i in numbers], [list(h[0].token_ids) for h in found])
        return results

    def score(self, pairs: Sequence[tuple[str, str]], length_penalty: float | None = None) -> list[Candidate]:
        """The log-probability of given targets, by the same numbers that `translate` prints for its own."""
        alpha = self._config(length_penalty=length_penalty).length_penalty
        results: list[Candidate] = []
        for start in range(0, len(pairs), 64):
            part = pairs[start : start + 64]
            sources = [self._encode(source) for source, _ in part]
            targets = [self.tokenizer.encode(target) for _, target in part]
            rows = self._forced_log_probs(sources, targets)
            for (_, target), ids, row in zip(part, targets, rows, strict=True):
                score = sum(row) / length_norm(len(row), alpha)
                results.append(Candidate(target, tuple(ids), sum(row), score, tuple(row), True))
        return results

    def evaluate(
        self,
        pairs: Sequence[tuple[str, str]],
        beam: int | None = None,
        length_penalty: float | None = None,
        tokenize: str | None = None,
    ) -> Assessment:
        """Translates the sources and compares with the targets; the loss is that of the given targets.

        tokenize: sacreBLEU's for BLEU; if None, "13a", or "char" where words are not written apart.
        """
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        given = self.score(pairs)
        n_tokens = sum(len(candidate.token_log_probs) for candidate in given)
        log_prob = sum(candidate.log_prob for candidate in given)
        texts = [found.text for found in self.translate(sources, beam=beam, length_penalty=length_penalty)]
        scores = (
            bleu(texts, targets, tokenize or bleu_tokenizer(targets)),
            chrf(texts, targets),
            exact_match(texts, targets),
        )
        measures = {
            "loss": -log_prob / n_tokens,
            "perplexity": perplexity(log_prob, n_tokens),
            **dict(zip(("bleu", "chrf", "exact"), (score.value for score in scores), strict=True)),
        }
        return Assessment(tuple(texts), scores, measures)

    @contextmanager
    def recording(self) -> Iterator[Recording[EncoderDecoder]]:
        """Within it, each `translate` also records every attention layer, by module path.

        The search runs on the engine as always; then one pass over the sources and the found targets is recorded
        on a view of the model: `record["decoder.blocks.0.cross_attention"].weights`.
        """
        if self._record is not None:
            raise AttendoError("recording() is already open on this translator; leave it first")
        with recording(self.model) as record:
            self._record = record
            try:
                yield record
            finally:
                self._record = None

    def _config(self, **options: Any) -> DecodingConfig:
        chosen = {name: value for name, value in options.items() if value is not None}
        if "beam" in chosen and "n_best" not in chosen:
            chosen["n_best"] = min(self.decoding.n_best, chosen["beam"])
        try:
            return dataclasses.replace(self.decoding, **chosen)
        except ValueError as error:
            raise AttendoError(str(error)) from None

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text)
        limit = self.model.config.max_len - 1
        if self.model.config.positions == "learned" and len(ids) > limit:
            raise AttendoError(
                f"a text has {len(ids)} tokens, the model's positions end at {limit}; split the text"
            )
        return [*ids, self.tokenizer.eos_id] if ids else []

    def _decode(self, sources: list[list[int]], config: DecodingConfig) -> list[list[Hypothesis]]:
        tokenizer = self.tokenizer
        special = SpecialIds(
            bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id, never=(tokenizer.pad_id, tokenizer.bos_id)
        )
        return decode(
            sources, self._start, self._step, config, special, self.model.config.max_len, self.device
        )

    def _start(self, sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int) -> DecoderCache:
        src, lengths = pad_rows(sources, self.tokenizer.pad_id, self.device)
        return self.model.start(src, lengths, rows_per_source, capacity)

    def _step(self, token_ids: Tensor, cache: DecoderCache) -> Tensor:
        return self.model.step(token_ids, cache)[:, -1]

    def _forced_log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Log-probability of each target token and of the end, teacher-forced in one pass."""
        inputs, wanted = self._forced(sources, targets)
        with torch.inference_mode():
            log_probs = self.model(**inputs).float().log_softmax(-1).gather(-1, wanted[..., None]).squeeze(-1)
        return [row[: len(target) + 1].tolist() for row, target in zip(log_probs, targets, strict=True)]

    def _record_pass(self, sources: list[list[int]], targets: list[list[int]]) -> None:
        assert self._record is not None
        inputs, _ = self._forced(sources, targets)
        with torch.inference_mode():
            self._record.model(**inputs)

    def _forced(self, sources: list[list[int]], targets: list[list[int]]) -> tuple[dict[str, Any], Tensor]:
        tokenizer = self.tokenizer
        sources = [source or [tokenizer.eos_id] for source in sources]
        src, lengths = pad_rows(sources, tokenizer.pad_id, self.device)
        tgt, _ = pad_rows([[tokenizer.bos_id, *target] for target in targets], tokenizer.pad_id, self.device)
        wanted, _ = pad_rows(
            [[*target, tokenizer.eos_id] for target in targets], tokenizer.pad_id, self.device
        )
        return {"src": src, "tgt": tgt, "src_lengths": lengths}, wanted

    def _candidate(self, hypothesis: Hypothesis) -> Candidate:
        return Candidate(
            self.tokenizer.decode(hypothesis.token_ids),
            hypothesis.token_ids,
            hypothesis.log_prob,
            hypothesis.score,
            hypothesis.token_log_probs,
            hypothesis.finished,
        )
