"""The protocol of the page: every answer of every family is what its schema says, and no request is more."""

import json

import pytest
from looked_models import FAMILIES, text_of
from pydantic import TypeAdapter

from attendo.bundle import EXAMPLES
from attendo.microscope.session import REQUESTS, Session, answer_types, json_schema
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
    types = answer_types()
    for name, answer in answers:
        if isinstance(answer, dict):
            json.dumps(answer, allow_nan=False)
            if "error" in answer:
                assert name in ("film", "lens", "influence")  # this family has no such answer
                continue
        assert TypeAdapter(types[name]).validate_python(answer, strict=True) == answer, name
    assert len({name for name, _ in answers}) >= len(types) - 4
    layers = {layer["path"]: layer for stack in look["stacks"] for layer in stack["layers"]}
    assert look["opens"]["head"] < layers[look["opens"]["layer"]]["heads"]
    for layer in layers.values():
        assert len(layer["sinks"]) == layer["heads"]
        for sink in layer["sinks"]:
            assert sink["key"] < layer["k_len"] and 1 / layer["k_len"] <= sink["share"] + 1e-6 <= 1 + 2e-6


@pytest.mark.some(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_page_has_the_film_of_the_head_that_it_opens(users, tokenizer, family):
    session = Session(users[family])
    request = ask_for(users[family], text_of(tokenizer, 8), max_tokens=3)
    asked = [(name, body, answer) for name, body, answer in session.usual_answers(request)]
    (look,) = [answer for name, _, answer in asked if name == "look"]
    (film,) = [body for name, body, _ in asked if name == "film"]
    assert {"layer": film["path"], "head": film["head"]} == look["opens"]
    given = {"path": film["path"], "head": 1 - film["head"]}
    (film,) = [body for name, body, _ in session.usual_answers(request, given) if name == "film"]
    assert film == {"key": look["key"], **given}


def test_a_live_page_shows_the_examples_of_the_folder_and_a_saved_page_does_not(users, tokenizer, tmp_path):
    user, texts = users["classification"], ["rain and snow", "雨"]
    (tmp_path / EXAMPLES).write_text(json.dumps(texts), encoding="utf-8")
    assert Session(user, tmp_path).model_answer()["examples"] == texts
    assert Session(user, tmp_path, []).model_answer()["examples"] == []
    assert Session(user).model_answer()["examples"] == []
    name, _, answer = next(Session(user, tmp_path).usual_answers(ask_for(user, text_of(tokenizer, 8))))
    assert (name, answer["examples"]) == ("model", [])


def test_requests_and_answers_are_those_of_the_same_questions():
    schema = json_schema()
    assert [*schema] == [*REQUESTS] and {*schema} == {*answer_types()}
    assert schema["film"]["request"]["required"] == ["key", "path", "head"]
    assert schema["model"]["answer"]["properties"]["examples"]["items"] == {"type": "string"}
