"""Many small worlds, each from a seed; a failure names its seed and how to play it again."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from spillway.testing.simulator import SCENARIOS, BrokenPromiseError, Scenario, Workload, run, world
from spillway.testing.simulator.world import busier

SEEDS = 506
CHUNKS = 11


@pytest.fixture(scope="module")
def outcomes():
    return {}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken(chunk, outcomes):
    """Whatever befalls workers, brokers and storage, every promise holds after every step."""
    for seed in range(chunk, SEEDS, CHUNKS):
        outcomes[seed] = run(seed)


def test_everything_that_can_befall_really_did(outcomes):
    """The worlds are as bad as they should be: a calm simulation would prove nothing."""
    for seed in range(0 if len(outcomes) == SEEDS else 110):
        outcomes.setdefault(seed, run(seed))
    seen = sum((outcome.seen for outcome in outcomes.values()), Counter())
    assert set(seen) == {
        "crashes", "fenced", "trims", "unknown, stored", "unknown, lost", "upgrades",
        "checkpoints used", "checkpoints rotten",
    }  # fmt: skip
    assert min(seen.values()) >= len(outcomes) // 20
    assert {outcome.scenario for outcome in outcomes.values()} == {s.name for s in SCENARIOS}
    assert sum(o.deliveries for o in outcomes.values()) > sum(o.messages for o in outcomes.values())


def test_a_seed_gives_the_same_world_again():
    """Nothing but the seed decides: two runs are alike to the last millisecond."""
    for seed in range(len(SCENARIOS)):
        assert run(seed) == run(seed)


def test_a_failure_names_its_seed(monkeypatch):
    """The error says which seed it was and how to play it again."""
    hopeless = Scenario("hopeless", Workload(messages=3), check=("nobody_is_perfect",))

    def imperfect(_world):
        raise BrokenPromiseError("nobody is perfect")

    monkeypatch.setitem(world.ENDINGS, "nobody_is_perfect", imperfect)
    with pytest.raises(BrokenPromiseError) as caught:
        run(7, 50, hopeless)
    assert "hopeless, seed 7" in str(caught.value)
    assert "--seed 7 --steps 50" in str(caught.value)


def test_the_command_line_replays_a_seed():
    """`python -m spillway.testing.simulator --seed N` plays it and tells what happened."""
    command = [sys.executable, "-m", "spillway.testing.simulator", "--seed", "42", "--steps", "99"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "'seed': 42" in done.stdout
    assert "1 seeds, 0 broken" in done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_no_promise_is_broken_all_night():
    """Thousands of larger worlds, from seeds that the daily run never sees."""
    for seed in range(10_000, 10_000 + int(os.environ.get("SPILLWAY_NIGHTLY_SEEDS", "20000"))):
        scenario = SCENARIOS[seed % len(SCENARIOS)]
        run(seed, 600, busier(scenario, 3) if seed % 2 else scenario)
