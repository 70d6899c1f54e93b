"""A directory that is there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `target` to fill; rename it at the end, or remove it after an error.

    Raises:
        OSError: if it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield work
        if not (target / "config.json").is_file():  # a tokenizer alone gives way to the whole model
            shutil.rmtree(target, ignore_errors=True)
        try:
            os.rename(work, target)
        except OSError:
            if not target.is_dir():  # otherwise another process finished the same first
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
