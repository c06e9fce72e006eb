"""The figures that attendo claims, from `figures.toml`: requirement, measured value and verdict."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAST = "figures"  # the newest result of figures.py, whatever its date
REDUCED = {
    "least": min,
    "most": max,
    "mean": lambda values: sum(values) / len(values),
    "spread": lambda values: max(values) / min(values),
    "difference": lambda values: abs(values[0] - values[1]),
    "above 1": lambda values: sum(value > 1 for value in values),
    "excess": lambda values: values[0] / values[1] - 1,
    "furthest": lambda values: max(values, key=abs),
    "loss": lambda values: -min(values),
    "not 200": lambda values: sum(count for answers in values for kind, count in answers.items() if kind != "200"),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Commands that measure figures. `wants` are the required options, and `cpu` is the cost in CPU seconds.

    `repeat` is the command in the documentation. `peers` are options that are added if the environments of the peers
    are given. `why` is the reason why `make figures` does not run the job.
    """

    name: str
    repeat: str
    commands: tuple[str, ...] = ()
    peers: str = ""
    wants: tuple[str, ...] = ()
    cpu: int = 0
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number that the project claims. figures.toml describes each field."""

    name: str
    en: str
    ja: str
    job: str
    least: float | None = None
    most: float | None = None
    aim: float | None = None
    unit: str = ""
    form: str = "g"
    stored: tuple[str, ...] = ()
    at: tuple = ()
    of: str = ""
    log: str = ""
    value: float | None = None
    now: tuple = ()
    find: str = ""

    def said(self, value):
        """Format a value for display.

        >>> Figure(name="", en="", ja="", job="", form=".2f", unit=" ms").said(2.1)
        '2.10 ms'
        """
        return f"{value:{self.form}}{self.unit}"

    def bar(self, number):
        """Format a requirement or an aim for display. If there is none, return ""."""
        if number is None:
            return ""
        if number == 0 == self.most:
            return "0"
        sign, unit = "≥" if self.least is not None else "≤", self.unit.split(" of ")[0]
        return f"{sign} {number:{',g' if number >= 1000 else 'g'}}{unit}"

    @property
    def group(self):
        """First part of the name, up to the slash."""
        return self.name.partition("/")[0]

    @property
    def asked(self):
        """Required value, or None."""
        return self.most if self.least is None else self.least

    def meets(self, value, bar):
        """Return whether a value reaches a requirement or an aim."""
        return value >= bar if self.least is not None else value <= bar

    def verdict(self, value):
        """Return the verdict: "none" (no requirement), "short", "holds", "aim missed" or "aim met".

        >>> Figure(name="", en="", ja="", job="", least=1, aim=2).verdict(1.5)
        'aim missed'
        """
        if self.asked is None:
            return "none"
        if not self.meets(value, self.asked):
            return "short"
        return "holds" if self.aim is None else "aim met" if self.meets(value, self.aim) else "aim missed"

    def measured(self):
        """Return the stored value, or None if the value comes from the last run of figures.py and no run is stored."""
        if self.log:
            return self.value
        if self.stored == (LAST,):
            return last_run().get("figures", {}).get(self.name, {}).get("value")
        return self.of_all(found_in([result(name) for name in self.stored], self.at))

    def again(self, documents):
        """Return the value from the new results of a job, or None if a peer is missing in the results."""
        if self.find:
            found = re.finditer(self.find, words_of(documents))
            values = [float(text.replace(",", "")) for match in found for text in match.groups()]
        else:
            values = found_in(documents, self.now or self.at)
        return self.of_all(values) if values else None

    def of_all(self, values):
        """Reduce all values of the figure to one number."""
        if self.of:
            return float(REDUCED[self.of](values))
        if len(set(values)) != 1:
            raise ValueError(f"{self.name}: {len(values)} numbers where one is wanted: {values[:5]}")
        return float(values[0])


def figures_and_jobs():
    """Return the figures in order, and the jobs by name."""
    listed = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))
    jobs = {name: Job(name=name, **tuples(fields)) for name, fields in listed["job"].items()}
    return [Figure(**tuples(fields)) for fields in listed["figure"]], jobs


def groups():
    """Return the titles {"en": ..., "ja": ...} of each group, by the first part of the figure names."""
    listed = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))["group"]
    return {name: dict(zip(("en", "ja"), words, strict=True)) for name, words in listed.items()}


def tuples(fields):
    """Convert lists to tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def result(name):
    """Read a stored result."""
    return json.loads((HERE / "results" / name).read_text(encoding="utf-8"))


def last_run():
    """Merge the stored runs of figures.py. A later run of some figures replaces only these figures."""
    paths = sorted((HERE / "results").glob(f"{LAST}-*.json"), key=lambda path: (len(path.stem), path.stem))
    merged = {}
    for run in sorted((result(path.name) for path in paths), key=lambda run: run["date"]):
        found = merged.get("figures", {}) | run["figures"]
        commits = [*(name for name in merged.get("commits", []) if name != run["commit"]), run["commit"]]
        merged = {"date": run["date"], "commits": commits, "figures": found}
    return merged


def found_in(documents, way):
    """Return the values at a path of keys (`way`) in each document that has this path.

    >>> found_in([{"grid": [{"n": 1, "x": [5]}, {"n": 8, "x": [6]}]}], ["grid", {"n": [1, 8]}, "x", 0])
    [5, 6]
    """
    values = list(documents)
    for key in way:
        values = [inner for value in values for inner in inside(value, key)]
    return values


def inside(value, key):
    """Return the elements of a value that one key of a path selects."""
    if isinstance(key, dict):
        return [
            element
            for element in value
            if all(element[name] in (want if isinstance(want, list) else [want]) for name, want in key.items())
        ]
    if key == "*":
        return list(value.values() if isinstance(value, dict) else value)
    if isinstance(key, list):
        return [value[name] for name in key]
    if isinstance(value, dict):
        return [value[key]] if key in value else []
    return [value[key]] if isinstance(key, int) else []


def words_of(value):
    """Return all texts of a document, joined."""
    if isinstance(value, str):
        return value + "\n"
    if isinstance(value, dict):
        value = value.values()
    return "".join(map(words_of, value)) if isinstance(value, list | tuple | type({}.values())) else ""
