"""Mutation testing of the core: `attendo.nn` is changed in one small place, and its own tests must fail.

    python tools/mutate.py --count 400 --seed 10

Every change that mutations.py can make is listed, `--count` of them are drawn by a hash with the seed, and each is
tried in a fork of this process, which has imported the libraries already: it imports the changed module as if it
stood in the file, and runs those of nn's own tests that come past the changed statement, the quickest first, until
one fails. The results go to tests/mutants/survivors.md. A change that no test can notice, since it computes the
same, is said so by hand in tests/mutants/equivalent.toml, with the reason, and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from mutations import EVERYWHERE, Mutation, drawn, mutations

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "attendo" / "nn"
STORED = ROOT / "tests" / "mutants"
# The tests that are about nn and nothing above it, and the examples of its docstrings.
OWN_TESTS = (
    "src/attendo/nn",
    "tests/nn/test_attention.py",
    "tests/nn/test_blocks.py",
    "tests/nn/test_cache.py",
    "tests/nn/test_nn_devices.py",
    "tests/nn/test_dropout.py",
    "tests/nn/test_feedforward.py",
    "tests/nn/test_initialization.py",
    "tests/nn/test_masks.py",
    "tests/nn/test_norms.py",
    "tests/nn/test_positions.py",
    "tests/course/test_formulas_attention.py",
    "tests/course/test_formulas_blocks.py",
    "tests/course/test_formulas_positions.py",
    "tests/properties",
)
LEAST = 0.9  # this share of the changes that are not equivalent must be noticed
SECONDS = 60  # of the processor: a change that makes a test run longer is noticed
SHOWN = os.dup(1)
TOO_LONG = {"status": 1, "failed": "time"}
NOT_RUN = {"status": 0, "failed": ""}


@dataclass(frozen=True)
class Result:
    """How one change went: "killed" (by the test, or by the time, or at import), "survived" or "not run"."""

    file: str
    mutation: Mutation
    outcome: str
    by: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """File, function, operator, before, after."""
        return self.file, *self.mutation.key


class Chosen:
    """A pytest plugin that runs chosen tests in a chosen order, without looking for the smallest example."""

    def __init__(self, order: dict[str, int]):
        self.order = order
        self.failed = ""

    def pytest_collection(self) -> None:
        """Before any test module is imported: hypothesis stops at the first failing example."""
        import hypothesis

        kept = [phase for phase in hypothesis.Phase if phase.name in ("explicit", "generate")]
        settings = hypothesis.settings
        settings.register_profile("mutants", settings.get_profile("attendo"), phases=kept)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leaves the chosen tests, in their order."""
        kept = (item for item in items if item.nodeid in self.order)
        items[:] = sorted(kept, key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remembers the test that failed."""
        if report.failed:
            self.failed = report.nodeid


class Session(Chosen):
    """A pytest plugin: all tests are collected once, then run in forks, each with one change put into the code.

    It first runs all of them as things are, for their time and the lines that each comes past.
    """

    def __init__(self, changes: list[tuple[str, Mutation]], answer: dict[str, Any]):
        super().__init__({})
        self.changes = changes
        self.answer = answer

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps all."""
        self.items = {item.nodeid: item for item in items}

    def pytest_runtestloop(self) -> bool:
        """Traces, then tries each change that can be put in."""
        trace = in_fork(self.traced)
        if trace["failed"]:
            raise SystemExit(f"error: before anything is changed, {trace['failed']} fails")
        self.answer["trace"] = trace
        self.answer["quick"] = quick = []
        for file, mutation in self.changes:
            tests = covering(trace, file, mutation.lines)
            quick.append(
                in_fork(lambda f=file, m=mutation, t=tests: self.tried(f, m, t)) if tests else NOT_RUN
            )
            word = ("lives", "killed")[quick[-1]["status"]] if quick[-1]["status"] >= 0 else "later"
            say(f"{len(quick):4} {word:6} {file} {mutation.function}: {mutation.before} -> {mutation.after}")
        return True

    def traced(self) -> dict[str, Any]:
        """The seconds of each test, which tests come past each line of nn, and which modules were imported."""
        import coverage

        measured = coverage.Coverage(data_file=None, config_file=False, include=[f"{CORE}/*"])
        measured.start()
        seconds = {}
        for test in self.items:
            measured.switch_context(test)
            began = time.process_time()
            self.run([test])
            seconds[test] = time.process_time() - began
        measured.stop()
        data = measured.get_data()
        lines = {Path(file).name: data.contexts_by_lineno(file) for file in data.measured_files()}
        return {"seconds": seconds, "lines": lines, "failed": self.failed}

    def tried(self, file: str, mutation: Mutation, tests: list[str]) -> dict[str, Any]:
        """Runs the tests with the change; status -1 where it cannot be put into code that is imported already."""
        if not put_in(CORE / file, mutation):
            return {"status": -1, "failed": ""}
        self.run(tests)
        return {"status": int(bool(self.failed)), "failed": self.failed}

    def run(self, tests: list[str]) -> None:
        """Runs these tests until one fails."""
        items = [self.items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return


def put_in(file: Path, mutation: Mutation) -> bool:
    """Gives the function as imported the code of the changed one; False where the change is outside any body."""
    module = sys.modules[f"attendo.nn.{file.stem}"]
    path = mutation.function.split(".")
    owner: Any = module
    for name in path:
        if not isinstance(owner, type | type(sys)):
            break  # a function inside a function is part of the code of the outer one
        owner = vars(owner).get(name)
    owner = inspect.unwrap(getattr(owner, "fget", owner))
    if mutation.head or not inspect.isfunction(owner):
        return False
    loader: Any = module.__loader__
    codes = [loader.source_to_code(mutation.source.encode(), str(file))]
    for code in codes:  # which grows
        if code.co_qualname == owner.__qualname__ and code.co_freevars == owner.__code__.co_freevars:
            owner.__code__ = code
            return True
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    return False


def collected(changes: list[tuple[str, Mutation]]) -> dict[str, Any]:
    """The trace, and how each change went that could be put into imported code."""
    import pytest

    answer: dict[str, Any] = {}
    pytest.main(["-q", "-p", "no:cacheprovider", *existing_tests()], plugins=[Session(changes, answer)])
    ours = ("attendo", "tests", "test_", "conftest", "__", "_hypothesis_pytestplugin", "schemathesis")
    answer["modules"] = [name for name in sys.modules if not name.startswith(ours)]
    return answer


def imported(file: str, mutation: Mutation, tests: list[str]) -> dict[str, Any]:
    """Runs the tests with the changed module imported anew: the status of pytest and the test that failed."""
    import pytest

    change_source(CORE / file, mutation.source)
    plugin = Chosen({test: place for place, test in enumerate(tests)})
    files = sorted({test.split("::")[0] for test in tests})
    options = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
    status = pytest.main([*options, *files], plugins=[plugin])
    return {"status": int(status), "failed": plugin.failed}


def change_source(changed: Path, source: str) -> None:
    """From now on the import of this file finds that source, and writes no compiled file."""
    stats, data = SourceFileLoader.path_stats, SourceFileLoader.get_data

    def path_stats(self: SourceFileLoader, path: str) -> Any:
        if Path(path) == changed:
            raise OSError("no compiled file may stand for it")
        return stats(self, path)

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        return source.encode() if Path(path) == changed else data(self, path)

    SourceFileLoader.path_stats, SourceFileLoader.get_data = path_stats, get_data


def in_fork(action: Callable[[], dict[str, Any]], seconds: int = SECONDS) -> dict[str, Any]:
    """What the action gives in a fork of this process, whose words are not shown; TOO_LONG where it is stopped."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
        pid = os.fork()
        if pid == 0:
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
                silence = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silence, 1)
                os.dup2(silence, 2)
                json.dump(action(), answer)
                answer.flush()
                os._exit(0)
            except BaseException as error:
                say(str(error) if isinstance(error, SystemExit) else f"error: {error!r}")
                raise
            finally:
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return TOO_LONG
        if status:
            raise SystemExit("error: a fork that tried a change did not end well")
        answer.seek(0)
        return json.loads(answer.read())


def say(words: str) -> None:
    """Prints a line, from a fork too."""
    os.write(SHOWN, f"{words}\n".encode())


def existing_tests() -> list[str]:
    """Those of the own tests that there are."""
    return [test for test in OWN_TESTS if (ROOT / test).exists()]


def covering(trace: dict[str, Any], file: str, lines: range) -> list[str]:
    """The tests that come past these lines, the quickest first; all tests for what runs at import."""
    seconds, past = trace["seconds"], trace["lines"].get(file, {})
    tests = set(seconds) if lines == EVERYWHERE else {t for n in past if int(n) in lines for t in past[n]}
    return sorted(tests, key=lambda test: seconds[test])


def results(chosen: list[tuple[str, Mutation]]) -> Iterator[Result]:
    """How each change goes; what can not be put into code that is imported is imported anew."""
    session = in_fork(lambda: collected(chosen), seconds=10 * SECONDS + len(chosen) * SECONDS)
    for name in session["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for (file, mutation), answer in zip(chosen, session["quick"], strict=True):
        tests = covering(session["trace"], file, mutation.lines)
        if answer["status"] == -1:
            answer = in_fork(lambda f=file, m=mutation, t=tests: imported(f, m, t))
        match answer["status"]:
            case 0:
                yield Result(file, mutation, "survived" if tests else "not run")
            case 1 | 2:  # a test failed, or the module could not be imported
                yield Result(file, mutation, "killed", answer["failed"] or "import")
            case status:
                raise SystemExit(f"error: pytest ended with {status} on {file}: {mutation.after}")


def judged() -> dict[tuple[str, ...], str]:
    """The reason for each change that equivalent.toml calls equivalent."""
    file = STORED / "equivalent.toml"
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("equivalent", []) if file.exists() else []
    return {
        tuple(entry[name] for name in ("file", "function", "operator", "before", "after")): entry["reason"]
        for entry in entries
    }


def report(found: list[Result], total: int, seed: int, reasons: dict[tuple[str, ...], str]) -> str:
    """The page of results."""
    alive = [result for result in found if result.outcome != "killed"]
    equivalent = [result for result in alive if result.key in reasons]
    true = [result for result in alive if result.key not in reasons]
    killed = len(found) - len(alive)
    share = killed / max(killed + len(true), 1)
    rows = [
        "# Mutants of `attendo.nn` that its own tests let live",
        "",
        "Written by `make mutants` (tools/mutate.py).",
        "",
        f"Drawn with seed {seed}: {len(found)} of {total} changes. Killed: {killed}. Equivalent: {len(equivalent)}."
        f" Survived: {len(true)}. Killed of those that are not equivalent: {share:.1%}.",
        "",
        "| operator | drawn | killed | equivalent | survived |",
        "|---|---|---|---|---|",
    ]
    columns = [Counter(r.mutation.operator for r in some) for some in (found, alive, equivalent, true)]
    for operator, n in columns[0].most_common():
        _, lost, same, left = (column[operator] for column in columns)
        rows.append(f"| {operator} | {n} | {n - lost} | {same} | {left} |")
    for title, some in (("Survived", true), ("Equivalent", equivalent)):
        rows += ["", f"## {title}", "", *([] if some else ["None."])]
        for result in some:
            mutation = result.mutation
            rows.append(
                f"- `{result.file}` `{mutation.function}`, {mutation.operator}: `{mutation.before}` →"
            )
            rows.append(f"  `{mutation.after}`" + f". {reasons.get(result.key, '')}".rstrip(" ."))
            rows[-1] += "." * (not rows[-1].endswith("."))
    return "\n".join(rows) + "\n"


def main() -> int:
    """Draw, try, report; 1 if too few are killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument(
        "--only", default="", help="try only the drawn changes that the page of this name lists"
    )
    parser.add_argument("--page", type=Path, default=STORED / "survivors.md")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src")]
    sys.dont_write_bytecode = True
    every: dict[tuple[str, ...], tuple[str, Mutation]] = {
        (file.name, *mutation.key): (file.name, mutation)
        for file in sorted(CORE.glob("*.py"))
        for mutation in mutations(file.read_text(encoding="utf-8"))
    }
    reasons = judged()
    for key in reasons.keys() - every.keys():
        print("equivalent.toml names a change that is not there any more:", *key, sep="\n    ")
    chosen = [every[key] for key in drawn(list(every), options.count, options.seed)]
    if options.only:
        listed = Path(options.only).read_text(encoding="utf-8")
        chosen = [(file, mutation) for file, mutation in chosen if f"`{mutation.after}`" in listed]
    found = list(results(chosen))
    for result in found:
        if result.outcome == "killed" and result.key in reasons:
            print("equivalent.toml names a change that a test notices:", *result.key, sep="\n    ")
    page = report(found, len(every), options.seed, reasons)
    options.page.write_text(page, encoding="utf-8")
    print(page)
    left = sum(result.outcome != "killed" and result.key not in reasons for result in found)
    counted = left + sum(result.outcome == "killed" for result in found)
    if 1 - left / max(counted, 1) < LEAST:
        print(
            f"error: fewer than {LEAST:.0%} of the changes are noticed; see {options.page}", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
