"""A server that is asked for ten times what it can do, by the load of the benchmark: it says so, and is well after."""

import asyncio
import importlib
import sys
import time
from pathlib import Path

import pytest
from tiny_translator import save_run, tiny_tokenizer, tiny_translator

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
ADMITTED = 16
BODY = {"q": ["rain in the north, then sun and wind"] * 12, "source": "en", "target": "de", "beam": 8}
SMALL = {"q": ["rain in the north"], "source": "en", "target": "de", "beam": 2}

# The command with a model that waits in each of its steps, as for a far device: little work is then an overload.
WAITING = """
import sys, time
from attendo.cli import main
from attendo.decoding.beam import BeamSearch
advance = BeamSearch.advance
def waits(search):
    time.sleep(0.03)
    return advance(search)
BeamSearch.advance = waits
sys.exit(main())
"""


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("serving_load")


@pytest.mark.parametrize(
    ("program", "body", "overloaded"),
    [
        pytest.param([sys.executable, "-c", WAITING], SMALL, 4, id="waiting"),
        pytest.param([], BODY, 20, id="busy", marks=pytest.mark.full),
    ],
)
def test_ten_times_what_it_can_do_is_answered_200_or_429_with_a_hint(load, tmp_path, program, body, overloaded):
    folder = save_run(tmp_path / "run", tiny_translator(tiny_tokenizer(), max_len=60))

    async def closed(server, clients, n):
        async def ask():
            async with load.Client(server.port) as client:
                return [(await client.ask("POST", "/translate", body))[0] for _ in range(n)]

        return [status for found in await asyncio.gather(*(ask() for _ in range(clients))) for status in found]

    async def main():
        with load.serving([folder], "--max-requests", str(ADMITTED), core=None, program=program) as server:
            await server.ready()
            await closed(server, ADMITTED, 1)
            began = time.perf_counter()
            n = len(await closed(server, ADMITTED, 2))
            rate = 10 * n / (time.perf_counter() - began)
            before = largest = server.megabytes

            def watch():
                nonlocal largest
                largest = max(largest, server.megabytes)

            loop = load.OpenLoop(server.port, [load.request_of(server.port, "/translate", body)], rate)
            await loop.run(overloaded, watch)
            assert set(loop.statuses) == {200, 429}
            assert loop.statuses[200] + loop.statuses[429] == loop.sent
            assert loop.statuses[200] > n
            assert None not in loop.hints
            assert largest < 1.05 * before
            assert set(await closed(server, ADMITTED, 1)) == {200}
            assert server.stop() == 0

    asyncio.run(main())
