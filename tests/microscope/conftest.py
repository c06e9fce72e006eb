"""One tokenizer and one model of each family for the microscope's tests; a test that changes a model makes its own."""

import pytest
from looked_models import FAMILIES, hostile_tokenizer, looked_model


@pytest.fixture(scope="session")
def tokenizer():
    return hostile_tokenizer()


@pytest.fixture(scope="session")
def users(tokenizer):
    return {family: looked_model(family, tokenizer) for family in FAMILIES}
