"""The learning tasks of the sources as lessons, which train and compare small models."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from attendo.errors import AttendoError

if TYPE_CHECKING:
    from attendo_course.lessons.lesson import Lesson

_HOMES = {
    "weather": "weather",
    "ladder": "ladder",
    "copy": "toys",
    "reverse": "toys",
    "sort": "toys",
    "add": "toys",
    "imdb": "imdb",
    "words": "words",
    "word2vec": "word2vec",
    "words-in-context": "contexts",
    "ablate": "ablate",
    "chat": "chat",
}
"""The module of each lesson. Its constant `LESSONS` contains the lesson."""

NAMES = tuple(_HOMES)


def find_lesson(name: str) -> Lesson:
    """Return the lesson with this name, and import only its module.

    Raises AttendoError for an unknown name. The message contains the most similar names.

    >>> find_lesson("sort").name
    'sort'
    """
    if name not in _HOMES:
        near = get_close_matches(name, NAMES, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise AttendoError(f"no lesson is called {name!r}; {remedy}")
    lessons = import_module(f"{__name__}.{_HOMES[name]}").LESSONS
    return next(lesson for lesson in lessons if lesson.name == name)
