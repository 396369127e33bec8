"""Whose request it is."""

import pytest

from spillway.api.limits import Limits

BEARER = "Bearer k-acme"


@pytest.fixture
def guarded(skin, broker):
    """A skin that needs an API key."""
    return type(skin)(broker, Limits(require_api_key=True))


def org_of(broker):
    return broker.calls[-1][1][0]


def actor_of(broker):
    return broker.calls[-1][1][-1]


async def test_the_org_is_default_unless_said(skin, broker):
    """A header or a key says it."""
    await skin("GET", "/v1/queues/q")
    assert org_of(broker) == "default"
    await skin("GET", "/v1/queues/q", x_spillway_org="globex")
    assert org_of(broker) == "globex"
    await skin("GET", "/v1/queues/q", authorization=BEARER)
    assert org_of(broker) == "acme"
    await skin("GET", "/v1/queues/q", authorization=BEARER, x_spillway_org="acme")
    assert org_of(broker) == "acme"


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"x_spillway_org": "a b"}, 400, "invalid_name"),
        ({"x_spillway_org": ""}, 400, "invalid_name"),
        ({"authorization": BEARER, "x_spillway_org": "globex"}, 403, "forbidden"),
        ({"authorization": "Bearer nope"}, 401, "unauthorized"),
        ({"authorization": "Bearer "}, 401, "unauthorized"),
        ({"authorization": "Basic YTpi"}, 401, "unauthorized"),
        ({"authorization": ""}, 401, "unauthorized"),
    ],
)
async def test_a_wrong_claim_is_refused(skin, broker, headers, status, code):
    """Before the broker hears of it."""
    answer = await skin("GET", "/v1/queues/q", **headers)
    assert (answer.status, answer.code) == (status, code)
    assert broker.calls == []


async def test_a_key_may_be_required(guarded, broker):
    """401 without one, and the challenge that the standard asks for."""
    answer = await guarded("GET", "/v1/queues/q", x_spillway_org="acme")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert broker.calls == []
    assert (await guarded("GET", "/v1/queues/q", authorization=BEARER)).status == 200


async def test_what_is_open_stays_open(guarded):
    """Probes and the reference need no key; facts about queues do."""
    for path in ("/health", "/health/live", "/health/ready", "/openapi.json", "/docs"):
        assert (await guarded("GET", path)).status == 200
    for path in ("/metrics", "/v1/topology", "/v1/audit", "/v1/queues"):
        assert (await guarded("GET", path)).status == 401


async def test_a_key_audits_its_own_org(skin, broker):
    """Whoever needs no key may ask about everything."""
    await skin("GET", "/v1/audit", authorization=BEARER)
    await skin("GET", "/v1/audit")
    assert broker.calls == [("audit", ("acme",)), ("audit", (None,))]


async def test_the_actor_is_named(skin, broker):
    """By the header, else by the key, else by the address."""
    await skin("POST", "/v1/queues/q/pause")
    assert actor_of(broker) == "192.0.2.7"
    await skin("POST", "/v1/queues/q/pause", authorization=BEARER)
    assert actor_of(broker) == "ci"
    await skin("POST", "/v1/queues/q/pause", authorization=BEARER, x_spillway_actor="zoë")
    assert actor_of(broker) == "zoë"
    await skin("POST", "/v1/queues/q/pause", x_spillway_actor="x" * 1000)
    assert actor_of(broker) == "x" * 256
