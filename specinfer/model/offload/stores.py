"""Stores of offloaded layers: bytes in an unnamed file or pinned memory.

Only the executor knows the bytes' meaning. A store is filled layer by layer while the model loads, so that the whole
model is never in memory; afterwards it is only read.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import SettingError, UnavailableError
from specinfer.model.lazy_torch import torch
from specinfer.system.cache_directory import cache_directory

log = logging.getLogger(__name__)
PAGE = 4096
"""Alignment of direct reads in bytes; a multiple of a disk's block."""


class LayerStore(Protocol):
    """Stores the bytes of offloaded layers, for one model."""

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each layer."""

    def append(self, pieces: Sequence[torch.Tensor]) -> None:
        """Add the next layer: the concatenation of uint8 tensors in host memory."""

    def fetch(self, layer: int, staging: torch.Tensor) -> torch.Tensor:
        """Return a layer's bytes in host memory, in `staging` or the store.

        Raises:
            UnavailableError: if the layer cannot be read.
        """


class HostStore:
    """Stores layers in pinned host memory, from which GPUs copy by DMA."""

    def __init__(self, pinned: bool = True) -> None:
        self._layers: list[torch.Tensor] = []
        self._pinned = pinned

    @property
    def sizes(self) -> Sequence[int]:
        return [len(layer) for layer in self._layers]

    def append(self, pieces: Sequence[torch.Tensor]) -> None:
        layer = torch.empty(sum(map(len, pieces)), dtype=torch.uint8, pin_memory=self._pinned)
        torch.cat(list(pieces), out=layer)
        self._layers.append(layer)

    def fetch(self, layer: int, staging: torch.Tensor) -> torch.Tensor:
        return self._layers[layer]


class DiskStore:
    """Stores layers in an unnamed file, which ends with the process.

    Reads bypass the page cache if the file system allows: that is faster, and a model that is larger than memory would
    evict other files from the cache.
    """

    def __init__(self, directory: Path) -> None:
        self._sizes: list[int] = []
        self._starts = [0]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file, name = tempfile.mkstemp(prefix="layers-", dir=directory)
        except OSError as error:
            reason = f"cannot be written: {error.strerror or error}"
            raise SettingError("offload_directory", str(directory), reason) from error
        log.info("offload: writing the layers to a file in %s", directory)
        try:
            self._reading = _open_direct(name)
        finally:
            os.unlink(name)

    def __del__(self) -> None:
        for name in ("_file", "_reading"):
            if hasattr(self, name):
                os.close(getattr(self, name))

    @property
    def sizes(self) -> Sequence[int]:
        return self._sizes

    def append(self, pieces: Sequence[torch.Tensor]) -> None:
        at = self._starts[-1]
        try:
            for piece in pieces:
                at += _write(self._file, _view(piece), at)
            end = -(-at // PAGE) * PAGE
            os.ftruncate(self._file, end)  # so that the last page can be read whole
            os.fdatasync(self._file)
            os.posix_fadvise(self._file, self._starts[-1], end - self._starts[-1], os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise UnavailableError(f"offload: layer {len(self._sizes)} cannot be written: {error}") from error
        self._sizes.append(at - self._starts[-1])
        self._starts.append(end)

    def fetch(self, layer: int, staging: torch.Tensor) -> torch.Tensor:
        """Read a layer into `staging`, which consists of whole pages."""
        first, end = self._starts[layer], self._starts[layer + 1]
        room = _view(staging)[: end - first]
        done = 0
        while done < len(room):
            try:
                count = os.preadv(self._reading, [room[done:]], first + done)
            except OSError as error:
                raise UnavailableError(f"offload: layer {layer} cannot be read: {error}") from error
            if not count:
                raise UnavailableError(f"offload: layer {layer} cannot be read: the file is too short")
            done += count
        return staging[: self._sizes[layer]]


def _open_direct(name: str) -> int:
    with suppress(
        OSError, AttributeError
    ):  # tmpfs, some network file systems and some systems have no direct reads
        return os.open(name, os.O_RDONLY | os.O_DIRECT)
    log.info("offload: the file system has no direct reads; layers go through the page cache")
    return os.open(name, os.O_RDONLY)


def _view(data: torch.Tensor) -> memoryview:
    array: NDArray[np.uint8] = data.numpy()
    return array.data


def _write(file: int, data: memoryview, at: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], at + done)
    return done


def open_store(offload: str, device: str, directory: str = "") -> LayerStore | None:
    """Return a store for a model's layers; None: layers are not offloaded.

    Args:
        offload: "none", "host" or "disk".
        device: device of the passes.
        directory: directory of the file for "disk"; empty: the cache directory.
    """
    if offload == "disk":
        return DiskStore(Path(directory).expanduser() if directory else cache_directory() / "offload")
    if offload == "host" and torch.device(device).type == "cpu":
        raise SettingError("offload", offload, "must be none or disk on a CPU, which uses host memory anyway")
    return HostStore() if offload == "host" else None
