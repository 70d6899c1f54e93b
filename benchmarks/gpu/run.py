"""Sizes and parts of the benchmark; the page is written after every line."""

import gc
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu.parts import PartEndedError, WrongResultError, in_child
from benchmarks.gpu.timers import Timer
from benchmarks.publish import write

_LATE = "Left out: time is up."


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
class ServedShape:
    """A model for services, whose first layers are its draft."""

    shape: ModelShape
    dtype: str
    draft_layers: int
    prompt: int
    """Tokens of a prompt."""
    new_tokens: int
    checked: int
    """Number of answers that are compared with plain decoding."""
    streams: tuple[int, ...]
    """Numbers of requests at once."""


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
    served: tuple[ServedShape, ServedShape]
    """Models of `specinfer up` and of `specinfer serve`."""
    tests: tuple[str, ...]
    """Arguments of pytest."""


_SEVEN, _EIGHT, _SMALL = HeadShape(32, 32, 128), HeadShape(32, 8, 128), HeadShape(4, 2, 16)
_7B = ModelShape("Llama 7B", 4096, 11008, 32, _SEVEN, 32000)
_1B = ModelShape("Llama 1B", 2048, 8192, 16, HeadShape(32, 8, 64), 128256)
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
    shapes=(_7B, _1B),
    context=1024,
    nodes=(1, 2, 4, 8, 16, 32, 64),
    batches=(1, 8),
    steps=24,
    served=(
        ServedShape(_1B, "float32", 2, 256, 128, 16, (1, 8, 32)),
        ServedShape(_7B, "bfloat16", 2, 256, 128, 16, (1, 8, 32)),
    ),
    tests=("tests/gpu", "tests/unit/model/gpu", "--ignore=tests/gpu/test_services.py"),
)
_TINY = ModelShape("tiny", 32, 48, 2, HeadShape(2, 1, 16), 300)
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
    served=(
        ServedShape(_TINY, "float32", 1, 8, 8, 2, (1, 2)),
        ServedShape(_TINY, "float32", 1, 8, 8, 2, (1,)),
    ),
    tests=("tests/unit/model/gpu/test_description.py",),
)


@dataclass(slots=True)
class GpuContext:
    """Device, timer, sizes and time of a run."""

    device: str
    timer: Timer
    scale: Scale
    seconds: float
    """Time limit from now on."""
    executor: str = "auto"
    """The services' executor."""
    folder: Path | None = None
    """Folder for models; None: the system's for temporary files."""
    bandwidth: float = math.nan
    """Bytes per second of a copy, read and written; NaN: not measured."""
    passes: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Device seconds of measured passes by shape, batch and nodes."""
    _end: float = 0.0

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds left; negative after the end."""
        return self._end - time.monotonic()

    def limit(self, seconds: float) -> None:
        """End within `seconds` from now on."""
        self._end = min(self._end, time.monotonic() + seconds)

    def free(self) -> None:
        """Free unused device memory, including executors in reference cycles."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


class WrongKernelError(WrongResultError):
    """A kernel's results differ from the reference."""


class WrongTextError(WrongResultError):
    """An answer of the services differs from plain decoding."""


class GpuPart(NamedTuple):
    """A part of the benchmark, which runs in its own process."""

    heading: str
    place: str
    """`module:function`: a generator of Markdown lines; the function's name is the part's name."""
    seconds: float
    """Time limit, except of tests of this benchmark."""

    @property
    def name(self) -> str:
        return self.place.partition(":")[2]

    def lines(self, context: GpuContext, seconds: float) -> Iterator[str | GpuContext]:
        """Yield the part's lines within `seconds`, then the context with what was measured."""
        context.limit(seconds)
        module, name = self.place.split(":")
        with torch.inference_mode():
            yield from getattr(import_module(module), name)(context)
        yield context


PARTS = (
    GpuPart("Tests", "benchmarks.gpu.suite:tests", 120),
    GpuPart("Kernels against float64", "benchmarks.gpu.kernels:check", 60),
    GpuPart("`specinfer up`, Llama 1B in float32", "benchmarks.gpu.services:up", 170),
    GpuPart("`specinfer serve`, Llama 7B in bfloat16", "benchmarks.gpu.services:serve", 150),
    GpuPart("Copy bandwidth", "benchmarks.gpu.kernels:bandwidth", 30),
    GpuPart("Verify passes (aim: 1.25x of reading at 1 to 16 nodes)", "benchmarks.gpu.engine:passes", 120),
    GpuPart(
        "Tree attention, one layer (aim: 0.9 of the bound at batch 8, 1.1x of the best library)",
        "benchmarks.gpu.kernels:attention",
        90,
    ),
    GpuPart("Steps of the verifier's engine", "benchmarks.gpu.engine:steps", 60),
)
"""All parts, the most important first: time may exclude the last ones."""
_GRACE_S = 10.0
"""Seconds after a part's time limit until its process is killed."""


def run(context: GpuContext, parts: Sequence[GpuPart], opening: str, out: Path) -> int:
    """Run parts and write their page after every line.

    Returns 1 if a kernel or a text is wrong. Nothing is timed after a wrong kernel.
    """
    lines = ["# A GPU: tests, services, kernels, passes and steps", "", opening, ""]
    if is_test := context.scale is TINY:
        lines += ["**A test of this benchmark. Its figures mean nothing.**", ""]
    code = 0

    def add(*more: str) -> None:
        lines.extend(more)
        print(f"{context.left:6.0f} s left  {' '.join(more)}", file=sys.stderr, flush=True)
        write(out, "\n".join([*lines, ""]))

    for part in parts:
        add(f"## {part.heading}", "")
        started, limit = time.monotonic(), context.left if is_test else min(part.seconds, context.left)
        try:
            for item in (
                in_child(partial(part.lines, context, limit), limit + _GRACE_S) if limit > 0 else [_LATE]
            ):
                if isinstance(item, str):
                    add(item)
                else:
                    context.bandwidth, context.passes = item.bandwidth, item.passes
        except WrongKernelError as error:
            add(f"**{error}: nothing was timed.**", "")
            return 1
        except WrongTextError as error:
            add(f"**{error}.**")
            code = 1
        except PartEndedError as error:
            add(f"Left out: {error}")
        add("", f"{time.monotonic() - started:.0f} s.", "")
    return code
