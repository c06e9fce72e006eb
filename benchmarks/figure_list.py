"""The figures that attendo claims, as `figures.toml` lists them: what is asked, what was measured, whether it holds."""

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
    "not 200": lambda values: sum(
        count for answers in values for kind, count in answers.items() if kind != "200"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command: `repeat` for the documents; `commands`, what they want and cost in seconds, where they fit.

    peers: options that are added where the peers' environments are given; why: why it is not among them.
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
    """A number that is claimed; the file says what each field is."""

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
        """A value as it is printed.

        >>> Figure(name="", en="", ja="", job="", form=".2f", unit=" ms").said(2.1)
        '2.10 ms'
        """
        return f"{value:{self.form}}{self.unit}"

    def bar(self, number):
        """What is asked or aimed at, as it is printed; nothing where there is none."""
        if number is None:
            return ""
        if number == 0 == self.most:
            return "0"
        sign, unit = "≥" if self.least is not None else "≤", self.unit.split(" of ")[0]
        return f"{sign} {number:{',g' if number >= 1000 else 'g'}}{unit}"

    @property
    def group(self):
        """What its name begins with."""
        return self.name.partition("/")[0]

    @property
    def asked(self):
        """The bar: a number, or None."""
        return self.most if self.least is None else self.least

    def meets(self, value, bar):
        """Whether a value is on the right side of a bar."""
        return value >= bar if self.least is not None else value <= bar

    def verdict(self, value):
        """none (nothing is asked), short, holds, aim missed or aim met.

        >>> Figure(name="", en="", ja="", job="", least=1, aim=2).verdict(1.5)
        'aim missed'
        """
        if self.asked is None:
            return "none"
        if not self.meets(value, self.asked):
            return "short"
        return "holds" if self.aim is None else "aim met" if self.meets(value, self.aim) else "aim missed"

    def measured(self):
        """The stored number; None where it is the last run's and there is none."""
        if self.log:
            return self.value
        if self.stored == (LAST,):
            return last_run().get("figures", {}).get(self.name, {}).get("value")
        return self.of_all(found_in([result(name) for name in self.stored], self.at))

    def again(self, documents):
        """The number that a job's documents have now, None where they lack it (a peer that was not given)."""
        if self.find:
            found = re.finditer(self.find, words_of(documents))
            values = [float(text.replace(",", "")) for match in found for text in match.groups()]
        else:
            values = found_in(documents, self.now or self.at)
        return self.of_all(values) if values else None

    def of_all(self, values):
        """One number of those that were found."""
        if self.of:
            return float(REDUCED[self.of](values))
        if len(set(values)) != 1:
            raise ValueError(f"{self.name}: {len(values)} numbers where one is wanted: {values[:5]}")
        return float(values[0])


def figures_and_jobs():
    """The figures in their order, and the jobs by name."""
    listed = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))
    jobs = {name: Job(name=name, **tuples(fields)) for name, fields in listed["job"].items()}
    return [Figure(**tuples(fields)) for fields in listed["figure"]], jobs


def groups():
    """The words of each group, {"en": ..., "ja": ...}, by the name of its first figures."""
    listed = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))["group"]
    return {name: dict(zip(("en", "ja"), words, strict=True)) for name, words in listed.items()}


def tuples(fields):
    """Lists as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def result(name):
    """A stored result."""
    return json.loads((HERE / "results" / name).read_text(encoding="utf-8"))


def last_run():
    """What figures.py has found: its stored runs one over the other, so that a later run of some figures replaces
    these alone; with its commits, newest last. {} where there is none."""
    paths = sorted((HERE / "results").glob(f"{LAST}-*.json"), key=lambda path: (len(path.stem), path.stem))
    merged = {}
    for run in sorted((result(path.name) for path in paths), key=lambda run: run["date"]):
        found = merged.get("figures", {}) | run["figures"]
        commits = [*(name for name in merged.get("commits", []) if name != run["commit"]), run["commit"]]
        merged = {"date": run["date"], "commits": commits, "figures": found}
    return merged


def found_in(documents, way):
    """What lies at the end of a way in each document that has it.

    >>> found_in([{"grid": [{"n": 1, "x": [5]}, {"n": 8, "x": [6]}]}], ["grid", {"n": [1, 8]}, "x", 0])
    [5, 6]
    """
    values = list(documents)
    for key in way:
        values = [inner for value in values for inner in inside(value, key)]
    return values


def inside(value, key):
    """The elements of a value that one key of a way leads to."""
    if isinstance(key, dict):
        return [
            element
            for element in value
            if all(
                element[name] in (want if isinstance(want, list) else [want]) for name, want in key.items()
            )
        ]
    if key == "*":
        return list(value.values() if isinstance(value, dict) else value)
    if isinstance(key, list):
        return [value[name] for name in key]
    if isinstance(value, dict):
        return [value[key]] if key in value else []
    return [value[key]] if isinstance(key, int) else []


def words_of(value):
    """All texts in a document, one after the other."""
    if isinstance(value, str):
        return value + "\n"
    if isinstance(value, dict):
        value = value.values()
    return "".join(map(words_of, value)) if isinstance(value, list | tuple | type({}.values())) else ""
