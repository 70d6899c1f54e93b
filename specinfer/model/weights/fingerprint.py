"""Hashes a model's configuration and samples of its weights.

Reading a model of 140 GB would take minutes, so only three samples of each tensor are read: another checkpoint,
fine-tuning or quantisation changes most numbers of most tensors. Changes outside the samples are not noticed.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.weights.gguf_files.parts import paths_of_parts, split_name
from specinfer.model.weights.source import kept_gguf
from specinfer.options.model_options import AUTO
from specinfer.system.json_files import parse_json

_SAMPLE_BYTES = 4096
_SAMPLES_OF_A_TENSOR = 3
_SAMPLES_OF_A_FILE = 1024
"""Number of samples in files other than safetensors."""
_LONGEST_HEADER = 100 * 1024 * 1024
"""Maximum length of a safetensors header, in bytes."""
_CONFIGURATION = ("config.json", "generation_config.json")
_ABOUT_THE_FILE = ("transformers_version", "_name_or_path")
"""Keys of `config.json` that do not affect the model."""

Span = tuple[int, int]
"""Range of bytes [start, stop) of a file."""


def weights_fingerprint(directory: Path) -> str:
    """Return a hash of a directory's configuration and weight files."""
    digest = sha256()
    for name in _CONFIGURATION:
        path = directory / name
        digest.update(f"{name}\0{_configuration(path) if path.is_file() else ''}\0".encode())
    for path in _weight_files(directory):
        name = "" if path.suffix == ".gguf" else path.name  # a link's name may differ from its file's
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            for start, stop in _samples(path, file):
                file.seek(start)
                digest.update(file.read(stop - start))
    return digest.hexdigest()[:16]


def _weight_files(directory: Path) -> list[Path]:
    gguf = kept_gguf(directory)
    if gguf is not None:
        return paths_of_parts(split_name(gguf))
    patterns = ("*.safetensors", "*.bin")
    for pattern in patterns:
        if paths := sorted(directory.glob(pattern)):
            return paths
    raise SettingError("model", str(directory), f"the directory has no {' or '.join(patterns)}")


def _configuration(path: Path) -> str:
    try:
        values = parse_json(path.read_bytes())
    except ValueError as error:
        raise IncompatibleError(f"{path}: not a valid JSON file: {error}") from error
    return json.dumps(
        {key: value for key, value in values.items() if key not in _ABOUT_THE_FILE}, sort_keys=True
    )


def _samples(path: Path, file: BinaryIO) -> Iterator[Span]:
    """Yield the byte ranges of a file to hash, in reproducible order."""
    size = path.stat().st_size
    if path.suffix != ".safetensors":
        yield from _spread((0, size), _SAMPLES_OF_A_FILE)
        return
    start = 8 + int.from_bytes(file.read(8), "little")
    if not 8 < start <= min(size, _LONGEST_HEADER):
        raise IncompatibleError(
            f"{path}: not a safetensors file (its header would end at byte {start} of {size})"
        )
    tensors = _tensors(path, file.read(start - 8))
    yield 0, start
    for first, last in tensors:
        yield from _spread((start + first, start + last), _SAMPLES_OF_A_TENSOR)


def _tensors(path: Path, header: bytes) -> list[Span]:
    try:
        described = parse_json(header)
        return sorted(
            (int(first), int(last))
            for first, last in (
                value["data_offsets"] for name, value in described.items() if name != "__metadata__"
            )
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise IncompatibleError(f"{path}: not a safetensors header: {error}") from error


def _spread(span: Span, count: int) -> Iterator[Span]:
    """Yield `count` evenly spread ranges of bytes, or a short range whole."""
    start, stop = span
    if stop - start <= count * _SAMPLE_BYTES:
        yield span
        return
    for index in range(count):
        first = start + (stop - start - _SAMPLE_BYTES) * index // (count - 1)
        yield first, first + _SAMPLE_BYTES


def model_fingerprint(
    directory: Path, text: str, dtype: str, blocks: Sequence[str], kv_type: str = AUTO, kv_window: int = 0
) -> str:
    """Return a fingerprint of a model, and settings that change its output.

    Args:
        text: fingerprint of tokenizer and chat template.
        blocks: GGUF types of the quantised matrices.
    """
    window = (kv_window,) if kv_window else ()
    cache = (kv_type,) if kv_type != AUTO else ()
    parts = (weights_fingerprint(directory), dtype, *blocks, *window, *cache, text)
    return sha256(repr(parts).encode()).hexdigest()[:16]
