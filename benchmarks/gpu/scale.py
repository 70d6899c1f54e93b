"""Sizes that are measured: at full size, and at sizes that Triton's interpreter runs in seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


class Budget:
    """So many seconds from now on."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def left(self) -> float:
        """Seconds; negative when it is over."""
        return self._end - self._clock()

    def part(self, seconds: float) -> "Budget":
        """So many seconds of it, or what is left."""
        return Budget(min(seconds, self.left), self._clock)


GIB = 2**30


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of one attention layer."""

    query: int
    kv: int
    width: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One launch: requests of equal context, each with so many rows (tree nodes, root included)."""

    heads: HeadShape
    batch: int
    context: int
    nodes: int


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
    """Sizes of all sections."""

    name: str
    dtype: str
    copy_bytes: int
    checks: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    """Most important first; those that do not fit the time or the memory are left out by name."""
    distinct_bytes: int
    """Bytes of the buffers that launches go through: nothing is found in the chip's cache (60 MB on an H200)."""
    compiled: int
    """Number of the first cells that are measured with libraries that compile for every shape."""
    shapes: tuple[ModelShape, ...]
    drafter: ModelShape
    """Shape of the speculator that the services ask."""
    positions: int
    context: int
    """Tokens of every request in front of a pass."""
    nodes: tuple[int, ...]
    batches: tuple[int, ...]
    steps: int
    """Steps of the engine, for every figure."""
    new_tokens: int
    """Tokens of a request through the services."""


SEVEN, EIGHT = HeadShape(32, 32, 128), HeadShape(32, 8, 128)
"""Heads of Llama 2 7B, and of Llama 3 8B: four query heads share a key."""
AIM_CELL = Cell(SEVEN, 1, 4096, 64)
AIM_SHAPE, AIM_NODES = "Llama 7B", 32


def _cells() -> tuple[Cell, ...]:
    first = [Cell(heads, batch, 4096, 64) for batch in (1, 8) for heads in (SEVEN, EIGHT)]
    by_context = [Cell(EIGHT, batch, context, 64) for context in (512, 32768) for batch in (1, 8, 32)]
    by_nodes = [Cell(EIGHT, batch, 4096, nodes) for nodes in (1, 16, 32, 128) for batch in (1, 8)]
    rest = [
        Cell(EIGHT, batch, context, nodes)
        for batch in (1, 4, 32)
        for context in (512, 4096, 32768)
        for nodes in (1, 16, 64, 128)
    ]
    return tuple(dict.fromkeys([*first, *by_nodes, *by_context, *rest]))


FULL = Scale(
    name="full",
    dtype="bfloat16",
    copy_bytes=4 * GIB,
    checks=(
        *(Cell(heads, 3, 300, nodes) for heads in (SEVEN, EIGHT) for nodes in (1, 33, 128)),
        *(Cell(EIGHT, 2, 5000, nodes) for nodes in (16, 64)),
        Cell(HeadShape(9, 3, 64), 4, 1000, 40),
    ),
    cells=_cells(),
    distinct_bytes=GIB // 4,
    compiled=6,
    shapes=(
        ModelShape(AIM_SHAPE, 4096, 11008, 32, SEVEN, 32000),
        ModelShape("Llama 13B", 5120, 13824, 40, HeadShape(40, 40, 128), 32000),
        ModelShape("Llama 1B", 2048, 8192, 16, HeadShape(32, 8, 64), 128256),
    ),
    # LLaMA-68M, but for heads of 128, whose kernels are compiled by then
    drafter=ModelShape("Llama 68M", 768, 3072, 2, HeadShape(6, 6, 128), 32000),
    positions=4096,
    context=1024,
    nodes=(1, 2, 4, 8, 16, 32, 64),
    batches=(1, 8),
    steps=24,
    new_tokens=128,
)
_SMALL = HeadShape(4, 2, 16)
TINY = Scale(
    name="tiny",
    dtype="float16",
    copy_bytes=2**20,
    checks=(Cell(_SMALL, 2, 40, 5),),
    cells=(Cell(_SMALL, 1, 40, 4), Cell(_SMALL, 2, 20, 1), Cell(_SMALL, 1, 20, 4)),
    distinct_bytes=0,
    compiled=0,
    shapes=(ModelShape("tiny", 64, 96, 2, _SMALL, 96),),
    drafter=ModelShape("tinier", 64, 64, 1, _SMALL, 96),
    positions=256,
    context=24,
    nodes=(1, 4),
    batches=(1, 2),
    steps=2,
    new_tokens=12,
)
