"""Command `python -m tests.simulation`: run worlds, and shrink those that break a rule."""

import argparse
import sys
import time

import torch

from tests.simulation.plan import plan_of
from tests.simulation.world import run, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="number of worlds")
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--seed", type=int, help="run this world only, with a trace")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.seed is not None:
        return _show(chosen.seed)
    began, failed = time.perf_counter(), []
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        if broken := run(plan_of(seed)):
            failed.append(seed)
            print(f"seed {seed}: {broken}", flush=True)
            if len(failed) >= 10:
                break
    seconds = time.perf_counter() - began
    count = seed + 1 - chosen.first
    print(f"{count} worlds, {len(failed)} broke a rule; {count / seconds:.1f} worlds a second")
    return 1 if failed else 0


def _show(seed: int) -> int:
    plan = plan_of(seed)
    broken = run(plan)
    if broken:
        plan = shrunk(plan, broken)
    print(plan.describe())
    for fault in plan.faults:
        print(f"  {fault}")
    broken = run(plan, print)
    print(broken or "no rule was broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
