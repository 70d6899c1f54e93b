"""Offloaded layers in turn, the next one's copy beside this one's work.

A reader thread fills two buffers in the order of the layers, again and again: while a pass works on one layer
the next one is copied, and between two passes the first ones are there already. A pass then takes

    max(copies of all layers, work on all layers) + the shorter one of one layer

instead of the sum of both, and its copies do not depend on how many tokens are in it.
"""

import logging
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from queue import SimpleQueue

from specinfer.errors import UnavailableError
from specinfer.model.offload.buffers import LayerBuffer
from specinfer.model.offload.stores import LayerStore

log = logging.getLogger(__name__)
BUFFERS = 2
RETRIES_S = (0.02, 0.2)
"""Seconds before each new attempt to read a layer; then the pass fails."""
_Free = SimpleQueue[int | None]
_Filled = SimpleQueue[tuple[int, int, Exception | None]]
"""(layer, buffer, reason of its absence)."""


class LayerStream:
    """Gives the layers of a store one at a time. For one thread, which takes them in ascending order."""

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
        weakref.finalize(self, self._free.put, None)
        size = sum(store.sizes)
        log.info(
            "offload: %d layers of %.2f GB in all, %d at a time", len(store.sizes), size / 1e9, len(buffers)
        )

    @contextmanager
    def hold(self, layer: int) -> Iterator[int]:
        """Yield the index of the buffer that holds a layer, while its work is being issued.

        Raises:
            UnavailableError: if the layer cannot be read, however often that is tried. The next pass goes on.
        """
        index = self._take(layer)
        try:
            yield index
        finally:
            self.buffers[index].used()
            self._free.put(index)

    def _take(self, layer: int) -> int:
        while True:
            found, index, error = self._filled.get()
            if error is None and found == layer:
                return index
            self._free.put(index)
            if error is not None:
                raise error
            # else the pass before failed on its way, and its further layers come first


def _read(store: LayerStore, buffers: Sequence[LayerBuffer], free: _Free, filled: _Filled) -> None:
    """Read layers into free buffers; end at None instead of a buffer."""
    for layer in cycle(range(len(store.sizes))):
        index = free.get()
        if index is None:
            return
        filled.put((layer, index, _fill(buffers[index], store, layer)))


def _fill(buffer: LayerBuffer, store: LayerStore, layer: int) -> Exception | None:
    """Copy a layer into a buffer; return the error if all attempts fail.

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
