"""Starts the `specinfer` command; `serve` without the modules of the other commands."""

import os
import signal
import sys


def main() -> None:
    """Run the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported
    if sys.argv[1:2] == ["serve"]:
        os.execv(sys.executable, [sys.executable, "-m", "all_in_one", *sys.argv[2:]])
    from specinfer.cli.main import main as command

    command()
