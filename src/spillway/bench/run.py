"""One measurement in progress: its broker, its queue, and the processes that load and compare."""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from spillway.bench import control
from spillway.bench.baseline import ROWS_MAX, BaselineFindings, BaselinePlan
from spillway.bench.errors import BenchError
from spillway.bench.plan import LoadFindings, LoadPlan
from spillway.bench.process import Process
from spillway.bench.report import Report
from spillway.bench.samples import Spread
from spillway.bench.site import Site, Usage
from spillway.bench.workload import Workload

Say = Callable[[str], None]

_FILLERS = 4
_GRACE_S = 60.0
_BASELINE_S = 300.0


@dataclass(slots=True)
class Run:
    """Everything a scenario needs, and what it learns on the way."""

    workload: Workload
    site: Site
    say: Say
    seed: str = field(default_factory=lambda: os.urandom(4).hex())
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return f"bench-{self.workload.scenario}-{self.seed}"

    def make_queue(self, **options: object) -> None:
        partitions = self.workload.partitions
        control.make_queue(self.site.address, self.queue, partitions=partitions, **options)

    def drive(self, *, note: str | None = None, **plan: Any) -> LoadFindings:
        """Run a load process to its end; `note` names its cost among the settings."""
        before = self.site.usage()
        with self.load(**plan) as load:
            found = load.found()
        if note:
            self.facts["cpu_s"] = _cpu(before, self.site.usage(), found)
        return found

    @contextmanager
    def load(self, **plan: Any) -> Iterator["Load"]:
        """A load process that runs beside what is done in the block."""
        load = self._plan(**plan)
        with Process("load", load, LoadFindings) as process:
            yield Load(process, load.seconds_max + load.stall_s + _GRACE_S, self.facts)

    def fill(self, messages: int, **plan: Any) -> LoadFindings:
        """Not measured: push in big batches."""
        self.say(f"filling {self.queue} with {messages:,} messages")
        found = self.drive(producers=_FILLERS, batch=1000, messages=messages, warmup_s=0.0, **plan)
        if found.accepted < messages:
            raise BenchError(f"only {found.accepted} of {messages} messages were accepted")
        return found

    def baseline(self) -> float | None:
        """Plain PostgreSQL with the same messages; nothing where its address is unknown."""
        url = self.site.database_url
        if url is None:
            return None
        single = self.workload.scenario == "single"
        self.say(f"measuring the baseline ({'one-row INSERTs' if single else 'COPY'})")
        plan = BaselinePlan(
            database_url=url,
            kind="insert" if single else "copy",
            payload_bytes=self.workload.payload_bytes,
            rows=max(1_000, min(ROWS_MAX, 50_000_000 // self.workload.payload_bytes)),
            connections=max(1, self.workload.connections),
        )
        with Process("baseline", plan, BaselineFindings) as process:
            found = process.found(_BASELINE_S)
        self.facts["baseline_how"] = found.how
        if found.rows_per_s_by_commit:
            self.facts["baseline_commit_per_batch"] = round(found.rows_per_s_by_commit, 1)
        return round(found.rows_per_s, 1)

    def report(self, rate: Spread | None, **fields: Any) -> Report:
        """`rate` gives the common fields; a scenario adds or overrides."""
        if rate is None:
            raise BenchError(f"nothing was measured; the broker said: {self.facts.get('errors')}")
        common = {
            "scenario": self.workload.scenario,
            "messages": rate.messages,
            "seconds": round(rate.seconds, 3),
            "messages_per_s": round(rate.messages_per_s, 1),
            "p50_ms": rate.p50_ms,
            "p99_ms": rate.p99_ms,
            "broker_rss_mb": self.site.usage().broker_rss_mb,
            "baseline": self.baseline(),
        }
        return Report(**{**common, "settings": self.settings(), **fields})

    def settings(self) -> dict[str, Any]:
        work = self.workload
        shape = {name: getattr(work, name) for name in _SHAPE if getattr(work, name)}
        machine = {
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "filesystem": self.site.filesystem,
            "own_broker": type(self.site) is not Site,
        }
        return {**shape, **machine, **self.facts}

    def _plan(self, **fields: Any) -> LoadPlan:
        work = self.workload
        common = {
            "host": self.site.address.host,
            "port": self.site.address.port,
            "queue": self.queue,
            "seed": self.seed,
            "payload_bytes": work.payload_bytes,
            "transaction_ids": work.transaction_ids,
            "warmup_s": work.warmup_s,
            "seconds_max": work.seconds_max,
            "in_order": work.partitions == 1,
        }
        return msgspec.convert({**common, **fields}, LoadPlan)


@dataclass(frozen=True, slots=True)
class Load:
    """A load on its way."""

    process: Process[LoadFindings]
    timeout_s: float
    facts: dict[str, Any]

    def found(self) -> LoadFindings:
        """Wait for its end."""
        found = self.process.found(self.timeout_s)
        if found.errors:
            self.facts["errors"] = found.errors
        if not found.complete:
            self.facts["incomplete"] = True
        return found

    def stop(self) -> LoadFindings:
        """No more pushes; what is under way is waited for."""
        self.process.stop()
        return self.found()


_SHAPE = (
    "batch",
    "connections",
    "consumers",
    "payload_bytes",
    "rate",
    "partitions",
    "control_rows",
    "how",
    "into_backlog",
    "transaction_ids",
)


def spent(before: Usage, after: Usage) -> dict[str, float]:
    """Processor seconds between two readings; nothing where they cannot be seen."""
    if after.broker_rss_mb is None:
        return {}
    return {
        "broker": round(after.broker_cpu_s - before.broker_cpu_s, 2),
        "postgres": round(after.postgres_cpu_s - before.postgres_cpu_s, 2),
    }


def _cpu(before: Usage, after: Usage, found: LoadFindings) -> dict[str, float]:
    return {"load": found.cpu_s, "wall": round(found.seconds, 2), **spent(before, after)}
