"""Tables in Markdown of the results of `decoding.py`, with the requirements and aims."""

PEERS = {
    "ctranslate2-float32": ("attendo-float32", "CTranslate2"),
    "ctranslate2-int8": ("attendo-int8", "CTranslate2, 8 bits"),
    "marian": ("attendo-float32", "Hugging Face"),
    "joeynmt": ("attendo-float32", "JoeyNMT"),
}
COLUMNS = {
    "attendo-plain": "PyTorch modules",
    "attendo-float32": "attendo",
    "attendo-int8": "attendo, 8 bits",
    **{peer: name for peer, (_, name) in PEERS.items()},
}


def bar(peer, size, sources):
    """Return the required ratio and the aim for attendo's tokens per second, divided by a peer's. None means no limit.

    >>> bar("ctranslate2-float32", "small", 1), bar("joeynmt", "base", 8)
    ((0.9, 1.2), (None, None))
    """
    match peer:
        case "ctranslate2-float32":
            return (0.9 if sources == 1 else 1.0), 1.2
        case "ctranslate2-int8":
            return {1: 0.6, 64: 0.9}.get(sources), 1.0
        case "marian":
            return (1.2 if size == "base" else 3.0 if sources == 1 else 1.5), None
        case _:
            return {1: 4.0, 64: 8.0}.get(sources), None


def verdict(ratio, asked, aim):
    """Format a ratio, and whether it reaches the requirement or the aim. A ratio below the requirement is bold.

    >>> verdict(1.26, 0.9, 1.2), verdict(0.95, 0.9, 1.2), verdict(0.5, 0.9, 1.2), verdict(0.7, None, None)
    ('1.26, goal', '0.95, required', '**0.50 < 0.9**', '0.70')
    """
    if aim is not None and ratio >= aim:
        return f"{ratio:.2f}, goal"
    if asked is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f}, required" if ratio >= asked else f"**{ratio:.2f} < {asked:g}**"


def cases_of(results):
    """Collect the speeds and ratios by (size, threads, clock, sources, beam). A later result replaces an earlier one.

    8-bit results with several threads are used only if idle threads slept, because spinning threads took most of
    CTranslate2's time.
    """
    cases = {}
    for result in results:
        for case in result["grid"]:
            key = tuple(case[name] for name in ("size", "threads", "clock", "sources", "beam"))
            place = cases.setdefault(key, {"speeds": {}, "ratios": {}})
            spun = case["threads"] > 1 and "idle threads" not in result
            middles = {name: middle for name, (_, middle, _) in case["ratio_quartiles"].items()}
            for kind, values in (("speeds", case["tokens_per_second"]), ("ratios", middles)):
                place[kind] |= {name: x for name, x in values.items() if not (spun and "int8" in name)}
    return cases


def table(results):
    """Return one table for each size and number of threads, and the number of limits that are reached."""
    cases = cases_of(results)
    text = []
    order = {"small": 0, "base": 1}
    for group in sorted({key[:3] for key in cases}, key=lambda key: (order[key[0]], *key[1:])):
        size, threads, clock = group
        rows = {key[3:]: case for key, case in sorted(cases.items()) if key[:3] == group}
        text += [one_table(f"{size}, {threads} thread{'s' * (threads > 1)}, tokens per {clock} second", size, rows)]
    return "\n\n".join([*text, met(cases)])


def one_table(title, size, rows):
    """Return a table with one row per case. Its columns are tokens per second, then ratios."""
    speeds = [name for name in COLUMNS if any(name in case["speeds"] for case in rows.values())]
    pairs = {f"{mine} / {peer}": peer for peer, (mine, _) in PEERS.items()}
    pairs = {pair: peer for pair, peer in pairs.items() if any(pair in case["ratios"] for case in rows.values())}
    heads = [COLUMNS[name] for name in speeds]
    heads += [f"{COLUMNS[pair.split(' / ')[0]]} / {COLUMNS[peer]}" for pair, peer in pairs.items()]
    lines = [f"**{title}**", "", f"| sources × beam | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for (sources, beam), case in rows.items():
        cells = [f"{case['speeds'][name]:,}" if name in case["speeds"] else "" for name in speeds]
        for pair, peer in pairs.items():
            ratio = case["ratios"].get(pair)
            cells.append("" if ratio is None else verdict(ratio, *bar(peer, size, sources)))
        lines.append(f"| {sources} × {beam} | {' | '.join(cells)} |")
    return "\n".join(lines)


def met(cases):
    """Return one line for each peer, with the number of requirements and aims that are reached."""
    lines = []
    for peer, (mine, name) in PEERS.items():
        found = [
            (case["ratios"][f"{mine} / {peer}"], *bar(peer, size, sources))
            for (size, _, _, sources, _), case in cases.items()
            if f"{mine} / {peer}" in case["ratios"]
        ]
        for kind, number in (("requirement", 1), ("goal", 2)):
            bars = [(entry[0], entry[number]) for entry in found if entry[number] is not None]
            if bars:
                good = sum(ratio >= least for ratio, least in bars)
                lines.append(f"- {name}: {kind} met in {good} of {len(bars)} cases")
    return "\n".join(lines)
