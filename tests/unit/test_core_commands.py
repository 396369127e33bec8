"""What can be asked of a group, and what is answered."""

import pytest

from spillway.core import commands as cmd
from spillway.core.errors import GroupNotFoundError
from spillway.core.group import _DECIDE, decide
from spillway.testing.rig import Rig

ON_NOTHING = [
    (cmd.Ack(1, ((1, 2),)), cmd.Verdict(refused=((1, 2),))),
    (cmd.Nack(1, ((1, 2),)), cmd.Verdict(refused=((1, 2),))),
    (cmd.Return(1), cmd.Verdict()),
    (cmd.Extend(1, 1_000), None),
    (cmd.Sweep(), None),
    (cmd.ChangeConfig((("max_attempts", 3),)), cmd.Verdict()),
    (cmd.DeleteGroup(), cmd.Verdict()),
]


def test_every_command_is_decided():
    """No command is without a decider, and no decider without a command."""
    assert set(_DECIDE) == set(cmd.Command.__args__)


@pytest.mark.parametrize(("command", "reply"), ON_NOTHING, ids=lambda value: type(value).__name__)
def test_a_missing_group_refuses_gently(command, reply):
    """A late receipt of a deleted group is refused like any stale one, and leaves no event."""
    rig = Rig(5, exists=False)
    assert decide(rig.state, command, rig.moment) == cmd.Decision((), reply)


@pytest.mark.parametrize(
    "command",
    [
        cmd.LeaseMessages(1),
        cmd.Park(((1, 1),)),
        cmd.Unblock(((1, 1),)),
        cmd.Purge(((1, 1),)),
        cmd.Redrive(((1, 1),)),
        cmd.Seek(0),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_missing_group_cannot_be_worked_with(command):
    """Leasing from a group that does not exist, or changing it, is an error with a name."""
    rig = Rig(5, exists=False)
    with pytest.raises(GroupNotFoundError):
        rig.do(command)


def test_deciding_changes_nothing():
    """A decision may be thrown away: the state is as before."""
    rig = Rig(5)
    before = rig.record()
    decide(rig.state, cmd.LeaseMessages(2), rig.moment)
    assert rig.record() == before
