"""Loads a model after comparing its logits with `transformers` (a probe).

A GGUF file is checked before its weights are loaded; a large file in a separate process, while it is loaded. Memory
that `transformers` takes to build a model is not returned: 200 MB, and as much again for the compared layers.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from specinfer.errors import IncompatibleError, SpecInferError
from specinfer.model.backends import candidates
from specinfer.model.loading import LoadedModel, load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.records import WHAT, record_path
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.source import LARGE_FILE, kept_gguf
from specinfer.system.apart import apart
from specinfer.system.progress import progress
from specinfer.text.constraints.compiler import compiler_of
from specinfer.text.tokenizer import Tokenizer, tokenizer_facts

if TYPE_CHECKING:
    from specinfer.model.parallel.ranks import Ranks


@contextmanager
def checked_early(directory: Path, options: RunnerOptions) -> Iterator[bool]:
    """Check a GGUF file before or while the block loads it.

    Yields True if the file is being checked, or was checked by an earlier process. A running check ends with the block.
    """
    name, gguf = planned_executor(directory, options), kept_gguf(directory)
    if _is_recorded(directory, name):
        yield True
    elif name is None or gguf is None:
        yield False
    elif gguf.stat().st_size < LARGE_FILE:
        from specinfer.model.probe.check import check_gguf_model

        with _IN_THIS_PROCESS, progress(WHAT):
            check_gguf_model(directory, name)
        yield True
    else:
        with apart("specinfer.model.probe", str(directory), name) as wait:
            try:
                yield True
            except SpecInferError:
                wait()  # the check's error is the more precise one
                raise
            with progress(WHAT):
                wait()


def is_checked(directory: Path, options: RunnerOptions) -> bool:
    """Return whether an earlier check passed, with the options' executor."""
    return _is_recorded(directory, planned_executor(directory, options))


def _is_recorded(directory: Path, executor: str | None) -> bool:
    return executor is not None and record_path(directory, executor).is_file()


def planned_executor(directory: Path, options: RunnerOptions) -> str | None:
    """Return the executor to check a model with; None: the generic one."""
    if options.executor == "generic":
        return None
    try:
        config = load_config(directory)
    except IncompatibleError:
        return None
    backends = candidates(options.executor, options.device)
    return next((backend.name for backend in backends if not backend.supports(config, options)), None)


log = logging.getLogger(__name__)
_IN_THIS_PROCESS = threading.Lock()
"""Lock of probes in this process: `transformers` sets torch's default type for all threads."""


def load_checked(directory: Path, options: RunnerOptions, ranks: "Ranks | None" = None) -> ModelRunner:
    """Load a model directory (see `load_model`), unless the probe fails."""
    if ranks is not None:
        loaded = load_model(directory, options, ranks)
        _require_right(directory, loaded, ranks.place.rank > 0)
    else:
        with checked_early(directory, options) as checked, nullcontext() if checked else _IN_THIS_PROCESS:
            loaded = load_model(directory, options, accounted=checked)
            _require_right(directory, loaded, checked)
    if ranks is None or ranks.place.rank == 0:
        log.info("%s: weights %s", directory.name, loaded.weights)
    return ModelRunner(*loaded)


def check_ahead(directory: Path) -> None:
    """Check a GGUF file and derive what its first start needs; an error is only logged."""
    try:
        with checked_early(directory, RunnerOptions()):
            tokenizer, config = Tokenizer.load(directory), load_config(directory)
            tokenizer_facts(directory)
            tokenizer.text_fingerprint()
            _ = tokenizer.byte_decoder
        with suppress(IncompatibleError):  # a tokenizer without constraints
            compiler_of(tokenizer, config.vocab_size, config.eos_token_ids)
    except (SpecInferError, OSError) as error:
        log.warning("%s is checked again at its first start: %s", directory.name, error)


def _require_right(directory: Path, loaded: LoadedModel, checked: bool) -> None:
    if not checked and not _is_recorded(directory, loaded.executor.name):
        from specinfer.model.probe.check import require_right  # imports the models of transformers

        require_right(directory, loaded)
