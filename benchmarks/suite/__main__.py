"""Entry point of `python -m benchmarks.suite`."""

import typer

from benchmarks.suite.command import suite

if __name__ == "__main__":
    typer.run(suite)
