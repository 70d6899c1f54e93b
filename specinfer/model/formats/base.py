"""Defines kinds of weight formats, and the executors that support them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specinfer.system.threads import default_threads

if TYPE_CHECKING:  # the command names formats without numpy
    import numpy as np
    from numpy.typing import NDArray

    from specinfer.model.weights.config import ModelConfig

    Floats = NDArray[np.float32]
    Bytes = NDArray[np.uint8]

SMALL_BLOCKS = "q4_0"
"""Format of drafts from large GGUF files; the kernels requantise to it."""
LARGE_BITS, SMALL_BITS = 5.0, 4.5
"""Bits per weight above which a GGUF file is large, and those of `SMALL_BLOCKS`."""
_WEIGHTS_AT_ONCE = 1 << 18
"""Maximum weights per task of a thread; limits temporary memory."""


@dataclass(frozen=True, slots=True)
class Format:
    """Format of matrices in memory; vectors and embeddings are not quantised."""

    name: str

    def fits(self, config: ModelConfig | None, backend: str, dtype: str) -> str:
        """Return the reason why a backend lacks the format; empty if supported."""
        return ""


@dataclass(frozen=True, slots=True)
class NumberFormat(Format):
    """A floating-point type, to which quantised files are dequantised."""

    dtype: str

    def fits(self, config: ModelConfig | None, backend: str, dtype: str) -> str:
        return "" if dtype == self.dtype else f"needs dtype = {self.dtype}"


@dataclass(frozen=True, slots=True)
class GpuFormat(Format):
    """Format of matrices on a GPU, 8 bits per weight."""

    instead: str
    """Format for a CPU with as many bits."""

    def fits(self, config: ModelConfig | None, backend: str, dtype: str) -> str:
        return (
            "" if backend == "gpu" else f"needs the gpu executor; on a CPU {self.instead} has 8 bits a weight"
        )


@dataclass(frozen=True, slots=True)
class BlockFormat(Format):
    """Blocks of a GGUF type, for CPUs."""

    type_name: str
    block: int
    block_bytes: int

    def fits(self, config: ModelConfig | None, backend: str, dtype: str) -> str:
        fits = backend == "native" and dtype == "bfloat16"
        return "" if fits else "needs the native executor in bfloat16"

    def quantise(self, x: Floats) -> Bytes:
        """Quantise [N, K] float32 to rows [N, bytes], in parallel; `block` must divide K."""
        import gguf
        import numpy as np

        out = np.empty((len(x), x.shape[1] // self.block * self.block_bytes), np.uint8)
        step = max(1, _WEIGHTS_AT_ONCE // x.shape[1])

        def put(start: int) -> None:
            piece = np.ascontiguousarray(x[start : start + step], np.float32)
            out[start : start + step] = gguf.quantize(piece, gguf.GGMLQuantizationType[self.type_name])

        with ThreadPoolExecutor(default_threads()) as pool:
            list(pool.map(put, range(0, len(x), step)))
        return out

    def dequantise(self, rows: Bytes) -> Floats:
        """Return rows [N, bytes] as [N, K] float32."""
        import gguf

        numbers: Floats = gguf.dequantize(rows, gguf.GGMLQuantizationType[self.type_name])
        return numbers
