"""Conversations: the cost of a turn with and without the prefix cache, and chat requests of all kinds to a server.

    python benchmarks/chat.py --run RUN --talks FILE [--what turns,mixed] [--requests N] [--reply N]
        [--bits 32|16|8|4]

RUN is an assistant. FILE has conversations of at least ten turns (`.jsonl` with messages), which fit into its context.

turns: the CPU time of each reply in a conversation, with one thread, divided by the new tokens of the turn (the user's
message with its special tokens, and the reply). The messages of the assistant are its own greedy replies. The result
is the median over --rounds conversations of the ratio of turn 10 and turn 1, with the compiled and the PyTorch backend,
with and without the prefix cache. The replies must be equal with and without it.
mixed: 32 clients send --requests chat requests to `attendo serve`: whole replies, streams, two replies, long
conversations, invalid messages, and streams that the client cancels after the first event. No request may be lost,
swapped or answered with 5xx, and each reply must be equal to the reply of `Generator.chat`.
"""

import asyncio
import dataclasses
import json
import random
import statistics
import time
from collections import Counter
from pathlib import Path

import torch
from serving_load import Client, metric, serving
from turns import listed, shared_options, store

CLIENTS, TURNS, SEEDS = 32, 10, 8


def costs(generator, users, n_reply):
    """Return the CPU seconds per new token of each turn, the number of new tokens, and the replies."""
    talk, found, replies, read = [], [], [], 0
    for user in users[:TURNS]:
        talk.append({"role": "user", "content": user})
        began = time.process_time()
        reply = generator.chat(talk, temperature=0.0, seed=0, max_tokens=n_reply)
        seconds = time.process_time() - began
        assert not reply.cut, "the conversation does not fit into the context"
        talk.append({"role": "assistant", "content": reply.text})
        n = len(reply.window) + 1 - read  # the end token is written, but not in the window
        read += n
        found.append((seconds / n, n))
        replies.append(reply)
    return found, replies


def turns(options, talks):
    """Measure conversations on both backends, with and without the prefix cache, in alternation."""
    from attendo.decoding.backends import eager_decoder, laid_out
    from attendo.decoding.prefix_cache import PrefixCache
    from attendo.inference import Generator

    torch.set_num_threads(1)
    compiled = Generator.load(options.run).prepare(options.bits)
    eager = dataclasses.replace(compiled, _reader=eager_decoder(laid_out(compiled.model, 32)))
    figures = {}
    for name, generator in (("compiled", compiled), ("eager", eager)):
        ratios, cost = {True: [], False: []}, {True: [], False: []}
        for round_number in range(options.rounds + 1):
            users = [one["content"] for one in talks[round_number] if one["role"] == "user"]
            every = {}
            for cached in (True, False) if round_number % 2 else (False, True):
                generator._prefixes = PrefixCache() if cached else PrefixCache(0)
                found, every[cached] = costs(generator, users, options.reply)
                if round_number:  # the first is a warm-up
                    ratios[cached].append(found[-1][0] / found[0][0])
                    cost[cached].append([1e6 * seconds for seconds, _ in found])
            assert every[True] == every[False], "the replies differ"
        for cached in (True, False):
            figures[f"{name}, {'with' if cached else 'without'} cache"] = {
                "turn 10 / turn 1 per new token": round(statistics.median(ratios[cached]), 2),
                "CPU microseconds per new token by turn": [
                    round(statistics.median(turn)) for turn in zip(*cost[cached], strict=True)
                ],
            }
    return figures | {"new tokens of turn 1 and 10": [found[0][1], found[-1][1]]}


def expected(options, talks):
    """Return the conversations of the requests, and the reply to each by seed."""
    from attendo.inference import Generator

    generator = Generator.load(options.run).prepare()
    talks = [talk[:n] for talk in talks[:12] for n in (2, 4, 6)]
    talks = [talk[:-1] for talk in talks]
    talks += [talks[2] + [{"role": "assistant", "content": "Yes. " * 99}] * (k % 2) + talks[k][-1:] for k in (1, 3)]
    seeds = range(SEEDS + 1)
    return talks, [[generator.chat(talk, max_tokens=24, seed=seed).text for seed in seeds] for talk in talks]


def content(answer):
    """Return the concatenated content of a stream."""
    lines = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: {")]
    deltas = [one["delta"] for line in lines for one in json.loads(line)["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


async def mixed(options, talks):
    """Send chat requests of all kinds in parallel, and compare all replies."""
    talks, texts = expected(options, talks)
    draw, n = random.Random(1), options.requests
    left, kinds, statuses, wrong = list(range(n)), Counter(), Counter(), 0
    name = Path(options.run).resolve().name

    async def ask(client, number):
        at, seed = draw.randrange(len(talks)), draw.randrange(SEEDS)
        kind = draw.choice(("whole", "whole", "stream", "two", "bad", "cancel"))
        kinds[kind] += 1
        body = {"model": name, "messages": talks[at], "max_tokens": 24, "seed": seed}
        if kind in ("stream", "cancel"):
            body["stream"] = True
        if kind == "cancel":
            await client.send("POST", "/v1/chat/completions", body)
            await client.reader.readuntil(b"data: ")
            client.close()
            return True
        if kind == "two":
            body["n"] = 2
        if kind == "bad":
            body |= draw.choice(({"messages": []}, {"messages": talks[at][:-1] or [{}]}, {"top_logprobs": 3}))
        status, _, answer = await client.ask("POST", "/v1/chat/completions", body)
        statuses[status] += 1
        if kind == "bad":
            return status in (400, 422)
        if kind == "stream":
            return status == 200 and content(answer) == texts[at][seed]
        wanted = texts[at][seed : seed + body.get("n", 1)]
        return status == 200 and [one["message"]["content"] for one in json.loads(answer)["choices"]] == wanted

    async def work():
        nonlocal wrong
        async with Client(server.port) as client:
            while left:
                wrong += not await ask(client, left.pop())

    with serving([options.run]) as server:
        await server.ready()
        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CLIENTS)))
        seconds = time.perf_counter() - began
        async with Client(server.port) as client:
            for _ in range(100):  # canceled jobs end with the next step
                text = (await client.ask("GET", "/metrics"))[2].decode()
                if not metric(text, "attendo_admitted_requests"):
                    break
                await asyncio.sleep(0.05)
        open_at_end = metric(text, "attendo_admitted_requests")
        status = server.stop()
    return {
        "requests": n, "kinds": dict(kinds), "answers": dict(sorted(statuses.items())), "wrong": wrong,
        "open at the end": open_at_end, "exit status": status, "seconds": round(seconds),
    }  # fmt: skip


def main():
    """Run the chosen measurements."""
    made = shared_options(__doc__, rounds=7)
    made.add_argument("--run", required=True, help="an assistant's run folder")
    made.add_argument("--talks", type=Path, required=True, help="conversations, one JSON object a line")
    made.add_argument("--what", type=listed(), default=["turns", "mixed"], help="which figures")
    made.add_argument("--reply", type=int, default=32, help="most tokens of a reply of turns")
    made.add_argument("--bits", type=int, choices=(32, 16, 8, 4), default=32, help="of each weight, for turns")
    made.add_argument("--requests", type=int, default=10_000, help="of mixed")
    options = made.parse_args()
    talks = [json.loads(line)["messages"] for line in options.talks.read_text().splitlines()]
    talks = [talk for talk in talks if talk[0]["role"] == "user" and len(talk) >= 2 * TURNS]
    figures = {}
    for name in options.what:
        figures[name] = turns(options, talks) if name == "turns" else asyncio.run(mixed(options, talks))
        print(name, json.dumps(figures[name], indent=1), flush=True)
    store("chat", {"rounds": options.rounds, "torch": torch.__version__, "figures": figures}, options.out)


if __name__ == "__main__":
    main()
