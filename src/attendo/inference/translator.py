"""Translator: a trained encoder-decoder, its tokenizer and its search, with raw text in and raw text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from attendo.bundle import Bundle, TaskName, TextModel, load_as
from attendo.config import build
from attendo.data.batches import pad_rows
from attendo.data.segments import Segment, Usual
from attendo.data.tokenizers import Tokenizer
from attendo.decoding.backends import best_backend, eager_backend, ensemble, mean_log_probs
from attendo.decoding.beam import DecodingConfig, length_norm, log_probs_of
from attendo.decoding.logit_filters import SamplingConfig
from attendo.decoding.options import SpecialIds
from attendo.decoding.protocols import Hypothesis
from attendo.decoding.sampling import configs_of_parts, configs_of_texts
from attendo.decoding.searcher import ContinuousSearch, SearchBackend, Searcher
from attendo.decoding.shortlist import Shortlist
from attendo.errors import AttendoError
from attendo.inference.alignment import attending_step, coverage_scores, teacher_forced, where_tokens_look
from attendo.inference.incremental_decode import text_as_found
from attendo.inference.translations import (
    Assessment,
    Candidate,
    Loop,
    Sources,
    Translation,
    is_looping,
    require_pairs,
    sources_of,
    usual_of_run,
    without_repetition,
)
from attendo.inspecting.recording import Recording, recording
from attendo.metrics import bleu, bleu_tokenizer, chrf, exact_match, perplexity
from attendo.models import EncoderDecoder
from attendo.training.distributed import ALONE, Ranks

LONGEST_SCORED = 65_536  # tokens; attention over more would take minutes


@dataclass
class Translator(TextModel):
    """Translate raw text with a trained encoder-decoder and its tokenizer.

    Attributes:
        model: The trained model.
        tokenizer: The tokenizer of the model.
        decoding: The defaults of `translate`.
        card: The contents of card.json.
        companions: Further models with the same tokenizer; the probabilities of all models are averaged at every step.
        shortlist: The tokens that a prepared search considers for each source; `score` always considers all tokens.
        folder: The run folder that the translator was loaded from.
        segment: How texts are split if a call does not specify it.
    """

    task: ClassVar[TaskName] = "translation"

    model: EncoderDecoder
    tokenizer: Tokenizer
    decoding: DecodingConfig = dataclasses.field(default_factory=DecodingConfig)
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    companions: tuple[EncoderDecoder, ...] = ()
    shortlist: Shortlist | None = None
    folder: Path | None = None
    segment: Segment = "sentence"
    _record: Recording[EncoderDecoder] | None = dataclasses.field(default=None, repr=False)
    _searching: tuple[SearchBackend, ...] = dataclasses.field(default=(), repr=False)
    _final: bool = dataclasses.field(default=False, repr=False)  # the models are not trained any more

    @classmethod
    def load(cls, folder: Path, device: str = "cpu", others: Sequence[Path] = ()) -> Translator:
        """Return the translator of a run folder, or an ensemble of several runs with the settings of the first.

        Args:
            folder: The run folder.
            device: "cpu" or "cuda".
            others: Further run folders with the same tokenizer.

        Raises:
            AttendoError: A file is missing or damaged, or the tokenizers differ.
        """
        translator = cls.from_bundle(*load_as(EncoderDecoder, folder, device))
        for other in others:
            bundle, model = load_as(EncoderDecoder, other, device)
            if bundle.tokenizer.sha256 != translator.tokenizer.sha256:
                raise AttendoError(
                    f"{other} has another tokenizer than {folder} (expected the same for an ensemble). Train both"
                    " on the same data with the same [tokenizer]"
                )
            translator.companions += (model,)
        translator._final = True
        return translator

    @classmethod
    def from_bundle(cls, bundle: Bundle, model: EncoderDecoder) -> Translator:
        """Return a translator around a model in memory.

        Args:
            bundle: The run's files.
            model: The trained model.
        """
        decoding = build(DecodingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card, folder=bundle.folder)

    def prepare(self, *, int8: bool = False) -> Translator:
        """Convert the models to their fastest form on this CPU (`decoding.backends`) and return the translator.

        A loaded translator is prepared when it is first used. Results change only by rounding. Recordings, alignments
        and a search with a coverage penalty use the original models. Prepare again after training the model or changing
        `shortlist`.

        Args:
            int8: Use 8-bit matrices, which are faster and slightly less exact.
        """
        own = partial(best_backend, pad_id=self.tokenizer.pad_id, int8=int8, shortlist=self.shortlist)
        self._searching = tuple(map(own, self._models))
        return self

    @property
    def why_not_compiled(self) -> str | None:
        """The reason why the search is not compiled, in one line; None if it is compiled or not prepared."""
        return next((member.why for member in self._searching if member.why is not None), None)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.output_proj.weight.device

    @property
    def longest(self) -> int:
        """The maximum source length in tokens that all models have positions for."""
        return min(model.config.max_len for model in self._models) - self.tokenizer.specials.n_reserved

    @cached_property
    def usual(self) -> Usual:
        """The source lengths seen in training; only the number of positions if the training data is unavailable."""
        return usual_of_run(self.card, self.folder, self.tokenizer) or Usual(self.longest)

    def sources(
        self,
        texts: Sequence[str],
        *,
        longest: int | None = None,
        segment: Segment | None = None,
        prefixes: str | Sequence[str] | None = None,
    ) -> Sources:
        """Return texts as `translate` splits and encodes them.

        Args:
            texts: A list of texts.
            longest: The maximum tokens of a piece, as in `translate`.
            segment: The unit of a piece, as in `translate`.
            prefixes: The start of each translation, as in `translate`.

        Raises:
            AttendoError: As `translate`.
        """
        chosen = segment or self.segment
        if longest is None and chosen != "none":
            longest = max(min(self.usual.longest, self.longest), min(8, self.longest))
        return sources_of(self.tokenizer, texts, self._longest(longest), prefixes, chosen, self.usual)

    def translate(
        self,
        texts: Sequence[str],
        beam: int | None = None,
        n_best: int | None = None,
        length_penalty: float | None = None,
        *,
        longest: int | None = None,
        segment: Segment | None = None,
        guard: bool = True,
        prefixes: str | Sequence[str] | None = None,
        alignments: bool = False,
    ) -> list[Translation]:
        """Translate texts, each in pieces that are joined again with the white space between them (`split_text`).

        Options left out are the run's own; an empty text gives an empty translation.

        Args:
            texts: Any texts.
            beam: Hypotheses per piece.
            n_best: Candidates per text, at most the beam.
            length_penalty: Exponent of the length norm.
            longest: The most tokens of a piece. Defaults to the source length seen in training, or with segment "none"
                to the positions that the model has.
            segment: What is one piece: a "sentence", a "paragraph" (a line), or "none" for the whole text.
            guard: Search a piece that runs away (`is_looping`) once more without repeated n-grams.
            prefixes: What each translation begins with, or one prefix for all; the first piece's translation begins so.
            alignments: Give each candidate its `alignment`, by one more pass over the models as they were trained.

        Returns:
            One Translation per text, in order.

        Raises:
            AttendoError: An option is out of range, or a prefix leaves no room or has a word that the tokenizer does
                not know.
        """
        config = self.config(beam=beam, n_best=n_best, length_penalty=length_penalty)
        sources = self.sources(texts, longest=longest, segment=segment, prefixes=prefixes)
        return self.translate_sources(sources, config, guard=guard, alignments=alignments)

    def translate_sources(
        self, sources: Sources, config: DecodingConfig, *, guard: bool = True, alignments: bool = False
    ) -> list[Translation]:
        """Translate texts that `sources` has encoded and return one Translation per text.

        Args:
            sources: The encoded pieces of the texts.
            config: The search settings.
            guard: Decode looping pieces again, as in `translate`.
            alignments: Add an alignment to each candidate, as in `translate`.
        """
        found = self._search(sources.rows, config, guard, sources.starts)
        return self._told(sources, found, config, alignments)

    def stream(
        self,
        text: str,
        *,
        longest: int | None = None,
        segment: Segment | None = None,
        prefix: str | None = None,
    ) -> Iterator[str]:
        """Yield the greedy translation of a text in non-empty pieces of whole characters, as they are found.

        Joined, the pieces equal `translate([text], beam=1, guard=False)[0].text`. `text_as_found` describes the white
        space between the parts of a text.

        Args:
            text: The source text.
            longest: The maximum tokens of a piece, as in `translate`.
            segment: The unit of a piece, as in `translate`.
            prefix: The start of the translation.

        Raises:
            AttendoError: As `translate`, before the first piece.
        """
        sources = self.sources([text], longest=longest, segment=segment, prefixes=prefix)
        found = self._searcher(sources.starts).stream(sources.rows, self.decoding, sources.starts)
        return text_as_found(found, sources.texts[0], self.tokenizer)

    def sample(
        self,
        texts: Sequence[str],
        configs: SamplingConfig | Sequence[SamplingConfig] | None = None,
        length_penalty: float | None = None,
        *,
        longest: int | None = None,
        segment: Segment | None = None,
        prefixes: str | Sequence[str] | None = None,
        alignments: bool = False,
    ) -> list[Translation]:
        """Draw one translation per text; a result depends only on its own text, config and seed.

        Sampled translations are not guarded: `Translation.loop` is "left" where one loops.

        Args:
            texts: A list of texts. For n translations of one text, repeat the text n times with n seeds.
            configs: One config for all texts or one per text. `max_tokens` limits each part of a text; `stop` is
                rejected.
            length_penalty: The exponent of the length norm in the score.
            longest: The maximum tokens of a piece, as in `translate`.
            segment: The unit of a piece, as in `translate`.
            prefixes: The start of each translation, as in `translate`.
            alignments: Add an alignment to each translation, as in `translate`.

        Returns:
            One Translation per text, in order.

        Raises:
            AttendoError: As `translate`, or the configs do not match the texts.
        """
        search = self.config(length_penalty=length_penalty)
        sources = self.sources(texts, longest=longest, segment=segment, prefixes=prefixes)
        each = configs_of_texts(SamplingConfig() if configs is None else configs, len(texts))
        parts = [
            part
            for config, n in zip(each, sources.n_parts, strict=True)
            for part in configs_of_parts(config, n)
        ]
        drawn = self._searcher(sources.starts).sample(sources.rows, parts, search, sources.starts)
        found: list[tuple[list[Hypothesis], Loop]] = [
            ([hypothesis], "left" if is_looping(row, hypothesis) else "none")
            for row, hypothesis in zip(sources.rows, drawn, strict=True)
        ]
        told = self._told(sources, found, search, alignments)
        return [dataclasses.replace(one, seed=config.seed) for one, config in zip(told, each, strict=True)]

    def score(self, pairs: Sequence[tuple[str, str]], length_penalty: float | None = None) -> list[Candidate]:
        """Compute the log-probability of given targets exactly as `translate` computes its own.

        Args:
            pairs: Source and target texts.
            length_penalty: The exponent of the length norm.

        Returns:
            One Candidate per pair, in order.
        """
        config = self.config(length_penalty=length_penalty)
        results: list[Candidate] = []
        for start in range(0, len(pairs), 64):
            part = pairs[start : start + 64]
            sources = [self.tokenizer.specials.source(self._encode(s, self.tokenizer)) for s, _ in part]
            targets = [self._encode(target, self.tokenizer.target) for _, target in part]
            rows = self._forced_log_probs(sources, targets)
            coverage = coverage_scores(
                self._models, self.tokenizer, sources, targets, config.coverage_penalty
            )
            for (_, target), ids, row, covered in zip(part, targets, rows, coverage, strict=True):
                score = sum(row) / length_norm(len(row), config.length_penalty, config.length_norm) + covered
                results.append(Candidate(target, tuple(ids), sum(row), score, tuple(row), True))
        return results

    def evaluate(
        self,
        pairs: Sequence[tuple[str, str]],
        beam: int | None = None,
        length_penalty: float | None = None,
        tokenize: str | None = None,
        ranks: Ranks = ALONE,
    ) -> Assessment:
        """Translate the sources and compare the results with the targets.

        Each source is translated as one piece and without the loop guard, so the scores describe the model itself.

        Args:
            pairs: Source and target texts.
            beam: The beam size (default: from the run).
            length_penalty: The exponent of the length norm.
            tokenize: The sacreBLEU tokenizer. The default is "13a", or "char" for scripts without spaces.
            ranks: The processes that share the work; every process gets the whole result.

        Returns:
            The translations, sacreBLEU's scores and the loss of the given targets (nats per token).
        """
        require_pairs(pairs)

        def worked(part: Sequence[tuple[str, str]]) -> list[tuple[str, float, int]]:
            sources = [source for source, _ in part]
            options = {"beam": beam, "length_penalty": length_penalty}
            found = self.translate(sources, **options, segment="none", guard=False)
            given = [(candidate.log_prob, len(candidate.token_log_probs)) for candidate in self.score(part)]
            return [(f.text, log_prob, n) for f, (log_prob, n) in zip(found, given, strict=True)]

        texts, log_probs, counts = zip(*ranks.shared(pairs, worked), strict=True)
        targets = [target for _, target in pairs]
        log_prob = sum(log_probs)
        n_tokens = sum(counts)
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
        return Assessment(texts, scores, measures)

    @contextmanager
    def recording(self) -> Iterator[Recording[EncoderDecoder]]:
        """Record every attention layer of each `translate` call within the `with` block.

        The search itself is unchanged. Afterwards one pass over the sources and their translations, with the parts of a
        long text as separate rows, is recorded on a view of the first model.

        Yields:
            Records by module path, for example `record["decoder.blocks.0.cross_attention"].weights`.

        Raises:
            AttendoError: A recording is already active.
        """
        if self._record is not None:
            raise AttendoError("recording() is already open on this translator. Close it first")
        with recording(self.model) as record:
            self._record = record
            try:
                yield record
            finally:
                self._record = None

    def config(
        self, beam: int | None = None, n_best: int | None = None, length_penalty: float | None = None
    ) -> DecodingConfig:
        """Return the search settings that combine these options with the defaults of the run.

        Args:
            beam: The beam size.
            n_best: The number of candidates per text.
            length_penalty: The exponent of the length norm.

        Raises:
            AttendoError: An option is out of range.
        """
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
            raise AttendoError(f"longest={wanted} must be 8 to {most}, the context length of the model")
        return most if wanted is None else wanted

    def _encode(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """The ids of a text that cannot be split."""
        ids = tokenizer.encode(text)
        learned = self.model.config.positions == "learned"
        if len(ids) > (most := self.longest if learned else max(self.longest, LONGEST_SCORED)):
            raise AttendoError(f"a text has {len(ids)} tokens (expected at most {most}). Split the text")
        return ids

    def _told(
        self,
        sources: Sources,
        found: list[tuple[list[Hypothesis], Loop]],
        config: DecodingConfig,
        alignments: bool,
    ) -> list[Translation]:
        """The translations built from the results of their parts, recorded on request."""
        rows = sources.rows
        looks = None
        if self._record is not None and rows:
            self._record_pass(rows, [list(hypotheses[0].token_ids) for hypotheses, _ in found])
        if alignments:
            targets = [[hypothesis.token_ids for hypothesis in hypotheses] for hypotheses, _ in found]
            looks = where_tokens_look(self._models, self.tokenizer, rows, targets, config.batch_tokens)
        return sources.translations(found, self.tokenizer, config.n_best, looks)

    def _search(
        self, rows: list[list[int]], config: DecodingConfig, guard: bool, starts: list[list[int]] | None
    ) -> list[tuple[list[Hypothesis], Loop]]:
        found: list[tuple[list[Hypothesis], Loop]] = [
            (hypotheses, "none") for hypotheses in self.search(rows, config, starts)
        ]
        running = [
            i for i, (hypotheses, _) in enumerate(found) if guard and is_looping(rows[i], hypotheses[0])
        ]
        if not running:
            return found
        again = [found[i][0] for i in running]
        strict = without_repetition(config, self.tokenizer.kind)
        if strict is not None:
            again_starts = None if starts is None else [starts[i] for i in running]
            again = self.search([rows[i] for i in running], strict, again_starts)
        for i, hypotheses in zip(running, again, strict=True):
            mended = not is_looping(rows[i], hypotheses[0])
            found[i] = (hypotheses, "mended") if mended else (found[i][0], "left")
        return found

    def search(
        self, sources: list[list[int]], config: DecodingConfig, starts: list[list[int]] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each source.

        Args:
            sources: Token ids of the sources, each with its end id.
            config: The search settings.
            starts: The token ids that each translation begins with.
        """
        searcher = self._searcher(starts, looking=config.coverage_penalty > 0)
        return searcher.search(sources, config, starts)

    def continuous(self, config: DecodingConfig) -> ContinuousSearch:
        """Return a search that accepts new sources while others are decoded, with the results of `search`.

        Args:
            config: The search settings.
        """
        return self._searcher(None).continuous(config)

    @property
    def special_ids(self) -> SpecialIds:
        """The token ids with a special role in the search."""
        own = self.tokenizer
        return SpecialIds(bos_id=own.specials.begin[-1], eos_id=own.eos_id, banned_ids=own.never)

    def _searcher(self, starts: list[list[int]] | None, *, looking: bool = False) -> Searcher:
        """A search on all models as one; `looking` selects backends with attention for a coverage penalty."""
        if self.shortlist is not None and (looking or any(starts or [])):
            unfit = "a coverage penalty" if looking else "a prefix"
            raise AttendoError(f"a search with a shortlist does not support {unfit}. Leave one of them out")
        begin = self.tokenizer.specials.begin
        backends = [backend.with_decoder_prefix(begin) for backend in self.members(looking=looking)]
        return Searcher(ensemble(backends), self.special_ids, self.longest + 1)

    def members(self, *, looking: bool = False) -> Sequence[SearchBackend]:
        """Return the search backend of each model.

        Args:
            looking: Return backends that expose their attention weights.
        """
        if self._final and not self._searching:
            self.prepare()
        if self._searching and not looking:
            return self._searching
        backends = [eager_backend(model, self.tokenizer.pad_id) for model in self._models]
        if not looking:
            return backends
        steps = [attending_step(model) for model in self._models]
        return [replace(backend, attending=step) for backend, step in zip(backends, steps, strict=True)]

    def _forced_log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """The log-probability of each target token and the end, teacher-forced with the search's numbers."""
        tokenizer = self.tokenizer
        members = self.members()
        pad_id = tokenizer.pad_id
        eos_id = tokenizer.eos_id
        begin = tokenizer.specials.begin
        tgt, _ = pad_rows([[*begin, *target] for target in targets], pad_id, self.device)
        wanted, _ = pad_rows([[*target, eos_id] for target in targets], pad_id, self.device)
        with torch.inference_mode():
            logits = [member.forced(sources, tgt)[:, len(begin) - 1 :] for member in members]
            if len(members) == 1:
                found = members[0].chosen(logits[0], wanted)
            else:
                found = log_probs_of(mean_log_probs(logits), wanted)
        return [row[: len(target) + 1].tolist() for row, target in zip(found, targets, strict=True)]

    def _record_pass(self, sources: list[list[int]], targets: list[list[int]]) -> None:
        assert self._record is not None
        # a text without end may be as long as the positions are, with what it begins with
        if self.model.config.positions == "learned":
            targets = [target[: self.longest] for target in targets]
        inputs, _ = teacher_forced(self.tokenizer, sources, targets, self.device)
        with torch.inference_mode():
            self._record.model(**inputs)
