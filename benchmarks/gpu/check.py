"""Are the kernels right? Against attention in float64, on poisoned buffers, before anything is timed."""

from typing import Any

import torch

from benchmarks.gpu.section import SectionContext
from benchmarks.gpu.workload import Buffers, Workload, slots
from specinfer.model.gpu.layer_kernels import move
from specinfer.model.options import DTYPES

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
"""Largest ||found - exact|| / ||exact||: operands of bfloat16 give between 1e-3 and 1e-2."""


class WrongKernelError(RuntimeError):
    """A kernel's results are not those of the reference."""


def exact(workload: Workload, b: Buffers) -> torch.Tensor:
    """[T, H, D] float64: each request's attention over gathered keys, with the mask written out."""
    batch, found = workload.batch, torch.empty(b.query.shape, dtype=torch.float64, device=b.query.device)
    group = b.query.shape[1] // b.key.shape[1]
    keys, values = (memory.double() for memory in b.cache)
    places = torch.tensor(batch.write_slots, device=b.query.device)
    keys[:, places], values[:, places] = (new.double().transpose(0, 1) for new in (b.key, b.value))
    for rows in batch.rows:
        k, v = (
            memory[:, slots(rows, range(rows.length))].repeat_interleave(group, 0)
            for memory in (keys, values)
        )
        q = b.query[rows.start : rows.stop].double().transpose(0, 1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        shares = scores.masked_fill(
            ~visible(workload, rows.start // workload.cell.nodes), -torch.inf
        ).softmax(-1)
        found[rows.start : rows.stop] = (shares @ v).transpose(0, 1)
    return found


def visible(workload: Workload, request: int) -> torch.Tensor:
    """[nodes, context + nodes] what the rows of a request see."""
    rows = workload.batch.rows[request]
    seen = torch.zeros(len(rows.visible), rows.length, dtype=torch.bool)
    for row, (leading, extra) in enumerate(zip(rows.visible, rows.extra, strict=True)):
        seen[row, :leading] = True
        seen[row, extra] = True
    return seen.to(workload.device)


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||; infinite where not every element was written."""
    if bool(found.isnan().any()):
        return float("inf")
    return float((found.double() - expected).norm() / expected.norm())


def check_kernels(context: SectionContext, rows: list[dict[str, Any]]) -> None:
    """Every check's error.

    Raises:
        WrongKernelError: at the first one that is too large. Nothing is timed then.
    """
    dtype = DTYPES[context.scale.dtype]
    for number, cell in enumerate(context.scale.checks):
        context.say(f"checking {cell}")
        workload = Workload.of(cell, dtype, context.device, seed=number)
        buffers = workload.buffers(seed=number)
        expected = exact(workload, buffers)
        before = [memory.clone() for memory in buffers.cache]
        error = error_of(workload.launch(buffers), expected)
        for memory, new in zip(before, (buffers.key, buffers.value), strict=True):
            memory[:, workload.batch.write_slots] = new.transpose(0, 1)
        same = all(torch.equal(*pair) for pair in zip(before, buffers.cache, strict=True))
        rows.append({"kernel": "tree attention", "cell": repr(cell), "error": error, "cache_exact": same})
        if error > TOLERANCE[dtype] or not same:
            raise WrongKernelError(f"tree attention, {cell}: error {error:.2e}, cache exact: {same}")
    rows.append(
        {"kernel": "compaction", "cell": "", "error": _check_compaction(context, dtype), "cache_exact": True}
    )


def _check_compaction(context: SectionContext, dtype: torch.dtype) -> float:
    keys, values = (torch.randn(2, 2, 64, 16, device=context.device).to(dtype) for _ in range(2))
    source, target = [9, 3, 20, 21], [2, 3, 4, 5]
    expected = [memory.clone() for memory in (keys, values)]
    for memory, old in zip(expected, (keys, values), strict=True):
        memory[:, :, target] = old[:, :, source]
    move(keys, values, source, target)
    if not all(torch.equal(*pair) for pair in zip(expected, (keys, values), strict=True)):
        raise WrongKernelError("compaction: the cache is not what torch makes of it")
    return 0.0
