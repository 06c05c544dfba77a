"""Requests drawn from the description of the API: none makes the server fail."""

from __future__ import annotations

import pytest

pytest.importorskip("schemathesis", reason="schemathesis is not installed")

import schemathesis
from hypothesis import HealthCheck, given, seed
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.factories import DONE, build_trial

pytestmark = pytest.mark.long

EXAMPLES = examples(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))


def aim(case, version):
    """Let a request name what exists, so that it gets beyond the first check."""
    if "trial" in case.path_parameters:
        case.path_parameters["trial"] = "job-1-1"
    if "job" in case.path_parameters:
        case.path_parameters["job"] = "job"
    body = case.body if isinstance(case.body, dict) else {}
    trials = body.get("trials", [body.get("trial")])
    for number, trial in enumerate(trials if isinstance(trials, list) else (), start=3):
        if isinstance(trial, dict):
            own = {"job": "job", "recurrence": number, "attempt": 1, "uuid": None}
            trial |= {**own, "trial": f"job-{number}-1", "status": "DISPATCHED"}
    if "after" in body:
        body["after"] = version


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_no_request_makes_the_server_fail(start, mode):
    server = start()
    for number in (1, 2):  # something to find
        server.begin(build_trial(number, uuid=f"{number:032x}"))
    server.ask("POST", "/api/v1/trials/job-2-1/outcome", DONE.to_json())
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/api/v1/openapi.json")
    # The server has rules that no JSON schema can express: an id must match the trial's numbers.
    checks = {each.__name__: each for each in schemathesis.checks.CHECKS.get_all()}
    for name in ("positive_data_acceptance", "status_code_conformance", "unsupported_method"):
        checks.pop(name, None)
    for name in ("content_type", "response_headers", "response_schema"):  # of no described answer
        checks.pop(f"{name}_conformance", None)
    labels = []
    for found in schema.get_all_operations():
        operation = found.ok()
        labels.append(operation.label)

        @seed(len(labels))
        @EXAMPLES
        @given(case=operation.as_strategy(generation_mode=mode), aimed=st.booleans())
        def check(case, aimed):
            if aimed:
                aim(case, server.version("job"))
            answer = case.call()
            assert answer.status_code < 500, answer.text
            left_out = {"negative_data_rejection"} if aimed else set()  # repaired on purpose
            used = [each for name, each in checks.items() if name not in left_out]
            case.validate_response(answer, checks=used)

        check()
    assert len(labels) >= 18
