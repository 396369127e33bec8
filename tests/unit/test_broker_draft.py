"""Drafts: what waits for its commit, in order, and who is told."""

import asyncio
from types import SimpleNamespace

import pytest

from spillway.broker.draft import LATE_S, Draft, Drafts
from spillway.core.errors import (
    CommitRefusedError,
    DatabaseUnavailableError,
    OverloadedError,
    SpillwayError,
)
from spillway.core.message import RecordBatch


def waiter(draft: Draft) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    draft.waiters.append(future)
    return future


def entry(lane_id: int = 1, tail: int = 0) -> SimpleNamespace:
    """A lane as a draft sees it."""
    return SimpleNamespace(
        facts=SimpleNamespace(lane_id=lane_id),
        lane=SimpleNamespace(tail=tail),
        durable_tail=0,
        open_batch=object(),
        groups={"g": SimpleNamespace(open_row=object())},
    )


def filled(drafts: Drafts, messages: int) -> Draft:
    draft = drafts.gathering
    draft.commit.batches.append(RecordBatch(1, 1, 0))
    draft.messages, draft.payload_bytes = messages, messages * 10
    return draft


def test_nothing_decided_is_no_commit():
    """An empty draft is not written, and there is nothing to wait for."""
    drafts = Drafts()
    assert (bool(drafts), bool(drafts.gathering), drafts.last) == (False, False, None)


@pytest.mark.parametrize("column", ["batches", "controls", "dead", "redriven_ids"])
def test_anything_to_write_makes_a_commit(column):
    """Each kind of row is reason enough."""
    drafts = Drafts()
    getattr(drafts.gathering.commit, column).append(object())
    assert (bool(drafts), drafts.last) == (True, drafts.gathering)


async def test_somebody_who_waits_makes_a_commit():
    """A flush with nothing to write still proves that this broker may."""
    drafts = Drafts()
    waiter(drafts.gathering)
    assert drafts


def test_drafts_go_out_in_the_order_in_which_they_were_sealed():
    """The gathering one goes last, sealed on its way."""
    drafts = Drafts()
    made = [filled(drafts, 1), filled_after_seal(drafts, 2), filled_after_seal(drafts, 4)]
    assert (drafts.messages, drafts.payload_bytes) == (7, 70)
    assert [drafts.take() for _ in made] == made
    assert (bool(drafts), drafts.messages, drafts.payload_bytes) == (False, 0, 0)


def filled_after_seal(drafts: Drafts, messages: int) -> Draft:
    drafts.seal()
    return filled(drafts, messages)


def test_whoever_waits_waits_for_the_newest():
    """The newest undecided, else the last sealed, else the one that is out."""
    drafts = Drafts()
    first = filled(drafts, 1)
    assert drafts.last is first
    drafts.seal()
    assert drafts.last is first
    second = filled(drafts, 1)
    assert drafts.last is second
    drafts.in_flight = drafts.take()
    drafts.in_flight = drafts.take()
    assert drafts.last is second


def test_a_closed_draft_takes_no_more_rows():
    """Sealing ends open batches and open control rows of its lanes, and of no others."""
    drafts, touched, other = Drafts(), entry(1, tail=9), entry(2)
    drafts.gathering.touched[1] = touched
    drafts.seal()
    assert (touched.open_batch, touched.groups["g"].open_row) == (None, None)
    assert None not in {other.open_batch, other.groups["g"].open_row}


async def test_a_landed_draft_moves_the_durable_tail_as_far_as_it_went():
    """What was appended after the seal is not durable yet."""
    drafts, lane = Drafts(), entry(1, tail=9)
    drafts.gathering.touched[1] = lane
    told = waiter(drafts.gathering)
    draft = drafts.take()
    lane.lane.tail = 12
    draft.resolve()
    assert (lane.durable_tail, told.result()) == (9, None)


async def test_who_left_is_not_told():
    """A cancelled waiter disturbs neither success nor failure."""
    for outcome in (Draft.resolve, lambda draft: draft.fail(DatabaseUnavailableError())):
        draft = Draft()
        gone, stays = waiter(draft), waiter(draft)
        gone.cancel()
        outcome(draft)
        assert (gone.cancelled(), stays.done()) == (True, True)


async def test_a_failure_reaches_all_that_is_not_out():
    """Sealed and gathering drafts fail; the one in flight has its own outcome."""
    drafts, error = Drafts(), DatabaseUnavailableError("gone")
    flying = waiter(filled(drafts, 1))
    drafts.in_flight = drafts.take()
    told = [waiter(filled(drafts, 1)), waiter(filled_after_seal(drafts, 1))]
    drafts.fail(error)
    assert [future.exception() for future in told] == [error, error]
    assert (flying.done(), bool(drafts)) == (False, False)


async def test_the_author_of_a_draft_is_to_blame_whoever_else_waits_for_it():
    """Somebody with nothing to write may wait for the same commit, and is told to try again."""
    draft, poison = Draft(), SpillwayError("poison")
    author, bystander = draft.waiter(), draft.waiter()
    draft.author = author
    draft.refuse(poison)
    assert author.exception() is poison
    assert isinstance(bystander.exception(), CommitRefusedError)


async def test_without_an_author_whoever_was_alone_is_to_blame():
    """Several who may all have put something in are all told to try again."""
    lone, shared, poison = Draft(), Draft(), SpillwayError("poison")
    alone, several = lone.waiter(), [shared.waiter(), shared.waiter()]
    lone.refuse(poison)
    shared.refuse(poison)
    assert alone.exception() is poison
    assert {type(future.exception()) for future in several} == {CommitRefusedError}


@pytest.mark.parametrize("limits", [(3, 1_000), (1_000, 30)])
def test_more_than_may_wait_is_refused(limits):
    """By messages or by bytes; a commit that has just begun will make room."""
    drafts = Drafts()
    filled(drafts, 2)
    drafts.check_room(*limits)
    drafts.begin(drafts.take())
    filled(drafts, 3)
    with pytest.raises(OverloadedError):
        drafts.check_room(*limits)


def test_a_full_draft_behind_a_late_commit_is_an_outage():
    """There is no room to wait until patience is over."""
    drafts = Drafts()
    filled(drafts, 1)
    out = drafts.take()
    drafts.begin(out)
    filled(drafts, 3)
    out.begun_s -= LATE_S + 0.1
    with pytest.raises(DatabaseUnavailableError):
        drafts.check_room(3, 1_000)
    drafts.check_room(4, 1_000)
