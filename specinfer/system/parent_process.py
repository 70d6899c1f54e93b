"""End a process when its parent ends for any reason (Linux).

`python -m specinfer.system.parent_process PARENT COMMAND...` sets the signal, then executes the command; the
kernel keeps the setting. So no Python code runs between fork and exec, where gRPC's threads could abort the
child.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Let the kernel signal this process when its parent thread ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def ending_with_us(command: Sequence[str]) -> list[str]:
    """Return a command whose process gets SIGTERM when the calling thread ends."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


def _main(parent: str, *command: str) -> None:
    end_with_parent()
    if os.getppid() == int(parent):  # else the parent ended before the signal was set
        os.execvp(command[0], command)


if __name__ == "__main__":
    _main(*sys.argv[1:])
