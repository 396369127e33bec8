"""Mending: what a failed event becomes when a person has looked at it."""

from datetime import UTC, datetime

import pytest
from msgspec import Raw

from spillway.broker.buffering import payload_of
from spillway.broker.mending import accepted, mended
from spillway.core.errors import BadRequestError, DamagedLineError
from spillway.spool import event
from spillway.spool.event import DamagedLine, Event, Trouble
from spillway.wire import SpoolMended

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = 1_767_225_600_000
TROUBLE = Trouble("queue_not_found", "no", "make it")
GIVEN = Event(
    "shop.orders", "p", Raw(b"1"), "t-1", None, "shop", "orders", "acme", "k", {"h": "v"}, 2, None,
    None, AT, 7,
)  # fmt: skip


@pytest.fixture
def failed():
    """An event that was refused."""
    return event.failed(GIVEN, TROUBLE, AT)


def damaged(text: bytes) -> DamagedLine:
    return DamagedLine(text, Trouble("damaged_line", "broken", "look"), AT)


def test_what_is_not_named_stays(failed):
    """The number, the id, the moment of its acceptance, and why it failed."""
    new = mended(failed, SpoolMended(queue="other"), NOW_MS)
    assert (new.queue, new.namespace, new.task) == ("other", "", "")
    kept = ("partition", "transaction_id", "org", "key", "headers", "seq", "accepted_at", "error")
    assert {name: getattr(new, name) for name in kept} == {
        name: getattr(failed, name) for name in kept
    }
    assert bytes(new.payload) == b"1"


def test_the_namespace_follows_the_queue(failed):
    """As it would have been at the door."""
    new = mended(failed, SpoolMended(queue="a.b.c"), NOW_MS)
    assert (new.namespace, new.task) == ("a.b", "c")


def test_null_empties_a_field(failed):
    """Which is something else than not to name it."""
    new = mended(failed, SpoolMended(key=None, headers=None, partition=None), NOW_MS)
    assert (new.key, new.headers, new.partition) == (None, None, None)


@pytest.mark.parametrize("payload", [Raw(b'{"n":1}'), b"\xff\x00"])
def test_a_payload_comes_out_as_it_went_in(failed, payload):
    """JSON or bytes."""
    new = mended(failed, SpoolMended(payload=payload), NOW_MS)
    found = payload_of(new)
    assert (type(found), bytes(found)) == (type(payload), bytes(payload))


def test_a_mended_event_is_a_whole_line(failed):
    """It is read again as it was written, payload with line feeds and all."""
    new = mended(failed, SpoolMended(payload=Raw(b'{\n"n":1}')), NOW_MS)
    [line] = event.lines([new])
    again = event.read_failed(line)
    assert (again.seq, bytes(again.payload)) == (7, b'{ "n":1}')


def test_nothing_given_is_nothing_mended(failed):
    """A mistake, not a change."""
    with pytest.raises(BadRequestError):
        mended(failed, SpoolMended(), NOW_MS)


def test_a_damaged_line_is_accepted_as_it_reads():
    """Its checksum did not hold; the fields are what a person saw."""
    [line] = event.lines([GIVEN])
    text = line.rstrip(b"\n").replace(b'"k"', b'"K"')
    new = accepted(damaged(text))
    assert (new.key, new.seq, new.error.code) == ("K", 0, "mended")
    assert event.is_whole(event.lines([new])[0].rstrip(b"\n"))


def test_what_is_not_damaged_or_cannot_be_read_is_not_accepted(failed):
    """There is nothing to accept, or nothing to go by."""
    with pytest.raises(BadRequestError):
        accepted(failed)
    with pytest.raises(DamagedLineError):
        accepted(damaged(b'{"queue":'))


def test_a_damaged_line_that_reads_keeps_what_is_not_named():
    """Only the broken field has to be given."""
    [line] = event.lines([GIVEN])
    text = line.rstrip(b"\n").replace(b'"payload":1', b'"payload":9')
    new = mended(damaged(text), SpoolMended(payload=Raw(b"1")), NOW_MS)
    assert (new.queue, new.key, bytes(new.payload)) == ("shop.orders", "k", b"1")


def test_a_line_that_cannot_be_read_needs_a_whole_event():
    """A queue and a payload; the rest is as for a push that says no more."""
    broken = damaged(b"\xff")
    with pytest.raises(BadRequestError, match="no queue and no payload"):
        mended(broken, SpoolMended(key="k"), NOW_MS)
    with pytest.raises(BadRequestError, match="no payload"):
        mended(broken, SpoolMended(queue="q"), NOW_MS)
    new = mended(broken, SpoolMended(queue="q", payload=Raw(b"1")), NOW_MS)
    assert (new.org, new.partition, new.priority, new.key) == ("default", None, 2, None)
    assert new.accepted_at == AT
    other = mended(broken, SpoolMended(queue="q", payload=Raw(b"1")), NOW_MS)
    assert len({new.transaction_id, other.transaction_id, ""}) == 3


def test_a_mended_conflict_is_no_longer_one(failed):
    """It waits for a person, and that one has come; what it was is still told."""
    failed.error = Trouble("transaction_conflict", "the id is version 1", "")
    new = mended(failed, SpoolMended(transaction_id="t-2"), NOW_MS)
    assert (new.error.code, "the id is version 1" in new.error.message) == ("mended", True)


def test_a_mended_line_is_no_longer_damaged():
    """Whether it got other fields or was taken as it reads."""
    text = event.lines([GIVEN])[0].replace(b'"payload":1', b'"payload":2')
    for new in (accepted(damaged(text)), mended(damaged(text), SpoolMended(key="k"), NOW_MS)):
        assert new.error.code == "mended"


def test_an_attempt_that_was_cut_off_is_still_looked_for(failed):
    """Whatever a person changes, the log may have it."""
    failed.tried_at = AT
    assert mended(failed, SpoolMended(queue="other"), NOW_MS).tried_at == AT
