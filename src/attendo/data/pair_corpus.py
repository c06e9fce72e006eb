"""The pairs of a translation run: training and validation files, and their token store and batches."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from attendo.data import forecasts
from attendo.data.batches import EpochBatches, TokenDataset, pair_batch, token_batches
from attendo.data.corpora import AGAINST, Pair, PairSource, parse_columns, read_pairs
from attendo.data.corpus_base import RowCorpus
from attendo.data.data_files import require_file
from attendo.data.doctor import examine, filtered, parse_drop
from attendo.data.doctor_report import Report
from attendo.data.held_out import HeldOut, held_out
from attendo.data.languages import Seen, misfit, require_code
from attendo.data.row_report import RowReport
from attendo.data.store import PairStore, pair_store
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.display.formats import plural
from attendo.errors import AttendoError

FORECASTS = "forecasts"
"""The name of the embedded corpus, which is given instead of a file name."""


@dataclass(frozen=True, kw_only=True)
class PairData:
    """The training and validation pairs of a run. The run stores absolute paths, so it can be resumed from any folder.

    Attributes:
        train: One file with columns or two parallel files; patterns are allowed. `forecasts` is the embedded corpus.
        valid: Validation files, in the same format as `train` (default: about 1% of the training rows are held out).
        columns: Columns of source and target by name or by number from 1, for example `source=en,target=ja`.
        header: Whether the first line of a .tsv file contains column names.
        reverse: Whether source and target are swapped.
        strict: Whether the first bad row raises an error. By default, bad rows are skipped and counted.
        drop: Checks of the doctor whose rows are left out, separated by commas, for example `leaks,duplicates`.
        against: Test files. Training rows that also occur in these files are reported as leaks.
        max_tokens: Largest number of tokens on one side of a pair; longer pairs are left out. 0 disables the limit.
        source_language: Language code of the source, for example `en`.
        target_language: Language code of the target, for example `ja`.
    """

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    columns: str | None = None
    header: bool = False
    reverse: bool = False
    strict: bool = False
    drop: str = ""
    against: tuple[str, ...] = ()
    max_tokens: int = 0  # for runs that did not store it; new runs use the default of their task
    source_language: str | None = None
    target_language: str | None = None

    def __post_init__(self):
        if not self.train:
            raise ValueError("no training file. Give `train` F, or `train_source` F `train_target` F")

    def training_source(self) -> PairSource:
        return self._source(self.train, "`train_source` F `train_target` F")

    def validation_source(self) -> PairSource | None:
        return self._source(self.valid, "`valid_source` F `valid_target` F") if self.valid else None

    def test_source(self) -> PairSource | None:
        """Return the location of the test pairs with which training pairs are compared, or None if none are given."""
        return self._source(self.against, AGAINST) if self.against else None

    def compared(self) -> list[PairSource]:
        """Return the test and validation files. A training pair is a leak if its source text occurs in these files."""
        return [source for source in (self.test_source(), self.validation_source()) if source is not None]

    def source(self, files: Sequence[Path], columns: str | None = None, header: bool | None = None) -> PairSource:
        """Return the location of other pairs in the run's direction. By default, columns and header are as in training.

        If `columns` is given, it names the columns of source and target in that direction, and `reverse` is ignored.
        """
        data = replace(
            self,
            columns=self.columns if columns is None else columns,
            header=self.header if header is None else header,
            reverse=self.reverse and columns is None,
        )
        if len(files) == 2 and (columns or header):
            raise AttendoError("two parallel files have no columns. Remove `columns` and `header`")
        return data._source(tuple(map(str, files)), "SOURCE TARGET")

    def direction_warning(self, seen: tuple[Seen, Seen]) -> tuple[str, bool]:
        """Return a warning ("" if the texts are in the expected languages), and whether the sides are swapped."""
        languages = self.source_language or "", self.target_language or ""
        if (found := misfit(languages, seen)) is None:
            return "", False
        option = "`source_language`" if found.side == "source" else "`target_language`"
        if not found.swapped:
            remedy = f"check the data, or fix {option}"
        elif self.reverse:
            remedy = "remove `reverse`, or swap `source_language` and `target_language`"
        else:
            remedy = f"{'swap the files, or ' if len(self.train) == 2 else ''}give `reverse`"
        return f"{option} {found.language}, but the {found.side} is {found.what}: {remedy}", found.is_sure

    def drops(self) -> frozenset[str]:
        """Return the names of the checks whose rows are dropped."""
        return parse_drop(self.drop)

    @property
    def embedded(self) -> bool:
        """Whether the pairs are the embedded weather forecasts."""
        return self.train == (FORECASTS,)

    def check(self) -> None:
        if self.embedded:
            if self.valid or self.drop or self.against:
                raise AttendoError(
                    f"`train` {FORECASTS} has its own validation rows. Remove `valid`, `against` and `drop`"
                )
            return
        compared = self.compared()
        for file in (file for source in [self.training_source(), *compared] for file in source.paths()):
            require_file(file)
        if "leaks" in self.drops() and not compared:
            ways = f"{AGAINST}, or `valid_source` and `valid_target`"
            raise AttendoError(
                "`drop` leaks requires a second file to compare with. Give one with "
                + (ways if len(self.train) == 2 else "`against` or `valid`")
            )

    def _source(self, files: tuple[str, ...], both: str) -> PairSource:
        alone = len(files) == 1  # two parallel files have no columns
        columns = parse_columns(self.columns) if alone and self.columns is not None else None
        return PairSource(tuple(map(Path, files)), columns, self.header and alone, self.reverse, both)


TOKENIZER_ROWS = 1_000_000
"""The maximum number of pairs for the training of a tokenizer. More pairs hardly change the vocabulary."""

FORECAST_PAIRS = 30_000
FORECAST_VALIDATION_PAIRS = 500


@dataclass(frozen=True, eq=False)
class PairDataset(TokenDataset):
    """The training pairs of a translator as token ids. `max_tokens` is the token limit of each side (0: no limit)."""

    store: PairStore
    specials: SpecialTokens = OWN
    max_tokens: int = 0

    @property
    def n_tokens(self) -> int:
        return int(self.store.targets.lengths.sum()) + len(self.store)

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        lengths = self.store.sources.lengths, self.store.targets.lengths
        rows = token_batches(*lengths, batch_tokens, seed, epoch)
        return EpochBatches(rows, partial(pair_batch, self.store, specials=self.specials))


class PairCorpus(RowCorpus[Pair]):
    """The training and validation pairs of a run, which are read as streams whenever they are needed."""

    data: PairData
    noun = "pair"
    hashed = "source"

    @staticmethod
    def text_of(row: Pair) -> str:
        return row[1]

    @cached_property
    def report(self) -> Report | None:
        """The doctor's report, or None for built-in data. The first access prints a summary and language warnings."""
        if self.embedded:
            self.say(f"{FORECASTS}: {FORECAST_PAIRS:,} generated pairs")
            return None
        if warning := self._misfit[0]:
            self.say(f"warning: {warning}")
        return self._examined

    @cached_property
    def _examined(self) -> Report:
        data = self.data
        report = examine(
            data.training_source(), data.test_source(), data.drops(), data.strict, data.validation_source()
        )
        self.say(report.summary())
        return report

    @property
    def _misfit(self) -> tuple[str, bool]:
        """The language warning, and whether the sides are swapped."""
        data = self.data
        if not (data.source_language or data.target_language):
            return "", False
        return data.direction_warning(self._examined.seen)

    @property
    def embedded(self) -> bool:
        return self.data.embedded

    @cached_property
    def n_pairs(self) -> int:
        if self.embedded:
            return FORECAST_PAIRS
        report, held = self.report, self.held
        if held is not None:
            return held.n_rows - held.n_held_out
        assert report is not None
        return report.row_report.used if not report.drop else sum(1 for _ in self.rows())

    def validation(
        self, most: int, tokenizer: Tokenizer | None = None, max_tokens: int = 0
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """Return validation pairs for evaluations and the final choice, with at most `max_tokens` tokens per side."""

        def is_long(pair: Pair) -> bool:
            _, source, target = pair
            if tokenizer is None or max(len(source.encode()), len(target.encode())) < max_tokens:
                return False  # every token has at least one byte
            return max(len(tokenizer.encode(source)), len(tokenizer.target.encode(target))) > max_tokens

        left_out = {f"have more than {max_tokens:,} tokens": is_long} if tokenizer and max_tokens else {}
        each, final = self._validation(most, left_out)
        if not each:
            raise AttendoError(f"{self.data.train[0]}: no validation rows could be held out. Use `valid`")
        return [(source, target) for _, source, target in each], [(s, t) for _, s, t in final]

    def texts(self) -> Iterator[str]:
        for _, source, target in itertools.islice(self.rows(), TOKENIZER_ROWS):
            yield source
            yield target

    @property
    def size(self) -> tuple[int, str]:
        """The number of training pairs, and this number as text.

        Raises AttendoError for an invalid language code and for swapped sides, before the run begins.
        """
        require_code("`source_language`", self.data.source_language)
        require_code("`target_language`", self.data.target_language)
        if not self.embedded and self._misfit[1]:
            raise AttendoError(self._misfit[0])
        return self.n_pairs, f"{self.n_pairs:,} pairs"

    def facts(self) -> dict[str, Any]:
        return {"languages": {"source": self.data.source_language, "target": self.data.target_language}}

    def store(self, tokenizer: Tokenizer, max_tokens: int = 0) -> PairStore:
        """Return the cached token store of the training pairs, without pairs above `max_tokens` tokens per side."""
        data = self.data
        options: dict[str, Any] = {"reverse": data.reverse, "drop": data.drop}
        files: list[Path] = []
        if self.embedded:
            options |= {"embedded": FORECASTS, "pairs": FORECAST_PAIRS}
        else:
            files = data.training_source().paths()
            compared = data.compared() if "leaks" in data.drops() else []
            leaks = [path for source in compared for path in source.paths()]
            if len(data.training_source().parts()) > 1 or len(leaks) > 2:
                options["files"] = [len(files), len(leaks), len(data.train)]  # the roles of the hashed files
            if data.against and leaks:
                options["against"] = [(len(source.files), len(source.paths())) for source in compared]
            files += leaks
        if max_tokens:
            options["max_tokens"] = max_tokens
        row_report = RowReport(data.training_source().name)
        key = self._store_key(files, options, tokenizer)
        store = pair_store(self.rows(row_report), tokenizer, key, max_tokens=max_tokens or None)
        if (left_out := store.facts.left_out)[1]:
            lines = row_report.places(*left_out)
            self.say(f"{plural(left_out[1], 'pair')} with more than {max_tokens:,} tokens skipped ({lines})")
        if not len(store):
            raise AttendoError(
                f"{row_report.file}: no pair has {max_tokens:,} tokens or fewer. Raise data.max_tokens, or split texts"
            )
        return store

    def _split(self, trained: Callable[[int], bool]) -> HeldOut:
        return held_out(map(self.text_of, self._usable()), self.data.training_source().name, trained=trained)

    def _usable(self, row_report: RowReport | None = None) -> Iterator[Pair]:
        if self.embedded:
            return self._forecasts(FORECAST_PAIRS, "train")
        row_report = RowReport(self.data.training_source().name) if row_report is None else row_report
        pairs = read_pairs(self.data.training_source(), self.data.strict, row_report)
        if not self.data.drop or self.report is None:  # the report would read all pairs
            return pairs
        return filtered(pairs, self.report, row_report)

    def _given(self) -> Iterator[Pair]:
        source = self.data.validation_source()
        if source is None:
            return self._forecasts(FORECAST_VALIDATION_PAIRS, "valid")
        return read_pairs(source, self.data.strict)

    def _forecasts(self, n: int, split: forecasts.Split) -> Iterator[Pair]:
        for number, (source, target) in enumerate(forecasts.pairs(n, split), 1):
            yield (number, target, source) if self.data.reverse else (number, source, target)
