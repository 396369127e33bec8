"""A deterministic world in one thread: seed in, verdict out. The core is real, the rest is played.

One random generator, one heap clock. Workers crash, forget, come late and say things twice;
producers retry; operators seek and purge; commits fail, or nobody knows whether they did; brokers
die, pause and wake up deposed; checkpoints rot; a release changes the stored forms. After every
step of a broker the conservation law must hold; every commit is compared with a plain ledger.

    python -m spillway.testing.simulator --seed 42            # replay one seed
    python -m spillway.testing.simulator --seeds 1000         # look for a bad one
"""

from spillway.testing.simulator.ledger import BrokenPromiseError
from spillway.testing.simulator.scenario import SCENARIOS, Disturbances, Scenario, Workload
from spillway.testing.simulator.world import Outcome, run

__all__ = [
    "SCENARIOS",
    "BrokenPromiseError",
    "Disturbances",
    "Outcome",
    "Scenario",
    "Workload",
    "run",
]
