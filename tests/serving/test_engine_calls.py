"""Calls from the event loop: admitted within bounds, handed back whole or in pieces, given up when nobody waits."""

import asyncio
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.decoding.searcher import ContinuousSearch
from attendo.inference.continuous_translation import TranslationJob
from attendo.serving.engine import (
    ClientGone,
    DeadlineExceeded,
    Done,
    Engine,
    ForwardJob,
    Piece,
    call,
    results,
)
from attendo.serving.state import IN_A_ROW, LONGEST_WAIT, Admission, Full, TooLarge

USER = tiny_translator(tiny_tokenizer(), max_len=24).prepare()


@pytest.fixture
def engine():
    made = Engine(USER, rows=8)
    yield made
    made.stop()
    made.join(10)


def wanted(text, **changes):
    config = dataclasses.replace(USER.decoding, beam=1, n_best=1)
    return TranslationJob(USER.sources([text]), config, guard=False, **changes)


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
    (found,) = asyncio.run(results(engine, admission.entered(40), wanted("snow"), 20.0, stays)).results
    assert found == USER.translate(["snow"], 1)[0]
    assert (admission.requests, admission.cost) == (0, 0)


def test_a_client_that_goes_ends_its_job(engine, monkeypatch):
    steps = []
    monkeypatch.setattr(ContinuousSearch, "advance", lambda self: steps.append(1) or [])  # it never ends

    async def gone():
        await settled(lambda: len(steps) > 3)

    async def main():
        admission = Admission(4, 100)
        with pytest.raises(ClientGone):
            await results(engine, admission.entered(40), wanted("snow"), 20.0, gone)
        assert (admission.requests, admission.cost) == (0, 0)
        await settled(lambda: not engine.going_on)

    asyncio.run(main())


def test_a_stream_that_is_left_ends_its_job(engine):
    async def main():
        pieces = []
        async with call(
            engine, Admission(4, 100).entered(1), wanted("snow in Oslo", stream=True), 20.0
        ) as news:
            async for told in news:
                pieces.append(told)
        assert isinstance(pieces[-1], Done) and all(isinstance(piece, Piece) for piece in pieces[:-1])
        assert (
            "".join(piece.piece for piece in pieces[:-1])
            == USER.translate(["snow in Oslo"], 1, guard=False)[0].text
        )
        async with call(
            engine, Admission(4, 100).entered(1), wanted("snow in Oslo", stream=True), 20.0
        ) as news:
            await anext(news)
        await settled(lambda: not engine.going_on)

    asyncio.run(main())


def test_errors_come_to_the_caller(engine):
    def broken(texts):
        raise ZeroDivisionError

    async def main():
        admission = Admission(4, 100)
        with pytest.raises(ZeroDivisionError):
            await results(engine, admission.entered(1), ForwardJob("x", ["x"], broken), 20.0, stays)
        with pytest.raises(DeadlineExceeded):
            await results(engine, admission.entered(1), wanted("snow"), -1.0, stays)
        assert (admission.requests, admission.cost) == (0, 0)

    asyncio.run(main())


def test_who_does_not_fit_is_refused():
    admission = Admission(2, 100)
    with admission.entered(60):
        with pytest.raises(Full) as refused, admission.entered(41):
            pass
        assert refused.value.retry_after >= 1
        with admission.entered(40), pytest.raises(Full), admission.entered(0):
            pass  # two requests are all
        with pytest.raises(TooLarge, match="101"), admission.entered(101):
            pass
    with admission.entered(100):
        assert admission.refused == 2


def test_after_some_that_found_no_room_none_is_looked_at_until_there_may_be_room():
    admission = Admission(10, 100)
    with admission.entered(90):
        with admission.entered(5):
            for _ in range(IN_A_ROW):
                admission.check()  # one that costs less might fit
                with pytest.raises(Full), admission.entered(6):
                    pass
            with pytest.raises(Full):
                admission.check()
            with admission.entered(50, again=True):  # what was admitted before goes on
                admission.check()
        admission.check()  # one is done


def test_where_as_many_as_may_be_are_admitted_nothing_has_to_be_read_to_be_refused():
    admission = Admission(1, 100)
    with admission.entered(1), pytest.raises(Full):
        admission.check()
    admission.check()


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
        except (Full, TooLarge):
            pass
        assert admission.requests == len(inside) <= most and 0 <= admission.cost <= cost
        assert 1 <= admission.retry_after <= LONGEST_WAIT
    for entering in inside:
        entering.__exit__(None, None, None)
    assert (admission.requests, admission.cost) == (0, 0)
