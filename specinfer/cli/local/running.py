"""Open resources for commands: local systems, gateways and models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specinfer.cli.connection import Connection
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import LocalSystem
from specinfer.cli.show import waiting
from specinfer.errors import SpecInferError
from specinfer.hub.pull import pull_model

if TYPE_CHECKING:
    from specinfer.llm import AsyncLLM


def pull(model: str, source: str = "auto", tokenizer_only: bool = False) -> Path:
    """Pull a model with a progress display, and check a GGUF file for later starts."""
    with waiting(f"pulling {model}"):
        directory = pull_model(model, source, tokenizer_only)
        if not tokenizer_only:
            from specinfer.model.probe.load import check_ahead  # imports numpy

            check_ahead(directory)
        return directory


@contextmanager
def local_system(options: LocalOptions) -> Iterator[LocalSystem]:
    """Start a local system, showing progress; yield it, then stop it."""
    system = LocalSystem(options)
    with waiting("starting") as report:
        system.report = report
        system.__enter__()
    try:
        yield system
    except SpecInferError:
        system.check()  # reports a service that has ended, which is the cause
        raise
    finally:
        system.__exit__(None, None, None)


def load_in_process(model: str, **options: Any) -> "AsyncLLM":
    """Load a model into this process, with progress."""
    from specinfer.llm import AsyncLLM

    with waiting("loading"):
        return AsyncLLM(model, **options)


@contextmanager
def gateway(connection: Connection, local: LocalOptions | None) -> Iterator[Connection]:
    """Yield `connection`, or start the system `local` and connect to it."""
    if local is None:
        yield connection
        return
    with local_system(local) as system:
        yield replace(connection, addresses=system.address)
