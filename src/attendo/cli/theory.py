"""attendo claims, errata."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from attendo.cli.checking import checked
from attendo.cli.options import OneJson, Spoken
from attendo.words import Language, Words, labelled

if TYPE_CHECKING:
    from attendo.theory.claims.claim import Check, Claim, Finding
    from attendo.theory.errata.erratum import Erratum, Snippet

WIDEST = 100
"""Of a paragraph, however wide the terminal is."""

CONDITION = Words("Condition", "条件")
T = TypeVar("T")


def add_theory_commands(app: typer.Typer) -> None:
    """Adds the commands that run the theory."""
    app.command("claims", short_help="Check the claims of the Transformer's sources.")(claims)
    app.command("errata", short_help="Show the sources' mistakes, wrong and right.")(errata)


def claims(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="As C08; else the table of all.")
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py:FUNCTION", help="Check an attention of your own; FOLDER:FUNCTION; repeatable."
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="mask|scale|gradient", help="Fails if it is not offered; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="F.csv", help="With --check: a row for each file, with score and hint."),
    ] = None,
    as_json: OneJson = False,
    language: Spoken = "en",
) -> int:
    """Check the claims and exercises of the Transformer's sources by computing them.

    Without ID a table of all 27; with one or more the statement, the condition under which it holds, how it follows,
    each figure beside what it must be, and a picture. --check runs the properties of attention on a function of
    (query, key, value), in torch or NumPy, which may take a mask (True = may attend) and a scale, and says which
    property fails on which input; a call that gives no result in 10 s fails. What is not offered does not fail unless
    --require names it. Of several files, or a folder, each has one line, with the first hint and the remarks below it.
    What a file prints is left out, and it gets no input. The exit code is 1 if a claim or a property fails or one of
    several files can't be run.

    --json: claims (id, source, statement, condition, derivation, verdict, holds, checks, picture), n_claims,
    n_failed, cpu_seconds; check (function, ok, failed, remarks, properties), null unless one file is checked; checks
    (file, verdict, error, check), empty unless several are. A claim's check has name, value, relation, bound,
    tolerance, counterexample, holds.

    Example: attendo claims C08
    """
    chosen = [] if check and not ids else _chosen_claims(ids or [])
    mine = checked(check or [], require or [], out, language, silent=as_json)
    found: list[tuple[Claim, Finding]] = []
    for claim in chosen:
        finding = claim.compute()
        found.append((claim, finding))
        if not as_json:
            lines = _claim_lines(claim, finding, language) if ids else _row(claim, finding, language)
            print("\n".join(lines), flush=True)
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
        print(_count(found, seconds).in_language(language))
    if mine.report is not None:
        print("\n".join(mine.report.lines(language)))
    return int(n_failed > 0 or not mine.ok)


def errata(
    numbers: Annotated[
        list[str] | None, typer.Argument(metavar="N", help="As 21; else the list of all.")
    ] = None,
    as_json: OneJson = False,
    language: Spoken = "en",
) -> int:
    """Show the mistakes of the Transformer's sources: the wrong form, the right one, and both run.

    Without N the list of all: the source of each, both forms in words, and whether they can be run here; with one or
    more also the code of both forms, what it really gives here, and whether that is what it must give. The exit code is
    1 if one gives something else.

    --json: errata (number, source, mark, title, wrong, right, wrong_code, right_code), n_errata, n_unexpected. A code
    has code, gives (a pattern), and, where N is given, outcome and as_expected.

    Example: attendo errata 42
    """
    from attendo.theory.errata import ERRATA

    known = {str(erratum.number): erratum for erratum in ERRATA}
    chosen = _chosen("erratum", known, numbers or [], list(known))
    n_unexpected, facts = 0, []
    for erratum in chosen:
        outcomes = _outcomes(erratum) if numbers else {}
        n_unexpected += sum(not snippet.matches(text) for snippet, text in outcomes.values())
        facts.append(_erratum_json(erratum, outcomes, language))
        if not as_json:
            lines = _erratum_lines(erratum, outcomes, language) if numbers else _listed(erratum, language)
            print("\n".join(lines), flush=True)
    if as_json:
        counts = {"n_errata": len(chosen), "n_unexpected": n_unexpected}
        print(json.dumps({"errata": facts} | counts, ensure_ascii=False))
    elif not numbers:
        print(_marks(chosen).in_language(language))
    return int(n_unexpected > 0)


def _chosen(kind: str, known: dict[str, T], given: list[str], names: list[str]) -> list[T]:
    """The values of `known` under these numbers, each once, or all: "8", "08" and, for a claim, "C8" and "c08"."""
    from attendo.errors import AttendoError

    chosen = list(known)
    if given:
        bare = [text.strip().upper().removeprefix(kind[0].upper()).lstrip("0") for text in given]
        for text, number in zip(given, bare, strict=True):
            if number not in known:
                raise AttendoError(f"there is no {kind} {text}; give {names[0]} to {names[-1]}")
        chosen = list(dict.fromkeys(bare))
    return [known[number] for number in chosen]


def _width() -> int:
    """How many columns a line may take: the terminal's, at most 100; 79 where no terminal reads."""
    return max(40, min(shutil.get_terminal_size((79, 24)).columns, WIDEST)) if sys.stdout.isatty() else 79


def _beside(first: str, text: str) -> list[str]:
    """A text behind a label, wrapped beside it."""
    from attendo.data.text_width import columns
    from attendo.microscope.flow import flowed

    left = columns(first)
    parts = flowed(text, _width() - left)
    return [first + parts[0], *(" " * left + part for part in parts[1:])]


def _cell(text: str, width: int) -> str:
    """The text, filled with spaces to so many columns."""
    from attendo.data.text_width import columns

    return text + " " * (width - columns(text))


# ---- claims


def _chosen_claims(ids: list[str]) -> list[Claim]:
    """The claims of these ids, each once, or all."""
    from attendo.errors import AttendoError
    from attendo.theory.claims import CLAIMS

    for text in ids:
        if ".py" in text:
            raise AttendoError(f"{text} is no claim; write --check before each file, as --check {text}")
    known = {claim.id[1:].lstrip("0"): claim for claim in CLAIMS}
    return _chosen("claim", known, ids, [claim.id for claim in CLAIMS])


def _cited(source: str, language: Language) -> str:
    from attendo.theory.sources import cited

    return cited(source, language)


def _verdict(claim: Claim, finding: Finding) -> Words:
    if not finding.holds:
        return Words("FAILS", "不成立")
    if claim.condition is not None:
        return Words("holds with a condition", "条件つきで成立")
    return Words("holds", "成立")


def _row(claim: Claim, finding: Finding, language: Language) -> list[str]:
    verdict = _verdict(claim, finding).in_language(language)
    lines = _beside(f"{_cell(claim.id, 5)}{_cell(verdict, 24)}", _cited(claim.source, language))
    lines += _beside(" " * 5, claim.statement.in_language(language))
    if claim.condition is not None:
        text = labelled(CONDITION, claim.condition.in_language(language), language)
        lines += _beside(" " * 5, text)
    return [*lines, ""]


def _count(found: list[tuple[Claim, Finding]], seconds: float) -> Words:
    """The last line of the table.

    >>> from attendo.theory.claims.claim import Claim, Finding
    >>> one = Claim("C01", "a source", CONDITION, CONDITION, lambda: Finding(()))
    >>> _count([(one, one.compute())], 0.5).en
    '1 checked: 1 holds; 0 failed; 0.5 CPU-seconds'
    """
    n_held = sum(finding.holds for _, finding in found)
    n_conditions = sum(finding.holds and claim.condition is not None for claim, finding in found)
    n_failed = len(found) - n_held
    verb, of = "holds" if n_held == 1 else "hold", Words("", "")
    if n_conditions:
        en = ", with a condition" if n_held == 1 else f", {n_conditions} of them with a condition"
        of = Words(en, f"（うち条件つき {n_conditions} 件）")
    return Words(
        f"{len(found)} checked: {n_held} {verb}{of.en}; {n_failed} failed; {seconds:.1f} CPU-seconds",
        f"{len(found)} 件を検証：成立 {n_held} 件{of.ja}、不成立 {n_failed} 件、CPU 時間 {seconds:.1f} 秒",
    )


def _claim_lines(claim: Claim, finding: Finding, language: Language) -> list[str]:
    """A claim in full: the statement, the condition, the derivation, the figures, the picture."""
    from attendo.microscope.flow import flowed
    from attendo.microscope.terminal_pictures import picture_lines

    width = _width()
    verdict, source = _verdict(claim, finding).in_language(language), _cited(claim.source, language)
    lines = flowed(f"{claim.id}  {verdict} — {source}", width)
    lines.append("")
    parts = [(None, claim.statement), (CONDITION, claim.condition)]
    parts.append((Words("Why", "導出"), claim.derivation))
    for label, text in parts:
        if text is not None:
            said = text.in_language(language)
            lines += [*flowed(said if label is None else labelled(label, said, language), width), ""]
    for check in finding.checks:
        lines += flowed(_check_line(check, language), width, "  ")
    if finding.picture is not None:
        lines += ["", *picture_lines(finding.picture, language, width)]
    return [*lines, ""]


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
        text += Words(" (counterexample)", "（反例）").in_language(language)
    return f"{'✓' if check.holds else '✗'} {text}"


def _number(value: float) -> str:
    """A number for a reader.

    >>> _number(333639680.0), _number(0.1234567891), _number(3e-15)
    ('333,639,680', '0.1234568', '3e-15')
    """
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.7g}"


def _claim_json(claim: Claim, finding: Finding, language: Language) -> dict[str, Any]:
    picture = finding.picture
    return {
        "id": claim.id,
        "source": claim.source,
        "statement": claim.statement.in_language(language),
        "condition": None if claim.condition is None else claim.condition.in_language(language),
        "derivation": claim.derivation.in_language(language),
        "verdict": _verdict(claim, finding).in_language(language),
        "holds": finding.holds,
        "checks": [
            {
                "name": check.name.in_language(language),
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
            "title": picture.title.in_language(language),
            "rows": list(picture.rows),
            "columns": list(picture.columns),
            "values": [[_finite(value) for value in row] for row in picture.values.tolist()],
        },
    }


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


# ---- errata


def _outcomes(erratum: Erratum) -> dict[str, tuple[Snippet, str]]:
    """What the codes of an erratum give here."""
    snippets = {"wrong_code": erratum.wrong_code, "right_code": erratum.right_code}
    return {name: (snippet, snippet.outcome()) for name, snippet in snippets.items() if snippet is not None}


def _mark(erratum: Erratum) -> Words:
    japanese = {"run": "実行", "shown by analogy": "類例で実行", "words only": "文章のみ"}
    return Words(erratum.mark, japanese[erratum.mark])


def _listed(erratum: Erratum, language: Language) -> list[str]:
    mark = _mark(erratum).in_language(language)
    lines = _beside(f"{erratum.number:>2}  {_cell(mark, 18)}", erratum.title.in_language(language))
    lines += _beside(" " * 4, _cited(erratum.source, language))
    for sign, text in (("✗", erratum.wrong), ("✓", erratum.right)):
        lines += _beside(f"    {sign} ", text.in_language(language))
    return [*lines, ""]


def _marks(chosen: list[Erratum]) -> Words:
    n = {mark: sum(erratum.mark == mark for erratum in chosen) for mark in ("run", "shown by analogy")}
    n_words = len(chosen) - sum(n.values())
    return Words(
        f"{len(chosen)} errata: {n['run']} run, {n['shown by analogy']} shown by analogy, {n_words} in words only",
        f"正誤表 {len(chosen)} 件：実行 {n['run']} 件、類例で実行 {n['shown by analogy']} 件、文章のみ {n_words} 件",
    )


def _erratum_lines(
    erratum: Erratum, outcomes: dict[str, tuple[Snippet, str]], language: Language
) -> list[str]:
    """An erratum in full: both forms in words and in code, and what the code gives."""
    from attendo.microscope.flow import flowed

    head = f"{erratum.number}  {erratum.title.in_language(language)} — {_mark(erratum).in_language(language)}"
    width = _width()
    lines = [*flowed(head, width), *flowed(_cited(erratum.source, language), width)]
    forms = (
        (Words("Wrong", "誤"), erratum.wrong, "wrong_code"),
        (Words("Right", "正"), erratum.right, "right_code"),
    )
    for label, text, name in forms:
        lines += ["", *flowed(labelled(label, text.in_language(language), language), width)]
        if name not in outcomes:
            continue
        snippet, outcome = outcomes[name]
        lines += ["", *(f"    {line}" for line in snippet.code.rstrip().splitlines()), ""]
        given = flowed(f"→ {outcome}", width - 4, "  ")
        lines += [f"    {line}" for line in given]
        is_expected = snippet.matches(outcome)
        said = (
            Words("as it must be", "期待どおり")
            if is_expected
            else Words(f"must be: {snippet.gives}", f"期待される結果：{snippet.gives}")
        )
        lines.append(f"    {'✓' if is_expected else '✗'} {said.in_language(language)}")
    return [*lines, ""]


def _erratum_json(
    erratum: Erratum, outcomes: dict[str, tuple[Snippet, str]], language: Language
) -> dict[str, Any]:
    facts: dict[str, Any] = {"number": erratum.number, "source": erratum.source, "mark": erratum.mark}
    for name in ("title", "wrong", "right"):
        facts[name] = getattr(erratum, name).in_language(language)
    for name, snippet in (("wrong_code", erratum.wrong_code), ("right_code", erratum.right_code)):
        facts[name] = None if snippet is None else {"code": snippet.code, "gives": snippet.gives}
        if name in outcomes:
            outcome = outcomes[name][1]
            facts[name] |= {"outcome": outcome, "as_expected": outcomes[name][0].matches(outcome)}
    return facts
