"""The engine: every job gets what the model gives it alone, whoever comes, leaves, is late or fails; its callers."""

import asyncio
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
from attendo.serving import engine as module
from attendo.serving.engine import call
from attendo.serving.errors import ApiError
from attendo.serving.state import IN_A_ROW, LONGEST_WAIT, Admission

TOKENIZER = tiny_tokenizer()
USER = tiny_translator(TOKENIZER, max_len=24).prepare()
texts = st.lists(st.sampled_from(["rain", "snow", "Oslo", ".", "\n"]), max_size=12).map(" ".join)


@pytest.fixture
def engine():
    made = module.Engine(USER, rows=8)
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
    engine.submit(module.Job(work, told.put, **options))
    pieces = []
    while isinstance(news := told.get(timeout=20), module.Piece):
        pieces.append(news)
    return news, pieces


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=3), st.integers(1, 3)), min_size=1, max_size=6))
def test_jobs_side_by_side_get_what_translate_gives(asked):
    engine, answers = module.Engine(USER, rows=8), [queue.Queue() for _ in asked]
    for (lines, beam), answer in zip(asked, answers, strict=True):
        engine.submit(module.Job(wanted(*lines, beam=beam, n_best=1), answer.put))
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
    engine = module.Engine(generator, rows=3)
    own = dataclasses.replace(generator.decoding, temperature=1.0)
    configs = [dataclasses.replace(own, seed=seed, max_tokens=seed) for seed in range(7)]
    prompts = ["snow", "", "rain rain", "it", "snow", "will", "."]
    job = module.GenerationJob([generator.text(*pair) for pair in zip(prompts, configs, strict=True)])
    done, pieces = run(engine, job)
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
    engine.submit(module.Job(module.ForwardJob("slow", ["x"], slow), queue.Queue().put))
    kinds = ["a", "a", "b", "a"]
    for number, (kind, answer) in enumerate(zip(kinds, answers, strict=True)):
        engine.submit(module.Job(module.ForwardJob(kind, [f"one {number}", f"two {number}"], run_together), answer.put))
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
    job = module.Job(wanted("rain " * 15, beam=2, n_best=1), told.put)
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
    assert isinstance(news, module.Failed) and isinstance(news.error, module.DeadlineExceeded)
    assert isinstance(run(engine, wanted("rain"), deadline=math.inf)[0], module.Done)


def test_an_error_ends_only_the_jobs_that_it_struck(engine, monkeypatch):
    def broken(given):
        raise MemoryError("no room")

    news, _ = run(engine, module.ForwardJob("broken", ["x"], broken))
    assert isinstance(news, module.Failed) and isinstance(news.error, MemoryError)
    news, _ = run(engine, wanted("rain", coverage_penalty=0.5))
    assert isinstance(news, module.Failed) and isinstance(news.error, AttendoError)
    with monkeypatch.context() as patch:
        patch.setattr("attendo.decoding.searcher.ContinuousSearch.advance", lambda self: 1 / 0)
        assert isinstance(run(engine, wanted("rain"))[0], module.Failed)
    assert isinstance(run(engine, wanted("rain"))[0], module.Done)


def test_a_stopped_engine_finishes_what_it_has_and_takes_no_more(engine):
    answers = [queue.Queue() for _ in range(5)]
    for answer in answers:
        engine.submit(module.Job(wanted("snow in Oslo"), answer.put))
    engine.stop()
    assert all(isinstance(answer.get(timeout=10), module.Done) for answer in answers)
    engine.join(10)
    with pytest.raises(module.EngineStopped):
        engine.submit(module.Job(wanted("snow"), queue.Queue().put))


# ---- calls from the event loop: admitted within bounds, given up when nobody waits


def greedy(*lines, **changes):
    return wanted(*lines, beam=1, n_best=1, **changes)


async def stays():
    await asyncio.Event().wait()


async def settled(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def test_results_are_handed_back_and_the_room_with_them(engine):
    admission = Admission(4, 100)
    (found,) = asyncio.run(module.results(engine, admission.entered(40), greedy("snow"), 20.0, stays)).results
    assert found == USER.translate(["snow"], 1)[0]
    assert (admission.requests, admission.cost) == (0, 0)


def test_a_client_that_goes_ends_its_job(engine, monkeypatch):
    monkeypatch.setattr(ContinuousSearch, "advance", lambda self: [])  # it never ends

    async def main():
        admission = Admission(4, 100)
        with pytest.raises(module.ClientGone):
            await module.results(engine, admission.entered(40), greedy("snow"), 600.0, lambda: asyncio.sleep(0.01))
        await settled(lambda: not engine.going_on)
        async with call(engine, admission.entered(1), greedy("snow", stream=True), 600.0):
            await settled(lambda: engine.going_on)
        await settled(lambda: not engine.going_on)
        assert (admission.requests, admission.cost) == (0, 0)

    asyncio.run(main())


def test_errors_come_to_the_caller(engine):
    def broken(texts):
        raise ZeroDivisionError

    async def main():
        admission = Admission(4, 100)
        with pytest.raises(ZeroDivisionError):
            await module.results(engine, admission.entered(1), module.ForwardJob("x", ["x"], broken), 20.0, stays)
        with pytest.raises(module.DeadlineExceeded):
            await module.results(engine, admission.entered(1), greedy("snow"), -1.0, stays)
        assert (admission.requests, admission.cost) == (0, 0)

    asyncio.run(main())


def test_who_does_not_fit_is_refused():
    admission = Admission(2, 100)
    with admission.entered(60):
        with pytest.raises(ApiError, match="the server is full") as refused, admission.entered(41):
            pass
        assert refused.value.retry_after >= 1
        with admission.entered(40), pytest.raises(ApiError, match="the server is full"):
            admission.check()  # two requests are all: one more need not be read to be refused
        admission.check()
        with pytest.raises(ApiError, match="101"), admission.entered(101):
            pass
    with admission.entered(100):
        assert admission.refused == 2


def test_after_some_that_found_no_room_none_is_looked_at_until_there_may_be_room():
    admission = Admission(10, 100)
    with admission.entered(90):
        with admission.entered(5):
            for _ in range(IN_A_ROW):
                admission.check()  # one that costs less might fit
                with pytest.raises(ApiError, match="the server is full"), admission.entered(6):
                    pass
            with pytest.raises(ApiError, match="the server is full"):
                admission.check()
            with admission.entered(50, again=True):  # what was admitted before goes on
                admission.check()
        admission.check()  # one is done


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=40),
    st.integers(1, 8),
    st.integers(1, 120),
)
def test_what_is_admitted_never_passes_the_bounds(events, most, cost):
    admission, inside = Admission(most, cost), []
    for asked, leaves in events:
        if leaves and inside:
            inside.pop().__exit__(None, None, None)
        entering = admission.entered(asked)
        try:
            entering.__enter__()
            inside.append(entering)
        except ApiError:
            pass
        assert admission.requests == len(inside) <= most and 0 <= admission.cost <= cost
        assert 1 <= admission.retry_after <= LONGEST_WAIT
    for entering in inside:
        entering.__exit__(None, None, None)
    assert (admission.requests, admission.cost) == (0, 0)
