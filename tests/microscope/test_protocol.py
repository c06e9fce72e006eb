"""The protocol of the page: every answer of every family is what its schema says, and no request is more."""

import pytest
from looked_models import FAMILIES, text_of
from pydantic import TypeAdapter

from attendo.errors import AttendoError
from attendo.microscope.protocol import ANSWERS, REQUESTS, json_schema, request_of
from attendo.microscope.session import Session
from attendo.microscope.view import ask_for


@pytest.mark.parametrize("family", FAMILIES)
def test_each_answer_has_the_fields_of_its_schema_and_no_other(users, tokenizer, family):
    user = users[family]
    session, searches = Session(user), family in ("translation", "language-model")
    edits = [{"kind": "beta", "path": "*", "beta": "inf"}]
    request = ask_for(user, text_of(tokenizer, 8), max_tokens=3)
    answers = [(name, answer) for name, _, answer in session.usual_answers(request)]
    look = session.answer("look", request.body | {"edits": edits})
    answers.append(("look", look))
    if searches:
        answers.append(("why", session.answer("why", {"key": look["key"], "target": "snow", "beam": 2})))
    for name, answer in answers:
        if "error" in answer if isinstance(answer, dict) else False:
            continue  # this family has no such answer
        assert TypeAdapter(ANSWERS[name]).validate_python(answer, strict=True) == answer, name
    assert len({name for name, _ in answers}) >= len(ANSWERS) - 4


def test_requests_and_answers_are_those_of_the_same_questions():
    schema = json_schema()
    assert [*schema] == [*REQUESTS] == [*ANSWERS]
    assert schema["film"]["request"]["required"] == ["key", "path", "head"]
    assert schema["look"]["answer"]["properties"]["baseline"]["anyOf"][1] == {"type": "null"}


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("nothing", {}, "unknown question 'nothing'"),
        ("lens", {"stack": "encoder"}, "lens.key"),
        ("tree", {"key": "a", "beam": 0}, "tree.beam = 0"),
        ("film", {"key": "a", "path": "b", "head": True}, "film.head = true"),
        ("look", {"text": "a", "edits": {}}, "edits must be a list of tables"),
        ("look", {"text": "a", "edits": [{"kind": "off", "path": "b", "heads": 1}]}, "heads"),
    ],
)
def test_a_request_that_does_not_fit_names_what_is_wrong(name, body, message):
    with pytest.raises(AttendoError, match=message.replace("(", r"\(")):
        request_of(name, body)
