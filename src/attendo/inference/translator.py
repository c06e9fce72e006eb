"""Translation of raw text with a trained encoder-decoder model and its tokenizer."""

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
from attendo.decoding.options import Bits, SpecialIds
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

LONGEST_SCORED = 65_536  # tokens; attention over longer texts would take minutes


@dataclass
class Translator(TextModel):
    """A trained encoder-decoder model and its tokenizer, which translate raw text.

    Attributes:
        model: The trained encoder-decoder model.
        tokenizer: The tokenizer of the model.
        decoding: The default search settings of `translate`.
        card: The contents of the run's card.json.
        companions: Further models with the same tokenizer. The search averages the probabilities of all models.
        shortlist: The target tokens that a prepared search considers (default: all). `score` always uses all tokens.
        folder: Path of the run folder that the translator was loaded from.
        segment: Default unit that is translated as one part: "sentence", "paragraph" or "none" (the whole text).
        bits: Bits of each weight on a CPU: 32, 16, 8 or 4.
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
    bits: Bits = 32
    _record: Recording[EncoderDecoder] | None = dataclasses.field(default=None, repr=False)
    _searching: tuple[SearchBackend, ...] = dataclasses.field(default=(), repr=False)
    _final: bool = dataclasses.field(default=False, repr=False)  # the models are not trained any more

    @classmethod
    def load(
        cls, folder: Path, device: str = "cpu", others: Sequence[Path] = (), bits: Bits | None = None
    ) -> Translator:
        """Load and return the translator of a run folder, or an ensemble with the settings of the first run.

        Args:
            folder: Path of the run folder.
            device: Device of the models, "cpu" or "cuda".
            others: Paths of further run folders with the same tokenizer, for an ensemble (default: none).
            bits: The bits of each weight on a CPU: 32, 16, 8 or 4 (default: those of the first run if it is quantized,
                otherwise 32).

        Raises:
            AttendoError: A file is missing or damaged, or the tokenizers differ.
        """
        bundle, model = load_as(EncoderDecoder, folder, device, bits=bits)
        translator = cls.from_bundle(bundle, model)
        translator.bits = bundle.chosen_bits(bits, device)
        for other in others:
            bundle, model = load_as(EncoderDecoder, other, device, bits=translator.bits)
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
        """Return a translator for a model that is already in memory.

        Args:
            bundle: The contents of the run folder.
            model: The trained model.
        """
        decoding = build(DecodingConfig, bundle.tables.get("decoding", {}), "config.toml [decoding]")
        return cls(model, bundle.tokenizer, decoding, bundle.card, folder=bundle.folder)

    def prepare(self, bits: Bits | None = None) -> Translator:
        """Convert the models to their fastest form (`decoding.backends`) and return the translator.

        A loaded translator is prepared when it is first used. With 32 bits and without `shortlist`, the results change
        only by rounding errors. Recordings, alignments and a search with a coverage penalty use the original models.
        After further training or a change of `shortlist`, prepare the translator again.

        Args:
            bits: The bits of each weight on a CPU: 32, 16, 8 or 4. Fewer are faster and less exact (default: those with
                which the translator was loaded).
        """
        self.bits = bits or self.bits
        own = partial(best_backend, pad_id=self.tokenizer.pad_id, bits=self.bits, shortlist=self.shortlist)
        self._searching = tuple(map(own, self._models))
        return self

    @property
    def why_not_compiled(self) -> str | None:
        """The reason why a model is not compiled, in one line (None: all models are compiled or not yet prepared)."""
        return next((member.why for member in self._searching if member.why is not None), None)

    @property
    def longest(self) -> int:
        """The largest source length, in tokens without special tokens, that all models support."""
        return min(model.config.max_len for model in self._models) - self.tokenizer.specials.n_reserved

    @cached_property
    def usual(self) -> Usual:
        """The typical lengths of the training pairs. If unknown, only the largest source length is set."""
        return usual_of_run(self.card, self.folder) or Usual(self.longest)

    def sources(
        self,
        texts: Sequence[str],
        *,
        longest: int | None = None,
        segment: Segment | None = None,
        prefixes: str | Sequence[str] | None = None,
    ) -> Sources:
        """Split texts into parts as in `translate`, and return the encoded parts.

        Args:
            texts: A list of texts.
            longest: Largest number of tokens per part, as in `translate`.
            segment: Unit of text that is translated as one part, as in `translate`.
            prefixes: Required beginning of each translation, as in `translate` (default: none).

        Raises:
            AttendoError: `longest` is out of range, or a prefix contains a word that the tokenizer does not know.
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
        """Translate texts in parts, and join the translated parts with their original white space (`split_text`).

        Missing options use the settings of the run. The translation of an empty text is empty.

        Args:
            texts: A list of texts.
            beam: Beam size: the number of hypotheses that are kept at each step.
            n_best: Number of candidates per text, at most the beam size.
            length_penalty: Exponent of the length normalization.
            longest: Largest number of tokens per part. The default is the usual largest source length of the training
                data or, if `segment` is "none", the context length of the model.
            segment: Unit of text that is one part: "sentence", "paragraph" (a line) or "none" (the whole text).
            guard: Whether a looping part (`is_looping`) is decoded again without repeated n-grams (default: True).
            prefixes: Required beginning of each translation: one string for all texts, or one per text (default: none).
            alignments: Whether each candidate receives its `alignment`, which requires a further pass (default: False).

        Returns:
            One Translation per text, in the order of the texts.

        Raises:
            AttendoError: An option is out of range, or a prefix is too long or contains an unknown word.
        """
        config = self.config(beam=beam, n_best=n_best, length_penalty=length_penalty)
        sources = self.sources(texts, longest=longest, segment=segment, prefixes=prefixes)
        return self.translate_sources(sources, config, guard=guard, alignments=alignments)

    def translate_sources(
        self, sources: Sources, config: DecodingConfig, *, guard: bool = True, alignments: bool = False
    ) -> list[Translation]:
        """Translate texts that the method `sources` has encoded, and return one Translation per text.

        Args:
            sources: The encoded parts of the texts.
            config: Settings of the beam search.
            guard: Whether looping parts are decoded again, as in `translate`.
            alignments: Whether each candidate receives its alignment, as in `translate`.
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
        """Yield the greedy translation of a text in non-empty strings of whole characters, during the search.

        The concatenated strings equal `translate([text], beam=1, guard=False)[0].text`. `TextAsFound` describes the
        white space between the parts of a text.

        Args:
            text: The source text.
            longest: Largest number of tokens per part, as in `translate`.
            segment: Unit of text that is translated as one part, as in `translate`.
            prefix: Required beginning of the translation (default: none).

        Raises:
            AttendoError: `longest` is out of range, or the prefix is invalid (raised before the first string).
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
        """Draw one translation per text. A translation depends only on its own text, settings and seed.

        Looping parts are not decoded again. If a part loops, `Translation.loop` is "left".

        Args:
            texts: A list of texts. For n translations of one text, repeat the text n times with n seeds.
            configs: Sampling settings, either for all texts or one per text. `max_tokens` limits each part of a text,
                and stop texts are not supported.
            length_penalty: Exponent of the length normalization in the score.
            longest: Largest number of tokens per part, as in `translate`.
            segment: Unit of text that is translated as one part, as in `translate`.
            prefixes: Required beginning of each translation, as in `translate` (default: none).
            alignments: Whether each translation receives its alignment, as in `translate`.

        Returns:
            One Translation per text, in the order of the texts.

        Raises:
            AttendoError: An option or a prefix is invalid, a config has stop texts, or the number of configs is wrong.
        """
        search = self.config(length_penalty=length_penalty)
        sources = self.sources(texts, longest=longest, segment=segment, prefixes=prefixes)
        each = configs_of_texts(SamplingConfig() if configs is None else configs, len(texts))
        parts = [
            part
            for config, segments in zip(each, sources.texts, strict=True)
            for part in configs_of_parts(config, len(segments.pieces))
        ]
        drawn = self._searcher(sources.starts).sample(sources.rows, parts, search, sources.starts)
        found: list[tuple[list[Hypothesis], Loop]] = [
            ([hypothesis], "left" if is_looping(row, hypothesis) else "none")
            for row, hypothesis in zip(sources.rows, drawn, strict=True)
        ]
        told = self._told(sources, found, search, alignments)
        return [dataclasses.replace(one, seed=config.seed) for one, config in zip(told, each, strict=True)]

    def score(self, pairs: Sequence[tuple[str, str]], length_penalty: float | None = None) -> list[Candidate]:
        """Compute the log-probabilities and scores of given target texts, in the same way as for translations.

        Args:
            pairs: Pairs of a source text and a target text.
            length_penalty: Exponent of the length normalization (default: the setting of the run).

        Returns:
            One Candidate per pair, in the order of the pairs.
        """
        config = self.config(length_penalty=length_penalty)
        results: list[Candidate] = []
        for start in range(0, len(pairs), 64):
            part = pairs[start : start + 64]
            sources = [self.tokenizer.specials.source(self._encode(s, self.tokenizer)) for s, _ in part]
            targets = [self._encode(target, self.tokenizer.target) for _, target in part]
            rows = self._forced_log_probs(sources, targets)
            coverage = coverage_scores(self._models, self.tokenizer, sources, targets, config.coverage_penalty)
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

        The scores describe the model itself: sources are not split, and looping translations are not decoded again.

        Args:
            pairs: Pairs of a source text and a target text.
            beam: Beam size (default: the setting of the run).
            length_penalty: Exponent of the length normalization (default: the setting of the run).
            tokenize: Tokenizer of sacreBLEU (default: "13a", or "char" for scripts without spaces).
            ranks: The processes that share the work. Every process returns the whole result.

        Returns:
            The translations, their scores, and the loss of the given targets in nats per token.
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

        The search itself is unchanged. After each call, the first model reads the sources and their translations once
        more, and this pass is recorded. The parts of a long text are separate rows.

        Yields:
            Recorded values by module path, for example `record["decoder.blocks.0.cross_attention"].weights`.

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
        """Return search settings: the given options, and the defaults of the run for all other options.

        Args:
            beam: Beam size (default: the setting of the run).
            n_best: Number of candidates per text (default: the setting of the run, at most the beam size).
            length_penalty: Exponent of the length normalization (default: the setting of the run).

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
        """Return the token ids of a text that must not be split."""
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
        """Return the translations built from the results of their parts, and record them if requested."""
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
        running = [i for i, (hypotheses, _) in enumerate(found) if guard and is_looping(rows[i], hypotheses[0])]
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
        """Return the hypotheses of each source, best first.

        Args:
            sources: Token ids of each source, including its special tokens.
            config: Settings of the beam search.
            starts: Token ids that each translation begins with (default: none).
        """
        searcher = self._searcher(starts, looking=config.coverage_penalty > 0)
        return searcher.search(sources, config, starts)

    def continuous(self, config: DecodingConfig) -> ContinuousSearch:
        """Return a search that accepts new sources while earlier sources are decoded.

        The hypotheses of each source equal those of `search`.

        Args:
            config: Settings of the beam search, which apply to all sources.
        """
        return self._searcher(None).continuous(config)

    @property
    def special_ids(self) -> SpecialIds:
        """The token ids with a special role in the search."""
        own = self.tokenizer
        return SpecialIds(bos_id=own.specials.begin[-1], eos_id=own.eos_id, banned_ids=own.never)

    def _searcher(self, starts: list[list[int]] | None, *, looking: bool = False) -> Searcher:
        """Return a searcher for the ensemble of all models. `looking`: as in `members`."""
        if self.shortlist is not None and (looking or any(starts or [])):
            unfit = "a coverage penalty" if looking else "a prefix"
            raise AttendoError(f"a search with a shortlist does not support {unfit}. Leave one of them out")
        begin = self.tokenizer.specials.begin
        backends = [backend.with_decoder_prefix(begin) for backend in self.members(looking=looking)]
        return Searcher(ensemble(backends), self.special_ids, self.longest + 1)

    def members(self, *, looking: bool = False) -> Sequence[SearchBackend]:
        """Return the search backend of each model.

        Args:
            looking: Whether the backends also return attention weights, for a coverage penalty (default: False).
        """
        if (self._final or self.bits < 32) and not self._searching:
            self.prepare()
        if self._searching and not looking:
            return self._searching
        backends = [eager_backend(model, self.tokenizer.pad_id) for model in self._models]
        if not looking:
            return backends
        steps = [attending_step(model) for model in self._models]
        return [replace(backend, attending=step) for backend, step in zip(backends, steps, strict=True)]

    def _forced_log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens and end token, with the number format of the search."""
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
        # a text without an end token can fill all positions, and the begin ids need some of them
        if self.model.config.positions == "learned":
            targets = [target[: self.longest] for target in targets]
        inputs, _ = teacher_forced(self.tokenizer, sources, targets, self.device)
        with torch.inference_mode():
            self._record.model(**inputs)
