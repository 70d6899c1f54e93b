"""Streams offloaded layers: copies the next layer while a pass computes one.

A reader thread fills two buffers, in host memory for a CPU or on the device for a GPU, in the order of the layers,
cyclically. While a pass computes one layer, the next is copied; between passes the first two layers are copied. With
c and w seconds for copying and computing one of L layers, a pass takes

    L max(c, w) + min(c, w)

instead of L (c + w); c does not depend on the number of tokens.
"""

from __future__ import annotations

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

from specinfer.errors import UnavailableError
from specinfer.model.lazy_torch import torch
from specinfer.model.offload.stores import PAGE, LayerStore


class LayerBuffer(Protocol):
    """Memory for one layer: a reader thread fills it, a pass reads."""

    memory: torch.Tensor
    """[bytes] uint8."""

    def fill(self, store: LayerStore, layer: int) -> None:
        """Copy a layer into the buffer, once its old content is unused."""

    def used(self) -> None:
        """Allow refilling after all work on the content issued until now."""


class HostBuffer:
    """Buffer in host memory, for passes on a CPU."""

    def __init__(self, size: int) -> None:
        self.memory = host_memory(size)

    def fill(self, store: LayerStore, layer: int) -> None:
        data = store.fetch(layer, self.memory)
        if data.data_ptr() != self.memory.data_ptr():
            self.memory[: len(data)] = data

    def used(self) -> None:
        """Do nothing: on a CPU all work is finished when it returns."""


class Copies(Protocol):
    """Copies to a device while the device computes."""

    def copy(self, host: torch.Tensor, memory: torch.Tensor) -> None:
        """Copy a tensor, and wait until the copy is complete."""

    def mark(self) -> object:
        """Return an event after all work issued until now."""

    def wait(self, mark: object) -> None:
        """Wait for an event that `mark` returned."""


class CudaCopies:
    """Copies on a CUDA stream of its own, while kernels run."""

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, host: torch.Tensor, memory: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            memory.copy_(host, non_blocking=True)
        self._stream.synchronize()

    def mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.current_stream(self._stream.device).record_event()
        return event

    def wait(self, mark: object) -> None:
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()


class DeviceBuffer:
    """Buffer on a device, filled from a store through host memory."""

    def __init__(self, size: int, device: str, staging: torch.Tensor, copies: Copies) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._staging, self._copies = staging, copies
        self._last_use: object = None

    def fill(self, store: LayerStore, layer: int) -> None:
        host = store.fetch(layer, self._staging)
        if self._last_use is not None:
            self._copies.wait(self._last_use)
        self._copies.copy(host, self.memory[: len(host)])

    def used(self) -> None:
        self._last_use = self._copies.mark()


def make_buffers(count: int, store: LayerStore, device: str) -> list[LayerBuffer]:
    """Return buffers for any layers of a filled store."""
    size = -(-max(store.sizes) // PAGE) * PAGE
    if torch.device(device).type == "cpu":
        return [HostBuffer(size) for _ in range(count)]
    # one staging area for all buffers: the reader fills one buffer at a time
    staging = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    copies = CudaCopies(device)
    return [DeviceBuffer(size, device, staging, copies) for _ in range(count)]


def host_memory(size: int) -> torch.Tensor:
    """Return page-aligned memory of `size` bytes, on huge pages if possible."""
    memory = mmap.mmap(-1, size)
    with suppress(OSError, AttributeError):  # a system without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


log = logging.getLogger(__name__)
BUFFERS = 2
RETRIES_S = (0.02, 0.2)
"""Seconds before each retry of a read; then the pass fails."""
_Free = SimpleQueue[int | None]
_Filled = SimpleQueue[tuple[int, int, Exception | None]]
"""(Layer, buffer's index, error if reading failed) of filled buffers."""


class LayerStream:
    """Reads a store's layers in order, ahead of the passes."""

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
            "offload: %d layers, %.2f GB in total, %d in memory", len(store.sizes), size / 1e9, len(buffers)
        )

    @contextmanager
    def hold(self, layer: int) -> Iterator[int]:
        """Yield the index of the buffer with a layer.

        All work on the layer must be issued within the block.
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
            # otherwise an earlier pass failed midway, and its remaining layers come first


def _end(free: _Free, reader: threading.Thread) -> None:
    """Stop the reader: it must not copy while the interpreter shuts down."""
    free.put(None)
    if threading.current_thread() is not reader:  # otherwise the reader itself collects the stream
        reader.join()


def _read(store: LayerStore, buffers: Sequence[LayerBuffer], free: _Free, filled: _Filled) -> None:
    """Fill free buffers with layers, cyclically; stop at None."""
    for layer in cycle(range(len(store.sizes))):
        index = free.get()
        if index is None:
            return
        filled.put((layer, index, _fill(buffers[index], store, layer)))


def _fill(buffer: LayerBuffer, store: LayerStore, layer: int) -> Exception | None:
    """Copy a layer into a buffer; return the last retry's error.

    The reader must survive any error, as passes wait for it.
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
