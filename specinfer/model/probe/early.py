"""Checks of a GGUF file before its weights take memory; of a large one in a process of its own, during loading.

What `transformers` needs to build a model stays in a process: 200 MB, and as much again for the layers compared.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from specinfer.errors import IncompatibleError, SpecInferError, UnavailableError
from specinfer.model.executor import is_native
from specinfer.model.options import DTYPES, RunnerOptions
from specinfer.model.probe.records import record_path
from specinfer.model.weights.config import from_transformers, load_transformers_config
from specinfer.model.weights.source import kept_gguf
from specinfer.parent_process import ending_with_us
from specinfer.progress import progress

_LARGE = 1 << 28
"""Bytes of a file from which it is checked in a process of its own."""
REFUSED = 3
"""Exit code of that process for a model that is not right; standard output says why."""
WHAT = "comparing a few layers with transformers"


@contextmanager
def checked_early(directory: Path, options: RunnerOptions) -> Iterator[bool]:
    """Yield whether the model was found right before or is checked now; if so, the check ends with the block.

    Raises:
        IncompatibleError: if it is not right.
    """
    name, gguf = planned_executor(directory, options), kept_gguf(directory)
    if name is not None and record_path(directory, name).is_file():
        yield True
    elif name is None or gguf is None:
        yield False
    elif gguf.stat().st_size < _LARGE:
        from specinfer.model.probe.check import check_gguf_model

        with progress(WHAT):
            check_gguf_model(directory, name)
        yield True
    else:
        with _checked_apart(directory, name):
            yield True


def planned_executor(directory: Path, options: RunnerOptions) -> str | None:
    """Return the name of the executor of ours that will run a model; None if `transformers` will."""
    if options.executor == "generic":
        return None
    try:
        config = from_transformers(*load_transformers_config(directory))
    except IncompatibleError:
        return None
    if options.executor in ("auto", "native"):
        return "native" if is_native(config, DTYPES[options.dtype], options.device) else "torch"
    return options.executor


@contextmanager
def _checked_apart(directory: Path, executor: str) -> Iterator[None]:
    command = [sys.executable, "-m", "specinfer.model.probe", str(directory), executor]
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(ending_with_us(command), stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield
            with progress(WHAT):
                reason, _ = process.communicate()
        finally:
            process.kill()
        if process.returncode == REFUSED:
            raise IncompatibleError(reason.strip())
        if process.returncode:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["no output"])[-1]
            raise UnavailableError(f"the check of {directory} ended with code {process.returncode}: {last}")


def run(directory: str, executor: str) -> int:
    """Check a model in this process; return the exit code."""
    from specinfer.model.probe.check import check_gguf_model

    try:
        check_gguf_model(Path(directory), executor)
    except SpecInferError as error:
        print(error)
        return REFUSED
    return 0
