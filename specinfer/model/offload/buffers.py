"""Buffers of one layer each, where passes run: in host memory for a CPU, on the device for a GPU."""

import mmap
from contextlib import suppress
from typing import Protocol

import torch

from specinfer.model.offload.stores import PAGE, LayerStore


class LayerBuffer(Protocol):
    """Buffer of one layer. A reader fills it while passes use another one."""

    memory: torch.Tensor
    """[bytes] uint8."""

    def fill(self, store: LayerStore, layer: int) -> None:
        """Copy a layer into it; return when it is whole. Waits until its last use is over."""

    def used(self) -> None:
        """Mark the work that reads it as issued: it may be filled again once that is over."""


class HostBuffer:
    """Buffer in host memory, which the store reads into."""

    def __init__(self, size: int) -> None:
        self.memory = host_memory(size)

    def fill(self, store: LayerStore, layer: int) -> None:
        """Copy a layer into the buffer."""
        data = store.fetch(layer, self.memory)
        if data.data_ptr() != self.memory.data_ptr():
            self.memory[: len(data)] = data

    def used(self) -> None:
        """Mark the layer as used by the work issued so far; on a CPU the work is over by then."""


class Copies(Protocol):
    """Copies to a device, beside the work there."""

    def copy(self, host: torch.Tensor, memory: torch.Tensor) -> None:
        """Copy a tensor and return when all of it is there."""

    def mark(self) -> object:
        """Mark the current place in the device's work."""

    def wait(self, mark: object) -> None:
        """Wait until the work before the mark is over."""


class CudaCopies:
    """Copies on a stream of their own, so that they run beside the kernels of the passes."""

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, host: torch.Tensor, memory: torch.Tensor) -> None:
        """Copy a tensor and return when all of it is there."""
        with torch.cuda.stream(self._stream):
            memory.copy_(host, non_blocking=True)
        self._stream.synchronize()

    def mark(self) -> torch.cuda.Event:
        """Mark the current place in the device's work."""
        event: torch.cuda.Event = torch.cuda.current_stream(self._stream.device).record_event()
        return event

    def wait(self, mark: object) -> None:
        """Wait until the work before the mark is over."""
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()


class DeviceBuffer:
    """Buffer on a device, filled from host memory."""

    def __init__(self, size: int, device: str, staging: torch.Tensor, copies: Copies) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._staging, self._copies = staging, copies
        self._last_use: object = None

    def fill(self, store: LayerStore, layer: int) -> None:
        """Copy a layer into the buffer."""
        host = store.fetch(layer, self._staging)
        if self._last_use is not None:
            self._copies.wait(self._last_use)
        self._copies.copy(host, self.memory[: len(host)])

    def used(self) -> None:
        """Mark the layer as used by the work issued so far."""
        self._last_use = self._copies.mark()


def make_buffers(count: int, store: LayerStore, device: str) -> list[LayerBuffer]:
    """Return slots on a device for the layers of a store, which is filled."""
    size = -(-max(store.sizes) // PAGE) * PAGE
    if torch.device(device).type == "cpu":
        return [HostBuffer(size) for _ in range(count)]
    # one for all: the reader fills one buffer at a time
    staging = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    copies = CudaCopies(device)
    return [DeviceBuffer(size, device, staging, copies) for _ in range(count)]


def host_memory(size: int) -> torch.Tensor:
    """Return [size] uint8 that begins at a page; on huge pages where there are some, for the kernels."""
    memory = mmap.mmap(-1, size)
    with suppress(OSError, AttributeError):  # a kernel without huge pages, or another system
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
