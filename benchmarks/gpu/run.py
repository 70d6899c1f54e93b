"""Sizes and sections of the benchmark; the page is written after every line."""

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.gpu.timers import Timer
from benchmarks.publish import write

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Numbers and width of the heads of an attention layer."""

    query: int
    kv: int
    width: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A launch: requests with equal contexts and numbers of nodes."""

    heads: HeadShape
    batch: int
    context: int
    nodes: int

    def __str__(self) -> str:
        heads = f"{self.heads.query}/{self.heads.kv} x {self.heads.width}"
        return f"{heads}, batch {self.batch}, {self.nodes} nodes after {self.context}"


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama model without weights."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: HeadShape
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Scale:
    dtype: str
    copy_bytes: int
    checks: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    """Cells in order of importance; time may exclude the last ones."""
    distinct_bytes: int
    """Total bytes of a call's buffer sets; must exceed the chip's cache."""
    shapes: tuple[ModelShape, ...]
    context: int
    """GpuContext tokens of every request."""
    nodes: tuple[int, ...]
    batches: tuple[int, ...]
    steps: int
    """Number of timed steps of the engine per figure."""


_SEVEN, _EIGHT, _SMALL = HeadShape(32, 32, 128), HeadShape(32, 8, 128), HeadShape(4, 2, 16)
FULL = Scale(
    dtype="bfloat16",
    copy_bytes=4 * 2**30,
    checks=(
        *(Cell(heads, 3, 300, nodes) for heads in (_SEVEN, _EIGHT) for nodes in (1, 33, 128)),
        Cell(_EIGHT, 2, 5000, 64),
        Cell(HeadShape(9, 3, 64), 4, 1000, 40),
    ),
    cells=(
        *(Cell(heads, batch, 4096, 64) for batch in (1, 8) for heads in (_SEVEN, _EIGHT)),
        *(Cell(_EIGHT, batch, 4096, nodes) for nodes in (1, 16, 32, 128) for batch in (1, 8)),
        *(Cell(_EIGHT, batch, context, 64) for context in (512, 32768) for batch in (1, 8, 32)),
    ),
    distinct_bytes=2**28,
    shapes=(
        ModelShape("Llama 7B", 4096, 11008, 32, _SEVEN, 32000),
        ModelShape("Llama 1B", 2048, 8192, 16, HeadShape(32, 8, 64), 128256),
    ),
    context=1024,
    nodes=(1, 2, 4, 8, 16, 32, 64),
    batches=(1, 8),
    steps=24,
)
TINY = Scale(
    dtype="float16",
    copy_bytes=2**12,
    checks=(Cell(_SMALL, 2, 40, 5),),
    cells=(Cell(_SMALL, 1, 40, 4),),
    distinct_bytes=0,
    shapes=(ModelShape("tiny", 64, 96, 1, _SMALL, 96),),
    context=24,
    nodes=(1, 4),
    batches=(1, 2),
    steps=1,
)


@dataclass(slots=True)
class GpuContext:
    """Device, timer, sizes and time of a run."""

    device: str
    timer: Timer
    scale: Scale
    seconds: float
    """Time limit from now on."""
    bandwidth: float = 0.0
    """Bytes per second of a copy, read and written."""
    passes: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Device seconds of measured passes by shape, batch and nodes."""
    _end: float = 0.0

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds left; negative after the end."""
        return self._end - time.monotonic()

    def free(self) -> None:
        """Free unused device memory, including executors in reference cycles."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


class WrongKernelError(RuntimeError):
    """A kernel's results differ from the reference."""


Section = Callable[[GpuContext], Iterator[str]]
SECTIONS: Mapping[str, str] = {
    "Kernels against float64": "benchmarks.gpu.kernels:check",
    "Copy bandwidth": "benchmarks.gpu.kernels:bandwidth",
    "Tree attention, one layer (aim: 0.8 of the bound, 1.1x of the best library)": "benchmarks.gpu.kernels:attention",
    "Verify passes on random weights (aim: 1.25x of reading)": "benchmarks.gpu.engine:passes",
    "The same passes by the torch executor": "benchmarks.gpu.engine:executors",
    "Steps of the verifier's engine": "benchmarks.gpu.engine:steps",
}
"""`module:function` by heading, in order; the first one checks what the others time."""


def run(context: GpuContext, sections: Mapping[str, str], opening: str, out: Path) -> int:
    """Run sections and write their page; return the exit code, 1 if a kernel is wrong."""
    lines = ["# A GPU: kernels, passes and steps", "", opening, ""]
    if context.scale is TINY:
        lines += ["**A test of this benchmark. Its figures mean nothing.**", ""]
    code = 0
    for heading, place in sections.items():
        lines += [f"## {heading}", ""]
        module, name = place.split(":")
        try:
            section: Section = getattr(import_module(module), name)
            for text in section(context) if context.left > 0 else ["Left out: time is up."]:
                lines.append(text)
                print(f"{context.left:6.0f} s left  {text}", file=sys.stderr, flush=True)
                write(out, "\n".join([*lines, ""]))
        except WrongKernelError as error:
            lines.append(f"**{error}: nothing was timed.**")
            code = 1
        except Exception as error:  # the other sections are still measured
            log.exception("section %r failed; the next section follows", heading)
            lines.append(f"Left out: {type(error).__name__}: {error}")
        lines.append("")
        write(out, "\n".join(lines))
        context.free()
        if code:
            break
    return code
