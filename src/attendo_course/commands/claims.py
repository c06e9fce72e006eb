"""The command `attendo claims`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.options import OneJson, Spoken
from attendo.cli.reporting import wrote
from attendo.display.i18n import Language, Localized, labelled
from attendo.display.width import filled, flowed
from attendo_course.commands.terminal import (
    AboutTopic,
    FromSource,
    entry_json,
    head_lines,
    index_lines,
    pick,
    related_lines,
    terminal_width,
)

if TYPE_CHECKING:
    from attendo_course.claims.claim import Check, Claim, Finding
    from attendo_course.grader.handed_in import Answer
    from attendo_course.grader.report import Report

LIMITS = {
    "true": Localized("", ""),
    "true under a condition": Localized("Condition", "条件"),
    "false": Localized("False", "偽"),
}
"""The label of the paragraph about the limits of a claim, by verdict."""
VERDICTS = {
    "true": Localized("true", "真"),
    "true under a condition": Localized("true under a condition", "条件つきで真"),
    "false": Localized("false", "偽"),
}
NOT_CONFIRMED = Localized("NOT CONFIRMED", "確認できない")
"""The status of a claim whose numbers do not confirm its verdict."""


def claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Claim, for example C08 (default: an index of all)."),
    ] = None,
    source: FromSource = None,
    topic: AboutTopic = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Your attention function to check; or FOLDER:FUNCTION; repeatable.",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="mask|scale|gradient", help="Fail if the function lacks this part; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="F.csv", help="Table for --check: one row per file, with score and hint."),
    ] = None,
    as_json: OneJson = False,
    language: Spoken = "en",
) -> int:
    """Check the claims and exercises of the Transformer's sources with computed numbers.

    Without ID, the command prints one line per claim with the verdict: true, true under a condition, or false.
    --source and --topic select a part. With ID, the command prints the source with its words, the statement, the
    condition, the derivation, each computed number with its expected value, and a picture. If the numbers do not
    confirm a verdict, the claim is marked as NOT CONFIRMED.

    --check tests the properties of attention on your function of (query, key, value), in torch, NumPy or JAX. The
    function can also accept a mask (True = may attend) and a scale. The report contains each failed property with an
    input that shows the failure. A call without a result after 10 s fails. A missing mask, scale or gradient fails
    only if it is passed to --require. For several files or a folder, the report has one line per file, followed by
    the first hint and the remarks. The text that a file prints is discarded, and standard input is empty. The exit
    code is 1 if a claim is not confirmed, a property fails, or one of several files cannot be run.

    --json prints an object with the keys claims (id, page, topic, title, source, quotations, related, statement,
    verdict, limits, derivation, confirmed, checks, picture), n_claims, n_failed, cpu_seconds, check and checks. For
    one file, check contains function, ok, failed, remarks and properties. Otherwise, check is null. For several
    files, checks contains a list of objects with file, verdict, error and check. Otherwise, checks is empty. Each
    check of a claim contains name, value, relation, bound, tolerance, counterexample and holds.

    Example: attendo claims C08
    """
    chosen = [] if check and not ids else _chosen_claims(ids or [], source, topic)
    mine = checked(check or [], require or [], out, language, silent=as_json)
    found: list[tuple[Claim, Finding]] = []

    def status(claim: Claim) -> str:
        finding = claim.compute()
        found.append((claim, finding))
        return filled(_status(claim, finding).text(language), 24)

    if as_json or ids:
        for claim in chosen:
            found.append((claim, claim.compute()))
            if not as_json:
                print("\n".join(_claim_lines(*found[-1], language)), flush=True)
    else:
        for line in index_lines(chosen, status, language):
            print(line, flush=True)
    n_failed = sum(not finding.holds for _, finding in found)
    seconds = time.process_time()
    if as_json:
        facts = {
            "claims": [_claim_json(claim, finding, language) for claim, finding in found],
            "n_claims": len(found),
            "n_failed": n_failed,
            "cpu_seconds": round(seconds, 2),
        } | mine.as_json(language)
        print(json.dumps(facts, ensure_ascii=False, allow_nan=False))
        return int(n_failed > 0 or not mine.ok)
    if found:
        print("\n".join(flowed(_count(found, seconds).text(language), terminal_width())))
    if mine.report is not None:
        print("\n".join(mine.report.lines(language)))
    return int(n_failed > 0 or not mine.ok)


def _chosen_claims(ids: list[str], source: str | None, topic: str | None) -> list[Claim]:
    from attendo.errors import AttendoError
    from attendo_course.claims import all_claims

    for text in ids:
        if ".py" in text:
            raise AttendoError(f"{text} is not a claim. Write --check before each file: --check {text}")
    return pick("claim", all_claims(), ids, source, topic)


def _status(claim: Claim, finding: Finding) -> Localized:
    return VERDICTS[claim.verdict] if finding.holds else NOT_CONFIRMED


def _count(found: list[tuple[Claim, Finding]], seconds: float) -> Localized:
    """Return the last line: the number of claims with each verdict, of unconfirmed claims, and of CPU-seconds."""
    statuses = [_status(claim, finding) for claim, finding in found]
    counts = [(statuses.count(name), name) for name in (*VERDICTS.values(), NOT_CONFIRMED)]
    en = ", ".join(f"{n} {name.en.lower()}" for n, name in counts)
    ja = "、".join(f"{name.ja} {n} 件" for n, name in counts)
    return Localized(
        f"{len(found)} checked: {en}; {seconds:.1f} CPU-seconds",
        f"{len(found)} 件を検証：{ja}。CPU 時間 {seconds:.1f} 秒",
    )


def _claim_lines(claim: Claim, finding: Finding, language: Language) -> list[str]:
    """Return a claim as text lines: source, statement, condition, derivation, computed numbers and picture."""
    from attendo_course.pictures import picture_lines

    width = terminal_width()
    lines = [*head_lines(claim, _status(claim, finding).text(language), language), ""]
    parts = [(None, claim.statement), (LIMITS[claim.verdict], claim.limits)]
    parts.append((Localized("Why", "導出"), claim.derivation))
    for label, text in parts:
        if text is not None:
            said = text.text(language)
            lines += [*flowed(said if label is None else labelled(label, said, language), width), ""]
    for check in finding.checks:
        lines += flowed(_check_line(check, language), width, "  ")
    if finding.picture is not None:
        lines += ["", *picture_lines(finding.picture, language, width)]
    return [*lines, "", *related_lines(claim, language)]


def _check_line(check: Check, language: Language) -> str:
    value, bound = _number(check.value), _number(check.bound)
    if check.relation in "<>" and value == bound and check.value != check.bound:
        value, bound = f"{check.value:.17g}", f"{check.bound:.17g}"
    text = labelled(check.name, value, language)
    if check.relation == "shown":
        return f"· {text}"
    text += f" {check.relation} {bound}"
    if check.relation == "=" and check.tolerance:
        text += f" ± {check.tolerance:g}"
    if check.counterexample:
        text += Localized(" (counterexample)", "（反例）").text(language)
    return f"{'✓' if check.holds else '✗'} {text}"


def _number(value: float) -> str:
    """Return a number as text for a reader.

    >>> _number(333639680.0), _number(0.1234567891), _number(3e-15)
    ('333,639,680', '0.1234568', '3e-15')
    """
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.7g}"


def _claim_json(claim: Claim, finding: Finding, language: Language) -> dict[str, Any]:
    picture = finding.picture
    return {
        **entry_json(claim, language),
        "statement": claim.statement.text(language),
        "verdict": claim.verdict,
        "limits": None if claim.limits is None else claim.limits.text(language),
        "derivation": claim.derivation.text(language),
        "confirmed": finding.holds,
        "checks": [
            {
                "name": check.name.text(language),
                "value": _finite(check.value),
                "relation": check.relation,
                "bound": _finite(check.bound),
                "tolerance": check.tolerance,
                "counterexample": check.counterexample,
                "holds": check.holds,
            }
            for check in finding.checks
        ],
        "picture": picture
        and {
            "kind": picture.kind,
            "title": picture.title.text(language),
            "rows": picture.row_labels(language),
            "columns": list(picture.columns),
            "values": [[_finite(value) for value in row] for row in picture.values.tolist()],
        },
    }


def _finite(value: float) -> float | None:
    """Return a number for JSON: None instead of NaN and infinity."""
    return value if math.isfinite(value) else None


# ---- functions of one's own


@dataclass(frozen=True)
class Checked:
    """The report on one function, or the results of several files."""

    report: Report | None = None
    answers: tuple[Answer, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no property fails and all files could be run."""
        return (self.report is None or self.report.ok) and all(answer.ok for answer in self.answers)

    def as_json(self, language: Language) -> dict[str, Any]:
        """Return the values of the JSON keys `check` and `checks`."""
        return {
            "check": None if self.report is None else self.report.as_json(language),
            "checks": [answer.as_json(language) for answer in self.answers],
        }


def checked(
    places: Sequence[str], require: Sequence[str], out: Path | None, language: Language, silent: bool
) -> Checked:
    """Test the functions at these places: print a full report for one function, otherwise one line per file."""
    from attendo.errors import AttendoError
    from attendo.files import write_atomic
    from attendo_course.grader.checker import check_file
    from attendo_course.grader.handed_in import as_csv, check_files, is_folder, places_in

    if (require or out) and not places:
        raise AttendoError("--require and --out require --check FILE.py:FUNCTION")
    if out is not None and out.suffix != ".csv":
        raise AttendoError(f"--out {out} must end in .csv")
    if not places:
        return Checked()
    found = [one for place in places for one in places_in(place)]
    if out is None and len(found) == 1 and not is_folder(places[0]):
        return Checked(check_file(places[0], require))
    answers: list[Answer] = []
    for answer in check_files(found, require):
        answers.append(answer)
        if not silent:
            print("\n".join(answer.lines(language)), flush=True)
    if out is not None:
        write_atomic(out, as_csv(answers, language).encode("utf-8-sig"))  # Excel asks for the mark
        if not silent:
            print(wrote(out, language))
    return Checked(answers=tuple(answers))
