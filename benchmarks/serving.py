"""Cost and robustness of serving: throughput compared with the offline engine, overhead, overload, slow clients, soak.

    python benchmarks/serving.py --run RUN --lines FILE [--what throughput,overhead,…] [--requests N] [--seconds S]
        [--rate N]

RUN is a translator. FILE has one source per line, in the first column. The server is a process on its own core, and
the clients run on another core. docs/benchmarks.md contains the requirements.

throughput: 32 clients in a closed loop send sources of one length, interleaved with the offline engine (`translate`,
batches of 32, the same beam) on the server's core. The result is the ratio of output tokens per CPU-second of the
server process and of the offline process (median of pairs), with p50 and p99 of the clients. overhead: the median
waiting time of one client minus the time of the Python call in a process on the same core, interleaved. mixed: 32
clients send --requests requests of all kinds. No request may be lost, swapped or answered with 5xx, and each text must
be equal to the text of the offline command. overload: an open loop at ten times the throughput for --seconds seconds.
slow: 1,000 sockets occasionally send a byte; p99 of the other clients is measured with and without them, in pairs.
gone: clients that disconnect. stop: SIGTERM under load. swap: SIGHUP under load. soak: memory over requests.
"""

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import uvloop
from serving_load import Client, OpenLoop, metric, quantile, request_of, serving
from turns import asked, contenders, listed, orders, ratios, shared_options, store, tell

WHAT = ("throughput", "overhead", "mixed", "overload", "slow", "gone", "stop", "swap", "soak")
CLIENTS, BATCH = 32, 32
SERVER_CORE, CLIENT_CORE = 1, 0


# the offline engine, in a process of its own


def offline(run, core):
    """Answer each request {"lines", "beam", "batch", "guard"} with tokens, CPU seconds, wall seconds and texts."""
    os.sched_setaffinity(0, {core})
    import torch

    import attendo

    torch.set_num_threads(1)
    translator = attendo.load(run).prepare()
    tell({"loaded": True, "vocabulary": translator.tokenizer.vocab_size})
    for order in orders():
        if "lengths" in order:
            tell({"lengths": [len(translator.tokenizer.encode(line)) for line in order["lengths"]]})
            continue
        lines, size = order["lines"], order["batch"]
        cpu, wall, n, texts, each = time.process_time(), time.perf_counter(), 0, [], []
        for first in range(0, len(lines), size):
            began = time.perf_counter()
            found = translator.translate(lines[first : first + size], order.get("beam"), guard=order.get("guard", True))
            each.append(time.perf_counter() - began)
            n += sum(len(t.candidates[0].token_log_probs) for t in found)
            texts += [t.text for t in found]
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        tell({"tokens": n, "cpu": cpu, "wall": wall, "texts": texts, "median": statistics.median(each)})


# the measurements


async def closed_loop(port, lines, clients=CLIENTS, pace=0.0, **body):
    """Translate every line once with `clients` clients. Return texts in order, seconds of each request, and statuses.

    `pace` is the minimum number of seconds between two requests.
    """
    left = list(enumerate(lines))[::-1]
    texts, seconds, statuses = [None] * len(lines), [], Counter()
    start = time.perf_counter()

    async def work():
        async with Client(port) as client:
            while left:
                number, line = left.pop()
                await asyncio.sleep(max(0.0, start + number * pace - time.perf_counter()))
                began = time.perf_counter()
                status, _, answer = await client.ask("POST", "/translate", {"q": line, **BODY, **body})
                seconds.append(time.perf_counter() - began)
                statuses[status] += 1
                if status == 200:
                    texts[number] = json.loads(answer)["translatedText"]

    await asyncio.gather(*(work() for _ in range(clients)))
    return texts, seconds, statuses


BODY = {"source": "en", "target": "de", "format": "text"}


def of_one_length(engine, lines, n):
    """Return `n` lines of the most common length."""
    lengths = asked("attendo", engine, {"lengths": lines})["lengths"]
    common = Counter(lengths).most_common(1)[0][0]
    same = [line for line, length in zip(lines, lengths, strict=True) if length == common]
    return [same[i % len(same)] for i in range(n)], common


async def throughput(server, engine, lines, options):
    """Return the ratio of output tokens per CPU-second between the server and the offline engine, which alternate."""
    lines, length = of_one_length(engine, lines, options.requests or 960)
    order = {"lines": lines, "batch": BATCH}
    served, alone, waits = [], [], []
    for number in range(options.rounds + 1):
        there = asked("attendo", engine, order)
        before = server.cpu_seconds
        texts, seconds, statuses = await closed_loop(server.port, lines)
        cpu = server.cpu_seconds - before
        assert statuses == {200: len(lines)} and texts == there["texts"], statuses
        if number:  # the first round is a warm-up
            served.append(there["tokens"] / cpu)
            alone.append(there["tokens"] / there["cpu"])
            waits.append([quantile(seconds, share) for share in (0.5, 0.99)])
    p50, p99 = (statistics.median(column) for column in zip(*waits, strict=True))
    return {
        "clients": CLIENTS, "source tokens": length, "requests a round": len(lines),
        "tokens per CPU-second": {
            "served": round(statistics.median(served)), "offline": round(statistics.median(alone)),
        },
        "served / offline": ratios(served, alone),
        "p50 ms": round(1000 * p50, 1), "p99 ms": round(1000 * p99, 1), "p99 / p50": round(p99 / p50, 2),
    }  # fmt: skip


async def overhead(server, engine, lines, options):
    """Return the time of a request of one client beyond the time of the Python call."""
    lines, _ = of_one_length(engine, lines, 64)
    differences = []
    for number in range(options.rounds + 1):
        there = asked("attendo", engine, {"lines": lines, "batch": 1})
        _, seconds, _ = await closed_loop(server.port, lines, clients=1)
        if number:
            differences.append(1000 * (statistics.median(seconds) - there["median"]))
    return {"p50 ms beyond the call": round(statistics.median(differences), 2)}


async def mixed(server, engine, lines, options):
    """Send requests of all kinds in parallel. No request may be lost, swapped or failed."""
    draw, n = random.Random(1), options.requests or 2000
    lines = lines[:1000]
    beams = {beam: asked("attendo", engine, {"lines": lines, "batch": 64, "beam": beam})["texts"] for beam in (1, 2, 4)}
    order = {"lines": lines, "batch": 64, "beam": 1, "guard": False}  # a stream is searched only once
    streamed = asked("attendo", engine, order)["texts"]
    left, statuses, wrong = list(range(n)), Counter(), 0
    kinds = [draw.choice(("one", "list", "beam", "stream", "bad")) for _ in range(n)]

    async def work():
        nonlocal wrong
        async with Client(server.port) as client:
            while left:
                number = left.pop()
                kind, at = kinds[number], draw.randrange(len(lines))
                texts, body = beams[4], {"q": lines[at], **BODY, "beam": 4}
                if kind == "list":
                    body["q"] = lines[at : at + 5]
                elif kind == "beam":
                    body["beam"] = draw.choice((1, 2))
                    texts = beams[body["beam"]]
                elif kind == "bad":
                    body |= draw.choice(({"beam": 0}, {"q": 3}, {"target": "xx"}, {"source": None}))
                if kind == "stream":
                    body = {"model": MODEL, "prompt": lines[at], "stream": True}
                    status, _, answer = await client.ask("POST", "/v1/completions", body)
                    found = "".join(
                        json.loads(line[6:])["choices"][0]["text"]
                        for line in answer.decode().splitlines()
                        if line.startswith("data: {") and '"choices": []' not in line and '"choices":[]' not in line
                    )
                    right = status == 200 and found == streamed[at]
                else:
                    status, _, answer = await client.ask("POST", "/translate", body)
                    found = json.loads(answer).get("translatedText")
                    expected = texts[at : at + 5] if kind == "list" else texts[at]
                    right = status in (400, 422) if kind == "bad" else found == expected
                statuses[status] += 1
                wrong += not right

    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    return {"requests": n, "answers": dict(sorted(statuses.items())), "wrong": wrong}


async def overload(server, engine, lines, options):
    """Run an open loop at ten times the throughput of the server. Then compare the server with its earlier state."""
    lines, _ = of_one_length(engine, lines, 320)
    for _ in range(3):  # the first two are a warm-up, so memory is that of a busy server
        began = time.perf_counter()
        _, calm, _ = await closed_loop(server.port, lines)
    rate = 10 * len(lines) / (time.perf_counter() - began)
    before, largest, seconds = server.megabytes, server.megabytes, options.seconds or 20

    def watch():
        nonlocal largest
        largest = max(largest, server.megabytes)

    load = OpenLoop(server.port, [request_of(server.port, "/translate", {"q": line, **BODY}) for line in lines], rate)
    await load.run(seconds, watch)
    ended = time.perf_counter()
    while True:
        _, after, _ = await closed_loop(server.port, lines[:64])
        if statistics.median(after) < 1.5 * statistics.median(calm):
            break
    recovery = time.perf_counter() - ended
    return {
        "asked for per second": round(rate, 1), "sent": load.sent, "seconds": seconds, "connections": load.most_open,
        "answers": dict(load.statuses), "429 without Retry-After": load.hints[None], "late s": round(load.late, 2),
        "p50, p99 ms of the admitted": [round(1000 * quantile(load.waits, share)) for share in (0.5, 0.99)],
        "MB before, at most, after": [round(x, 1) for x in (before, largest, server.megabytes)],
        "memory": round(largest / before, 3), "seconds until as before": round(recovery, 2),
    }  # fmt: skip


async def slow(server, engine, lines, options):
    """Return the ratio of the p99 latency of normal clients with and without 1,000 slow sockets, measured in pairs."""
    lines, _ = of_one_length(engine, lines, options.requests or 640)
    found = []
    for _ in range(options.rounds):
        pair = []
        for crowd in (0, 1000):
            stopping = asyncio.Event()
            slow_ones = [asyncio.ensure_future(_dawdle(server.port, stopping)) for _ in range(crowd)]
            await asyncio.sleep(0.5 if crowd else 0)
            _, seconds, statuses = await closed_loop(server.port, lines, clients=8)
            assert statuses == {200: len(lines)}, statuses
            pair.append(quantile(seconds, 0.99))
            stopping.set()
            await asyncio.gather(*slow_ones)
        found.append(pair[1] / pair[0])
    return {"p99 with / without": round(statistics.median(found), 3), "pairs": [round(x, 3) for x in found]}


async def _dawdle(port, stopping):
    """Send a request one byte at a time. Start again when the server closes the connection."""
    while not stopping.is_set():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for byte in b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{":
                writer.write(bytes([byte]))
                try:
                    await asyncio.wait_for(stopping.wait(), 1.0)
                    break
                except TimeoutError:
                    pass
            writer.close()
        except OSError:
            await asyncio.sleep(0.2)


async def gone(server, engine, lines, options):
    """Let clients disconnect during a request. Return the seconds until the server has freed their places."""
    waits = []
    long = " ".join(lines[:40])
    for _ in range(options.rounds):
        client = Client(server.port)
        await client.send("POST", "/translate", {"q": long, **BODY})
        async with Client(server.port) as watcher:
            while not metric((await watcher.ask("GET", "/metrics"))[2].decode(), "attendo_admitted_requests"):
                pass
            client.close()
            began = time.perf_counter()
            while metric((await watcher.ask("GET", "/metrics"))[2].decode(), "attendo_admitted_requests"):
                pass
            waits.append(1000 * (time.perf_counter() - began))
    return {"ms until free": {"median": round(statistics.median(waits), 1), "most": round(max(waits), 1)}}


async def stop(options, lines):
    """Send SIGTERM under load, each time to a new server."""
    found = []
    for _ in range(min(options.rounds, 5)):
        with serving([options.run], core=SERVER_CORE) as server:
            await server.ready()
            async with Client(server.port) as watcher:
                await watcher.ask("GET", "/readyz")
                clients = [Client(server.port) for _ in range(16)]
                for client in clients:
                    await client.send("POST", "/translate", {"q": lines[:8], **BODY})
                while metric((await watcher.ask("GET", "/metrics"))[2].decode(), "attendo_admitted_requests") < 16:
                    pass
                began = time.perf_counter()
                server.process.send_signal(signal.SIGTERM)
                while (await watcher.ask("GET", "/readyz"))[0] == 200:
                    pass
                not_ready = time.perf_counter() - began
                children = server.children
                answers = Counter([(await client.answer())[0] for client in clients])
                status = await asyncio.to_thread(server.process.wait, 30)
                found.append({"ms until not ready": round(1000 * not_ready, 1), "answers": dict(answers),
                              "exit": status, "children": len(children)})  # fmt: skip
    return found


async def swap(server, engine, lines, options):
    """Reload the model by SIGHUP repeatedly, while clients continue to send requests."""
    lines, _ = of_one_length(engine, lines, options.requests or 960)
    weights = Path(options.run) / "model.safetensors"
    expected = asked("attendo", engine, {"lines": lines, "batch": BATCH})["texts"]
    working = asyncio.ensure_future(closed_loop(server.port, lines))
    swaps = 0
    while not working.done():
        os.utime(weights)
        server.process.send_signal(signal.SIGHUP)
        swaps += 1
        await asyncio.sleep(1.0)
    texts, _, statuses = working.result()
    return {"swaps asked for": swaps, "answers": dict(statuses), "texts as before": texts == expected}


async def soak(server, engine, lines, options):
    """Return the mean memory in each of 40 parts of many requests, and the slope after the first quarter."""
    n, points, pace = options.requests or 20_000, [], 1.0 / options.rate if options.rate else 0.0
    step = max(1, n // 40)
    began = time.perf_counter()
    for first in range(0, n, step):
        batch = [lines[(first + i) % len(lines)] for i in range(step)]
        working, seen = asyncio.ensure_future(closed_loop(server.port, batch, pace=pace, beam=1)), []
        while not working.done():
            seen.append(server.megabytes)
            await asyncio.sleep(0.05 if pace == 0.0 else 1.0)
        assert working.result()[2] == {200: step}, working.result()[2]
        points.append(((time.perf_counter() - began) / 3600, statistics.mean(seen)))
    hours, megabytes = zip(*points[len(points) // 4 :], strict=True)
    slope, start = statistics.linear_regression(hours, megabytes)
    errors = [mb - start - slope * hour for hour, mb in zip(hours, megabytes, strict=True)]
    spread = (sum(e * e for e in errors) / (len(errors) - 2)) ** 0.5
    error = spread / (statistics.pstdev(hours) * len(hours) ** 0.5)
    return {
        "requests": n, "a second": options.rate, "hours": round(points[-1][0], 3),
        "MB": [round(mb, 1) for _, mb in points],
        "MB an hour": [round(slope, 2), "±", round(error, 2)],
    }  # fmt: skip


async def measured(options, engine):
    """Run all requested measurements, and return their results by name."""
    lines = [line.partition("\t")[0] for line in options.lines.read_text().splitlines() if line.strip()]
    found = {}
    for name in options.what:
        if name == "stop":
            found[name] = await stop(options, lines)
        else:
            with serving([options.run], core=SERVER_CORE) as server:
                await server.ready()
                found[name] = await globals()[name](server, engine, lines, options)
        print(name, json.dumps(found[name]), flush=True)
    return found


def main():
    """Run the chosen measurements."""
    made = shared_options(__doc__, rounds=7)
    made.add_argument("--run", required=True, help="a translator's run folder")
    made.add_argument("--lines", type=Path, required=True, help="sources, one a line")
    made.add_argument("--what", type=listed(), default=list(WHAT), help="which figures, with commas between")
    made.add_argument("--requests", type=int, help="of throughput, mixed, slow, swap and soak")
    made.add_argument("--seconds", type=float, help="of overload")
    made.add_argument("--rate", type=float, help="requests a second of soak; as many as can be unless given")
    options = made.parse_args()
    if options.work == "offline":
        return offline(options.run, SERVER_CORE)
    global MODEL
    MODEL = Path(options.run).resolve().name
    os.sched_setaffinity(0, {CLIENT_CORE})
    command = [sys.executable, __file__, "--work", "offline", "--run", options.run, "--lines", options.lines]
    with contenders({"attendo": command}, 1) as (workers, _):
        found = uvloop.run(measured(options, workers["attendo"]))
    import torch

    result = {"clients": CLIENTS, "rounds": options.rounds, "torch": torch.__version__, "figures": found}
    store("serving", result, options.out)
    return None


MODEL = ""

if __name__ == "__main__":
    main()
