"""Requests generated from /openapi.json, good and bad: no 5xx, all answers as documented."""

import msgspec
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from schemathesis import checks
from schemathesis.config import GenerationConfig
from schemathesis.core import NOT_SET

from spillway.api.native import ROUTES
from spillway.api.openapi import document


def in_json(value):
    """The document without MessagePack: twice the cases would prove the same once more."""
    if isinstance(value, dict):
        return {name: in_json(v) for name, v in value.items() if name != "application/msgpack"}
    return [in_json(inner) for inner in value] if isinstance(value, list) else value


SPOKEN = in_json(document(ROUTES))
ERROR = SPOKEN["components"]["schemas"]["ErrorReply"] | {"components": SPOKEN["components"]}
CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "allow_header_conformance",
    "unsupported_method",
    "negative_data_rejection",
]
checks.load_all_checks()
CHECKS = checks.CHECKS.get_by_names(CHECKED)
# Nobody waits here, and nothing expires: a generated test must not depend on the clock.
WAIT_MS_MAX = 5
TTL_MS_MIN = 3_600_000

schema = schemathesis.openapi.from_dict(SPOKEN)
schema.config.generation = GenerationConfig(max_examples=10, deterministic=True)


def calmed(value):
    """The same body, but without long waits and short lives."""
    if isinstance(value, dict):
        calm = {name: calmed(inner) for name, inner in value.items()}
        if type(calm.get("wait_ms")) is int and calm["wait_ms"] <= 60_000:
            calm["wait_ms"] = min(calm["wait_ms"], WAIT_MS_MAX)
        if type(calm.get("ttl_ms")) is int and calm["ttl_ms"] > 0:
            calm["ttl_ms"] = max(calm["ttl_ms"], TTL_MS_MIN)
        return calm
    return [calmed(inner) for inner in value] if isinstance(value, list) else value


@schema.parametrize()
@settings(suppress_health_check=list(HealthCheck), deadline=None, derandomize=True)
def test_the_document_is_kept(case, stage):
    """Whatever is asked, the status, the media type and the shape of the answer are documented."""
    case.body = calmed(case.body)
    # A bad body that was reduced to no body at all is a good one where bodies are optional.
    is_bare = case.body is NOT_SET and case.method in {"PUT", "POST"}
    response = case.call_and_validate(
        base_url=str(stage.base_url), checks=CHECKS[:-1] if is_bare else CHECKS
    )
    if case.path == "/v1/spool/hold":
        stage.post("/v1/spool/release")  # or every later push would go to files
    if 400 <= response.status_code < 500 and response.content:
        told = msgspec.json.decode(response.content)
        assert Draft202012Validator(ERROR).is_valid({"error": told["error"]})
