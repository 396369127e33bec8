"""A scenario from its workload to its report: the broker comes and goes with it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spillway.bench import control
from spillway.bench.errors import BenchError
from spillway.bench.report import Report, median
from spillway.bench.run import Run, Say
from spillway.bench.scenarios import BY_NAME
from spillway.bench.site import Site, own_site
from spillway.bench.workload import BROKER_SETTINGS, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Where to measure and how often."""

    say: Say
    url: str | None = None
    database_url: str | None = None
    scratch: Path | None = None
    repeat: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)

    def measure(self, workload: Workload) -> Report:
        """The median of `repeat` runs, each with a broker and a queue of its own."""
        reports = []
        for number in range(1, self.repeat + 1):
            if self.repeat > 1:
                self.say(f"{workload.scenario}: run {number} of {self.repeat}")
            reports.append(self._once(workload))
        return median(reports)

    def _once(self, workload: Workload) -> Report:
        settings = {**BROKER_SETTINGS.get(workload.scenario, {}), **self.settings}
        with self._site(workload, settings) as site:
            run = Run(workload, site, self.say)
            if settings and self.url is None:
                run.facts["broker_settings"] = settings
            try:
                return BY_NAME[workload.scenario](run)
            finally:
                with suppress(BenchError):
                    control.delete_queue(site.address, run.queue)

    @contextmanager
    def _site(self, workload: Workload, settings: Mapping[str, str]) -> Iterator[Site]:
        if self.url is not None:
            yield Site(control.Address.parse(self.url), self.database_url)
            return
        self.say("starting a broker with an embedded PostgreSQL")
        own_postgres = workload.scenario == "outage"
        with own_site(self.scratch, settings, own_postgres=own_postgres) as site:
            yield site
