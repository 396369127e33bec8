"""Replay one seed, or look through many: `python -m spillway.testing.simulator --help`."""

import argparse
import sys
import time
from dataclasses import asdict

from spillway.testing.simulator.ledger import BrokenPromiseError
from spillway.testing.simulator.scenario import SCENARIOS
from spillway.testing.simulator.world import STEPS, run


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 1 when a promise was broken."""
    options = _options(arguments)
    scenario = next((s for s in SCENARIOS if s.name == options.scenario), None)
    seeds = [options.seed] if options.seed is not None else range(options.seeds)
    began = time.perf_counter()
    broken = 0
    for seed in seeds:
        try:
            outcome = run(seed, options.steps, scenario)
        except BrokenPromiseError as error:
            broken += 1
            print(error, file=sys.stderr)  # noqa: T201
            if options.seed is not None:
                raise
        else:
            if options.seed is not None:
                print(asdict(outcome))  # noqa: T201
    seconds = time.perf_counter() - began
    print(f"{len(seeds)} seeds, {broken} broken, {len(seeds) / seconds:.0f} seeds/s")  # noqa: T201
    return 1 if broken else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spillway.testing.simulator")
    parser.add_argument("--seed", type=int, help="replay this one, with a traceback if it fails")
    parser.add_argument("--seeds", type=int, default=500, help="try 0 to N-1 (500)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"troubled steps ({STEPS})")
    parser.add_argument("--scenario", choices=[s.name for s in SCENARIOS], help="only this one")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
