"""Reads a model's tensors, or parts of them, from safetensors shards.

Tensors are read one at a time on request, so that memory never has two copies of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from safetensors import SafetensorError, safe_open

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.interfaces import NamedTensors
from specinfer.system.json_files import parse_json

_WHOLE = "model.safetensors"


class TensorSlice(NamedTuple):
    """Indices `start` to `stop` in dimension 0 or 1 of a tensor."""

    dim: int
    start: int
    stop: int

    @property
    def within(self) -> slice:
        return slice(self.start, self.stop)


@runtime_checkable
class Divisible(Protocol):
    """Weights whose tensors can be read in part."""

    def part(self, name: str, span: TensorSlice) -> torch.Tensor: ...


@runtime_checkable
class Shaped(Protocol):
    """Weights whose shapes are known without reading the data."""

    def shape(self, name: str) -> tuple[int, ...]: ...


def shape_of(weights: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...]:
    """Return the shape of a tensor, without reading its data if possible."""
    return weights.shape(name) if isinstance(weights, Shaped) else tuple(weights[name].shape)


def read_part(weights: Mapping[str, torch.Tensor], name: str, span: TensorSlice) -> torch.Tensor:
    """Return a part of a tensor, without reading the rest if possible."""
    if isinstance(weights, Divisible):
        return weights.part(name, span)
    return weights[name].narrow(span.dim, span.start, span.stop - span.start).clone()


class SafetensorsWeights(NamedTensors):
    """Tensors of a directory's `*.safetensors` files, read to a device on request."""

    def __init__(self, directory: Path, device: str = "cpu") -> None:
        self._files = self._names = _index(directory)
        self._device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], framework="pt", device=self._device) as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        with safe_open(self._files[name], framework="pt") as file:
            return tuple(file.get_slice(name).get_shape())

    def part(self, name: str, span: TensorSlice) -> torch.Tensor:
        with safe_open(self._files[name], framework="pt") as file:
            stored = file.get_slice(name)
            tensor: torch.Tensor = stored[:, span.within] if span.dim else stored[span.within]
            return tensor


def _index(directory: Path) -> dict[str, Path]:
    """Return the path of the file that contains each tensor."""
    index_file = directory / f"{_WHOLE}.index.json"
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise SettingError("model", str(directory), "the directory has no *.safetensors")
    if not index_file.is_file():
        return _names_in([directory / _WHOLE] if (directory / _WHOLE).is_file() else files)
    try:
        listed = {
            name: directory / file for name, file in parse_json(index_file.read_bytes())["weight_map"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompatibleError(f"{index_file}: must have weight_map, file by tensor: {error!r}") from error
    named = set(listed.values())
    if absent := sorted(path.name for path in named if not path.is_file()):
        raise IncompatibleError(
            f"{index_file} lists {absent[0]}, which is missing: copy that file into {directory}"
        )
    if directory / _WHOLE in files and directory / _WHOLE not in named:
        raise IncompatibleError(f"{index_file} does not list {_WHOLE}: delete one of these two checkpoints")
    names = _names_in(sorted(named))
    if names != listed:
        name = min(name for name in names.keys() | listed.keys() if names.get(name) != listed.get(name))
        raise IncompatibleError(
            f"{index_file} and the files' headers disagree about the tensor {name}: copy the files again"
        )
    return names


def _names_in(files: Sequence[Path]) -> dict[str, Path]:
    index: dict[str, Path] = {}
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  # no dictionary
                if name in index:
                    raise IncompatibleError(
                        f"tensor {name} is in {index[name].name} and in {path.name}: delete one of these files"
                    )
                index[name] = path
    return index


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise IncompatibleError(f"{path}: not a safetensors file: {error}") from error
