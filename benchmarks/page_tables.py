"""The tables of docs/benchmarks.md. Each function converts stored results to lines of Markdown."""

from figure_list import LAST, figures_and_jobs, groups, last_run, result

VERDICTS = {
    "en": {
        "none": "",
        "short": "**requirement missed**",
        "holds": "requirement met",
        "aim met": "goal met",
        "aim missed": "requirement met, goal missed",
    },
    "ja": {
        "none": "",
        "short": "**届かない**",
        "holds": "満たす",
        "aim met": "満たす（目標も）",
        "aim missed": "満たす（目標には届かない）",
    },
}
LOG = {"en": "log.md", "ja": "../log.md"}
HEADS = {
    "en": ["figure", "requirement", "goal", "measured", "repeated", "result", "source", "command"],
    "ja": ["項目", "基準", "目標", "測定値", "再測定", "判定", "出所", "再現"],
}


def table(heads, rows):
    """Return the lines of a Markdown table.

    >>> table(["", "share"], [["all", "99%"]])
    ['| | share |', '|---|---|', '| all | 99% |']
    """
    text = ["".join(f"| {cell} " for cell in line).replace("|  ", "| ") + "|" for line in [heads, *rows]]
    return [text[0], "|---" * len(heads) + "|", *text[1:]]


def spoken(text, language):
    """Format a value, a requirement or an aim in a language.

    >>> spoken("0 of 5 lines", "ja")
    '0 / 5 行'
    """
    if language == "ja":
        for english, japanese in ((" of ", " / "), (" lines", " 行"), ("none", "なし")):
            text = text.replace(english, japanese)
    return text


def all_figures(language):
    """Return the table of all figures: requirement, measured value, verdict, source and command."""
    figures, _ = figures_and_jobs()
    last = last_run().get("figures", {})
    rows, words = [], groups()
    for figure in figures:
        if figure.group in words:
            rows.append([f"**{words.pop(figure.group)[language]}**", *[""] * 7])
        value, again = figure.measured(), last.get(figure.name, {}).get("value")
        mark = mark_of(figure, value, again)
        source = "; ".join(map(source_of, figure.stored)) or f"[log]({LOG[language]})"
        rows.append(
            [
                getattr(figure, language),
                spoken(figure.bar(figure.asked), language),
                figure.bar(figure.aim),
                "" if value is None else spoken(figure.said(value), language),
                "" if again is None else spoken(figure.said(again), language),
                VERDICTS[language][mark],
                source,
                f"[{figure.job}](#commands)",
            ]
        )
    return table(HEADS[language], rows)


def source_of(name):
    """Return a stored result's name, its commit and the vector instructions of its machine."""
    if name == LAST:
        return f"`{name}`"
    found = result(name)
    wide = any(flag.startswith("avx512") for flag in found["machine"]["flags"])
    return f"`{name.removesuffix('.json')}` ({found['commit']}, {'AVX-512' if wide else 'AVX2'})"


def again(language):
    """Return sentences about the last run of `make figures` and its result."""
    run = last_run()
    if not run:
        return ["*`make figures`" + (": no results are stored.*" if language == "en" else "：結果はまだありません。*")]
    short = [name for name, found in run["figures"].items() if found["verdict"] == "short"]
    facts = (run["date"], ", ".join(run["commits"]), len(run["figures"]), len(short))
    text, colon = "`make figures` on {}, commits {}: {} figures, of which {} miss the requirement", ": "
    if language == "ja":
        colon = "："
        text = "`make figures`（{}、コミット {}）：{} 項目、届かないもの {} 項目"
    return [f"*{text.format(*facts)}{colon * bool(short)}{', '.join(short)}*"]


def commands(language):
    """Return the table of the commands of each job, with their cost in `make figures`."""
    _, jobs = figures_and_jobs()
    seconds = "CPU-seconds in `make figures`" if language == "en" else "`make figures` の CPU 時間（秒）"
    heads = [["name", "command", seconds], ["名前", "コマンド", seconds]][language == "ja"]
    return table(heads, [[job.name, f"`{job.repeat}`", job.cpu or "-"] for job in jobs.values()])


def short_of(language):
    """Return the table of the figures that miss a requirement or an aim, as stored or in the last run."""
    rows, last = [], last_run().get("figures", {})
    for figure in figures_and_jobs()[0]:
        value, now = figure.measured(), last.get(figure.name, {}).get("value")
        kind = mark_of(figure, value, now)
        if kind in ("short", "aim missed"):
            rows.append(
                [
                    f"`{figure.name}`",
                    getattr(figure, language),
                    spoken(figure.bar(figure.asked if kind == "short" else figure.aim), language),
                    *("" if number is None else spoken(figure.said(number), language) for number in (value, now)),
                    VERDICTS[language][kind],
                ]
            )
    heads = {
        "en": ["name", "figure", "requirement or goal", "measured", "repeated", "result"],
        "ja": ["", "項目", "基準・目標", "測定値", "再測定", "判定"],
    }
    return table(heads[language], rows)


def mark_of(figure, value, now):
    """Return the verdict of a figure: "short" if either value is below the requirement, otherwise that of `value`."""
    marks = [figure.verdict(number) for number in (value, now) if number is not None]
    return "short" if "short" in marks else marks[0] if marks else "none"


def speed():
    """Return the table of an update's speed compared with the peers, at two sizes."""
    names = {
        "attendo": "attendo, float32, automatic choice (oneDNN on this machine)",
        "torch": "plain loop with `torch.nn.Transformer`",
        "transformers": "Hugging Face `Trainer`, `MarianMTModel`",
        "joeynmt": "JoeyNMT 2.3",
        "attendo-torch-products": "attendo with torch's matrix library",
        "attendo-bfloat16": "attendo in bfloat16",
    }
    found = [result(f"training-2026-11-21-{number}.json") for number in (2, 3, 4)]
    rows = []
    for name, words in names.items():
        row = [words]
        for run in found:
            row.append(f"{run['target_tokens_per_second_quartiles'][name][1]:,.0f}")
            low, middle, high = run["ratio_quartiles"].get(f"attendo / {name}", (None,) * 3)
            row.append("" if middle is None else f"**{middle:.2f}** ({low:.2f} to {high:.2f})")
        rows.append(row)
    heads = [
        head
        for run in found
        for head in (
            f"{run['size']}, {run['corpus']}: tokens per CPU-second",
            "attendo / this tool",
        )
    ]
    return table(["tool", *heads], rows)


def own_products():
    """Return the table of ratios to the peers with PyTorch's matrix products, and in bfloat16."""
    peers = {"torch": "plain loop", "transformers": "Hugging Face", "joeynmt": "JoeyNMT"}
    rows = []
    for number in (2, 3, 4):
        run = result(f"training-2026-11-21-{number}.json")
        of = run["ratio_quartiles"]
        forms = ("attendo-torch-products", "attendo-bfloat16")
        rows.append(
            [
                f"{run['size']}, {run['corpus']}",
                *(f"{of[f'{form} / {peer}'][1]:.2f}" for form in forms for peer in peers),
            ]
        )
    heads = [f"{words} / {peer}" for words in ("torch's library", "bfloat16") for peer in peers.values()]
    return table(["model", *heads], rows)


def shares():
    """Return the table of GFLOP/s and their share of the peak of both libraries."""
    names = {
        "attendo": "attendo",
        "attendo-torch-products": "attendo with torch's library",
        "torch": "plain loop",
        "transformers": "Hugging Face",
        "joeynmt": "JoeyNMT",
    }
    found = [result(f"training-2026-11-21-{number}.json") for number in (2, 3)]
    heads, rows = [], [[words] for words in names.values()]
    for run in found:
        peaks = {library: run["sgemm_gflops_quartiles"][library][1] for library in ("torch", "onednn")}
        heads += [
            f"GFLOP/s, {run['size']}",
            f"share of torch's sgemm ({peaks['torch']:.0f})",
            f"share of oneDNN's sgemm ({peaks['onednn']:.0f})",
        ]
        for row, name in zip(rows, names, strict=True):
            of_torch, of_fastest = (run[f"share_of_{which}_sgemm_quartiles"][name][1] for which in ("torch", "fastest"))
            row += [f"{run['gflops_quartiles'][name][1]:.0f}", f"{of_torch:.0%}", f"{of_fastest:.0%}"]
    return table(["tool", *heads], rows)


def memory():
    """Return the table of peak memory above weights and optimizer state."""
    run = result("training-memory-2026-11-21.json")
    names = {
        "attendo": "attendo",
        "transformers": "Hugging Face",
        "torch": "plain loop",
        "joeynmt": "JoeyNMT",
    }
    return table(
        ["tool", "memory in MiB", "divided by the plain loop"],
        [
            [words, f"{run['most_above_mib'][name]:,.0f}", f"{run['ratio_to_torch'][name]:.2f}"]
            for name, words in names.items()
        ],
    )


def guards():
    """Return the table of the cost of guards."""
    run = result("training-guards-2026-11-21.json")
    low, middle, high = run["whole_to_bare_quartiles"]
    least, saved, most = run["seconds_of_a_checkpoint_quartiles"]
    steps, step = run["steps_between_checkpoints"], run["bare_seconds_a_step"]
    rows = {
        "run with checks, hashes and log, divided by the updates alone": f"{middle:.3f} ({low:.3f} to {high:.3f})",
        "time of a checkpoint in CPU-seconds": f"{saved:.2f} ({least:.2f} to {most:.2f})",
        "time of a step in CPU-seconds, and number of steps between two checkpoints": f"{step:.2f}, {steps}",
        "all additional time as a share of the run, from the medians": f"{run['total_share']:.2%}",
    }
    return table(
        ["measurement", f"{run['corpus']}, automatic settings ({run['training']['precision']})"],
        list(rows.items()),
    )


def quality():
    """Return the table of BLEU at equal time."""
    files = {
        "attendo, automatic settings": "attendo-2026-11-21",
        "JoeyNMT 2.3, documented settings": "joeynmt-2026-11-22",
        "Hugging Face, documented settings": "transformers-2026-11-22",
    }
    rows = []
    for words, file in files.items():
        marks = result(f"quality-{file}.json")["marks"]
        rows.append(
            [
                words,
                *(f"{mark['bleu']:.2f}" for mark in marks),
                ", ".join(f"{mark['chrf']:.2f}" for mark in marks),
                ", ".join(f"{mark['steps']:,}" for mark in marks),
            ]
        )
    return table(
        [
            "tool",
            "BLEU after 20 CPU-minutes",
            "BLEU after 40 CPU-minutes",
            "chrF after 20 and 40",
            "updates after 20 and 40",
        ],
        rows,
    )
