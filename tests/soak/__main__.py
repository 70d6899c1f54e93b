"""Run agents' conversations with a `serve` process; exit with 1 if an answer had no end or a status was not 200."""

import argparse
import asyncio
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from specinfer.cli.local.processes import free_ports
from tests.soak.agents import Report, soak

_START_S = 1800.0
_END_S = 120.0
_BAD_LEVELS = ("ERROR", "CRITICAL")


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--model", required=True, help="registry name, directory or GGUF file")
    parser.add_argument("--minutes", type=float, default=60.0, help="time of conversations")
    parser.add_argument("--agents", type=int, default=4, help="conversations at once")
    parser.add_argument("--seed", type=int, default=None, help="of conversations; drawn if not given")
    parser.add_argument("--log", type=Path, default=None, help="file for the server's log")
    return parser.parse_known_args(argv)[0]


def main(argv: list[str]) -> int:
    """Run the soak; return the exit code. Unknown flags are passed to the server."""
    given, flags = arguments(argv), argparse.ArgumentParser(add_help=False)
    for name in ("--model", "--minutes", "--agents", "--seed", "--log"):
        flags.add_argument(name)
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    log = given.log or Path(tempfile.mkdtemp(prefix="specinfer-soak-")) / "serve.log"
    base = f"127.0.0.1:{free_ports(1)[0]}"
    more = [
        "--listen",
        base,
        "--model",
        given.model,
        "--log-format",
        "json",
        *flags.parse_known_args(argv)[1],
    ]
    print(f"seed {seed}, log {log}", flush=True)
    with log.open("w") as lines:
        server = subprocess.Popen([sys.executable, "-m", "all_in_one", *more], stdout=lines, stderr=lines)
        try:
            name = _wait(server, f"http://{base}")
            until = time.monotonic() + 60 * given.minutes
            report = asyncio.run(soak(f"http://{base}", name, given.agents, until, seed))
            _check_idle(f"http://{base}", report)
        finally:
            code = _end(server)
    if code != 0:
        report.add(f"the server ended with {code}")
    for line in _bad_lines(log):
        report.add(line)
    return _shown(report)


def _wait(server: "subprocess.Popen[bytes]", base: str) -> str:
    """Wait until the server answers; return the model's name."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}")
        try:
            return str(httpx.get(f"{base}/v1/models", timeout=5).json()["data"][0]["id"])
        except httpx.TransportError:
            time.sleep(0.5)
    sys.exit("the server does not answer")


def _check_idle(base: str, report: Report) -> None:
    """Check that no request runs any more, even of clients that disconnected."""
    end = time.monotonic() + _END_S
    names = ("specinfer_num_requests_running ", "specinfer_num_requests_waiting ")
    while True:
        text = httpx.get(f"{base}/metrics", timeout=30).text
        left = sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(names))
        if not left:
            return
        if time.monotonic() > end:
            report.add(f"{left:.0f} requests never ended")
            return
        time.sleep(1)


def _end(server: "subprocess.Popen[bytes]") -> int:
    server.send_signal(signal.SIGTERM)
    try:
        return server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def _bad_lines(log: Path) -> list[str]:
    """Return the lines of the log that report faults."""
    problems = list[str]()
    for line in log.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            row = {"level": "ERROR" if "Traceback" in line else ""}
        if isinstance(row, dict) and str(row.get("level", "")).upper() in _BAD_LEVELS:
            problems.append(f"in the log: {line[:500]}")
    return problems


def _shown(report: Report) -> int:
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(report.counts.items()))
    print(f"{counts}; problems: {len(report.problems)}")
    return 1 if report.problems or not report.counts["answers"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
