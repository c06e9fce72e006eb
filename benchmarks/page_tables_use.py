"""The tables of docs/benchmarks.md on using a model: decoding, embeddings, interop, serving and the microscope."""

from decoding_table import PEERS, cases_of, met
from decoding_table import table as grids
from figure_list import result
from page_tables import table

GRID = (
    "decoding-2026-11-21.json",
    "decoding-2026-11-21-2.json",
    "decoding-2026-11-23-2.json",
)
JOEY = ("decoding-2026-11-21-3.json", "decoding-2026-11-21-4.json")


def decoding():
    """Return the tables of all decoding cases, with the number of cases that meet the requirement."""
    return grids([result(name) for name in GRID]).splitlines()


def decoding_ranges(language):
    """Return the smallest and largest ratio to each peer, with one source and with more (see `best_of_threads`)."""
    cases = best_of_threads(cases_of([result(name) for name in GRID + JOEY]))
    rows = []
    for peer, (mine, name) in PEERS.items():
        cells = []
        for many in (False, True):
            ratios = [
                case["ratios"][f"{mine} / {peer}"]
                for (*_, sources, _), case in cases.items()
                if (sources > 1) == many and f"{mine} / {peer}" in case["ratios"]
            ]
            low, high = (f"{of(ratios):.1f}" if peer == "joeynmt" else f"{of(ratios):.2f}" for of in (min, max))
            cells.append(f"{low} to {high}" if language == "en" else f"{low} から {high}")
        rows.append([name if language == "en" else name.replace("8 bits", "8 ビット"), *cells])
    return table(
        ["compared with", "one source", "8 and 64 sources"] if language == "en" else ["", "原文 1 つ", "8 と 64"],
        rows,
    )


def best_of_threads(cases):
    """Return the cases by (size, clock, sources, beam), each program with its best number of threads."""
    groups = {}
    for (size, _, clock, sources, beam), case in cases.items():
        groups.setdefault((size, clock, sources, beam), []).append(case)
    for key, group in groups.items():
        ratios = {pair: ratio for case in group for pair, ratio in case["ratios"].items()}
        for pair in ratios:
            both = [case for case in group if pair in case["ratios"]]
            if len(both) > 1:
                mine, peer = (max(case["speeds"][name] for case in both) for name in pair.split(" / "))
                ratios[pair] = mine / peer
        groups[key] = {"ratios": ratios}
    return groups


def decoding_joeynmt():
    """Return the tables of attendo and JoeyNMT, with the number of cases that meet the requirement."""
    cases = cases_of([result(name) for name in JOEY])
    rows = [
        [
            f"{size}, {sources} × {beam}",
            *(f"{case['speeds'][name]:,}" for name in ("attendo-float32", "joeynmt")),
            f"{case['ratios']['attendo-float32 / joeynmt']:.1f}",
        ]
        for (size, _, _, sources, beam), case in cases.items()
    ]
    return [*table(["case", "attendo", "JoeyNMT", "ratio"], rows), "", met(cases)]


def texts():
    """Return the table of translation from raw text to raw text, in lines per CPU-second."""
    names = {
        "attendo-float32": "attendo",
        "attendo-int8": "attendo, 8 bits",
        "ctranslate2-float32": "CTranslate2",
        "ctranslate2-int8": "CTranslate2, 8 bits",
        "marian": "Hugging Face",
    }
    pairs = {
        "attendo-float32 / ctranslate2-float32": "attendo / CTranslate2",
        "attendo-int8 / ctranslate2-int8": "8 bits / 8 bits",
        "attendo-float32 / marian": "attendo / Hugging Face",
    }
    rows = []
    for case in result("decoding-texts-2026-11-21.json")["threads"]["1"]["cases"]:
        how = f"{'one at a time' if case['alone'] else 'in batches'}, beam {case['beam']}"
        speeds = [f"{case['lines_per_second'][name]:,.0f}" for name in names]
        ratios = [f"{case['ratio_quartiles'][pair][1]:.2f}" for pair in pairs]
        same = ", ".join(str(case["same_texts"][name]) for name in ("ctranslate2-float32", "marian"))
        rows.append([how, *speeds, *ratios, f"{same} of {case['lines']:,}"])
    return table(["case", *names.values(), *pairs.values(), "texts equal to CTranslate2, to Hugging Face"], rows)


def int8_quality():
    """Return the table of BLEU in 8 bits and in float32."""
    found = result("exactness-2026-11-21-3.json")["bleu"]
    rows = [
        [
            name.removesuffix(".tsv"),
            f"{of['float32']:.2f}",
            f"{of['int8']:.2f}",
            f"{of['int8 - float32']:+.2f}",
        ]
        for name, of in found.items()
    ]
    return table(["BLEU", "float32", "8 bits", "difference"], rows)


def exactness():
    """Return the table of differing lines by number format, beam and way."""
    ways = [way for number in ("", "-2") for way in result(f"exactness-2026-11-21{number}.json")["ways"]]
    names = list(dict.fromkeys(way["way"] for way in ways))
    rows = {}
    for way in ways:
        rows.setdefault((way["form"], way["beam"]), {})[way["way"]] = f"{way['differ']} of {way['lines']:,}"
    words = {
        "sevens": "batches of 7",
        "long mate": "with the longest line",
        "tokens 64": "batches of 64 tokens",
        "tokens 8192": "batches of 8,192 tokens",
        "shuffled": "other order",
        "no cache": "without a cache",
        "joined": "joining a running search",
    }
    return table(
        ["lines that differ", *(words[name] for name in names)],
        [[f"{form}, beam {beam}", *(found.get(name, "") for name in names)] for (form, beam), found in rows.items()],
    )


def growth():
    """Return the table of the time of a step after 64 to 2,048 tokens."""
    rows = []
    for number in ("", "-2"):
        run = result(f"growth-2026-11-21{number}.json")
        for kind, found in run["time"].items():
            steps = found["milliseconds"]
            ends = [f"{steps[length]['step']:.2f}" for length in ("64", "512", "2048")]
            rest = [f"{steps[length]['rest']:.2f}" for length in ("64", "512", "2048")]
            grown = [f"{found[name]:.2f}" for name in ("growth of the rest", "growth when as cold")]
            rows.append(
                [
                    f"{run['form']}, {kind}".replace(" 1 beams", " 1 beam"),
                    *ends,
                    *rest,
                    *(f"**{x}**" if float(x) > 1.2 else x for x in grown),
                ]
            )
    heads = [
        f"{what} after {length}"
        for what in ("step in ms", "time outside attention in ms")
        for length in ("64", "512", "2,048")
    ]
    return table(
        [
            "case",
            *heads,
            "longest / shortest time outside attention",
            "time outside attention / that of a step with equal cache use",
        ],
        rows,
    )


def lm_eval():
    """Return the table of differences of log-likelihoods by kind of model."""
    kinds = result("lm-eval-2026-11-23.json")["kinds"]
    rows = [[kind, *(f"{of['largest_difference']:.1e}" for of in tasks.values())] for kind, tasks in kinds.items()]
    return table(["model", "continuations", "whole texts"], rows)


def quantized():
    """Return the table of a large language model by its number of bits."""
    rows = [
        [
            row["bits"],
            row["form"],
            *(f"{row[name]:.2f}" for name in ("file_gib", "peak_gib")),
            f"{row['cpu_seconds']:.0f}",
            f"{row['quantizing']['cpu_seconds']:.0f}" if "quantizing" in row else "",
        ]
        for row in sorted(result("quantized-2026-11-28.json")["rows"], key=lambda row: -row["bits"])
    ]
    heads = ["bits", "weights", "file, GiB", "peak of the memory, GiB", "CPU-seconds, loading and 8 tokens"]
    return table([*heads, "CPU-seconds of `attendo quantize`"], rows)


def embeddings():
    """Return the table of sentence embeddings compared with transformers."""
    run = result("embeddings-2026-11-22.json")
    rows = []
    for size, of in run["batches"].items():
        low, middle, high = of["ratio"]
        speeds = [of["sentences per second"][name] for name in ("attendo", "transformers")]
        rows.append([size, *speeds, f"{middle:.2f} ({low:.2f} to {high:.2f})"])
    heads = [
        "sentences per call",
        "attendo, sentences per CPU-second",
        f"transformers {run['transformers']}",
        "ratio",
    ]
    return table(heads, rows)


def interop():
    """Return the table of a translator in CTranslate2."""
    run = result("interop-2026-11-22.json")["ctranslate2"]
    rows = [
        [
            form,
            f"{of['same_texts']:.1%}",
            f"{of['bleu']['there']:.2f}",
            f"{of['bleu']['here']:.2f}",
            f"{of['largest_difference']:.1e}",
            f"{of['same_texts_own_search']:.1%}",
            f"{of['bleu']['own_search']:.2f}",
        ]
        for form, of in run.items()
    ]
    heads = [
        "number format",
        "equal translations with `decoding.refill`",
        "BLEU of CTranslate2",
        "BLEU of attendo",
        "largest difference of a score",
        "equal translations with the search of the run",
        "BLEU of attendo with the search of the run",
    ]
    return table(heads, rows)


def serving():
    """Return the tables of the server: compared with the offline engine, and under load."""
    of = result("serving-2026-11-22.json")["figures"]
    load, slow, gone, swap = of["throughput"], of["slow"], of["gone"]["ms until free"], of["swap"]
    low, middle, high = load["served / offline"]
    most = max(stop["ms until not ready"] for stop in of["stop"])
    answers = sum(stop["answers"]["200"] for stop in of["stop"])
    exits = {(stop["exit"], stop["children"]) for stop in of["stop"]}
    swapped = f"{swap['answers']['200']} of {sum(swap['answers'].values())} with status 200"
    clients = f"{load['clients']} clients that each wait for a response, {load['source tokens']} source tokens"
    rows = {
        f"{clients}: output tokens per CPU-second of the server divided by `translate` in batches of 32": (
            f"{middle:.2f} ({low:.2f} to {high:.2f})"
        ),
        f"{clients}: p50 and p99 latency": f"{load['p50 ms']:.0f} and {load['p99 ms']:.0f} ms",
        "one client: p50 latency minus the time of the Python call": f"{of['overhead']['p50 ms beyond the call']} ms",
        "1,000 slow connections: p99 latency of the other clients, divided by p99 latency without slow connections": (
            f"{slow['p99 with / without']:.2f} (pairs from {min(slow['pairs']):.2f} to {max(slow['pairs']):.2f})"
        ),
        "a client disconnects: time until its capacity is free": (
            f"median {gone['median']:.0f} ms, maximum {gone['most']:.0f} ms"
        ),
        "SIGTERM with 16 requests of 8 texts: time until /readyz returns 503": f"at most {most} ms",
        "SIGTERM with 16 requests of 8 texts: responses with status 200": f"{answers} of {16 * len(of['stop'])}",
        "SIGTERM with 16 requests of 8 texts: exit code and number of remaining child processes": ", ".join(
            f"{code} and {left}" for code, left in exits
        ),
        f"{swap['swaps asked for']} model reloads under load": f"{swapped}, texts unchanged: {swap['texts as before']}",
        **overload(of["overload"]),
        **long_runs(of["mixed"], result("serving-soak-2026-11-22.json")["figures"]["soak"]),
    }
    return table(["measurement", "result"], list(rows.items()))


def counted(answers):
    """Format the numbers of answers by status."""
    return " and ".join(f"{number:,} with {code}" for code, number in sorted(answers.items()))


def overload(of):
    """Return the rows of the overload test."""
    pace = f"{of['seconds'] / 60:.0f} minutes, {of['asked for per second']:,.0f} requests per second"
    overloaded = "requests at ten times the throughput"
    return {
        f"{overloaded} for {pace}: responses by status": counted(of["answers"]),
        f"{overloaded}: responses 429 without Retry-After": of["429 without Retry-After"],
        f"{overloaded}: p99 latency of admitted requests": f"{of['p50, p99 ms of the admitted'][1] / 1000:.1f} s",
        f"{overloaded}: maximum memory above the memory before": f"{of['memory'] - 1:.1%}",
        f"{overloaded}: time until the latency is normal again": f"{of['seconds until as before']} s",
    }


def long_runs(mixed, soak):
    """Return the rows of the mixed requests and of the soak test."""
    slope, _, error = soak["MB an hour"]
    pace = f"{soak['requests']:,} requests, {soak['a second']:.0f} per second, {soak['hours']:.2f} hours"
    return {
        f"{mixed['requests']:,} mixed requests, some of them invalid: responses by status": counted(mixed["answers"]),
        f"{mixed['requests']:,} mixed requests: texts that differ from the command": mixed["wrong"],
        f"{pace}: memory": f"{min(soak['MB'][1:]):.0f} to {max(soak['MB']):.0f} MB",
        f"{pace}: memory growth per hour after the first quarter, by regression": f"{slope:.1f} ± {error:.1f} MB",
    }


def microscope():
    """Return the table of medians of the page in Chromium."""
    kinds = result("microscope-2026-11-22-2.json")["figures"]
    names = {
        "first map": "time from opening the page to the first map",
        "beside the forward": "time to the first map without the forward pass",
        "hover": "response when the pointer moves over a map",
        "slider": "preview of the slider",
        "re-run": "running the model again with another β, including the search",
        "memory": "memory of the browser tab after every layer was opened",
    }
    rows = []
    for name, words in names.items():
        unit, form = ("MB", ",.0f") if name == "memory" else ("ms", ".1f" if name in ("hover", "slider") else ",.0f")
        rows.append([words, *(f"{of[name]['median']:{form}} {unit}" for of in kinds.values())])
    heads = [kind.replace("the same", "30 tokens, 6 layers x 8 heads") for kind in kinds]
    return table(["measurement", *heads], rows)


def startup():
    """Return the table of CPU seconds of commands."""
    run = result("commands-2026-11-22.json")
    rows = [[f"`{name}`", f"{middle:.2f} CPU-seconds"] for name, (_, middle, _) in run["cpu_seconds_quartiles"].items()]
    found = run["doctor"]
    rows.append(
        [
            f"`attendo doctor` on {found['pairs']:,} pairs",
            f"{found['cpu_seconds']} CPU-seconds, {found['most_mb']} MB",
        ]
    )
    return table(["command", "time and memory"], rows)
