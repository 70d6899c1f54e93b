"""Checks a GGUF file: `python -m specinfer.model.probe DIRECTORY EXECUTOR`."""

import sys
from pathlib import Path

from specinfer.model.probe.check import check_gguf_model
from specinfer.system.apart import finish


def _check(directory: str, executor: str) -> str:
    check_gguf_model(Path(directory), executor)
    return ""


if __name__ == "__main__":
    sys.exit(finish(lambda: _check(*sys.argv[1:])))
