"""Start child processes with log files, and check ports."""

import contextlib
import errno
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.service.channel import split_address
from specinfer.system.parent_process import ending_with_us
from specinfer.system.progress import LOGGER

DEFAULT_METRICS_PORT = 9464
"""Default port of a gateway's metrics."""
PORTS = range(20_000, 32_000)
"""Ports that `free_ports` returns, below Linux's ephemeral ports."""
_next_port = itertools.count(random.randrange(len(PORTS)))


def check_metrics_port() -> None:
    """Check that the port of the gateway's metrics is free."""
    variable, host = "SPECINFER_GATEWAY_METRICS_PORT", "SPECINFER_GATEWAY_METRICS_HOST"
    port = os.environ.get(variable, str(DEFAULT_METRICS_PORT))
    if port == "0":
        return
    try:
        check_listen_address(f"{os.environ.get(host, '127.0.0.1')}:{port}")
    except InvalidInputError as error:
        reason = "in use by another program, or not a port; set another, or 0 for no metrics"
        raise InvalidInputError(variable, port, reason) from error


def check_http(address: str) -> None:
    """Check that the HTTP service could listen at an address."""
    if find_spec("fastapi") is None:
        raise InvalidInputError(
            "http_listen", address, "needs `pip install '.[http]'`; or give --http-listen none"
        )
    check_listen_address(address, "http_listen", "choose another address, or none for no HTTP")


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of loopback that are free at this moment.

    Ports are below the ephemeral range, so no outgoing connection takes a port before its server listens. Each call
    returns ports after the previous ones, and begins again at the end of `PORTS`.
    """
    ports: list[int] = []
    for _ in range(len(PORTS)):
        if len(ports) == count:
            break
        port = PORTS[next(_next_port) % len(PORTS)]
        if not _why_not_bound(socket.AF_INET, ("127.0.0.1", port)):
            ports.append(port)
    if len(ports) < count:
        raise InvalidInputError("port", f"{PORTS[0]} to {PORTS[-1]}", "all are in use on this machine")
    return ports


def check_listen_address(
    address: str, setting: str = "listen", otherwise: str = "choose another address"
) -> None:
    """Check that a server could listen on `host:port` at this moment.

    Args:
        address: `host:port`.
        setting: name of the setting in errors.
        otherwise: advice in the error if the address is in use.
    """
    if address.startswith("unix:"):
        return
    host, port = split_address(setting, address)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        reason = f"must be HOST:PORT, HOST a name or address of this machine ({error.strerror or error})"
        raise InvalidInputError(setting, address, reason) from error
    errors = [_why_not_bound(family, place) for family, _, _, _, place in addresses]
    if errno.EADDRINUSE in errors:
        raise InvalidInputError(setting, address, f"in use by another program; {otherwise}")
    if all(errors):
        reason = f"cannot be listened on: {os.strerror(errors[0])}; {otherwise}"
        raise InvalidInputError(setting, address, reason)


def _why_not_bound(family: int, place: tuple[object, ...]) -> int:
    """Return the error number of binding a socket; 0 without error."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections do not count
            probe.bind(place)
    except OSError as error:
        return error.errno or errno.EINVAL
    return 0


_PROGRESS = re.compile(rf'{re.escape(LOGGER)}(?:: |", "message": ")([^"\n]*)')
"""Matches the text of a log's progress lines (text or JSON)."""


class Child:
    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self._log = name, log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                ending_with_us(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # only this process gets Ctrl-C, and ends the children in order
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raise UnavailableError with the exit status if the process has ended."""
        if reason := self.end():
            raise UnavailableError(reason)

    def end(self) -> str:
        """Return exit status and last log line; "" while the process runs."""
        code = self._process.poll()
        return "" if code is None else f"{self.name} {describe_exit(code)}: {self.last_line()}"

    def last_line(self) -> str:
        """Return the log's last line with an error, else its last line."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if ": error: " in line]
        return [*lines, *errors][-1] if lines else "(no output)"

    def progress(self) -> str:
        """Return the log's latest progress line; "" if it has none."""
        lines = _PROGRESS.findall(self._log.read_text(errors="replace"))
        return lines[-1] if lines else ""

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process, as a crash would end it."""
        self._process.kill()
        self._process.wait()

    def join(self, timeout_s: float) -> None:
        """Wait for the process to end; kill it after the timeout."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


def describe_exit(code: int) -> str:
    """Describe the exit code of a child; negative codes are signals."""
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    reason = ", as the system does to a process when memory runs out" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({name}{reason})"


def wait_for_port(child: Child, address: str, timeout_s: float) -> None:
    """Wait until something listens on `host:port`."""
    place = split_address(child.name, address)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        child.check()
        with contextlib.suppress(OSError), socket.create_connection(place, timeout=1):
            return
        time.sleep(0.02)
    raise UnavailableError(f"{child.name} does not listen on {address} after {timeout_s:.0f} s")
