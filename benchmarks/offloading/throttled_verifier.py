"""Run a verifier whose disk bandwidth is $OFFLOAD_BYTES_PER_SECOND.

The reader's thread sleeps after each layer that was read too fast. Only this benchmark throttles.
"""

import os
import sys
import time

import torch

from specinfer.model.offload.stores import DiskStore
from verifier_svc.__main__ import main

BANDWIDTH = "OFFLOAD_BYTES_PER_SECOND"


def throttle(bytes_per_second: float) -> None:
    """Limit the bandwidth of every `DiskStore` of this process."""
    read = DiskStore.fetch

    def fetch(store: DiskStore, layer: int, staging: torch.Tensor) -> torch.Tensor:
        due = time.monotonic() + store.sizes[layer] / bytes_per_second
        data = read(store, layer, staging)
        time.sleep(max(0.0, due - time.monotonic()))
        return data

    DiskStore.fetch = fetch  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    throttle(float(os.environ[BANDWIDTH]))
    main(sys.argv[1:])
