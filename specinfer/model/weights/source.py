"""Finds a model directory's GGUF file, and the record of its conversion."""

from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from specinfer.errors import SettingError
from specinfer.model.weights.gguf_files.parts import paths_of_parts, split_name
from specinfer.system.json_files import parse_json, read_json

KEPT_GGUF = "source.gguf"
"""Name of the GGUF file or its link in a model directory."""
RECORD = "gguf.json"
"""Name of the conversion's record in a model directory."""
LARGE_FILE = 1 << 28
"""Minimum bytes of a GGUF file for converting it in another process."""
_MAGIC = b"GGUF"
_HEAD = 16 << 20
"""Number of bytes to hash at a file's start; usually all metadata."""
_SAMPLES, _SAMPLE_BYTES = 64, 4096
MTP_LAYERS = "mtp_num_hidden_layers"
"""Field of `config.json`: number of layers for multi-token prediction."""
NO_MTP = "has no layer that predicts further tokens (nextn in GGUF files, mtp in safetensors)"
"""Error of `--draft mtp` for a model without such a layer."""
_WITH_MTP = ("qwen3_5", "qwen3_next")
"""Beginnings of `model_type` for which a prediction layer is supported."""
KIND = "speculators_model_type"
FLAT_ALGORITHM = "dflash"
FLAT_FIELD, FLAT_ARCHITECTURE = "dflash_config", "DFlashDraftModel"


def kept_gguf(directory: Path) -> Path | None:
    """Return a directory's GGUF file; None if it has none."""
    path = directory / KEPT_GGUF
    if not path.is_symlink():
        return path if path.is_file() else None
    target = path.parent / path.readlink()
    if not target.is_file():
        raise SettingError(
            "model", str(directory), f"{target} does not exist any more: give the file's new path"
        )
    if read_record(directory).get("fingerprint") != file_fingerprint(target):
        raise SettingError("model", str(directory), f"{target} was replaced: give this path again")
    return path


def is_draft_checkpoint(directory: Path) -> bool:
    """Return whether a directory contains a draft checkpoint, not a whole model."""
    path = directory / "config.json"
    if not path.is_file():
        return False
    fields = read_json(path)
    return "speculators_config" in fields or is_flat_draft(fields)


def is_flat_draft(fields: Any) -> bool:
    """Return whether `config.json` is that of a DFlash draft in `transformers`' layout."""
    if not isinstance(fields, dict) or "speculators_config" in fields:
        return False
    named = fields.get("architectures")
    return FLAT_FIELD in fields or (isinstance(named, list) and FLAT_ARCHITECTURE in named)


def has_own_mtp(directory: Path) -> bool:
    """Return whether a checkpoint has a supported layer for multi-token prediction."""
    path = directory / "config.json"
    fields = read_json(path)
    if not str(fields.get("model_type")).startswith(_WITH_MTP):
        return False
    if kept_gguf(directory) is not None:
        return bool(fields.get(MTP_LAYERS) == 1)
    files = directory.glob("*.safetensors")
    return any(name.startswith("mtp.fc.") for path in files for name in stored_tensors(path))


def stored_tensors(path: Path) -> dict[str, Any]:
    """Return a safetensors file's header: the tensors by name."""
    with path.open("rb") as file:
        header: dict[str, Any] = parse_json(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return header


def algorithm_of(directory: Path) -> Any:
    """Return a draft checkpoint's `speculators_model_type`, of any JSON type.

    A DFlash draft in `transformers`' layout lacks the field; then return "dflash".
    """
    fields = read_json(directory / "config.json")
    return FLAT_ALGORITHM if is_flat_draft(fields) else fields.get(KIND)


def read_record(directory: Path) -> dict[str, Any]:
    """Return the record of a directory's conversion; empty if it has none."""
    try:
        record = parse_json((directory / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def check_gguf(path: Path) -> None:
    """Check that a file begins like a GGUF file."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
    except FileNotFoundError as error:
        raise SettingError("model", str(path), "no such file") from error
    except OSError as error:
        raise SettingError("model", str(path), f"cannot be read: {error.strerror or error}") from error
    if start != _MAGIC:
        in_folder = path.suffix == ".safetensors" or (path.parent / "config.json").is_file()
        hint = f"; give its folder, {path.absolute().parent}" if in_folder else ""
        raise SettingError(
            "model", str(path), f"not a GGUF file: begins with {start!r}, not {_MAGIC!r}{hint}"
        )


def file_fingerprint(path: Path) -> str:
    """Return a short hash of a GGUF file's sizes, metadata and samples."""
    parts = [part for part in paths_of_parts(split_name(path)) if part.is_file()]
    stats = [(part, stat.st_size, stat.st_mtime_ns) for part in parts for stat in [part.stat()]]
    return _fingerprint(tuple(stats))


@lru_cache(maxsize=8)
def _fingerprint(parts: tuple[tuple[Path, int, int], ...]) -> str:
    digest = sha256()
    for path, size, _ in parts:
        digest.update(f"{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_HEAD))
            for sample in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * (sample + 1) // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]
