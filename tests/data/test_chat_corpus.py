"""Files of conversations: their forms, the account of their rows, and windows of whole conversations."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command_line import attendo
from hypothesis import given
from hypothesis import strategies as st
from tiny_talks import preferences_file, talks, talks_file

from attendo.data.chat import Message
from attendo.data.chat_corpus import (
    ChatCorpus,
    ChatData,
    PreferenceData,
    PromptData,
    RewardConfig,
    best_fit,
    chat_batch,
    prompt,
    versions,
)
from attendo.data.labelled import read_labelled
from attendo.data.row_report import RowReport
from attendo.data.tokenizer_training import TokenizerConfig, train_tokenizer
from attendo.errors import AttendoError

QA = [Message("user", "Why?"), Message("assistant", "So.")]
SPACED = [Message("user", "Why?"), Message("assistant", "So\u3000 \t\n  so.")]
BAD = {
    '{"messages": [{"role": "bot", "content": "x"}]}': "unknown role",
    '{"messages": [{"role": "user", "content": " "}, {"role": "assistant", "content": "x"}]}': "empty content",
    '{"messages": [{"role": "assistant", "content": "x"}]}': "wrong order of turns",
    '{"messages": [{"role": "user", "content": "x"}]}': "no answer",
    '{"messages": "x"}': "invalid messages",
    '{"text": "x"}': "missing key",
    "{": "invalid JSON",
}


def rows_of(path, columns=None, data=ChatData, **options):
    source = data(train=(str(path),), columns=columns).source(path)
    return [versions(row) for row in read_labelled(source, **options)]


def test_conversations_are_read_from_messages_or_two_columns(tmp_path):
    path = tmp_path / "both.jsonl"
    messages = {"messages": [one._asdict() for one in QA]}
    path.write_text(f'{json.dumps(messages)}\n{{"question": "Why?", "answer": "So."}}\n')
    assert rows_of(path) == [[QA], [QA]]
    for name, text in {"a.csv": "question,answer\nWhy?,So.\n", "a.tsv": "Why?\tSo.\n"}.items():
        (tmp_path / name).write_text(text)
        assert rows_of(tmp_path / name) == [[QA]]
    path.write_text(json.dumps({"messages": [one._asdict() for one in SPACED]}))
    assert rows_of(path) == [[SPACED]]
    (tmp_path / "b.csv").write_text("n,q,a\n1,Why?,So.\n")
    assert rows_of(tmp_path / "b.csv", "question=q,answer=a") == [[QA]]
    (tmp_path / "c.jsonl").write_text(json.dumps({"talk": messages["messages"]}))
    assert rows_of(tmp_path / "c.jsonl", "talk") == [[QA]]


def test_conversations_and_preferences_are_read_from_parquet(tmp_path):
    table, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    messages = [one._asdict() for one in QA]
    parquet.write_table(table.table({"messages": [messages]}), tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.parquet", "messages") == [[QA]]
    columns = {"prompt": [messages[:1]], "chosen": ["So."], "rejected": ["No."]}
    parquet.write_table(table.table(columns), tmp_path / "b.parquet")
    found = rows_of(tmp_path / "b.parquet", data=PreferenceData)
    assert found == [[QA, [QA[0], Message("assistant", "No.")]]]


def test_prompts_may_end_with_a_reference_answer(tmp_path):
    path = tmp_path / "prompts.jsonl"
    talks = [QA[:1], QA, [*QA, QA[0]]]
    path.write_text("\n".join(json.dumps({"messages": [one._asdict() for one in talk]}) for talk in talks))
    corpus = ChatCorpus(PromptData(train=(str(path),), valid=(str(path),)), lambda line: None)
    assert [prompt(row) for row in corpus.rows()] == [(QA[:1], None), (QA[:1], "So."), (talks[2], None)]
    tokenizer = train_tokenizer(["a"], TokenizerConfig(kind="byte")).with_chat()
    material = corpus.material(tokenizer, len(tokenizer.chat.encode(tokenizer, QA[:1], True)[0]) - 1)
    assert [row.number for row in material.rows] == [1, 2]  # the third is too long
    material = replace(material, config=RewardConfig(function="", answers=2, max_tokens=9))
    [batch] = material.batches(1000, 0, 0)  # with the longest possible answers
    assert batch.ids.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    assert (batch.targets != batch.pad_id).sum(1).tolist() == [9] * 4 and batch.n_targets == 4
    assert len({*map(tuple, batch.inputs["token_ids"].tolist())}) == 4  # so the coach can compare the heads
    assert len(list(material.batches(1, 0, 0))) == 2


def test_each_unusable_row_is_counted_with_its_reason(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join([*BAD, json.dumps({"question": "Why?", "answer": "So."})]))
    report = RowReport(str(path))
    assert len(rows_of(path, row_report=report)) == 1
    assert {reason: entry.lines for reason, entry in report.skipped.items()} == {
        reason: [line] for line, reason in enumerate(BAD.values(), 1)
    }
    with pytest.raises(AttendoError, match=r"bad.jsonl:1: unknown role \(message 1: 'bot'\); use system, user or"):
        rows_of(path, strict=True)


def test_the_doctor_examines_conversations(tmp_path):
    rows = talks(20)
    path = talks_file(tmp_path, [*rows, rows[3], [{"role": "bot", "content": "x"}]])
    found = attendo("doctor", path, "--against", talks_file(tmp_path, rows[4:5], "test.jsonl"))
    assert found.code == 1 and not found.err
    said = " ".join(found.out.split())
    for part in (
        "22 rows read, 21 used, 1 skipped 1 unknown role, line 22",
        "text: 67 characters on average, longest 85 (line 6)",
        "1 duplicates: exact copies of an earlier row line 21",
        "1 leaks: text also appears in the other file line 5",
    ):
        assert part in said, said
    assert attendo("doctor", preferences_file(tmp_path)).code == 0


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(0, 9))
def test_best_fit_packs_each_row_once_and_wastes_little(lengths, seed):
    sizes = np.array(lengths, np.int64)
    windows = best_fit(sizes, 30, np.random.default_rng(seed))
    assert sorted(row for window in windows for row in window) == list(range(len(sizes)))
    totals = [int(sizes[window].sum()) for window in windows]
    assert all(0 < total <= 30 for total in totals)
    # two windows never fit into one, and best fit decreasing needs at most 11/9 of the best number, plus 1
    assert sum(total <= 15 for total in totals) <= 1


def test_windows_contain_whole_conversations_with_targets_in_answers(tmp_path):
    tokenizer = train_tokenizer(["a"], TokenizerConfig(kind="byte")).with_chat()
    corpus = ChatCorpus(ChatData(train=(str(talks_file(tmp_path)),)), lambda line: None)
    material = corpus.material(tokenizer, 256)
    seen = []
    for batch in material.batches(1024, 1, 0):
        for row in range(len(batch.ids)):
            segments = batch.inputs.get("segments", batch.targets * 0)[row]
            for number in segments.unique():
                here = segments == number
                ids = batch.inputs["token_ids"][row][here]
                answers = batch.targets[row][here]
                size = int((ids != tokenizer.pad_id).sum())
                target = [int(i) for i in answers if i != batch.pad_id]
                seen.append((ids[:size].tolist(), target))
    expected = []
    for row in corpus.rows():
        ids, mask = tokenizer.chat.encode(tokenizer, versions(row)[0])
        expected.append((ids[:-1], [i for i, counts in zip(ids, mask, strict=True) if counts]))
    assert sorted(seen) == sorted(expected)
    other = [batch.ids.tolist() for batch in material.batches(1024, 1, 1)]
    assert other != [batch.ids.tolist() for batch in material.batches(1024, 1, 0)]
    said = []
    short = ChatCorpus(corpus.data, said.append).material(tokenizer, 70)
    assert 0 < short.n_rows < material.n_rows
    assert said[-1].endswith("have more than 70 tokens and are not used (model.max_len)")


def test_a_batch_keeps_conversations_apart():
    tokenizer = train_tokenizer(["a"], TokenizerConfig(kind="byte")).with_chat()
    turns = tokenizer.chat.encode(tokenizer, QA)
    batch = chat_batch([[turns, turns], [turns]], np.array([0, 2]), tokenizer.specials)
    n = len(turns[0]) - 1
    assert batch.inputs["segments"].tolist() == [[0] * n + [1] * n, [0] * 2 * n]
    assert batch.n_targets == 3 * sum(turns[1]) and batch.n_tokens == 3 * n
