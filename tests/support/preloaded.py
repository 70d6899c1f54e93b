"""Processes that start with our packages imported: each is a fork of a server that has done nothing else.

For tests of how programs end and what they say then. `python -m` imports torch for seconds before it reads a
setting; a fork has its arguments, variables, streams and exit code for itself, and all imports already. At
least one test of every program should start it by `python -m` nevertheless.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORK_SERVER = multiprocessing.get_context("forkserver")
"""There is one in a process: what is imported here is imported for everybody."""
FORK_SERVER.set_forkserver_preload(
    [
        *("gateway.__main__", "verifier_svc.__main__", "speculator_svc.__main__", "http_svc.__main__"),
        *("specinfer.cli.main", "speculator_svc.training.__main__", "specinfer.drafters.ssm"),
        "tests.support.tiny_models",
    ]
)
_STREAMS = ("stdin", "stdout", "stderr")


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


def _become(argv: Sequence[str], environment: Mapping[str, str], files: Sequence[Path]) -> None:
    """In the fork: what the interpreter does before it runs a module, then that."""
    for number, file in enumerate(files):
        os.dup2(os.open(file, os.O_RDWR), number)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.modules.pop(f"{argv[0]}.__main__", None)  # imported, but not run
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
