"""The conversations of a run: their data files, their token store, and training windows of whole conversations."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from attendo.data.batches import Batch, EpochBatches, Rows, TokenDataset, token_batches
from attendo.data.chat import ChatTemplate, Message, message_error, parse_messages
from attendo.data.corpora import raw_rows
from attendo.data.data_files import suffix
from attendo.data.formats import Fields, RawRow, Wanted
from attendo.data.labelled import LabelledRow, LabelledSource, RowForm
from attendo.data.labelled_corpus import TOKENIZER_ROWS, RowData, SourceCorpus
from attendo.data.row_report import RowError, RowReport
from attendo.data.store import LabelledStore, labelled_store
from attendo.data.tokenizers import OWN, SpecialTokens, Tokenizer
from attendo.display.formats import plural
from attendo.errors import AttendoError

Turns = tuple[Any, Any]
"""The ids of a conversation, and whether each token belongs to an answer, as lists or arrays."""


def _row(fields: Fields, answered: bool) -> Fields | RowError:
    """Return the versions of a conversation (question, answer, worse answer) as JSON, and their contents as text."""
    parts: list[list[Message]] = []
    for text, role in zip(fields, ("user", "assistant", "assistant"), strict=False):
        try:
            is_list = len(fields) == 1 or text.startswith('[{"')
            part = parse_messages(json.loads(text)) if is_list else [Message(role, text)]
        except (ValueError, RecursionError):
            part = RowError("invalid messages", f"{text[:40]!r} is not a list of messages")
        if isinstance(part, RowError):
            return part
        parts.append(part)
    question, *answers = parts
    talks = [[*question, *answer] for answer in answers or [[]]]
    if error := next(filter(None, map(message_error, talks)), None):
        return error
    if answered and all(role != "assistant" for role, _ in talks[0]):
        return RowError("no answer")
    if len(answers) == 2 and answers[0] == answers[1]:
        return RowError("equal answers")
    table = json.dumps(talks, separators=(",", ":")).replace(" ", r"\u0020")
    return table, "\n".join(content for _, content in (*talks[0], *(talk[-1] for talk in talks[1:])))


def _read(path: Path, wanted: Wanted, answered: bool = True) -> Iterator[RawRow]:
    """Yield the conversation of each row of a table (see `_row`). A .jsonl file can also have the key messages."""
    has_lists = suffix(path) in (".jsonl", ".parquet")
    both = suffix(path) == ".jsonl" and wanted.columns is None and wanted.roles == TALKS.roles
    columns = wanted.columns or ((*["messages"] * both, *wanted.roles) if has_lists else None)
    # lists are read as columns without a role
    roles = () if has_lists or len(columns or ()) == 1 else wanted.roles
    for number, fields in raw_rows(path, wanted._replace(roles=roles, columns=columns)):
        found = fields
        if not isinstance(found, RowError):
            found = (found[:1] if found[0] else found[1:]) if both else found
            missing = RowError("missing key", f"no {' or '.join(columns or ())}")
            found = _row(found, answered) if any(found) else missing
        yield number, found


TALKS = RowForm(("question", "answer"), _read)
PREFERENCES = RowForm(("prompt", "chosen", "rejected"), _read)
PROMPTS = RowForm(TALKS.roles, partial(_read, answered=False))


def versions(row: LabelledRow) -> list[list[Message]]:
    """Return the conversation of a row. For a preference, the same conversation with the worse answer follows."""
    return [[Message(*turn) for turn in talk] for talk in json.loads(row.label)]


def prompt(row: LabelledRow) -> tuple[list[Message], str | None]:
    """Return the messages before the reference answer of a row, and this answer, if the last message is an answer."""
    talk = versions(row)[0]
    return (talk[:-1], talk[-1].content) if talk[-1].role == "assistant" else (talk, None)


def question(row: LabelledRow) -> str:
    """Return the first message of the user."""
    return next(content for role, content in versions(row)[0] if role == "user")


@dataclass(frozen=True, kw_only=True)
class ChatData(RowData):
    """The conversations, preferences or prompts of a run. Its paths are absolute, so it can be resumed from any folder.

    Attributes:
        train: A file of conversations, preferences or prompts, or a folder or pattern of such files.
        columns: Column of the messages, or columns such as `question=q,answer=a` or `prompt=p,chosen=a,rejected=b`.
    """

    form: ClassVar[RowForm] = TALKS

    def source(self, file: Path, columns: str | None = None, header: bool | None = None) -> LabelledSource:
        given = self.columns if columns is None else columns
        if given and "," not in given and self.form is not PREFERENCES:
            return LabelledSource(file, (given.strip(),), self.header if header is None else header, self.form)
        return super().source(file, columns, header)


class PreferenceData(ChatData):
    """The preferences of a run, with the settings of conversations."""

    form = PREFERENCES


class PromptData(ChatData):
    """The prompts of a run with rewards, with the settings of conversations. Reference answers are optional."""

    form = PROMPTS


class ChatCorpus(SourceCorpus):
    """The training and validation conversations or preferences of a run, which are read as streams when needed."""

    data: ChatData
    noun = "conversation"
    hashed = "first question"

    @staticmethod
    def text_of(row: LabelledRow) -> str:
        return question(row)

    @cached_property
    def n_rows(self) -> int:
        """The number of training rows. The first access prints the row report."""
        for _ in self._reported_rows():
            pass
        return sum(1 for _ in self.rows())

    @property
    def size(self) -> tuple[int, str]:
        return self.n_rows, plural(self.n_rows, self.noun)

    def texts(self) -> Iterator[str]:
        rows = itertools.islice(self.rows(), TOKENIZER_ROWS)
        return (content for row in rows for _, content in versions(row)[0])

    def material(self, tokenizer: Tokenizer, context: int, rows: Sequence[LabelledRow] | None = None) -> "ChatDataset":
        """Return the training conversations, or the given validation rows, as token ids from a store in the cache.

        Conversations with more than `context` tokens are left out, and their number is printed. Raises AttendoError if
        no conversation remains.
        """
        name = self.data.train[0] if rows is None or not self.data.valid else self.data.valid[0]
        form, n_valid = self.data.form, None if rows is None else len(rows)
        kind = "prompts" if form is PROMPTS else "chat"
        options = {kind: [form.roles, context, self.data.valid_share, n_valid]}
        key = self._store_key(self.data.source(Path(name)).paths(), options, tokenizer)
        report = RowReport(name)
        turns = _encoded(self.rows(report) if rows is None else rows, tokenizer, context, form is PROMPTS)
        as_is = SimpleNamespace(vocab_size=tokenizer.vocab_size, encode_batch=list)  # the rows are encoded
        store = labelled_store(turns, report, lambda row: row[1], as_is, key)
        material = ChatDataset(store, context, tokenizer.specials)
        if form is PREFERENCES:
            material = PreferenceDataset(store, context, tokenizer.specials)
        if form is PROMPTS:
            by_number = {row.number: row for row in (self.rows() if rows is None else rows)}
            kept = [by_number[number] for number in store.row_numbers.tolist()]
            material = PromptDataset(store, context, tokenizer.specials, kept)
        n_rows = self.n_rows if n_valid is None else n_valid
        n_long = n_rows - material.n_rows
        long = f"{n_long:,} of {plural(n_rows, self.noun)} have more than {context:,} tokens"
        if not len(store):
            raise AttendoError(f"{name}: {long}. Set model.max_len higher, or give shorter rows")
        if n_long:
            self.say(f"{long} and are not used (model.max_len)")
        return material


def _encoded(
    rows: Iterable[LabelledRow], tokenizer: Tokenizer, context: int, prompts: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield row number, mask and ids of the versions of each row that fit into the context, or of its prompt."""
    for row in rows:
        talks = [prompt(row)[0]] if prompts else versions(row)
        found = [template_of(tokenizer).encode(tokenizer, talk, prompts) for talk in talks]
        if max(len(ids) for ids, _ in found) <= context + 1:  # the last id is only a target
            yield from ((row.number, mask, ids) for ids, mask in found)


def template_of(tokenizer: Tokenizer) -> ChatTemplate:
    """Return the chat template of a tokenizer. Raises AttendoError if there is none."""
    if tokenizer.chat is None:
        raise AttendoError(
            "the model has no chat template. Train it with the task chat, which starts from it (`init_from`)"
        )
    return tokenizer.chat


def best_fit(lengths: NDArray[np.integer], capacity: int, random: np.random.Generator) -> list[list[int]]:
    """Pack rows into windows of `capacity` tokens without cutting a row, and return the row numbers of each window.

    Rows are placed from the longest to the shortest, each into the window with the least remaining space in which it
    fits (Ding et al. 2024, "Fewer truncations improve language modeling"). Rows of equal length are in random order.

    >>> best_fit(np.array([3, 5, 2, 4]), 7, np.random.default_rng(0))
    [[1, 2], [3, 0]]
    """
    order = random.permutation(len(lengths))
    order = order[np.argsort(-lengths[order], kind="stable")]
    windows: list[list[int]] = []
    with_space: list[list[int]] = [[] for _ in range(capacity + 1)]
    free = 0  # bit n is set if a window has exactly n tokens of space
    for row, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        fitting = free >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            window = with_space[space].pop()
            free ^= 0 if with_space[space] else 1 << space
        else:
            space, window = capacity, len(windows)
            windows.append([])
        windows[window].append(row)
        with_space[space - length].append(window)
        free |= 1 << (space - length)
    return windows


def chat_batch(windows: Sequence[Sequence[Turns]], numbers: Rows, specials: SpecialTokens) -> Batch:
    """Return windows of whole conversations as a batch, padded at the end. Only tokens of answers are targets.

    Attention does not cross conversations (`segments`). Positions continue from one conversation to the next.
    """
    sizes = [sum(len(ids) - 1 for ids, _ in window) for window in windows]
    nothing = specials.no_target
    token_ids = np.full((len(windows), max(sizes)), specials.pad_id, np.int64)
    targets = np.full_like(token_ids, nothing)
    segments = np.zeros_like(token_ids)
    for row, window in enumerate(windows):
        end = 0
        for number, (ids, mask) in enumerate(window):
            start, end = end, end + len(ids) - 1
            token_ids[row, start:end] = ids[:-1]
            targets[row, start:end] = np.where(mask[1:], np.asarray(ids[1:], np.int64), nothing)
            segments[row, start:] = number
    inputs = {"token_ids": torch.from_numpy(token_ids)}
    if segments.any():
        inputs["segments"] = torch.from_numpy(segments)
    n_targets = int((targets != nothing).sum())
    return Batch(inputs, torch.from_numpy(targets), n_targets, numbers, nothing, n_tokens=sum(sizes))


@dataclass(frozen=True, eq=False)
class ChatDataset(TokenDataset):
    """The training conversations as token ids, in windows of at most `context` tokens with whole conversations."""

    store: LabelledStore
    context: int
    specials: SpecialTokens = OWN

    @property
    def n_tokens(self) -> int:
        return self.store.lengths.sum() - len(self.store)

    def turns(self, row: int) -> Turns:
        """Return the ids of a conversation, and whether each token belongs to an answer."""
        return self.store.texts[row], self.store.tags(row)

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        random = np.random.default_rng((seed, epoch))
        windows = best_fit(self.store.lengths[:] - 1, self.context, random)
        most = max(1, batch_tokens // self.context)
        batches = np.array_split(random.permutation(len(windows)), -(-len(windows) // most))

        def collate(numbers: Rows) -> Batch:
            chosen = [list(map(self.turns, windows[number])) for number in numbers]
            return chat_batch(chosen, np.array([windows[n][0] for n in numbers]), self.specials)

        return EpochBatches(batches, collate)


@dataclass(frozen=True, eq=False)
class PreferenceDataset(ChatDataset):
    """The training preferences as token ids. Rows 2i and 2i + 1 of the store are the better and the worse answer.

    `beta` is the weight of the reference model (`PreferenceConfig`). `reference` is the difference of the
    log-probabilities of both answers under the reference model `[pairs]`.
    """

    beta: float = 0.1
    reference: NDArray[np.float32] | None = None

    @property
    def n_rows(self) -> int:
        return len(self.store) // 2

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        lengths = self.store.lengths[:].reshape(-1, 2).max(1)
        rows = token_batches(lengths, None, max(1, batch_tokens // 2), seed, epoch)
        return EpochBatches(rows, self._collate)

    def _collate(self, rows: Rows) -> Batch:
        turns = [self.turns(int(row)) for pair in rows for row in (2 * pair, 2 * pair + 1)]
        known = np.zeros(self.n_rows, np.float32) if self.reference is None else self.reference
        return preference_batch(turns, rows, self.specials, self.beta, known[rows])


def preference_batch(
    turns: Sequence[Turns], rows: Rows, specials: SpecialTokens, beta: float, reference: NDArray[np.float32]
) -> Batch:
    """Return preferences as a batch `[pairs, 2, len]`. `turns` alternates between better and worse answers."""
    batch = chat_batch([[one] for one in turns], rows, specials)
    return replace(
        batch,
        inputs={"token_ids": batch.inputs["token_ids"].unflatten(0, (-1, 2))},
        targets=batch.targets.unflatten(0, (-1, 2)),
        n_targets=len(rows),
        weights=torch.full((len(rows),), beta),
        reference=torch.from_numpy(reference),
    )


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """The settings of reinforcement learning with a reward function (Ahmadian et al. 2024).

    Attributes:
        function: The reward function, as FILE.py:NAME.
        answers: Number of answers that are sampled for each prompt of an update.
        max_tokens: Largest number of tokens of an answer, at most half of the context length.
        unfinished: Reward of an answer without an end mark, for which the function is not called.
    """

    function: str
    answers: int = 8
    max_tokens: int = 128
    unfinished: float = 0.0

    def __post_init__(self) -> None:
        if self.answers < 2 or self.max_tokens < 1:
            raise ValueError(f"answers={self.answers} must be above 1, max_tokens={self.max_tokens} above 0")


@dataclass(frozen=True, eq=False)
class PromptDataset(ChatDataset):
    """The prompts of a run with rewards as token ids. `rows` contains the row of each prompt."""

    rows: Sequence[LabelledRow] = ()
    config: RewardConfig = RewardConfig(function="")

    def _epoch(self, batch_tokens: int, seed: int, epoch: int) -> EpochBatches:
        longest = self.store.lengths[:] + self.config.max_tokens
        rows = token_batches(longest, None, max(1, batch_tokens // self.config.answers), seed, epoch)
        return EpochBatches(rows, self._collate)

    def _collate(self, rows: Rows) -> Batch:
        """Return prompts with random answers of the maximum length, for estimates of memory and time."""
        random, rows = np.random.default_rng(0), np.repeat(rows, self.config.answers)
        answers = [random.choice(self.store.texts[row], self.config.max_tokens) for row in rows.tolist()]
        return self.answered(rows, answers, np.zeros(len(rows), np.float32))

    def answered(self, rows: Rows, answers: Sequence[Any], rewards: NDArray[np.float32]) -> Batch:
        """Return answers with their rewards as a batch. The answers to a prompt follow one another.

        The advantage of an answer is its reward minus the mean reward of the other answers to its prompt.
        """
        prompts = [self.store.texts[row].tolist() for row in rows.tolist()]
        turns = [
            [([*start, *answer], [False] * len(start) + [True] * len(answer))]
            for start, answer in zip(prompts, answers, strict=True)
        ]
        n, groups = self.config.answers, rewards.reshape(-1, self.config.answers)
        advantages = (n * groups - groups.sum(1, keepdims=True)).ravel() / (n - 1)
        return replace(
            chat_batch(turns, rows, self.specials),
            n_targets=len(rows),
            weights=torch.from_numpy(advantages),
            rewards=torch.from_numpy(rewards),
        )
