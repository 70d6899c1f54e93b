"""Checks the GGUF file of a model directory for an executor: `python -m specinfer.model.probe DIRECTORY EXECUTOR`."""

import sys

from specinfer.model.probe.early import run

if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
