"""Chooses tokens by noise that target and drafters share (the Gumbel-max trick).

    argmax_x (log P(x) + G_x)  =  argmin_x (E_x / P(x)),      G_x = -log E_x,  E_x exponential with mean 1

is a draw from P. The noise E depends only on the request's seed, the position and the token x. So the target's choice
does not depend on proposals: a tree, a chain and plain decoding give the same text. A drafter that uses the same noise
is accepted more often, because q near P has the same winner (Daliri, Musco and Suresh, "Coupling without Communication
and Drafter-Invariant Speculative Decoding", 2024).

The compiled kernels choose alike (`native/csrc/sampling/gumbel.h`); this file is their reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specinfer.model.arrays import Array, as_floats
from specinfer.model.native.noise import native_choose, native_choose_by_logits
from specinfer.model.sampling.choices import Excerpt
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE, probabilities, softmax
from specinfer.request.sampling import Sampling, noise_key, noise_state

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Noise:
    """A request's noise at a context position."""

    seed: int
    position: int

    def choose(self, p: Float64 | Excerpt) -> int:
        """Return the token that the noise chooses from unnormalised p [V]."""
        key = noise_key(self.seed, self.position)
        if isinstance(p, Excerpt):
            token_ids, q = p.candidates()
            return reference_choice(q, key, token_ids)
        token = native_choose(p, key)
        return reference_choice(p, key) if token is None else token

    def choose_by_logits(self, logits: Array, sampling: Sampling) -> int:
        """Return the token that the noise chooses from `probabilities(logits)`."""
        if sampling.greedy or sampling.cuts:
            return self.choose(probabilities(logits, sampling))
        row, key = as_floats(logits), noise_key(self.seed, self.position)
        temperature = max(sampling.temperature, SMALLEST_TEMPERATURE)
        token = native_choose_by_logits(row, temperature, key)
        return reference_choice(softmax(row, temperature), key) if token is None else token


def reference_choice(p: Float64, key: int, token_ids: Int32 | None = None) -> int:
    """Return the token with the smallest E / p, the rule of `Noise`.

    `token_ids` [n] are the tokens of p; None: 0, 1, ...
    """
    possible = np.flatnonzero(p > 0)
    if not len(possible):
        raise ValueError("p: no token has any probability: all are 0, or a logit is not finite")
    tokens = possible if token_ids is None else token_ids[possible]
    with np.errstate(over="ignore"):  # a tiny probability gives infinity, which loses
        return int(tokens[np.argmin(exponentials(tokens, key) / p[possible])])


def perturbed(p: Float64, token_ids: NDArray[np.integer[Any]], key: int) -> Float64:
    """Return log p + G [v] of draft tokens, with target ids `token_ids`."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p) - np.log(exponentials(token_ids, key)))


def exponentials(token_ids: NDArray[np.integer[Any]], key: int) -> Float64:
    """Return the noise E [v] of tokens, from SplitMix64 with state `key`."""
    z = _split_mix(key, token_ids)
    return np.asarray(-np.log(((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52))


def noise_keys(seed: int, positions: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return `noise_key` of each position, [n]."""
    return _split_mix(noise_state(seed), positions)


def _split_mix(state: int, indices: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return `specinfer.request.sampling.split_mix` of each index."""
    z = np.uint64(state) + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
