"""One (lane, group) folded for the audit: from as far back as the control log reaches.

The broker begins at the newest checkpoint. The audit begins at seq 1, or at the oldest checkpoint,
and asks of every later one whether it is what the control log says.
"""

from spillway.core.audit import Finding
from spillway.core.events import GroupCreated
from spillway.core.fold import evolve
from spillway.core.state import GroupState
from spillway.log import events as codec
from spillway.log.stored import DAMAGE, CheckpointDamagedError, Stored, decode, encode, reason


class Trail:
    """Give it the checkpoints, then the rows in order, then call `finish`.

    `state` is None where nothing can be derived. `seq` is how far the log was followed. `begun_ms`
    is when the group first came, as long as the log knows.
    """

    __slots__ = ("_begun", "_points", "begun_ms", "findings", "seq", "state")

    def __init__(self) -> None:
        self._points: dict[int, bytes] = {}
        self._begun = False
        self.findings: list[Finding] = []
        self.state: GroupState | None = None
        self.seq = 0
        self.begun_ms: int | None = None

    def keep(self, stored: Stored) -> None:
        """A checkpoint to begin at, or to compare with."""
        try:
            self._points[stored.seq] = encode(stored.restore())
        except CheckpointDamagedError as error:
            self.findings.append(Finding(f"damaged {error.message}", 0, 1))

    def add(self, seq: int, events: bytes) -> None:
        """The next row of the control log."""
        if not self._begun:
            self._begin(seq)
        elif self.state is not None and seq > self.seq + 1:
            self.findings.append(Finding("control events are missing from seq", self.seq + 1, seq))
            self._resume(seq - 1)
        if self.state is not None and seq > self.seq:
            self._fold(self.state, seq, events)

    def _begin(self, seq: int) -> None:
        self._begun = True
        if seq == 1:
            self.state = GroupState()
            return
        self._resume(seq - 1)
        if self.state is None:
            what = "no checkpoint reaches to where the control log begins, seq"
            self.findings.append(Finding(what, 1, seq))

    def _resume(self, at: int) -> None:
        """Go on from the first checkpoint that stands at `at` or later."""
        self.seq = min((seq for seq in self._points if seq >= at), default=self.seq)
        point = self._points.get(self.seq) if self.seq >= at else None
        self.state = None if point is None else decode(point)

    def _fold(self, state: GroupState, seq: int, events: bytes) -> None:
        try:
            for at_ms, event in codec.decode(events):
                evolve(state, event)
                if self.begun_ms is None and seq == 1 and isinstance(event, GroupCreated):
                    self.begun_ms = at_ms
        except DAMAGE as error:
            what = f"control events that cannot be folded ({reason(error)}) at seq"
            self.findings.append(Finding(what, 0, seq))
            self._resume(seq)
            return
        self.seq = seq
        if seq in self._points and encode(state) != self._points[seq]:
            what = "checkpoint that is not the fold of the control log at seq"
            self.findings.append(Finding(what, 0, seq))

    def finish(self) -> None:
        """There are no more rows."""
        newest = max(self._points, default=0)
        lost = self._begun and self.state is None
        if self.seq < newest and not lost:
            what = "the control log ends before its newest checkpoint, at seq"
            self.findings.append(Finding(what, newest, self.seq))
            self._resume(newest)
