"""Computes distributions from logits: temperature, min-p, top-k, then top-p.

All verification and drafting uses these functions, so that P and q are computed alike. They work on single rows in
numpy: many rows of a tree are never used, and a row of 50,000 numbers is too short for torch's threads to gain time
(benchmarks/tried.md#numpy-rows).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specinfer.model.arrays import Array, as_floats
from specinfer.model.native.noise import native_softmax
from specinfer.request.sampling import Sampling, StreamDomain, stream_key

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
SMALLEST_TEMPERATURE = 1e-4
_LIKELY = 1024


def probabilities(logits: Array, sampling: Sampling) -> Float64:
    """Return the distribution [V] float64 of logits [V], after all sampling parameters.

    Greedy: the first of the most probable tokens has probability 1. If a logit is a NaN, all probabilities are.
    """
    row = as_floats(logits)
    if sampling.greedy:
        one_hot = np.zeros(len(row))
        one_hot[row.argmax()] = 1.0
        return one_hot
    if sampling.top_k and sampling.top_k < len(row):
        row = np.where(row < np.partition(row, -sampling.top_k)[-sampling.top_k], -np.inf, row)
    temperature = max(sampling.temperature, SMALLEST_TEMPERATURE)
    if sampling.min_p:
        row = np.where(row < least_logit(row.max(), temperature, sampling.min_p), -np.inf, row)
    p = native_softmax(row, temperature)
    if p is None:
        p = softmax(row, temperature)
    return _nucleus(p, sampling.top_p) if sampling.top_p < 1 else p


def least_logit(best: np.float32, temperature: float, min_p: float) -> np.float32:
    """Return the minimum logit that min-p keeps, given the maximum logit."""
    return np.float32(best + temperature * np.log(min_p))


def softmax(row: Float32, temperature: float) -> Float64:
    """Return the softmax [V] float64 of logits, without compiled kernels."""
    p: Float64 = row.astype(np.float64)
    with np.errstate(invalid="ignore"):  # the receiver of NaNs reports them
        p -= p.max()
        p /= temperature
        np.exp(p, out=p)
        p /= p.sum()
    return p


def _nucleus(p: Float64, top_p: float) -> Float64:
    """Keep the most probable tokens until their sum reaches top_p; renormalise."""
    likely = np.argpartition(p, -_LIKELY)[-_LIKELY:] if len(p) > _LIKELY else np.arange(len(p))
    if p[likely].sum() < top_p:  # a flat distribution: all tokens may be needed
        likely = np.arange(len(p))
    order = likely[np.lexsort((likely, -p[likely]))]  # of equal probabilities, the first token first
    before = np.cumsum(p[order]) - p[order]
    kept = np.zeros_like(p)
    chosen = order[before < top_p]
    kept[chosen] = p[chosen]
    kept /= kept.sum()
    return kept


def generator(sampling: Sampling, position: int, domain: StreamDomain, index: int = 0) -> np.random.Generator:
    """Return the random generator for a request's position (see `stream_key`)."""
    key = np.array(stream_key(sampling.seed, position, domain, index), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def draw(p: Float64, rng: np.random.Generator) -> int:
    """Draw an index from unnormalised probabilities p [n], by inversion."""
    sums = np.cumsum(p)
    index = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    return (
        index if index < len(p) else int(np.flatnonzero(p)[-1])
    )  # after rounding, the index may be too large


_BLOCK = 256
"""Tokens per block in the search for the largest logits."""


def most_probable(logits: Array, k: int) -> NDArray[np.int64]:
    """Return tokens [N, k] of the largest logits [N, V], descending.

    On the host, only the k blocks of tokens with the largest maxima can contain them.
    """
    if not isinstance(logits, np.ndarray) and logits.device.type != "cpu":
        return np.asarray(logits.topk(k, dim=-1).indices.cpu().numpy())
    values = as_floats(logits)
    rows, tokens = values.shape
    blocks = tokens // _BLOCK
    if blocks <= k:
        return _largest(values, k)
    whole = blocks * _BLOCK
    best = _largest(values[:, :whole].reshape(rows, blocks, _BLOCK).max(-1), k)
    ids = (best[:, :, None] * _BLOCK + np.arange(_BLOCK)).reshape(rows, -1)
    ids = np.concatenate([ids, np.broadcast_to(np.arange(whole, tokens), (rows, tokens - whole))], axis=1)
    return np.take_along_axis(ids, _largest(np.take_along_axis(values, ids, 1), k), 1)


def _largest(values: Float32, k: int) -> NDArray[np.int64]:
    """Return indices [N, k] of the largest values of each row, descending."""
    kept = np.argpartition(values, -k, axis=1)[:, -k:]
    return np.take_along_axis(
        kept, np.argsort(-np.take_along_axis(values, kept, 1), axis=1, kind="stable"), 1
    )
