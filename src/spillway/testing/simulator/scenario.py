"""Scenarios are data: who works how, what goes wrong how often, and what must hold in the end."""

from dataclasses import dataclass, field

START_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """What is pushed, who works on it, and how badly. Rates are chances in a hundred."""

    messages: int = 16
    workers: int = 3
    lease_max: int = 5
    visibility_ms: int = 120
    orders: tuple[str, ...] = ("none", "partition")
    on_exhausted: tuple[str, ...] = ("park", "block", "drop")
    max_attempts: tuple[int, ...] = (1, 2, 4)
    max_ack_holes: int = 10_000
    delayed: int = 0
    mortal: int = 0
    pushed_twice: int = 10
    nacks: int = 15
    crashes: int = 5
    forgets: int = 5
    late: int = 10
    acked_twice: int = 10
    acked_apart: int = 25
    extends: int = 10
    hang_ups: int = 3
    operator_verbs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbances:
    """What goes wrong around the brokers. Rates are chances in a hundred, of a commit or a tick."""

    commit_fails: int = 0
    commit_unknown: int = 0
    broker_crashes: int = 0
    broker_pauses: int = 0
    checkpoints: int = 20
    checkpoint_rots: int = 0
    upgrades: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, what disturbs it, and the checks at its end (see `ledger.ENDINGS`)."""

    name: str
    workload: Workload = field(default_factory=Workload)
    disturbances: Disturbances = field(default_factory=Disturbances)
    check: tuple[str, ...] = ("all_accounted_for", "fold_is_the_state", "nothing_twice")


VERBS = ("park", "unblock", "purge", "purge_dead", "redrive")
SCENARIOS = (
    Scenario("calm", Workload(crashes=0, forgets=0, late=0)),
    Scenario("bad workers", Workload(nacks=30, crashes=15, forgets=15, late=25, acked_twice=30)),
    Scenario("bad commits", disturbances=Disturbances(commit_fails=8, commit_unknown=12)),
    Scenario(
        "dying brokers",
        Workload(delayed=25, nacks=30),
        Disturbances(broker_crashes=5, checkpoints=50, checkpoint_rots=30),
    ),
    Scenario("deposed brokers", disturbances=Disturbances(broker_pauses=6, commit_unknown=4)),
    Scenario(
        "strict order",
        Workload(orders=("partition",), on_exhausted=("block", "park"), nacks=30, delayed=15),
        Disturbances(broker_crashes=2, commit_fails=3),
    ),
    Scenario(
        "times",
        Workload(delayed=40, mortal=30, nacks=25),
        Disturbances(broker_crashes=3, checkpoints=50),
    ),
    Scenario(
        "operators",
        Workload(operator_verbs=(*VERBS, "seek", "delete"), delayed=10, nacks=25),
        Disturbances(broker_crashes=2, commit_fails=3, checkpoints=40),
    ),
    Scenario(
        "few holes",
        Workload(max_ack_holes=1, orders=("none",), crashes=15, forgets=20, delayed=10),
        Disturbances(commit_fails=3),
    ),
    Scenario(
        "upgrade",
        Workload(nacks=25, delayed=10),
        Disturbances(broker_crashes=3, checkpoints=40, checkpoint_rots=10, upgrades=10),
    ),
    Scenario(
        "everything",
        Workload(operator_verbs=VERBS, delayed=15, mortal=10, nacks=20, crashes=10, late=15),
        Disturbances(
            commit_fails=4,
            commit_unknown=6,
            broker_crashes=3,
            broker_pauses=3,
            checkpoints=40,
            checkpoint_rots=20,
            upgrades=5,
        ),
    ),
)
