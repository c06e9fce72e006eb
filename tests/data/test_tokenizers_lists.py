"""A bare text where a list is wanted is refused by every user of a model: it would be one text a letter."""

import pytest
from tiny_classifiers import classifier
from tiny_embedders import embedder
from tiny_generators import generator_of
from tiny_translator import tiny_tokenizer, tiny_translator

from attendo.errors import AttendoError

CALLS = {
    "classify": lambda: classifier().classify,
    "embed": lambda: embedder("masked").embed,
    "generate_batch": lambda: generator_of().generate_batch,
    "translate": lambda: tiny_translator(tiny_tokenizer()).translate,
    "sample": lambda: tiny_translator(tiny_tokenizer()).sample,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_bare_text_is_refused_and_a_list_of_it_is_not(call):
    method = CALLS[call]()
    with pytest.raises(AttendoError, match=r"^'ab ba' is one text \(expected a list of texts\)\. Write \[text\]$"):
        method("ab ba")
    assert len(method(["ab ba"])) == 1
    with pytest.raises(
        AttendoError,
        match=r"^texts\[1\] is NoneType \(expected a string\)\. Remove or replace missing values$",
    ):
        method(["ab ba", None])


def test_a_method_of_another_task_names_the_task():
    with pytest.raises(AttributeError, match=r"no attribute 'translate'\. Load a run .* for translation$"):
        classifier().translate(["ab"])  # pyright: ignore[reportAttributeAccessIssue]
