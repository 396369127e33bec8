"""What is tried again, how long that waits, and when it ends."""

import pytest

from spillway.client.async_client import AsyncClient
from spillway.client.errors import (
    BrokerUnreachableError,
    ClientClosedError,
    ClientUsageError,
    RequestTimeoutError,
)
from spillway.client.retry import RetryPolicy, may_repeat, policy_of
from spillway.client.scripted import AsyncScript, Script, refusal, reply
from spillway.client.sync_client import Client
from spillway.core.errors import OverloadedError, QueueNotFoundError

STORED = reply({"results": [{"index": 0, "status": "stored", "version": 1}]}, 201)
EMPTY_LEASE = reply({"messages": []})
LOST = BrokerUnreachableError("gone", sent=True)
REFUSED = BrokerUnreachableError("no connection", sent=False)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 0.0
        self.sleeps = []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


def client_of(*answers, policy=None, repeat_last=False, timeout_s=10):
    script, time = Script(*answers, repeat_last=repeat_last), Time()
    policy = policy or RetryPolicy(attempts_max=4, base_s=1, cap_s=3)
    client = Client(
        transport=script,
        timeout_s=timeout_s,
        retries=policy,
        clock=time.clock,
        sleep=time.sleep,
        draw=lambda: 0.5,
    )
    return client, script, time


def test_push_survives_a_broken_connection_with_the_same_id():
    """A push is repeated byte for byte, so that the broker can tell it is the same one."""
    client, script, _ = client_of(LOST, STORED)
    assert client.push("orders", {"n": 1}).version == 1
    first, second = script.sent
    assert first.body == second.body
    assert first.body["items"][0]["transaction_id"]


def test_lease_is_not_repeated_when_it_may_have_happened():
    """After a broken connection a lease may hold messages: it is not asked again blindly."""
    client, script, _ = client_of(LOST, EMPTY_LEASE)
    with pytest.raises(BrokerUnreachableError):
        client.lease("orders")
    assert len(script.sent) == 1


def test_lease_is_repeated_when_there_was_no_connection():
    """Where no connection was made nothing happened, and anything may be asked again."""
    client, script, _ = client_of(REFUSED, EMPTY_LEASE)
    assert client.lease("orders") == []
    assert len(script.sent) == 2


def test_lease_is_repeated_when_the_broker_says_not_now():
    """A broker that refuses for now has done nothing."""
    client, script, _ = client_of(refusal("overloaded", 503), EMPTY_LEASE)
    assert client.lease("orders") == []
    assert len(script.sent) == 2


def test_settle_without_lease_is_repeated():
    """Receipts are fenced, so a settlement may be repeated."""
    done = reply({"results": [{"receipt": "r", "status": "acked"}]})
    client, script, _ = client_of(RequestTimeoutError("slow", sent=True), done)
    assert client.ack("r").results[0].status == "acked"
    assert len(script.sent) == 2


def test_permanent_errors_are_not_repeated():
    """What will fail again is told at once."""
    client, script, time = client_of(refusal("queue_not_found", 404))
    with pytest.raises(QueueNotFoundError):
        client.queue("nothing")
    assert (len(script.sent), time.sleeps) == (1, [])


def test_waits_double_up_to_the_cap():
    """Half of 1, 2, then 3 (the cap) seconds, with a draw of one half."""
    client, _, time = client_of(refusal("overloaded", 503), repeat_last=True)
    with pytest.raises(OverloadedError):
        client.health()
    assert time.sleeps == [0.5, 1.0, 1.5]


def test_retry_after_is_honoured():
    """The broker's Retry-After is the least to wait."""
    client, _, time = client_of(refusal("overloaded", 503, retry_after="7"), EMPTY_LEASE)
    client.lease("orders")
    assert time.sleeps == [7.0]


def test_timeout_bounds_the_retries_too():
    """No wait begins that would leave no time for an attempt."""
    policy = RetryPolicy(attempts_max=100, base_s=1, cap_s=1)
    client, script, time = client_of(
        refusal("overloaded", 503), policy=policy, repeat_last=True, timeout_s=2
    )
    with pytest.raises(OverloadedError):
        client.health()
    assert (len(script.sent), time.now) == (4, 1.5)


class Slow:
    """A transport whose every attempt takes all the time that it is given, up to `each_s`."""

    def __init__(self, time, each_s):
        self.time, self.each_s, self.given = time, each_s, []

    def send(self, data, timeout_s):
        self.given.append(timeout_s)
        self.time.now += min(timeout_s, self.each_s)
        raise RequestTimeoutError("slow", sent=True)

    def close(self):
        pass


@pytest.mark.parametrize(
    ("each_s", "given"), [(100, [10]), (4, [10, 5.5, 1])], ids=["silence", "broken off"]
)
def test_each_attempt_gets_what_is_left(each_s, given):
    """A silent broker takes `timeout_s` of the caller's time, not that for every attempt."""
    time = Time()
    slow = Slow(time, each_s)
    client = Client(
        transport=slow,
        retries=RetryPolicy(attempts_max=8, base_s=1, cap_s=1),
        clock=time.clock,
        sleep=time.sleep,
        draw=lambda: 0.5,
    )
    with pytest.raises(RequestTimeoutError):
        client.health()
    assert slow.given == pytest.approx(given)
    assert time.now == pytest.approx(10)


def test_what_the_broker_waits_comes_on_top():
    """A long poll is not cut short by the client that asked for it."""
    time = Time()
    slow = Slow(time, 100)
    client = Client(transport=slow, timeout_s=2, retries=0, clock=time.clock, sleep=time.sleep)
    with pytest.raises(RequestTimeoutError):
        client.lease("orders", wait_ms=30_000)
    assert slow.given == [32]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_over_zero(kind, timeout_s):
    """No time to answer in is a mistake, not a wish."""
    with pytest.raises(ClientUsageError, match="timeout_s must be over 0"):
        kind(timeout_s=timeout_s)


def test_gateway_errors_are_repeated_only_where_safe():
    """A proxy without a broker behind it answers 502: only safe calls go on."""
    bad = reply("oops", 502)
    client, script, _ = client_of(bad, reply({"messages": []}))
    with pytest.raises(Exception, match="502"):
        client.lease("orders")
    assert len(script.sent) == 1
    client, script, _ = client_of(bad, STORED)
    assert client.push("orders", 1).status == "stored"


def test_no_retries():
    """retries=0 means one attempt."""
    client, script, _ = client_of(LOST, policy=policy_of(0))
    with pytest.raises(BrokerUnreachableError):
        client.health()
    assert len(script.sent) == 1


def test_closed_client_says_so():
    """After close() every call is refused; closing twice is fine."""
    client, script, _ = client_of()
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.health()
    assert script.sent == []


async def test_the_async_door_retries_alike():
    """The same policy runs behind the asyncio client."""
    script, sleeps = Script(LOST, STORED), []

    async def sleep(seconds):
        sleeps.append(seconds)

    async with AsyncClient(
        transport=AsyncScript(script), sleep=sleep, draw=lambda: 0.5, clock=lambda: 0.0
    ) as client:
        assert (await client.push("orders", 1)).status == "stored"
    assert sleeps == [0.05]
    assert script.closed == 1
    with pytest.raises(ClientClosedError):
        await client.health()


@pytest.mark.parametrize(
    ("error", "safe", "expected"),
    [
        (LOST, True, True),
        (LOST, False, False),
        (REFUSED, False, True),
        (OverloadedError(), False, True),
        (QueueNotFoundError(), True, False),
    ],
)
def test_may_repeat(error, safe, expected):
    """Only what cannot happen twice is repeated."""
    assert may_repeat(error, safe=safe) is expected
