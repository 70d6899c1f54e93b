"""Run `make chaos`: disturb a system of real processes, and report whether a client noticed."""

import argparse
import asyncio
import json
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.faults import longest_pauses
from tests.chaos.model_directory import write_model
from tests.chaos.report import about_this_run
from tests.chaos.run import ChaosRun, RunOptions
from tests.chaos.system import Shape


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="faults to inject")
    parser.add_argument("--seed", type=int, default=None, help="of faults and requests; drawn if not given")
    parser.add_argument("--clients", type=int, default=32, help="clients that stream at once")
    parser.add_argument("--interval", type=float, default=1.5, help="mean seconds between faults")
    parser.add_argument("--verifiers", type=int, default=2, help="verifiers")
    parser.add_argument("--lease", type=float, default=1.0, help="seconds of the gateways' leases")
    parser.add_argument("--proposal", default="point", help="how SSMs propose: point, with_replacement, ...")
    parser.add_argument("--json", type=Path, default=None, help="file for the result")
    parser.add_argument("--keep", action="store_true", help="keep the logs even if all is well")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Run the chaos test; return the exit code."""
    given = arguments(argv)
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    shape = Shape(verifiers=given.verifiers, lease_s=given.lease, proposal=given.proposal)
    options = RunOptions(given.faults, seed, given.clients, given.interval, shape=shape)
    directory = Path(tempfile.mkdtemp(prefix="specinfer-chaos-"))
    run, began = ChaosRun(options, lambda text: print(text, flush=True)), time.monotonic()
    report = asyncio.run(run.run(write_model(directory / "model"), directory))
    if given.json is not None:
        command = f"python -m tests.chaos {shlex.join(argv)}"
        pauses = longest_pauses(report.times, run.watch.gaps)
        result = report.to_json(pauses, about_this_run(command, seed, time.monotonic() - began))
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    for problem in report.problems[:20]:
        print(problem[:500], file=sys.stderr)
    if report.good and not given.keep:
        shutil.rmtree(directory)
    else:
        print(f"logs in {directory}")
    print(report.last_line())
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
