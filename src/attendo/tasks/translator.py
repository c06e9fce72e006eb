"""Translator: a trained encoder-decoder, its tokenizer and its search, with raw text in and raw text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from attendo.bundle import Bundle, load_as
from attendo.config import build
from attendo.data.batches import pad_rows
from attendo.data.segments import Segments, split_text
from attendo.data.tokenizers import Kind, Tokenizer
from attendo.decoding.beam import DecodingConfig, length_norm
from attendo.decoding.engine import decode
from attendo.decoding.ensemble import Ensemble, mean_log_probs
from attendo.decoding.loops import runs_away
from attendo.decoding.prepare import prepared
from attendo.decoding.step import Hypothesis, SpecialIds, Start, Step
from attendo.errors import AttendoError
from attendo.inspecting.recording import Recording, recording
from attendo.metrics import Score, bleu, bleu_tokenizer, chrf, exact_match, perplexity
from attendo.models import EncoderDecoder
from attendo.nn.cache import DecoderCache

Loop = Literal["none", "mended", "left"]
"""Of a translation: it does not repeat itself; it did, and was searched again without repetition; that did not help."""

_NO_REPEAT: dict[Kind, int] = {"character": 12, "byte": 24}
"""The n-grams that a second search does not repeat, where a token is no piece: about as much text as 4 pieces."""


@dataclass(frozen=True)
class Candidate:
    """One translation. log_prob: sum over its tokens, the end token included, in nats; score: normalized by length.

    finished: False where the text met its length limit before its end. Of a text translated in parts, the tokens are
    those of the parts in turn, each with its end, and the score is the mean of the parts' scores.
    """

    text: str
    token_ids: tuple[int, ...]
    log_prob: float
    score: float
    token_log_probs: tuple[float, ...]
    finished: bool


@dataclass(frozen=True)
class Translation:
    """A source and the candidates found for it, best first.

    parts: how many pieces it was translated in; loop: whether a piece repeated itself, of its best candidate.
    """

    source: str
    candidates: tuple[Candidate, ...]
    parts: int = 1
    loop: Loop = "none"

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
    """Translates raw text. `decoding` holds the defaults that `translate` starts from.

    companions: models of the same tokenizer that translate with the first one, their probabilities averaged at every
    step.
    """

    model: EncoderDecoder
    tokenizer: Tokenizer
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    companions: tuple[EncoderDecoder, ...] = ()
    _record: Recording[EncoderDecoder] | None = dataclasses.field(default=None, repr=False)
    _searching: tuple[EncoderDecoder, ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", others: Sequence[Path] = ()) -> Translator:
        """The translator of a run folder, or of several that share a tokenizer; the settings are the first one's.

        Raises AttendoError naming what is missing or damaged, and the run that has another tokenizer.
        """
        translator = cls.from_bundle(*load_as(EncoderDecoder, folder, device))
        for other in others:
            bundle, model = load_as(EncoderDecoder, other, device)
            if bundle.tokenizer.sha256 != translator.tokenizer.sha256:
                raise AttendoError(
                    f"{other} has another tokenizer than {folder}, and runs that translate together share one;"
                    " train them on the same data with the same [tokenizer]"
                )
            translator.companions += (model,)
        return translator

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: EncoderDecoder) -> Translator:
        """A translator around a model that is in memory already."""
        decoding = build(DecodingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card)

    def prepare(self, *, int8: bool = False) -> Translator:
        """Lays its models out for a faster search on this processor (`decoding.prepare`); gives itself back.

        What is found stays the same but for rounding. int8: in 8 bits, faster and a little less exact. `score` and
        recordings keep to the models as they are; a model that is trained further must be prepared again.
        """
        self._searching = tuple(prepared(model, int8=int8) for model in self._models)
        return self

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.model.output_proj.weight.device

    @property
    def longest(self) -> int:
        """The most tokens of a text that is translated in one piece: what all models have positions for."""
        return min(model.config.max_len for model in self._models) - 1

    def translate(
        self,
        texts: Sequence[str],
        beam: int | None = None,
        n_best: int | None = None,
        length_penalty: float | None = None,
        *,
        longest: int | None = None,
        guard: bool = True,
    ) -> list[Translation]:
        """One Translation a text, in order; an empty text gives an empty translation.

        Options left out are the run's own. longest: texts of more tokens are translated in parts, by sentences
        (`split_text`), and joined again; else the property of that name. guard: a text that runs away (`runs_away`)
        is searched once more without repeated n-grams. Raises AttendoError for an option out of range.
        """
        config = self.config(beam=beam, n_best=n_best, length_penalty=length_penalty)
        longest = self._longest(longest)
        split = [self._pieces(text, longest) for text in texts]
        rows = [ids for _, pieces in split for ids in pieces]
        found = self._search(rows, config, guard)
        if self._record is not None and rows:
            self._record_pass(rows, [list(hypotheses[0].token_ids) for hypotheses, _ in found])
        left = iter(found)
        return [
            self._translation(text, segments, [next(left) for _ in pieces], config.n_best)
            for text, (segments, pieces) in zip(texts, split, strict=True)
        ]

    def score(self, pairs: Sequence[tuple[str, str]], length_penalty: float | None = None) -> list[Candidate]:
        """The log-probability of given targets, by the same numbers that `translate` prints for its own."""
        config = self.config(length_penalty=length_penalty)
        results: list[Candidate] = []
        for start in range(0, len(pairs), 64):
            part = pairs[start : start + 64]
            sources = [self._encode(source) for source, _ in part]
            targets = [self.tokenizer.encode(target) for _, target in part]
            rows = self._forced_log_probs(sources, targets)
            for (_, target), ids, row in zip(part, targets, rows, strict=True):
                score = sum(row) / length_norm(len(row), config.length_penalty, config.length_norm)
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

        The search is not guarded against loops: these are the model's own texts. tokenize: sacreBLEU's for BLEU; if
        None, "13a", or "char" where words are not written apart.
        """
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        given = self.score(pairs)
        n_tokens = sum(len(candidate.token_log_probs) for candidate in given)
        log_prob = sum(candidate.log_prob for candidate in given)
        found = self.translate(sources, beam=beam, length_penalty=length_penalty, guard=False)
        texts = [translation.text for translation in found]
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

        The search runs on the engine as always; then one pass over the sources and the found targets, the parts of a
        long text each on its own, is recorded on a view of the model (not of its companions):
        `record["decoder.blocks.0.cross_attention"].weights`.
        """
        if self._record is not None:
            raise AttendoError("recording() is already open on this translator; leave it first")
        with recording(self.model) as record:
            self._record = record
            try:
                yield record
            finally:
                self._record = None

    def config(
        self, beam: int | None = None, n_best: int | None = None, length_penalty: float | None = None
    ) -> DecodingConfig:
        """How `translate` searches with these options. Raises AttendoError for one out of range."""
        options = {"beam": beam, "n_best": n_best, "length_penalty": length_penalty}
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if "beam" in chosen and "n_best" not in chosen:
            chosen["n_best"] = min(self.decoding.n_best, chosen["beam"])
        try:
            return dataclasses.replace(self.decoding, **chosen)
        except ValueError as error:
            raise AttendoError(str(error)) from None

    @property
    def _models(self) -> tuple[EncoderDecoder, ...]:
        return (self.model, *self.companions)

    def _longest(self, wanted: int | None) -> int:
        most = self.longest
        if wanted is not None and not min(8, most) <= wanted <= most:  # a character may be 7 tokens
            raise AttendoError(
                f"longest is {wanted}; choose it from 8 to {most}, which the model can read at once"
            )
        return most if wanted is None else wanted

    def _pieces(self, text: str, longest: int) -> tuple[Segments, list[list[int]]]:
        """The text in pieces of at most that many tokens, mostly one, and each as the model reads it."""
        ids = self.tokenizer.encode(text) if text.strip() else []
        if not ids:
            return Segments((), (text,)), []
        eos_id = self.tokenizer.eos_id
        if len(ids) <= longest:
            return Segments((text,), ("", "")), [[*ids, eos_id]]
        segments = split_text(text, longest, lambda piece: len(self.tokenizer.encode(piece)))
        return segments, [[*self.tokenizer.encode(piece), eos_id] for piece in segments.pieces]

    def _encode(self, text: str) -> list[int]:
        """The ids of a text that cannot be split."""
        ids = self.tokenizer.encode(text)
        if self.model.config.positions == "learned" and len(ids) > self.longest:
            raise AttendoError(
                f"a text has {len(ids)} tokens, the model's positions end at {self.longest}; split the text"
            )
        return [*ids, self.tokenizer.eos_id] if ids else []

    def _search(
        self, rows: list[list[int]], config: DecodingConfig, guard: bool
    ) -> list[tuple[list[Hypothesis], Loop]]:
        found: list[tuple[list[Hypothesis], Loop]] = [
            (hypotheses, "none") for hypotheses in self._decode(rows, config)
        ]
        running = [
            i for i, (hypotheses, _) in enumerate(found) if guard and runs_away(rows[i], hypotheses[0])
        ]
        if not running:
            return found
        n_gram = _NO_REPEAT.get(self.tokenizer.kind, 4)
        if 0 < config.no_repeat_ngram <= n_gram:  # it was searched so already
            again = [found[i][0] for i in running]
        else:
            strict = dataclasses.replace(config, no_repeat_ngram=n_gram)
            again = self._decode([rows[i] for i in running], strict)
        for i, hypotheses in zip(running, again, strict=True):
            mended = not runs_away(rows[i], hypotheses[0])
            found[i] = (hypotheses, "mended") if mended else (found[i][0], "left")
        return found

    def _decode(self, sources: list[list[int]], config: DecodingConfig) -> list[list[Hypothesis]]:
        tokenizer = self.tokenizer
        special = SpecialIds(
            bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id, never=(tokenizer.pad_id, tokenizer.bos_id)
        )
        capacity = self.longest + 1
        members = [self._member(model) for model in self._searching or self._models]
        if len(members) == 1:
            return decode(sources, *members[0], config, special, capacity, self.device)
        ensemble = Ensemble(members)
        return decode(sources, ensemble.start, ensemble.step, config, special, capacity, self.device)

    def _member(self, model: EncoderDecoder) -> tuple[Start[DecoderCache], Step[DecoderCache]]:
        """What a search asks of a model."""

        def start(sources: Sequence[Sequence[int]], rows_per_source: int, capacity: int, /) -> DecoderCache:
            src, lengths = pad_rows(sources, self.tokenizer.pad_id, self.device)
            return model.start(src, lengths, rows_per_source, capacity)

        def step(token_ids: Tensor, cache: DecoderCache, /) -> Tensor:
            return model.step(token_ids, cache)[:, -1]

        return start, step

    def _translation(
        self, text: str, segments: Segments, found: list[tuple[list[Hypothesis], Loop]], n_best: int
    ) -> Translation:
        if not found:
            return Translation(text, (Candidate("", (), 0.0, 0.0, (), True),))
        if len(found) == 1:
            hypotheses, loop = found[0]
            return Translation(text, tuple(self._candidate(h) for h in hypotheses), loop=loop)
        best: list[tuple[Hypothesis, ...]] = [()]
        for hypotheses, _ in found:  # the n best of all combinations: a sum is best where its terms are
            combined = [(*before, after) for before in best for after in hypotheses]
            best = sorted(combined, key=lambda parts: -sum(part.score for part in parts))[:n_best]
        loops = {loop for _, loop in found}
        worst: Loop = "left" if "left" in loops else "mended" if "mended" in loops else "none"
        return Translation(text, tuple(self._joined(segments, parts) for parts in best), len(found), worst)

    def _joined(self, segments: Segments, parts: Sequence[Hypothesis]) -> Candidate:
        return Candidate(
            text=segments.joined([self.tokenizer.decode(part.token_ids) for part in parts]),
            token_ids=tuple(token for part in parts for token in part.token_ids),
            log_prob=sum(part.log_prob for part in parts),
            score=sum(part.score for part in parts) / len(parts),
            token_log_probs=tuple(value for part in parts for value in part.token_log_probs),
            finished=all(part.finished for part in parts),
        )

    def _forced_log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Log-probability of each target token and of the end, teacher-forced in one pass."""
        inputs, wanted = self._forced(sources, targets)
        with torch.inference_mode():
            if self.companions:
                log_probs = mean_log_probs([model(**inputs) for model in self._models])
            else:
                log_probs = self.model(**inputs).float().log_softmax(-1)
            log_probs = log_probs.gather(-1, wanted[..., None]).squeeze(-1)
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
