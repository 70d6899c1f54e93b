"""Run a module in a separate process, whose end frees its memory.

The module's last line is `sys.exit(finish(work))`, where `work` returns the output.
"""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specinfer.errors import IncompatibleError, SpecInferError, UnavailableError
from specinfer.system.parent_process import ending_with_us

_REFUSED, _NOT_STORED = 3, 4
"""Exit codes for SpecInferError and for OSError."""


@contextmanager
def apart(module: str, *arguments: str) -> Iterator[Callable[[], str]]:
    """Start a module's process; yield a function that returns its output.

    The function waits for the end, and raises the errors. Leaving the context kills a running process.
    """
    command = ending_with_us([sys.executable, "-m", module, *arguments])
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:

        def wait() -> str:
            output, errors = process.communicate()
            if process.returncode == _REFUSED:
                raise IncompatibleError(output.strip())
            if process.returncode == _NOT_STORED:
                number, _, reason = output.strip().partition(" ")
                raise OSError(int(number), reason)
            if process.returncode:
                last = (errors.strip().splitlines() or ["no output"])[-1]
                raise UnavailableError(f"{module} ended with code {process.returncode}: {last}")
            return output

        try:
            yield wait
        finally:
            process.kill()


def finish(work: Callable[[], str]) -> int:
    """Call `work`; print its output or error; return the exit code."""
    gc.disable()  # the process ends soon and frees all memory
    try:
        print(work())
    except SpecInferError as error:
        print(error)
        return _REFUSED
    except OSError as error:
        print(error.errno or 0, error.strerror or error)
        return _NOT_STORED
    return 0
