"""Defines kinds of weight formats, and the executors that support them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specinfer.model.formats.rounding import Bytes, Floats, in_pieces

if TYPE_CHECKING:
    from specinfer.model.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Format:
    """Format of matrices in memory; vectors and embeddings are not quantised."""

    name: str
    help: str

    def fits(self, config: "ModelConfig | None", backend: str, dtype: str) -> str:
        """Return the reason why a backend lacks the format; empty if supported."""
        return ""


@dataclass(frozen=True, slots=True)
class NumberFormat(Format):
    """A floating-point type, to which quantised files are dequantised."""

    dtype: str

    def fits(self, config: "ModelConfig | None", backend: str, dtype: str) -> str:
        return "" if dtype == self.dtype else f"needs dtype = {self.dtype}"


@dataclass(frozen=True, slots=True)
class GpuFormat(Format):
    """Format of matrices on a GPU, 8 bits per weight."""

    instead: str
    """Format for a CPU with as many bits."""

    def fits(self, config: "ModelConfig | None", backend: str, dtype: str) -> str:
        return (
            "" if backend == "gpu" else f"needs the gpu executor; on a CPU {self.instead} has 8 bits a weight"
        )


@dataclass(frozen=True, slots=True)
class BlockFormat(Format):
    """Blocks of a GGUF type, for CPUs."""

    type_name: str
    block: int
    block_bytes: int
    quantise_blocks: Callable[[Floats], Bytes]
    """Quantises rows [n, K] float32 to bytes."""
    fallback: str = ""
    """Format of rows whose length is no multiple of `block`; empty: unquantised."""

    def fits(self, config: "ModelConfig | None", backend: str, dtype: str) -> str:
        fits = backend == "native" and dtype == "bfloat16"
        return "" if fits else "needs the native executor in bfloat16"

    @property
    def bits(self) -> float:
        return 8 * self.block_bytes / self.block

    def quantise(self, x: Floats) -> Bytes:
        """Quantise [N, K] float32 to rows [N, bytes]; `block` must divide K."""
        return in_pieces(x, x.shape[1] // self.block * self.block_bytes, self.quantise_blocks)

    def dequantise(self, rows: Bytes) -> Floats:
        """Return rows [N, bytes] as [N, K] float32."""
        import gguf

        numbers: Floats = gguf.dequantize(rows, gguf.GGMLQuantizationType[self.type_name])
        return numbers
