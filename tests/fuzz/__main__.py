"""Fuzz the system's interfaces ("doors"): `python -m tests.fuzz --messages 300000 --door all --seed 28`.

Every door runs in a process of its own, so that its memory can be measured. Exit code 1 if a fault was found; a finding
has its seed and episode, and `--first EPISODE --messages 1` runs the episode again.
"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.campaign import fuzz
from tests.fuzz.doors.registry import DOORS


def main() -> int:
    """Fuzz doors and print a line of JSON for each; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.fuzz")
    parser.add_argument("--messages", type=int, default=300_000, help="corrupt messages per door")
    parser.add_argument("--door", choices=[*DOORS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1, help="seed of everything")
    parser.add_argument("--first", type=int, default=0, help="number of the first episode")
    parser.add_argument("--processes", type=int, default=2, help="doors fuzzed at a time")
    options = parser.parse_args()
    names = list(DOORS) if options.door == "all" else [options.door]
    found = False
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(fuzz, name, options.seed, options.messages, options.first) for name in names]
        for of_door in running:
            report = of_door.result()
            print(json.dumps(report), flush=True)
            found = found or bool(report["findings"])
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
