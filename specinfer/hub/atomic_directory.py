"""A directory that is there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """A temporary directory beside `target` to fill, renamed at the end; removed where that does not come.

    Raises:
        OSError: if it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield work
        if not (target / "config.json").is_file():  # a tokenizer alone makes room for the whole model
            shutil.rmtree(target, ignore_errors=True)
        try:
            os.rename(work, target)
        except OSError:
            if not target.is_dir():  # otherwise somebody else finished the same first
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
