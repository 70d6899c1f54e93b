"""Stores successful probes on disk, so that later starts skip them.

A record is valid for the same weights, the same code of this package and the same versions of libraries. Failures are
not stored: refused models are probed again.
"""

import hashlib
import json
import logging
import os
from functools import cache
from pathlib import Path

import torch

from specinfer.model.weights.fingerprint import weights_fingerprint
from specinfer.system.cache_directory import cache_directory

log = logging.getLogger(__name__)
WHAT = "comparing a few layers with transformers"
"""The probe's label in the progress line."""


def record_path(directory: Path, executor: str) -> Path:
    import transformers

    parts = [weights_fingerprint(directory), executor, _code_digest()]
    parts += [transformers.__version__, torch.__version__]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return cache_directory() / "probes" / f"{name}.json"


def write_record(path: Path, content: dict[str, object]) -> None:
    """Write a record atomically; an error is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(content) + "\n")
        part.replace(path)
    except OSError as error:
        log.warning("the probe's result cannot be cached; the next start probes again: %s", error)


@cache
def _code_digest() -> str:
    """Return a hash of the source files that affect a probe."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".h", ".cpp")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
