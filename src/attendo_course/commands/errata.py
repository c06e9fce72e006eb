"""The command `attendo errata`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attendo.cli.options import OneJson, Spoken
from attendo.display.i18n import Language, Localized, labelled
from attendo.display.width import filled
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
    from attendo_course.errata import Erratum, Snippet


def errata(
    numbers: Annotated[
        list[str] | None,
        typer.Argument(metavar="N", help="Erratum, for example 21 (default: an index of all)."),
    ] = None,
    source: FromSource = None,
    topic: AboutTopic = None,
    as_json: OneJson = False,
    language: Spoken = "en",
) -> int:
    """Show mistakes of the Transformer's sources with their corrections, and run the code of both forms.

    Without N, the command prints one line per erratum, which tells whether its code is run (the wrong form is computed
    as the source has it) or shown by analogy (a similar computation has the same mistake).
    --source and --topic select a part. With N, the command prints the source with its words, the wrong form and the
    right form, the code of both forms, the real result of the code, and whether the result is as expected. The exit
    code is 1 if a result is not as expected.

    --json prints an object with the keys errata (id, page, topic, title, source, quotations, related, mark, wrong,
    right, wrong_code, right_code), n_errata and n_unexpected. Each wrong_code and right_code contains code and gives
    (a pattern). With N, each also contains outcome and as_expected.

    Example: attendo errata 42
    """
    from attendo_course.errata import all_errata

    chosen = pick("erratum", all_errata(), numbers or [], source, topic)
    n_unexpected, facts = 0, []
    for erratum in chosen:
        outcomes = _outcomes(erratum) if numbers else {}
        n_unexpected += sum(not snippet.matches(text) for snippet, text in outcomes.values())
        facts.append(_erratum_json(erratum, outcomes, language))
        if numbers and not as_json:
            print("\n".join(_erratum_lines(erratum, outcomes, language)), flush=True)
    if as_json:
        counts = {"n_errata": len(chosen), "n_unexpected": n_unexpected}
        print(json.dumps({"errata": facts} | counts, ensure_ascii=False))
    elif not numbers:
        print("\n".join(index_lines(chosen, lambda one: filled(_mark(one).text(language), 18), language)))
        print(_marks(chosen).text(language))
    return int(n_unexpected > 0)


def _outcomes(erratum: Erratum) -> dict[str, tuple[Snippet, str]]:
    snippets = {"wrong_code": erratum.wrong_code, "right_code": erratum.right_code}
    return {name: (snippet, snippet.outcome()) for name, snippet in snippets.items() if snippet is not None}


def _mark(erratum: Erratum) -> Localized:
    japanese = {"run": "実行", "shown by analogy": "類例で実行", "words only": "文章のみ"}
    return Localized(erratum.mark, japanese[erratum.mark])


def _marks(chosen: list[Erratum]) -> Localized:
    n = {mark: sum(erratum.mark == mark for erratum in chosen) for mark in ("run", "shown by analogy")}
    n_words = len(chosen) - sum(n.values())
    return Localized(
        f"{len(chosen)} errata: {n['run']} run, {n['shown by analogy']} shown by analogy, {n_words} in words only",
        f"正誤表 {len(chosen)} 件：実行 {n['run']} 件、類例で実行 {n['shown by analogy']} 件、文章のみ {n_words} 件",
    )


def _erratum_lines(erratum: Erratum, outcomes: dict[str, tuple[Snippet, str]], language: Language) -> list[str]:
    """Return an erratum as text lines: both forms in words and in code, and the results of the code."""
    from attendo.display.width import flowed

    width = terminal_width()
    lines = head_lines(erratum, _mark(erratum).text(language), language)
    forms = (
        (Localized("Wrong", "誤"), erratum.wrong, "wrong_code"),
        (Localized("Right", "正"), erratum.right, "right_code"),
    )
    for label, text, name in forms:
        lines += ["", *flowed(labelled(label, text.text(language), language), width)]
        if name not in outcomes:
            continue
        snippet, outcome = outcomes[name]
        lines += ["", *(f"    {line}" for line in snippet.code.rstrip().splitlines()), ""]
        given = flowed(f"→ {outcome}", width - 4, "  ")
        lines += [f"    {line}" for line in given]
        is_expected = snippet.matches(outcome)
        said = (
            Localized("as it must be", "期待どおり")
            if is_expected
            else Localized(f"must be: {snippet.gives}", f"期待される結果：{snippet.gives}")
        )
        lines.append(f"    {'✓' if is_expected else '✗'} {said.text(language)}")
    return [*lines, "", *related_lines(erratum, language)]


def _erratum_json(erratum: Erratum, outcomes: dict[str, tuple[Snippet, str]], language: Language) -> dict[str, Any]:
    facts: dict[str, Any] = entry_json(erratum, language) | {"mark": erratum.mark}
    facts |= {"wrong": erratum.wrong.text(language), "right": erratum.right.text(language)}
    for name, snippet in (("wrong_code", erratum.wrong_code), ("right_code", erratum.right_code)):
        facts[name] = None if snippet is None else {"code": snippet.code, "gives": snippet.gives}
        if name in outcomes:
            outcome = outcomes[name][1]
            facts[name] |= {"outcome": outcome, "as_expected": outcomes[name][0].matches(outcome)}
    return facts
