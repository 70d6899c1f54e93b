"""Offloaded layers in turn, the next one's copy during this one's work.

A reader thread fills two buffers, in host memory for a CPU and on the device for a GPU, in the order of the layers,
again and again: while a pass works on one layer the next one is copied, and between two passes the first ones are there
already. A pass then takes

    max(copies of all layers, work on all layers) + the shorter one of one layer

instead of the sum of both, and its copies do not depend on how many tokens are in it.
"""

import logging
import mmap
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from queue import SimpleQueue
from typing import Protocol

import torch

from specinfer.errors import UnavailableError
from specinfer.model.offload.stores import PAGE, LayerStore


class LayerBuffer(Protocol):
    """A layer's buffer, filled by a reader while passes use another."""

    memory: torch.Tensor
    """[bytes] uint8."""

    def fill(self, store: LayerStore, layer: int) -> None:
        """Copy a layer into it, after its last use is over."""

    def used(self) -> None:
        """Mark its work as issued: afterwards it may be refilled."""


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
        """Mark all issued work; on a CPU it is already over."""


class Copies(Protocol):
    """Copies to a device, parallel to its work."""

    def copy(self, host: torch.Tensor, memory: torch.Tensor) -> None:
        """Copy a tensor and return when all of it is there."""

    def mark(self) -> object:
        """Mark the current place in the device's work."""

    def wait(self, mark: object) -> None:
        """Wait until the work before the mark is over."""


class CudaCopies:
    """Copies on a separate stream, parallel to the passes' kernels."""

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
    """Return buffers on a device for the layers of a filled store."""
    size = -(-max(store.sizes) // PAGE) * PAGE
    if torch.device(device).type == "cpu":
        return [HostBuffer(size) for _ in range(count)]
    # one for all: the reader fills one buffer at a time
    staging = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    copies = CudaCopies(device)
    return [DeviceBuffer(size, device, staging, copies) for _ in range(count)]


def host_memory(size: int) -> torch.Tensor:
    """Return page-aligned uint8 [size], on huge pages if available."""
    memory = mmap.mmap(-1, size)
    with suppress(OSError, AttributeError):  # a kernel without huge pages, or another system
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


log = logging.getLogger(__name__)
BUFFERS = 2
RETRIES_S = (0.02, 0.2)
"""Pauses before retries of a layer; then the pass fails."""
_Free = SimpleQueue[int | None]
_Filled = SimpleQueue[tuple[int, int, Exception | None]]
"""(layer, buffer, reason of its absence)."""


class LayerStream:
    """Provides a store's layers in ascending order, to one thread."""

    def __init__(self, store: LayerStore, buffers: Sequence[LayerBuffer]) -> None:
        self.buffers = buffers
        self._free: _Free = SimpleQueue()
        self._filled: _Filled = SimpleQueue()
        for index in range(len(buffers)):
            self._free.put(index)
        reader = threading.Thread(
            target=_read, args=(store, buffers, self._free, self._filled), name="layers", daemon=True
        )
        reader.start()
        weakref.finalize(self, _end, self._free, reader)
        size = sum(store.sizes)
        log.info(
            "offload: %d layers of %.2f GB in all, %d at a time", len(store.sizes), size / 1e9, len(buffers)
        )

    @contextmanager
    def hold(self, layer: int) -> Iterator[int]:
        """Yield the index of a layer's buffer, while its work is issued.

        Raises:
            UnavailableError: if the layer cannot be read after retries. The next pass tries again.
        """
        index = self._take(layer)
        try:
            yield index
        finally:
            self.buffers[index].used()
            self._free.put(index)

    def _take(self, layer: int) -> int:
        while True:
            buffer, index, error = self._filled.get()
            if error is None and buffer == layer:
                return index
            self._free.put(index)
            if error is not None:
                raise error
            # else the pass before failed on its way, and its further layers come first


def _end(free: _Free, reader: threading.Thread) -> None:
    """End the reader, which must not copy while the interpreter shuts down."""
    free.put(None)
    if threading.current_thread() is not reader:  # else it collects the stream itself
        reader.join()


def _read(store: LayerStore, buffers: Sequence[LayerBuffer], free: _Free, filled: _Filled) -> None:
    """Read layers into free buffers; end at None instead of a buffer."""
    for layer in cycle(range(len(store.sizes))):
        index = free.get()
        if index is None:
            return
        filled.put((layer, index, _fill(buffers[index], store, layer)))


def _fill(buffer: LayerBuffer, store: LayerStore, layer: int) -> Exception | None:
    """Copy a layer into a buffer; return the error after all retries.

    The reader survives any error, as passes wait for it.
    """
    for wait_s in (*RETRIES_S, None):
        try:
            buffer.fill(store, layer)
        except UnavailableError as error:
            if wait_s is None:
                return error
            log.warning("%s; trying again", error)
            time.sleep(wait_s)
        except Exception as error:  # noqa: BLE001  # the pass raises it
            return error
        else:
            return None
    raise AssertionError("the last try returns")
