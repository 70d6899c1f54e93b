"""Measure the speed of the kernel: against the time in which its bytes can be copied, and against libraries."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.gpu.check import TOLERANCE, error_of
from benchmarks.gpu.libraries import COMPILED, LIBRARIES, Launcher, missing
from benchmarks.gpu.scale import Cell
from benchmarks.gpu.section import Rows, SectionContext, give_back_memory
from benchmarks.gpu.workload import Buffers, Workload, least_bytes
from specinfer.model.options import DTYPES

log = logging.getLogger(__name__)
_MOST_SETS = 32
_SHARE_OF_MEMORY = 0.25
"""Share of the memory for one set of buffers: libraries hold copies of their own, and float32 numbers come first."""


def measure_bandwidth(context: SectionContext, rows: Rows) -> None:
    """Bytes per second of a large copy, those read and those written; the better of a few sizes."""
    for share in (1, 2, 4):
        source = torch.ones(context.scale.copy_bytes // share, dtype=torch.uint8, device=context.device)
        target = torch.empty_like(source)
        seconds = context.timer.launched([lambda source=source, target=target: target.copy_(source)])
        rows.append(
            {"bytes": 2 * source.numel(), "seconds": seconds, "bytes_per_s": 2 * source.numel() / seconds}
        )


def bandwidth(context: SectionContext) -> float:
    """The device's, as measured in this run."""
    return max(float(row["bytes_per_s"]) for row in context.results["bandwidth"])


def measure_attention(context: SectionContext, rows: Rows) -> None:
    """A row per cell, the most important first; cells that are left out are named."""
    for number, cell in enumerate(context.scale.cells):
        if context.budget.left <= 0:
            rows.append(_cell(cell) | {"skipped": "time is up"})
        elif not _fits(cell, context):
            rows.append(_cell(cell) | {"skipped": "more memory than there is"})
        else:
            context.say(f"attention: {cell}")
            rows.append(measure_cell(cell, context, compiled=number < context.scale.compiled))
            give_back_memory(context.device)


def measure_cell(cell: Cell, context: SectionContext, compiled: bool) -> dict[str, Any]:
    """Times of one cell: ours, every library's, and the bound."""
    dtype = DTYPES[context.scale.dtype]
    workload, size = Workload.of(cell, dtype, context.device), least_bytes(cell, dtype.itemsize)
    count = max(1, min(_MOST_SETS, -(-context.scale.distinct_bytes // size)))
    sets = [workload.buffers(seed) for seed in range(count)]
    ours = context.timer.launched([lambda b=b: workload.launch(b) for b in sets])
    bound = size / bandwidth(context)
    row = _cell(cell) | {"bytes": size, "bound_s": bound, "kernel_s": ours, "of_bound": bound / ours}
    expected = workload.launch(sets[0]).double()
    libraries: dict[str, Any] = {}
    for name, prepare in LIBRARIES.items():
        if name in missing():
            libraries[name] = {"skipped": missing()[name]}
        elif name in COMPILED and not compiled:
            libraries[name] = {"skipped": "compiled for the first cells only"}
        else:
            libraries[name] = _library(lambda prepare=prepare: prepare(workload), sets, expected, context)
    times = [each["seconds"] for each in libraries.values() if "seconds" in each]
    return row | {"libraries": libraries, "over_best_library": min(times) / ours if times else None}


def _library(
    prepare: Callable[[], Launcher], sets: Sequence[Buffers], expected: torch.Tensor, context: SectionContext
) -> dict[str, Any]:
    """Its time, if its results are ours; why there is none otherwise."""
    try:
        launcher = prepare()
        calls = [launcher(b) for b in sets]
        found: Any = calls[0]()
        error = error_of(found, expected)
        if error > 2 * TOLERANCE[found.dtype]:
            return {"skipped": f"its results differ from ours: {error:.1e}"}
        return {"seconds": context.timer.launched(calls), "error": error}
    except Exception as error:  # libraries raise what they like; the others are measured
        log.exception("a library failed")
        return {"skipped": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "heads": f"{cell.heads.query}/{cell.heads.kv} x {cell.heads.width}",
        "batch": cell.batch,
        "context": cell.context,
        "nodes": cell.nodes,
    }


def _fits(cell: Cell, context: SectionContext) -> bool:
    if torch.device(context.device).type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(context.device)
    return 2 * least_bytes(cell, 2) < _SHARE_OF_MEMORY * free
