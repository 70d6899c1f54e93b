"""Start processes with our packages already imported, as forks of a server process.

Used by tests of how programs end, and by systems of many processes. `python -m` imports torch and `transformers` for
five seconds. A fork has all imports already; it has its own arguments, variables, streams, session and exit code. At
least one test of every program should still start it by `python -m`.
"""

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from specinfer.cli.local.processes import Child

ROOT = Path(__file__).resolve().parents[2]
FORK_SERVER = multiprocessing.get_context("forkserver")
"""One per process: all forks share its imports."""
PROGRAMS = ("gateway", "verifier_svc", "speculator_svc", "http_svc", "all_in_one", "specinfer.training")
FORK_SERVER.set_forkserver_preload(
    [
        *(f"{program}.__main__" for program in PROGRAMS),
        *(
            "specinfer.cli.main",
            "specinfer.drafters.ssm",
            "verifier_svc.app",
            "http_svc.app",
            "all_in_one.app",
        ),
        "tests.support.tiny_models",
    ]
)
FORKED = {*PROGRAMS, "tests.chaos.verifier"}
_STREAMS = ("stdin", "stdout", "stderr")
_DIES_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Program that kills its process when the parent ends: 1 is PR_SET_PDEATHSIG, 9 is SIGKILL."""


def run_preloaded(
    module: str, *arguments: str | bytes, timeout_s: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Return what `subprocess.run([sys.executable, "-m", module, *arguments])` returns, with captured output, empty
    input and these variables beside ours.

    Raises:
        subprocess.TimeoutExpired: if it has not ended in time.
    """
    argv = [module, *map(os.fsdecode, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in _STREAMS]
        for file in files:
            file.touch()
        process = FORK_SERVER.Process(target=_become, args=(argv, {**os.environ, **environment}, files))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(argv, timeout_s)
        _, said, complained = (file.read_text() for file in files)
        return subprocess.CompletedProcess(argv, process.exitcode, said, complained)


class Started(Protocol):
    """The part of `subprocess.Popen` that services use."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class _Fork:
    """A fork with the interface of `subprocess.Popen`."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        log.touch()
        files = [Path(os.devnull), log, log]
        self._process = FORK_SERVER.Process(target=_serve, args=(argv, environment, files), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_service(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Started:
    """Start a command in its own session, which ends with this process; append its output to the log.

    Our programs started by `python -m` become forks.
    """
    python, *arguments = command
    if python == sys.executable and arguments[0] == "-m" and arguments[1] in FORKED:
        return _Fork(arguments[1:], log, environment)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", _DIES_WITH_PARENT, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=ROOT,
            start_new_session=True,
        )


class ForkedChild(Child):
    """A process of a `LocalSystem`; patch `specinfer.cli.local.system.Child` with it."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self._log = name, log
        self._process = start_service(command, log, {**os.environ, **environment})  # type: ignore[assignment]


def _serve(argv: Sequence[str], environment: Mapping[str, str], files: Sequence[Path]) -> None:
    """Run a service in its fork."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # as `_DIES_WITH_PARENT`; the server dies with us
    os.setsid()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # may have children
    _become(argv, environment, files)


def _become(argv: Sequence[str], environment: Mapping[str, str], files: Sequence[Path]) -> None:
    """Run a module in the fork, after the interpreter's preparations."""
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT), number)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.modules.pop(f"{argv[0]}.__main__", None)  # imported, but not run
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
