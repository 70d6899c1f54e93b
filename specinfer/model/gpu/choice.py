"""Chooses the target's tokens on a GPU, in two kernel launches.

It implements `specinfer.model.sampling.choices`. A pass of R rows transfers 24 bytes per row, and 8 per token of an
excerpt, instead of 4 V per row. torch sorts whole rows with top-k or top-p, which takes longer than both launches.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.gpu.choice_kernels import conclude, scan
from specinfer.model.gpu.description import power_above
from specinfer.model.sampling.choices import Choices, ChoiceTask, Excerpt
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE, Float64
from specinfer.model.sampling.noise import noise_keys
from specinfer.request.sampling import Sampling
from specinfer.tree.token_tree import Int32

BLOCK = 2048
"""Columns per program of the kernel `scan`; other sizes were not measured."""
CHUNK = 64
NO_CUT = 2.0
"""Value for a disabled top-p: above any sum of probabilities."""
_FOUND = 3
"""Results per row: winner, its P, sum of P outside the excerpt."""


def choose(tasks: Sequence[ChoiceTask]) -> list[Choices]:
    """Return the results of tasks whose logits are on one device."""
    counts = [len(task.positions) for task in tasks]
    starts = [*accumulate(counts, initial=0)]
    wanted = [task.excerpts.get(row) for task, n in zip(tasks, counts, strict=True) for row in range(n)]
    cut = [cut_logits(task.logits, task.sampling) for task in tasks]
    winners, p = _winners(tasks, cut, wanted)
    lists = np.split(p, [*accumulate(0 if ids is None else len(ids) for ids in wanted[:-1])])
    return [
        _choices(winners[start : start + n], lists[start : start + n], wanted[start : start + n])
        for start, n in zip(starts, counts, strict=False)
    ]


def _choices(winners: Float64, p: Sequence[Float64], wanted: Sequence[Int32 | None]) -> Choices:
    tokens = winners[:, 0].astype(np.int64).tolist()
    excerpts = {
        row: Excerpt(ids, p[row], float(winners[row, 2]), (tokens[row], float(winners[row, 1])))
        for row, ids in enumerate(wanted)
        if ids is not None
    }
    return Choices(tokens, excerpts)


def _winners(
    tasks: Sequence[ChoiceTask], logits: Sequence[torch.Tensor], wanted: Sequence[Int32 | None]
) -> tuple[Float64, Float64]:
    """Return each row's winner and sums [R, 3], and P of excerpts."""
    device, size = logits[0].device, logits[0].shape[1]
    rows, parts = len(wanted), -(-size // BLOCK)
    numbers = torch.from_numpy(_numbers(tasks, logits, wanted)).to(device, non_blocking=True)
    addresses, keys, temperatures, started, left_out = _sections(numbers, rows)
    peaks = torch.empty(rows, parts, device=device)
    sums, times = (torch.empty(rows, parts, dtype=torch.float64, device=device) for _ in range(2))
    tokens = torch.empty(rows, parts, dtype=torch.int32, device=device)
    out = torch.empty(rows * _FOUND + len(left_out), dtype=torch.float64, device=device)
    partial = peaks, sums, times, tokens
    scan[rows, parts](
        *(addresses, temperatures, keys, left_out, started, *partial, size, parts), BLOCK=BLOCK, num_warps=8
    )
    conclude[rows,](
        *(addresses, temperatures, left_out, started, *partial, out, out[rows * _FOUND :], parts),
        PARTS=power_above(parts),
        CHUNK=CHUNK,
    )
    numbers_found = out.cpu().numpy()
    return numbers_found[: rows * _FOUND].reshape(rows, _FOUND), numbers_found[rows * _FOUND :]


def _numbers(
    tasks: Sequence[ChoiceTask], logits: Sequence[torch.Tensor], wanted: Sequence[Int32 | None]
) -> NDArray[np.int64]:
    keys = [noise_keys(task.sampling.seed, task.positions) for task in tasks]
    temperatures = [np.full(len(task.positions), _temperature(task.sampling)) for task in tasks]
    lists = [np.zeros(0, np.int64) if ids is None else ids.astype(np.int64) for ids in wanted]
    sections = [
        np.concatenate([_addresses(rows) for rows in logits]),
        np.concatenate(keys).view(np.int64),
        np.concatenate(temperatures).view(np.int64),
        np.array([*accumulate(map(len, lists), initial=0)], np.int64),
        *lists,
    ]
    return np.concatenate(sections)


def _sections(numbers: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
    sizes = [rows, rows, rows, rows + 1, len(numbers) - 4 * rows - 1]
    addresses, keys, temperatures, started, left_out = torch.split(numbers, sizes)
    return addresses, keys, temperatures.view(torch.float64), started, left_out


def _addresses(rows: torch.Tensor) -> NDArray[np.int64]:
    assert rows.dtype is torch.float32
    assert rows.stride(1) == 1
    return rows.data_ptr() + np.arange(len(rows), dtype=np.int64) * (rows.stride(0) * rows.element_size())


def _temperature(sampling: Sampling) -> float:
    return 0.0 if sampling.greedy else max(sampling.temperature, SMALLEST_TEMPERATURE)


def cut_logits(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return logits [N, V] with -infinity for tokens that sampling excludes.

    It applies min-p, top-k and top-p.
    """
    size = logits.shape[1]
    top_k = sampling.top_k if 0 < sampling.top_k < size else size
    if sampling.greedy:
        return logits
    if sampling.min_p:
        logits = _cut_by_best(logits, sampling)
    if top_k == size and sampling.top_p >= 1:
        return logits
    column = logits.new_empty(len(logits), 1, dtype=torch.float64)
    top_p = column.new_full(column.shape, sampling.top_p if sampling.top_p < 1 else NO_CUT)
    temperatures = column.new_full(column.shape, _temperature(sampling))
    return cut_rows(logits, temperatures, column.new_full(column.shape, top_k, dtype=torch.int64), top_p)


def _cut_by_best(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply min-p to logits [N, V]; rows with NaN are unchanged."""
    best = logits.amax(-1, keepdim=True)
    least = (best.double() + _temperature(sampling) * math.log(sampling.min_p)).float()
    return logits.masked_fill(logits < least, -torch.inf)


def cut_rows(
    logits: torch.Tensor, temperatures: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Apply top-k and top-p to logits [R, V], as `probabilities` does.

    Tokens with equal logits: top-k keeps all of them; top-p keeps one if the sum before it is below top-p. A row with a
    NaN becomes -infinity.

    Args:
        temperatures: [R, 1] float64.
        top_k: [R, 1] int64; V keeps all tokens.
        top_p: [R, 1] float64; `NO_CUT` keeps all tokens.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    kept = (ordered >= ordered.gather(1, (top_k - 1).clamp(min=0))) & ordered[:, :1].isfinite()
    p = ordered.double().masked_fill(~kept, -torch.inf).div(temperatures).softmax(-1)
    kept &= p.cumsum(-1) - p < top_p
    return torch.empty_like(logits).scatter_(1, order, torch.where(kept, ordered, -torch.inf))
