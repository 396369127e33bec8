"""What each scenario does unless it is told otherwise."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from spillway.bench.errors import WorkloadError
from spillway.bench.orders import BATCH_MAX, PAYLOAD_BYTES_MIN

Scenario = Literal[
    "produce",
    "single",
    "drain",
    "roundtrip",
    "latency",
    "wal",
    "recovery",
    "memory",
    "spool",
    "replay",
    "outage",
]
SCENARIOS: tuple[Scenario, ...] = get_args(Scenario)


def _require(condition: bool, rule: str) -> None:  # noqa: FBT001 (reads as a sentence)
    if not condition:
        raise WorkloadError(rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The size and shape of one measurement."""

    scenario: Scenario
    batch: int = 100
    connections: int = 0
    consumers: int = 0
    payload_bytes: int = 100
    messages: int = 0
    seconds: float = 0.0
    warmup_s: float = 1.0
    rate: float = 0.0
    partitions: int = 1
    control_rows: int = 0
    how: str = ""
    into_backlog: bool = False
    transaction_ids: bool = True
    seconds_max: float = 180.0

    def __post_init__(self) -> None:
        _require(1 <= self.batch <= BATCH_MAX, f"--batch is 1 to {BATCH_MAX}")
        _require(self.connections + self.consumers > 0, "give --connections or --consumers")
        _require(self.payload_bytes >= PAYLOAD_BYTES_MIN, f"--payload-bytes ≥ {PAYLOAD_BYTES_MIN}")
        _require(self.messages > 0 or self.seconds > 0, "give --messages or --seconds")
        by_schedule = self.scenario in {"latency", "outage"}
        _require(self.rate > 0 or (not self.rate and not by_schedule), "--rate is more than 0")
        _require(1 <= self.partitions <= 1024, "--partitions is 1 to 1024")


DEFAULTS: dict[str, Workload] = {
    "produce": Workload(scenario="produce", batch=1000, connections=8, seconds=10),
    "single": Workload(scenario="single", batch=1, connections=64, seconds=10),
    "drain": Workload(scenario="drain", messages=1_000_000, consumers=8),
    "roundtrip": Workload(scenario="roundtrip", connections=8, consumers=8, seconds=10),
    "latency": Workload(
        scenario="latency", batch=1, connections=16, consumers=4, rate=200, seconds=20
    ),
    "wal": Workload(scenario="wal", connections=4, consumers=4, messages=300_000, seconds_max=300),
    "recovery": Workload(
        scenario="recovery",
        batch=1000,
        messages=1_000_000,
        partitions=64,
        consumers=64,
        control_rows=100_000,
    ),
    "memory": Workload(scenario="memory", batch=1000, connections=4, messages=1_000_000),
    "spool": Workload(scenario="spool", batch=1000, connections=8, seconds=10),
    "replay": Workload(
        scenario="replay", batch=1000, connections=16, messages=1_000_000, rate=200, seconds_max=600
    ),
    "outage": Workload(
        scenario="outage", batch=1, connections=64, rate=200, seconds=5, how="pause"
    ),
}

# What the broker of a scenario is told beyond its defaults.
BROKER_SETTINGS: dict[str, dict[str, str]] = {
    # A whole life in seconds instead of minutes; more checkpoints cost more, so nothing is hidden.
    "wal": {"SPILLWAY_CHECKPOINT_INTERVAL_S": "2", "SPILLWAY_PRUNE_INTERVAL_S": "2"},
    # No checkpoint shortens the log that must be read again.
    "recovery": {"SPILLWAY_CHECKPOINT_INTERVAL_S": "3600"},
}


def workload(scenario: str, **given: Any) -> Workload:
    """The default workload of a scenario with what was given (not None) in its place."""
    wanted = {name: value for name, value in given.items() if value is not None}
    if wanted.get("messages") and "seconds" not in wanted:
        wanted["seconds"] = 0.0
    return replace(DEFAULTS[scenario], **wanted)


TABLE = [
    workload("produce"),
    workload("produce", batch=100),
    *(workload(scenario) for scenario in SCENARIOS if scenario != "produce"),
    workload("spool", batch=1, connections=64),
]
