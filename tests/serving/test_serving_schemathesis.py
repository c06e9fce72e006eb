"""Everything that the OpenAPI allows, and what it forbids: no fault of the server, and no answer that it does not have.

All checks of schemathesis, positive and negative, NUL included, and with the large counts all phases; ATTENDO_CASES
changes the cases a route.
"""

import os
import subprocess
import sys

import pytest
import schemathesis
from example_counts import LARGE
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from served_models import serving

CASES = int(os.environ.get("ATTENDO_CASES", "50"))
STATE, APP = serving(look=True, max_tokens=30, max_characters=2000, max_texts=8)
CONFIG = SchemathesisConfig.from_dict(
    {
        "generation": {"mode": "all", "allow-x00": True},
        # the cases of this phase are made while tests are collected
        "phases": {"coverage": {"enabled": LARGE in os.environ}},
        "checks": {
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "504"]},  # see `checked`
            # what fits the schema may still be too much for this server, or not be what its models can do
            "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404", "413", "504"]},
            # a body may be too large before anything else is wrong with it
            "negative_data_rejection": {"expected-statuses": ["4xx", "504"]},
        },
    }
)


async def asgi(scope, receive, send):
    """The application without its end, which the client would tell it after every request."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            await send({"type": f"{(await receive())['type']}.complete"})
    else:
        await APP(scope, receive, send)


SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", asgi, config=CONFIG)


def checked(case):
    answer = case.call_and_validate()
    assert answer.status_code != 504 or "X-Request-Timeout" in case.headers  # it set its own time
    assert not STATE.admission.requests


@SCHEMA.parametrize()
@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_route_answers_as_it_says(case):
    checked(case)


@pytest.mark.soak
def test_ten_thousand_cases_a_route():
    """In a process of its own: what covers a schema is made while tests are collected, and would be made twice."""
    command = [sys.executable, "-m", "pytest", "-q", __file__]
    assert subprocess.run(command, env=os.environ | {"ATTENDO_CASES": "10000"}, check=False).returncode == 0


class Sequences(SCHEMA.as_state_machine()):
    """Requests that follow from answers: the ids of /tokenize are spelled again, a listed model is asked for."""

    def validate_response(self, response, case, additional_checks=(), **options):
        super().validate_response(response, case, additional_checks, **options)
        assert not STATE.admission.requests


TestSequences = Sequences.TestCase
TestSequences.settings = settings(
    max_examples=max(1, CASES // 5),
    stateful_step_count=5,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
