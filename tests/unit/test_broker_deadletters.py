"""Dead letters redriven or purged: event, new messages and deleted rows are one commit."""

from dataclasses import replace

import msgspec
import pytest

from spillway.broker.append import Arrivals, store
from spillway.broker.deadletters import Letter, delete, put_back
from spillway.broker.draft import MESSAGES_MAX
from spillway.core import commands as cmd
from spillway.core import events as ev
from spillway.core.errors import OverloadedError
from spillway.wire import PushItem

GROUP = "default"
BY = ("ann", None)
LETTER = Letter(7, 1, GROUP, 1, payload=b"{}", transaction_id="tx", cause="nack")


def redrive(lone, entry) -> int:
    return put_back(lone.shard, entry, GROUP, [LETTER], BY, now_ms=lone.clock.now_ms())


def purge(lone, entry) -> int:
    return delete(lone.shard, entry, GROUP, [LETTER], BY)


def push(lone, entry, count: int) -> None:
    item = PushItem(queue="orders", payload=msgspec.Raw(b"{}"))
    arrivals = Arrivals.at(entry.facts)
    for index in range(count):
        arrivals.add(index, item, b"{}", f"tx-{index}")
    store(lone.shard, entry, arrivals, lone.clock.now_ms())


def commits(lone):
    """What would be committed, one after another."""
    drafts = lone.shard._drafts
    while drafts:
        yield drafts.take().commit


def contents(commit) -> tuple[list[int], list[str], list[int]]:
    """(rows that go, what became of the letter, versions that come) of a commit."""
    events = [event for row in commit.controls for _, event in row.events]
    moved = [type(e).__name__ for e in events if isinstance(e, (ev.Redriven, ev.Purged))]
    return commit.redriven_ids, moved, [batch.base_version for batch in commit.batches]


@pytest.fixture
def entry(lone):
    """A lane whose version 1 is a dead letter in the log, and whose version 2 is leased."""
    entry = lone.lane(tail=2, max_attempts=1)
    lone.shard.handle(entry, GROUP, cmd.CreateGroup())
    first = lone.shard.handle(entry, GROUP, cmd.LeaseMessages(1))
    lone.shard.handle(entry, GROUP, cmd.Nack(first.lease_id, ((1, 1),), park=True))
    lone.shard.handle(entry, GROUP, cmd.LeaseMessages(1, visibility_ms=1_000))
    assert len(list(commits(lone))) == 1
    return entry


def test_a_redrive_is_one_commit(lone, entry):
    """The row goes in the very commit in which the message comes back."""
    assert redrive(lone, entry) == 1
    assert [contents(c) for c in commits(lone)] == [([7], ["Redriven"], [3])]


@pytest.mark.parametrize(
    ("act", "said", "versions"), [(redrive, "Redriven", [4]), (purge, "Purged", [])]
)
def test_a_lease_that_expires_meanwhile_does_not_split_it(lone, entry, act, said, versions):
    """Its dead letter waits for a message of this turn and ends the draft: all goes in the next."""
    push(lone, entry, 1)
    lone.clock.ms += 2_000
    assert act(lone, entry) == 1
    assert [contents(c) for c in commits(lone)] == [([], [], [3]), ([7], [said], versions)]


@pytest.mark.parametrize("act", [redrive, purge])
def test_a_full_draft_does_not_split_it(lone, entry, act):
    """What does not fit any more goes into the next commit as a whole."""
    push(lone, entry, MESSAGES_MAX)
    assert act(lone, entry) == 1
    first, second = (contents(c) for c in commits(lone))
    assert (first[:2], second[0], len(second[1])) == (([], []), [7], 1)


@pytest.mark.parametrize("act", [redrive, purge])
def test_an_overloaded_shard_refuses_before_anything_is_decided(lone, entry, act):
    """The dead letter stays what it is, in memory too."""
    push(lone, entry, 1)
    lone.shard._config = replace(lone.shard._config, draft_messages_max=1)
    with pytest.raises(OverloadedError):
        act(lone, entry)
    assert entry.group(GROUP).state.parked.total == 1
    assert [contents(c) for c in commits(lone)] == [([], [], [3])]
