"""`spillway doctor`: what is wrong, and for each trouble the command that frees it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spillway.cli.hints import hint_of
from spillway.cli.outcome import DEPENDENCY_DOWN, FAILED, counted, exit_code, say
from spillway.cli.output import duration, print_json, shown, size
from spillway.cli.queue import every_queue
from spillway.cli.session import Session, with_session
from spillway.cli.spooltroubles import DISK_FREE_LOW as DISK_FREE_LOW_BYTES
from spillway.cli.spooltroubles import DOCTOR, glance, troubles
from spillway.core.errors import ForbiddenError, SpillwayError

if TYPE_CHECKING:
    from spillway.client.sync_client import Client
    from spillway.wire import GroupCounts, HealthReply, QueueReply, SpoolHealth

Level = Literal["OK", "WARN", "FAIL"]

OLD_S = 60.0
DISK_FREE_LOW = 0.10
DISK_FREE_NONE = 0.03


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check; `free` is the command that ends the trouble."""

    level: Level
    check: str
    text: str
    free: str | None = None
    exit_code: int = FAILED


@with_session
def doctor(
    session: Session,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar="SPILLWAY_DATA",
            help="A data folder on this machine, to check its disk too.",
        ),
    ] = None,
) -> None:
    """Check the broker, its database, shards, queues and disk; name the command for each trouble.

    Exit code 0 if nothing fails (warnings are no failure), 1 if something does, 3 if the broker
    or its database is down. With --json: one JSON document.
    """
    with session.client(retries=0) as client:  # what is wrong now is what it shall tell
        findings = list(examine(client, data))
    if session.json_:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            _print(finding)
    failed = [finding for finding in findings if finding.level == "FAIL"]
    say(_verdict(findings))
    if failed:
        raise typer.Exit(max(finding.exit_code for finding in failed))


def _print(finding: Finding) -> None:
    print(f"{finding.level:<4}  {finding.check:<9} {shown(finding.text)}")
    if finding.free is not None:
        print(f"      {'':<9} → {finding.free}")


def _verdict(findings: list[Finding]) -> str:
    count = {level: sum(one.level == level for one in findings) for level in ("FAIL", "WARN")}
    if not any(count.values()):
        return "all is well"
    return f"{counted(count['FAIL'], 'failure')}, {counted(count['WARN'], 'warning')}"


def examine(client: "Client", data: Path | None) -> Iterator[Finding]:
    """Every check, as far as the broker can be asked."""
    try:
        health = client.health()
    except SpillwayError as error:
        yield _unanswered("broker", error)
    else:
        yield from _broker(client.origin.url, health, data)
        if health.database == "connected":
            yield from _guarded("shards", lambda: _shards(client))
        if health.database == "connected" and health.shards_owned:
            yield from _guarded("queues", lambda: _queues(client))
        yield from _guarded("spool", lambda: _spool(client, health.spool))
        if data is None:
            yield from _disk_of_spool(health.spool)
    if data is not None:
        yield from _disk(data)


def _guarded(check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that cannot be made is a finding, and the others go on."""
    try:
        yield from look()
    except SpillwayError as error:
        yield _unanswered(check, error)


def _unanswered(check: str, error: SpillwayError) -> Finding:
    text = f"{error.message} [{error.code}]"
    return Finding("FAIL", check, text, hint_of(error), exit_code(error))


def _broker(url: str, health: "HealthReply", data: Path | None) -> Iterator[Finding]:
    text = f"{url} answers: version {health.version}, up {duration(health.uptime_s)}"
    yield Finding("OK", "broker", text)
    if health.database == "connected":
        yield Finding("OK", "database", "connected")
    else:
        text = "disconnected: until it is back, pushes go to files and leases come back empty"
        yield Finding("FAIL", "database", text, _revive(data), DEPENDENCY_DOWN)
    if (
        health.status != "ok"
        and health.database == "connected"
        and health.shards_owned == health.shards_total  # else the shards tell why
    ):
        yield Finding("WARN", "health", "degraded", f"curl {url}/health")


def _revive(data: Path | None) -> str:
    """What brings PostgreSQL back; the broker starts its own again only when that has died."""
    pid, where = "PID", " (PID: the first line of postgres/postmaster.pid in its data folder)"
    with suppress(OSError, IndexError, ValueError):
        if data is not None:
            pid, where = str(int((data / "postgres/postmaster.pid").read_text().split()[0])), ""
    return (
        "start PostgreSQL again, and the broker finds it; an embedded one that died it starts"
        f" itself, one that hangs must be continued, or killed: kill -9 {pid}{where}"
    )


def _shards(client: "Client") -> Iterator[Finding]:
    topology = client.topology()
    owners = {shard.owner for shard in topology.shards} - {None}
    orphans = [shard.shard for shard in topology.shards if shard.owner is None]
    alive = sum(broker.alive for broker in topology.brokers)
    text = f"{counted(topology.num_shards, 'shard')}, {counted(alive, 'broker')} alive"
    if orphans:
        text += f"; nobody owns {orphans}"
        yield Finding("FAIL", "shards", text, "spillway serve (one more broker takes them over)")
    elif owners and not any(shard.owned_here for shard in topology.shards):
        places = {one.address or one.broker for one in topology.brokers if one.broker in owners}
        named = ", ".join(sorted(places or map(str, owners)))
        yield Finding("OK", "shards", f"standby: another broker ({named}) holds them: {text}")
    else:
        yield Finding("OK", "shards", text)


def _queues(client: "Client") -> Iterator[Finding]:
    count = 0
    troubles: list[Finding] = []
    for queue in every_queue(client):
        count += 1
        for group in queue.groups:
            troubles.extend(_group(queue, group))
    yield Finding("OK", "queues", counted(count, "queue"))
    yield from troubles


def _group(queue: "QueueReply", group: "GroupCounts") -> Iterator[Finding]:
    name = f"{queue.queue}, group {group.group}"
    flags = f"{queue.queue} -g {group.group}"
    if group.blocked:
        free = f"spillway blocked unblock {flags} --all --action retry"
        yield Finding("FAIL", "blocked", f"{name}: {group.blocked} messages hold their line", free)
    if group.parked:
        free = f"spillway dead redrive {flags} --all   (look first: spillway dead list {flags})"
        yield Finding("WARN", "dead", f"{name}: {counted(group.parked, 'dead letter')}", free)
    if queue.paused or group.paused:
        whole = queue.queue if queue.paused else flags
        yield Finding("WARN", "paused", f"{name} is paused", f"spillway queue resume {whole}")
    elif group.oldest_ready_at is not None:
        yield from _oldest(name, group)
    cap = queue.options.max_ack_holes
    if group.ack_hole_ranges > cap / 2:
        text = f"{name}: {group.ack_hole_ranges} gaps between acked messages; a lane may have {cap}"
        yield Finding("WARN", "holes", text, f"spillway tail {queue.queue} --state leased")


def _oldest(name: str, group: "GroupCounts") -> Iterator[Finding]:
    since = datetime.fromisoformat(group.oldest_ready_at or "")
    waited_s = (datetime.now(UTC) - since).total_seconds()
    if waited_s > OLD_S:
        text = f"{name}: {group.ready} ready, the oldest for {duration(waited_s)}"
        yield Finding("WARN", "waiting", text, "add consumers")


def _spool(client: "Client", spool: "SpoolHealth") -> Iterator[Finding]:
    words = glance(spool)
    if words is None:
        yield Finding("OK", "spool", "empty")
    else:
        yield Finding("WARN", "spool", words, "spillway spool status")
    with suppress(ForbiddenError):  # a key of another org may know no more
        for trouble in troubles(client.spool()):
            level: Level = "FAIL" if trouble.grave else "WARN"
            yield Finding(level, "spool", trouble.text, trouble.free.removesuffix(DOCTOR))


def _disk_of_spool(spool: "SpoolHealth") -> Iterator[Finding]:
    """The broker sees its own disk, wherever it runs."""
    is_low = spool.disk_free_bytes < DISK_FREE_LOW_BYTES
    text = f"of the broker's spool: {size(spool.disk_free_bytes)} free"
    yield Finding("FAIL" if is_low else "OK", "disk", text, "make room on it" if is_low else None)


def _disk(data: Path) -> Iterator[Finding]:
    if not data.exists():
        yield Finding("FAIL", "disk", f"{data}: there is no such folder", "name it with --data")
        return
    usage = shutil.disk_usage(data)
    free = usage.free / usage.total
    text = f"{data}: {usage.free / 2**30:.1f} GiB free ({free:.0%})"
    level: Level = "FAIL" if free < DISK_FREE_NONE else "WARN" if free < DISK_FREE_LOW else "OK"
    remedy = "spillway queue update QUEUE --retention 1h, or give it a larger disk"
    yield Finding(level, "disk", text, None if level == "OK" else remedy)
