"""The spool beside a list: pushes, crashes, rot and replays in any order, compared every time."""

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Raw
from structlog.testing import capture_logs

from spillway.core.errors import DamagedLineError
from spillway.spool import event, gate, names
from spillway.spool import folder as disk
from spillway.spool.event import Address, DamagedLine, Event, FailedEvent, Trouble
from spillway.spool.folder import BufferFile
from spillway.spool.names import FAILOVER, QOS0
from spillway.spool.quarantine import mark
from spillway.spool.spool import Spool, SpoolConfig

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEVER_MS = 3_600_000
PER_FILE = 4
PLAIN = [Address("default", queue, part) for queue in "xy" for part in ("a", None)]
POISON = Address("default", "poison", "a")
"""Nothing of it is ever taken by the log."""
WHY = Trouble("queue_not_found", "no queue", "make it")

ADDRESSES = st.sampled_from([*PLAIN, POISON])
PUSHES = st.lists(st.tuples(ADDRESSES, st.integers(1, 3)), min_size=1, max_size=3)
HELD = st.sets(st.sampled_from(PLAIN), max_size=2)
PICKS = st.integers(0, 7)
CUTS = st.integers(0, 1_500)
BITS = st.integers(0, 7)


@dataclass(eq=False)
class Pushed:
    """An event that was accepted, as the list has it."""

    number: int
    address: Address
    stream: str
    text: bytes
    """Its line, by now."""
    counted: Address | None
    is_durable: bool = True
    is_done: bool = False
    is_discarded: bool = False


class SpoolMachine(RuleBasedStateMachine):
    """What may happen to a spool. The log is a list for each order, and its marks."""

    def __init__(self):
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.quiet = capture_logs()
        self.quiet.__enter__()
        self.list: list[Pushed] = []
        self.pushes = 0
        self.leaked: Counter[Address] = Counter()
        self.log: dict[tuple[str, Address], list[int]] = {}
        self.marks: dict[tuple[str, Address], int] = {}
        self.spool: Spool | None = None
        self.recover()

    def teardown(self):
        if self.spool is None:
            self.recover()
        self.stop()
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        self.quiet.__exit__(None, None, None)
        shutil.rmtree(self.path)

    def run(self, work):
        return self.loop.run_until_complete(work)

    # ------------------------------------------------------------ what is where

    def paths(self) -> list[Path]:
        return disk.entries(self.path)[0]

    def standing(self, paths: list[Path]) -> list[Pushed]:
        """What stands in files, told by its line; a plain reader, none of the spool's."""
        known = {pushed.text: pushed for pushed in self.list}
        lines = [line for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
        return [known[line] for line in lines if line.strip()]

    def waiting(self) -> list[Pushed]:
        return [pushed for pushed in self.list if not pushed.is_done]

    # ------------------------------------------------------------ pushes

    def events(self, pushes) -> list[tuple[Address, list[Event]]]:
        parts = []
        for address, count in pushes:
            numbers = range(self.pushes, self.pushes + count)
            self.pushes += count
            parts.append((address, [make(number, address) for number in numbers]))
        return parts

    def take_down(self, parts, stream, **facts):
        for address, part in parts:
            for one in part:
                text = event.lines([one])[0].removesuffix(b"\n")
                number = number_of(one)
                self.list.append(Pushed(number, address, stream, text, address, **facts))

    @precondition(lambda self: self.spool is not None)
    @rule(pushes=PUSHES)
    def append(self, pushes):
        parts = self.events(pushes)
        self.run(self.spool.append(parts))
        self.take_down(parts, FAILOVER)

    @precondition(lambda self: self.spool is not None)
    @rule(pushes=PUSHES)
    def accept(self, pushes):
        parts = self.events(pushes)

        async def accept():
            self.spool.accept(parts)

        self.run(accept())
        self.take_down(parts, QOS0, is_durable=False)

    @precondition(lambda self: self.spool is not None and self.spool.unwritten)
    @rule()
    def flush(self):
        async def flush():
            self.spool._behind._enough.set()
            await asyncio.wait({self.spool._behind._task})

        self.run(flush())
        for pushed in self.list:
            pushed.is_durable = True

    @precondition(lambda self: self.spool is not None)
    @rule()
    def rotate(self):
        self.run(self.spool.rotate())
        assert not [path for path in self.paths() if names.is_open(path.name)]

    # ------------------------------------------------------------ stops, crashes, starts

    @precondition(lambda self: self.spool is not None)
    @rule(pushes=PUSHES, cut=CUTS)
    def crash(self, pushes, cut):
        """In the middle of a write: of what nobody was answered for, some bytes are there."""
        parts = self.events(pushes)
        lines, _ = self.spool._lines(parts)
        path = next(
            (p for p in self.paths() if p.name.startswith(FAILOVER) and names.is_open(p.name)),
            self.path / self.spool.folder.names.next(FAILOVER),
        )
        with path.open("ab") as out:
            out.write(b"".join(lines)[:cut])
        self.drop()
        self.list = [pushed for pushed in self.list if pushed.is_durable]
        ended = b"".join(lines)[:cut].count(b"\n")
        flat = [(address, one) for address, part in parts for one in part]
        for at, (address, one) in enumerate(flat[:ended]):
            text = lines[at].removesuffix(b"\n")
            self.list.append(Pushed(number_of(one), address, FAILOVER, text, None))

    def drop(self):
        """As a kill does: nothing is written any more, nothing is told."""
        spool, self.spool = self.spool, None
        if spool._behind._task is not None:
            spool._behind._task.cancel()
            self.run(asyncio.wait({spool._behind._task}))
        for journal in (spool._journal, spool._qos0_journal):
            journal._thread.shutdown()
            if journal._writer._file is not None:
                os.close(journal._writer._file.number)
        spool.folder.release()

    @precondition(lambda self: self.spool is None)
    @rule()
    def recover(self):
        """Start: what stands in files waits, though some of it may be done."""
        self.spool = Spool(
            SpoolConfig(self.path, flush_ms=NEVER_MS, events_per_file=PER_FILE),
            lambda: int(NOW.timestamp() * 1000) + len(self.list),
        )
        self.run(self.spool.open())
        standing = self.standing(self.paths())
        assert [pushed.number for pushed in self.waiting() if pushed not in standing] == []
        self.run(self.spool.index())
        self.leaked.clear()
        for pushed in standing:
            pushed.is_done = False
            pushed.counted = event.address_of(pushed.text)

    @precondition(lambda self: self.spool is not None)
    @rule()
    def restart(self):
        """A stop in peace: nothing is lost, nothing that is done is counted again."""
        waiting = {pushed.number for pushed in self.waiting()}
        self.stop()
        self.recover()
        assert {pushed.number for pushed in self.waiting()} == waiting

    def stop(self):
        self.run(self.spool.close())
        self.spool = None
        for pushed in self.list:
            pushed.is_durable = True

    @precondition(lambda self: self.paths())
    @rule(file=PICKS, at=CUTS, bit=BITS)
    def rot(self, file, at, bit):
        """A bit of a line flips, wherever it lies.

        Not of one that is stored or set aside and stands there after a crash: nobody could tell
        what it was, and it would be set aside once more.
        """
        paths = self.paths()
        path = paths[file % len(paths)]
        text = bytearray(path.read_bytes())
        at %= max(1, len(text))
        if not text or text[at] == ord("\n") or text[at] ^ 1 << bit == ord("\n"):
            return
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        old = bytes(text[start:end])
        pushed = next((pushed for pushed in self.list if pushed.text == old), None)
        if pushed is None or pushed.number in [*self.stored(), *self.failed()]:
            return
        text[at] ^= 1 << bit
        path.write_bytes(text)
        pushed.text = bytes(text[start:end])

    # ------------------------------------------------------------ out of the spool

    @precondition(lambda self: self.spool is not None)
    @rule(held=HELD, commits=st.integers(0, 9), lost=st.integers(0, 3))
    def replay(self, held, commits, lost):
        """Oldest first, past the orders that are held, until PostgreSQL goes away.

        Of its last commits nobody hears.
        """
        self.run(self.carry(held, commits, lost))

    async def carry(self, held, commits, lost):
        spool = self.spool
        for file in list(spool.files):
            commits = await self.carry_file(file, held, commits, lost)
            if not file.left:
                await spool.remove(file)
            elif commits < 0:
                return
            else:
                await spool.pass_over(file)

    async def carry_file(self, file: BufferFile, held, commits, lost) -> int:
        aside = self.spool.quarantine.marks(file.name)
        source = names.source_of(file.name)
        for place, text in [(n - 1, text) for n, text in disk.numbered(file.path)]:
            if file.is_done(place):
                continue
            record, address = read(text)
            if isinstance(record, DamagedLine) or address == POISON:
                if mark(record) not in aside:
                    self.spool.quarantine.add(file.name, [record])
                    self.spool.quarantined += 1
            elif address in held:
                continue
            elif record.seq > self.marks.get((source, address), 0):
                commits -= 1
                if commits < 0:
                    return commits
                self.marks[source, address] = record.seq
                self.log.setdefault((file.stream, address), []).append(number_of(record))
            if commits >= lost:
                self.finish(file, place, text, address)
        return commits

    def finish(self, file, place, text, address):
        assert self.spool.finish(file, [(place, address)]) == 1
        assert self.spool.finish(file, [(place, address)]) == 0
        self.note_done(next(pushed for pushed in self.list if pushed.text == text), address)

    def note_done(self, pushed, address):
        pushed.is_done = True
        if pushed.counted != address:  # it was counted while its line could be read
            self.leaked[pushed.counted] += 1

    @precondition(lambda self: self.spool is not None and self.spool.files)
    @rule(pick=PICKS)
    def discard(self, pick):
        file = self.spool.files[pick % len(self.spool.files)]
        gone = [pushed for pushed in self.standing([file.path]) if not pushed.is_done]
        assert self.run(self.spool.discard(file)) == len(gone)
        for pushed in gone:
            pushed.is_discarded = True
            self.note_done(pushed, event.address_of(pushed.text))

    @precondition(lambda self: self.spool is not None and self.spool.files)
    @rule(pick=PICKS, line=PICKS)
    def discard_line(self, pick, line):
        file = self.spool.files[pick % len(self.spool.files)]
        lines = [(n, t) for n, t in disk.numbered(file.path) if not file.is_done(n - 1)]
        number, text = lines[line % len(lines)]
        [pushed] = [pushed for pushed in self.list if pushed.text == text]
        self.run(self.spool.discard_line(file, number, text))
        pushed.is_discarded = True
        self.note_done(pushed, event.address_of(text))

    # ------------------------------------------------------------ after every step

    @precondition(lambda self: self.spool is not None)
    @invariant()
    def the_counts_agree(self):
        spool, waiting = self.spool, self.waiting()
        unwritten = [pushed for pushed in waiting if not pushed.is_durable]
        if not spool.pending and not spool.files:
            self.leaked.clear()
        assert (spool.pending, spool.unwritten) == (len(waiting), len(unwritten))
        assert spool.bytes == sum(path.stat().st_size for path in self.paths()) + sum(
            len(pushed.text) + 1 for pushed in unwritten
        )
        counted = Counter(pushed.counted for pushed in waiting if pushed.counted is not None)
        queues = Counter()
        for address, count in (counted + self.leaked).items():
            queues[address.org, address.queue] += count
        assert +spool.by_queue == queues
        assert spool.file_count == len(self.paths()) or unwritten

    @precondition(lambda self: self.spool is not None)
    @invariant()
    def the_gate_holds_who_has_something_waiting(self):
        held = Counter()
        for pushed in self.waiting():
            if pushed.stream == FAILOVER and pushed.counted is not None:
                held[gate._bucket(pushed.counted)] += 1
        counts = self.spool.gate._counts
        for bucket in set(map(gate._bucket, [*PLAIN, POISON])):
            assert counts[bucket] >= held[bucket]
        assert self.leaked or sum(counts) == held.total()

    @invariant()
    def what_was_accepted_is_somewhere_once(self):
        standing = [pushed.number for pushed in self.standing(self.paths())]
        assert len(standing) == len(set(standing))
        failed, stored = self.failed(), self.stored()
        assert len(failed) == len(set(failed))
        assert not set(failed) & set(stored)
        for pushed in self.list:
            places = pushed.number in stored or pushed.number in failed or pushed.is_discarded
            assert (
                places if pushed.is_done else (pushed.number in standing or not pushed.is_durable)
            )

    def stored(self) -> list[int]:
        return [number for numbers in self.log.values() for number in numbers]

    def failed(self) -> list[int]:
        folder = self.path / disk.FAILED
        lines = [line for path in folder.iterdir() for line in path.read_bytes().splitlines()]
        known = {pushed.text: pushed.number for pushed in self.list}
        records = [event.read_failed(line) for line in lines]
        return [
            known[record.damaged] if isinstance(record, DamagedLine) else number_of(record)
            for record in records
        ]

    @invariant()
    def every_order_is_kept(self):
        for numbers in self.log.values():
            assert numbers == sorted(set(numbers))


def make(number: int, address: Address) -> Event:
    """An event whose payload is its number."""
    return Event(
        address.queue, address.partition, Raw(b"%d" % number), f"t-{number}", None, "", "",
        address.org, None, None, 2, None, None, NOW, 0,
    )  # fmt: skip


def number_of(one: Event) -> int:
    return int(bytes(one.payload))


def read(text: bytes) -> tuple[DamagedLine | FailedEvent, Address | None]:
    """A line as it would stand in `failed/`, and whose order it belongs to."""
    try:
        one = event.read(text)
    except DamagedLineError as error:
        return DamagedLine(text, event.trouble(error), NOW), None
    return event.failed(one, WHY, NOW), one.address


async def at_once(work, *given, **named):
    return work(*given, **named)


def play(examples: int, *, shrink: bool = True) -> None:
    """A kill leaves what was written, synced or not: to wait for the disk would show nothing."""
    with (
        patch.object(os, "fsync"),
        patch.object(os, "fdatasync"),
        patch.object(asyncio, "to_thread", at_once),
    ):
        phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
        chosen = settings(max_examples=examples, derandomize=True, phases=phases)
        run_state_machine_as_test(SpoolMachine, settings=chosen)


def test_the_spool_agrees_with_a_list():
    """Whatever is pushed, killed, rotten, replayed or thrown away."""
    play(settings().max_examples // 3)
