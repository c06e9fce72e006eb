"""The engine: every job gets what the model gives it alone, whoever comes, leaves, is late or fails."""

import dataclasses
import math
import queue
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looked_models import looked_model
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.decoding.searcher import ContinuousSearch
from attendo.errors import AttendoError
from attendo.inference import Generator
from attendo.inference.continuous_translation import TranslationJob
from attendo.serving.engine import (
    DeadlineExceeded,
    Done,
    Engine,
    EngineStopped,
    Failed,
    ForwardJob,
    GenerationJob,
    Job,
    Piece,
)

TOKENIZER = tiny_tokenizer()
USER = tiny_translator(TOKENIZER, max_len=24).prepare()
texts = st.lists(st.sampled_from(["rain", "snow", "Oslo", ".", "\n"]), max_size=12).map(" ".join)


@pytest.fixture
def engine():
    made = Engine(USER, rows=8)
    yield made
    made.stop()
    made.join(10)


@pytest.fixture(scope="module")
def generator() -> Generator:
    return looked_model("language-model", TOKENIZER).prepare()


def wanted(*lines, **changes):
    stream = changes.pop("stream", False)
    config = dataclasses.replace(USER.decoding, **changes)
    return TranslationJob(USER.sources(lines), config, guard=not stream, stream=stream)


def run(engine, work, **options):
    """The last news of a job, and the pieces before it."""
    told: queue.Queue = queue.Queue()
    engine.submit(Job(work, told.put, **options))
    pieces = []
    while isinstance(news := told.get(timeout=20), Piece):
        pieces.append(news)
    return news, pieces


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), st.integers(1, 3)), min_size=1, max_size=6)
)
def test_jobs_side_by_side_get_what_translate_gives(asked):
    engine, answers = Engine(USER, rows=8), [queue.Queue() for _ in asked]
    for (lines, beam), answer in zip(asked, answers, strict=True):
        engine.submit(Job(wanted(*lines, beam=beam, n_best=1), answer.put))
    for (lines, beam), answer in zip(asked, answers, strict=True):
        assert list(answer.get(timeout=20).results) == USER.translate(lines, beam)
    engine.stop()
    engine.join(10)
    assert engine.going_on == 0


def test_a_stream_comes_in_pieces(engine):
    done, pieces = run(engine, wanted("snow in Oslo", beam=1, n_best=1, stream=True))
    (expected,) = USER.translate(["snow in Oslo"], 1, guard=False)
    assert "".join(piece.piece for piece in pieces) == done.results[0].text == expected.text
    assert len(pieces) > 1
    assert run(engine, wanted("snow in Oslo", beam=1, n_best=1, stream=True), stream=False)[1] == []


def test_texts_are_written_as_alone(generator):
    engine = Engine(generator, rows=3)
    configs = [
        dataclasses.replace(generator.decoding, seed=seed, max_tokens=seed, temperature=1.0)
        for seed in range(7)
    ]
    prompts = ["snow", "", "rain rain", "it", "snow", "will", "."]
    done, pieces = run(
        engine, GenerationJob([generator.text(*pair) for pair in zip(prompts, configs, strict=True)])
    )
    assert list(done.results) == generator.generate_batch(prompts, configs)
    for number, found in enumerate(done.results):
        assert "".join(piece.piece for piece in pieces if piece.text == number) == found.text
        drawn = [piece.token.token_id for piece in pieces if piece.text == number and piece.token]
        assert tuple(drawn)[: len(found.token_ids)] == found.token_ids
    engine.stop()


def test_passes_of_one_kind_go_together(engine):
    calls, begin = [], threading.Event()

    def slow(given):
        begin.wait(10)
        return given

    def run_together(given):
        calls.append(list(given))
        return [text.upper() for text in given]

    answers = [queue.Queue() for _ in range(4)]
    engine.submit(Job(ForwardJob("slow", ["x"], slow), queue.Queue().put))
    kinds = ["a", "a", "b", "a"]
    for number, (kind, answer) in enumerate(zip(kinds, answers, strict=True)):
        engine.submit(Job(ForwardJob(kind, [f"one {number}", f"two {number}"], run_together), answer.put))
    begin.set()
    found = [answer.get(timeout=10).results for answer in answers]
    assert found == [[f"ONE {n}", f"TWO {n}"] for n in range(4)]
    assert [len(call) for call in calls] == [4, 2, 2]


def test_what_was_given_up_is_not_computed_any_more(engine, monkeypatch):
    going, on = threading.Semaphore(0), threading.Semaphore(0)
    advance = ContinuousSearch.advance

    def one_by_one(search):
        going.release()
        on.acquire()
        return advance(search)

    told: queue.Queue = queue.Queue()
    job = Job(wanted("rain " * 15, beam=2, n_best=1), told.put)
    with monkeypatch.context() as patch:
        patch.setattr(ContinuousSearch, "advance", one_by_one)
        engine.submit(job)
        assert going.acquire(timeout=20)
        engine.cancel(job)
        on.release()  # this step is the last
        assert not going.acquire(timeout=0.3)
    assert engine.going_on == 0 and told.empty()
    assert run(engine, wanted("snow"))[0].results == tuple(USER.translate(["snow"]))


def test_a_late_job_is_told_so_and_the_others_go_on(engine):
    news, _ = run(engine, wanted("rain"), deadline=time.monotonic() - 1)
    assert isinstance(news, Failed) and isinstance(news.error, DeadlineExceeded)
    assert isinstance(run(engine, wanted("rain"), deadline=math.inf)[0], Done)


def test_an_error_ends_only_the_jobs_that_it_struck(engine, monkeypatch):
    def broken(given):
        raise MemoryError("no room")

    news, _ = run(engine, ForwardJob("broken", ["x"], broken))
    assert isinstance(news, Failed) and isinstance(news.error, MemoryError)
    news, _ = run(engine, wanted("rain", coverage_penalty=0.5))
    assert isinstance(news, Failed) and isinstance(news.error, AttendoError)
    with monkeypatch.context() as patch:
        patch.setattr("attendo.decoding.searcher.ContinuousSearch.advance", lambda self: 1 / 0)
        assert isinstance(run(engine, wanted("rain"))[0], Failed)
    assert isinstance(run(engine, wanted("rain"))[0], Done)


def test_a_stopped_engine_finishes_what_it_has_and_takes_no_more(engine):
    answers = [queue.Queue() for _ in range(5)]
    for answer in answers:
        engine.submit(Job(wanted("snow in Oslo"), answer.put))
    engine.stop()
    assert all(isinstance(answer.get(timeout=10), Done) for answer in answers)
    engine.join(10)
    with pytest.raises(EngineStopped):
        engine.submit(Job(wanted("snow"), queue.Queue().put))
