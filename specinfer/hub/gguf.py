"""Make model directories from GGUF files, and cache them.

A directory is converted again when the converting code has changed.
"""

import json
import os
import sys
from functools import cache
from hashlib import sha256
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

from specinfer.errors import UnavailableError
from specinfer.hub.work_directory import LOCK, atomic_directory, empty_directory
from specinfer.model.weights.gguf_files.parts import read_parts, split_stem
from specinfer.model.weights.source import (
    KEPT_GGUF,
    LARGE_FILE,
    RECORD,
    check_gguf,
    file_fingerprint,
    read_record,
)
from specinfer.system.apart import apart
from specinfer.system.cache_directory import cache_directory
from specinfer.system.progress import progress

_DERIVE = "specinfer.model.weights.convert"
"""Module of the conversion, which needs torch."""
_NEEDED = ("torch", "transformers", "gguf")


def derived_directories() -> Path:
    """Return the parent of all model directories made from GGUF files."""
    return cache_directory() / "gguf"


def gguf_directory(path: Path) -> Path:
    """Return a GGUF file's model directory, made if missing."""
    check_gguf(path)
    path = path.absolute()
    fingerprint = file_fingerprint(path)
    target = derived_directories() / f"{split_stem(path.name)}-{fingerprint}"
    if not (target / "config.json").is_file():
        try:
            with atomic_directory(target) as work:
                (work / KEPT_GGUF).symlink_to(path)
                derive(work, path, fingerprint)
        except OSError as error:
            raise UnavailableError(f"cannot store {target}: {error.strerror or error}") from error
        return target
    _point(target, path)
    refresh(target)
    return target


def derive(work: Path, path: Path, fingerprint: str) -> None:
    """Convert a GGUF file into a directory.

    A large file is converted in a separate process, which frees the memory at its end.
    """
    check_libraries()
    read_parts(path)  # refuses a cut file before torch is loaded
    with progress(f"reading configuration and tokenizer of {path}") as report:
        if "torch" in sys.modules and path.stat().st_size < LARGE_FILE:
            converted = import_module(_DERIVE).convert_gguf(path, work, report)
        else:
            with apart(_DERIVE, str(path), str(work)) as wait:
                converted = json.loads(wait())
    record = {"file": str(path), "fingerprint": fingerprint, "made_by": _maker(), **converted}
    (work / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def check_libraries() -> None:
    """Check that the libraries for GGUF files are installed."""
    if missing := _missing():
        raise UnavailableError(f"reading a GGUF file needs {missing}: pip install '.[model]'")


def refresh(directory: Path) -> None:
    """Convert again if another version of the code wrote a directory.

    Replace the files one by one, since other processes may read the directory. Without the libraries, do nothing.
    """
    path = directory / KEPT_GGUF
    if not path.is_file() or read_record(directory).get("made_by") == _maker() or _missing():
        return
    try:
        with empty_directory(directory) as work:
            derive(work, path.readlink() if path.is_symlink() else path, file_fingerprint(path))
            for made in sorted(
                work.rglob("*"), key=lambda file: file.name == RECORD
            ):  # the record of the version is moved last
                if made.is_file() and made.name != LOCK:
                    place = directory / made.relative_to(work)
                    place.parent.mkdir(exist_ok=True)
                    os.replace(made, place)
    except OSError as error:
        raise UnavailableError(f"cannot store {directory}: {error.strerror or error}") from error
    for old in directory.glob("*.safetensors"):  # written by earlier versions
        old.unlink()


def _missing() -> str:
    """Return the name of the first missing library; empty if none."""
    for name in _NEEDED:
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:  # raised for a missing parent package
            return name
    return ""


def _point(directory: Path, path: Path) -> None:
    """Point the directory's link to `path`, a file of equal content."""
    link = directory / KEPT_GGUF
    if link.is_symlink() and link.readlink() == path:
        return
    part = directory / f".{KEPT_GGUF}-{os.getpid()}"
    part.symlink_to(path)
    os.replace(part, link)


@cache
def _maker() -> str:
    """Return a hash of the converting code and the `transformers` version."""
    root = Path(__file__).parents[1] / "model" / "weights"
    digest = sha256(metadata.version("transformers").encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
