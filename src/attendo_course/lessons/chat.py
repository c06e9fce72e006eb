"""The lesson `attendo lesson chat`: from next words to an assistant, by conversations and by preferences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attendo.display.i18n import Language, Localized
from attendo.display.width import fitted
from attendo.models import parameter_count
from attendo_course.book import passage, translated
from attendo_course.lessons.arrays import Training, loss_curves
from attendo_course.lessons.chat_stages import BETA, BULLETINS, PAIRS, TALKS, Assistant, loss_of
from attendo_course.lessons.chat_talks import TOWNS, Question, day_text
from attendo_course.lessons.forecast_grammar import Forecast
from attendo_course.lessons.lesson import Cell, Conclusion, Lesson, Options, Piece, Table

N_HELD_OUT = 500
STEPS = (1200, 2400, 60)
"""The training steps of each stage."""
WIDEST = 52
"""The number of columns of an answer in the table."""
STAGES = (
    translated("0 no training"),
    translated("1 next words"),
    translated("2 conversations"),
    translated("3 preferences"),
)


@dataclass(frozen=True)
class Exam:
    """The answers of a model to the held-out questions after a stage.

    Attributes:
        loss: The mean loss in nats per token of the full sentences.
        answers: The greedy answers, and whether each answer has its end mark.
        grades: The grade of each answer (`Question.grade`).
    """

    loss: float
    answers: Sequence[tuple[str, bool]]
    grades: Sequence[int]

    @classmethod
    def of(cls, assistant: Assistant) -> Exam:
        """Measure an assistant on its held-out questions."""
        asked, language = assistant.held_out, assistant.language
        answers = assistant.answers(asked)
        grades = [one.grade(said, language) for one, (said, _) in zip(asked, answers, strict=True)]
        return cls(loss_of(assistant.model, assistant.tokenizer, assistant.test), answers, grades)

    @property
    def correct(self) -> float:
        """The share of correct answers, short or full."""
        return sum(grade > 0 for grade in self.grades) / len(self.grades)

    @property
    def full(self) -> float:
        """The share of correct answers in full sentences."""
        return sum(grade == 2 for grade in self.grades) / len(self.grades)

    @property
    def ended(self) -> float:
        """The share of answers that end by themselves."""
        return sum(ended for _, ended in self.answers) / len(self.answers)

    def wins(self, before: Exam) -> float:
        """Return the share of questions with a better grade than before, plus half the share of equal grades.

        >>> Exam(0.0, [], [2, 1]).wins(Exam(0.0, [], [1, 1]))
        0.75
        """
        pairs = list(zip(self.grades, before.grades, strict=True))
        return sum((new > old) + 0.5 * (new == old) for new, old in pairs) / len(pairs)


def examples(day: tuple[Forecast, ...]) -> tuple[Question, ...]:
    """Return a question of each kind about a day: facts, a follow-up, an unknown place and another subject."""
    here, there = (one.place for one in day[:2])
    elsewhere = next(place for place in TOWNS if place not in (here, there))
    first = Question(day, "high", here)
    return (
        Question(day, "weather", there),
        first,
        Question(day, "high", there, before=first, follows=True),
        Question(day, "low", elsewhere),
        Question(day, "other", here, 1),
    )


def teach(options: Options) -> Iterator[Piece]:
    """Train an assistant in three stages, and yield its answers and measures after each stage."""
    language = options.language
    assistant = Assistant.new(language, min(N_HELD_OUT, options.steps(N_HELD_OUT)))
    day = assistant.held_out[0].day
    yield passage("chat.task", n_parameters=parameter_count(assistant.model), n=len(assistant.held_out))
    said = day_text(day, language)
    yield Localized(said, said)
    exams, runs, shown = [Exam.of(assistant)], list[Training](), [assistant.answers(examples(day))]
    stages = (
        (assistant.pretrain, passage("chat.stage_1", BULLETINS=BULLETINS)),
        (assistant.fine_tune, passage("chat.stage_2", TALKS=TALKS)),
        (assistant.prefer, passage("chat.stage_3", PAIRS=PAIRS, BETA=BETA)),
    )
    for number, ((stage, explained), steps) in enumerate(zip(stages, STEPS, strict=True), 1):
        yield explained
        runs.append(stage(options.steps(steps)))
        exams.append(Exam.of(assistant))
        shown.append(assistant.answers(examples(day)))
        yield loss_curves(STAGES[number], {STAGES[number]: [runs[-1]]})
    yield side_by_side(examples(day), shown, language)
    yield stage_table(exams)
    yield passage("chat.columns", n=len(assistant.held_out))
    yield Conclusion(passage("chat.conclusion", ended=exams[-1].ended, correct=exams[-1].correct, **_growth(exams)))


def side_by_side(asked: Sequence[Question], answers: Sequence[Sequence[tuple[str, bool]]], language: Language) -> Table:
    """Return a table with the answers to the same questions after each stage, and their grades.

    `answers` contains the answers to all questions for each stage, with 0 for the model without training.
    """
    grades = (translated("wrong"), translated("correct, short"), translated("correct"))
    rows: list[tuple[Cell, ...]] = []
    for number, question in enumerate(asked):
        words = [one.text(language) for one in (question.before, question) if one is not None]
        rows.append((translated("question"), " … ".join(words), ""))
        for stage, given in zip(STAGES[1:], answers[1:], strict=True):
            said, ended = given[number]
            mark = "" if ended else " …"
            rows.append((stage, fitted(said, WIDEST - len(mark)) + mark, grades[question.grade(said, language)]))
    title = translated("The answers after each stage")
    return Table("answers", title, (translated("stage"), translated("answer"), translated("grade")), tuple(rows))


def stage_table(exams: Sequence[Exam]) -> Table:
    """Return a table with the measures after each stage."""
    columns = ("stage", "loss (nats)", "perplexity", "ended", "correct", "sentence", "wins")
    rows: list[tuple[Cell, ...]] = []
    for stage, exam, before in zip(STAGES, exams, [None, *exams], strict=False):
        shares = [f"{share:.1%}" for share in (exam.ended, exam.correct, exam.full)]
        wins = "" if before is None else f"{exam.wins(before):.1%}"
        rows.append((stage, f"{exam.loss:.4f}", f"{math.exp(exam.loss):.4g}", *shares, wins))
    title = translated("The held-out questions after each stage")
    return Table("stages", title, tuple(map(translated, columns)), tuple(rows))


def _growth(exams: Sequence[Exam]) -> dict[str, list[float]]:
    """Return the perplexities and the shares of wins, for the conclusion."""
    wins = [after.wins(before) for before, after in pairwise(exams)]
    return {"perplexity": [math.exp(exam.loss) for exam in exams], "wins": wins}


LESSON = Lesson(
    name="chat",
    source="Radford et al. 2018; Ouyang et al. 2022; Rafailov et al. 2023",
    title=translated("From next words to an assistant"),
    question=passage("chat.question"),
    cpu_minutes=7.0,
    teach=teach,
)
LESSONS = (LESSON,)
