"""dead and blocked: what an operator does about messages that were given up on."""

import pytest

LETTER = {
    "id", "group", "partition", "version", "key", "payload", "headers", "transaction_id",
    "attempts", "error", "reason", "enqueued_at", "dead_at",
}  # fmt: skip
VERB = {"verb", "affected", "remaining", "dry_run"}


def receipts(cli, queue):
    return [one["receipt"] for one in cli("lease --json -n 100", queue).lines]


@pytest.fixture
def dead(cli, queue):
    """A queue with three dead letters."""
    cli("push", queue, '{"n":1}', '{"n":2}', '{"n":3}')
    cli("settle park --error", "card declined", *receipts(cli, queue))
    return queue


@pytest.fixture
def blocked(cli, queue):
    """A queue whose first two messages hold it up."""
    cli("queue update --on-exhausted block --max-attempts 1", queue)
    cli("push", queue, "1", "2", "3")
    first, second, third = receipts(cli, queue)
    cli("settle nack --error stuck", first, second)
    cli("settle ack", third)
    return queue


def letters(cli, queue, *words):
    return cli("dead list --json", queue, *words).lines


# ---------------------------------------------------------------- dead letters


def test_dead_letters_are_listed_and_shown(cli, dead):
    """Each with its error; filters narrow the list; the table names the way back."""
    found = letters(cli, dead)
    assert set(found[0]) == LETTER
    assert [(one["version"], one["error"]) for one in found] == [
        (n, "card declined") for n in (1, 2, 3)
    ]
    assert letters(cli, dead, "--error", "declined", "-n", "2") == found[:2]
    assert letters(cli, dead, "--error", "else") == []
    assert letters(cli, dead, "--before", "1h") == []
    table = cli("dead list", dead)
    assert table.out.splitlines()[1].split()[1:4] == ["default", "Default/1", "1"]
    assert f"spillway dead redrive {dead} --all" in table.err
    number = str(found[1]["id"])
    assert cli("dead show --json", dead, number).json["payload"] == {"n": 2}
    assert "card declined" in cli("dead show", dead, number).out
    assert f"spillway dead list {dead}" in cli("dead show", dead, "999999", exits=4).err


def test_a_queue_without_dead_letters_says_so(cli, queue):
    """And names no way back for nothing."""
    assert cli("dead list", queue).err == f"{queue}: no dead letters\n"


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_bulk_needs_a_filter_or_all(cli, dead, verb):
    """Nothing is done by mistake; a dry run does nothing either."""
    assert "--all" in cli(f"dead {verb}", dead, exits=2).err
    tried = cli(f"dead {verb} --all --dry-run --json", dead)
    assert set(tried.json) >= VERB
    assert (tried.json["affected"], tried.json["dry_run"]) == (3, True)
    assert "dry run" in tried.err
    assert len(letters(cli, dead)) == 3


def test_redrive_brings_back_with_fresh_attempts(cli, dead):
    """By id, by filter, all; the message says where it was."""
    number = str(letters(cli, dead)[0]["id"])
    assert "1 dead letter" in cli("dead redrive --id", number, dead).err
    assert cli("dead redrive --error declined --json", dead).json["affected"] == 2
    again = cli("lease --json -n 10", dead).lines
    assert sorted((one["payload"]["n"], one["attempt"]) for one in again) == [
        (1, 1), (2, 1), (3, 1),
    ]  # fmt: skip
    assert all(one["headers"] for one in again)


def test_purge_is_for_good(cli, dead):
    """Then there is nothing to redrive."""
    assert "2 dead letters" in cli("dead purge --all --limit 2", dead).err
    assert cli("dead purge --all --json --reason test", dead).json["affected"] == 1
    assert cli("dead redrive --all --json", dead).json["affected"] == 0


def test_waiting_messages_are_parked_by_hand(cli, queue):
    """They become dead letters, marked as an operator's doing."""
    cli("push", queue, "1", "2")
    assert "1 message" in cli("dead park -m Default/1", queue).err
    (letter,) = letters(cli, queue)
    assert (letter["version"], letter["attempts"]) == (1, 0)


# ---------------------------------------------------------------- blocked


def test_blocked_messages_are_listed_with_the_way_out(cli, blocked):
    """What, how often, why; and the command that frees them."""
    found = cli("blocked list --json", blocked).lines
    assert [(one["version"], one["attempts"], one["error"]) for one in found] == [
        (1, 1, "stuck"), (2, 1, "stuck"),
    ]  # fmt: skip
    table = cli("blocked list", blocked)
    assert "Default/1" in table.out
    assert f"spillway blocked unblock {blocked} --all --action retry" in table.err


def test_a_queue_that_flows_says_so(cli, queue):
    """Nothing is blocked, so nothing is to be freed."""
    assert cli("blocked list", queue).err == f"{queue}: nothing is blocked\n"


def test_unblock_retries_skips_and_parks(cli, blocked):
    """Each action ends elsewhere; without a filter nothing happens."""
    assert "--all" in cli("blocked unblock", blocked, exits=2).err
    assert cli("blocked unblock --all --dry-run --json", blocked).json["affected"] == 2
    cli("blocked unblock -m Default/1 --action park", blocked)
    assert [one["version"] for one in letters(cli, blocked)] == [1]
    cli("blocked unblock --all", blocked)
    (again,) = cli("lease --json -n 10", blocked).lines
    assert (again["version"], again["attempt"]) == (2, 1)
    cli("settle nack --error stuck", again["receipt"])
    cli("blocked unblock --all --action skip", blocked)
    assert cli("blocked list --json", blocked).lines == []
