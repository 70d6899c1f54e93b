"""Choosing tokens by noise that the target and its drafters share (the Gumbel-max trick).

    argmax_x (log P(x) + G_x)  =  argmin_x (E_x / P(x)),      G_x = -log E_x,  E_x exponential with mean 1

is a draw from P. The noise E hangs on the request's seed, the position and the token x, on nothing else. So
what the target chooses does not depend on what is proposed to it: a tree, a chain and plain decoding give the
same text. And a drafter that looks at the same noise guesses better than one that does not, because where q
is near P both have the same winner (Daliri, Musco and Suresh, "Coupling without Communication and
Drafter-Invariant Speculative Decoding", 2024).

The compiled kernels do the same (`native/csrc/sampling/gumbel.h`); this is their reference.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.model.native.gumbel import native_choose, native_choose_by_logits
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE, probabilities, softmax
from specinfer.sampling import SamplingParams, noise_key

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """That of a request at an absolute position."""

    seed: int
    position: int

    def choose(self, p: Float64) -> int:
        """A token drawn from unnormalised probabilities p [V].

        Raises:
            ValueError: if no token has any probability.
        """
        key = noise_key(self.seed, self.position)
        token = native_choose(p, key)
        return reference_choice(p, key) if token is None else token

    def choose_by_logits(self, logits: torch.Tensor, sampling: SamplingParams) -> int:
        """A token drawn from what `probabilities` makes of logits [V]; they are written down for cuts only.

        Raises:
            ValueError: if no token has any probability, as where a logit is a NaN or infinite.
        """
        if sampling.greedy or sampling.top_k or sampling.top_p < 1:
            return self.choose(probabilities(logits, sampling))
        row, key = logits.float().cpu().numpy(), noise_key(self.seed, self.position)
        temperature = max(sampling.temperature, SMALLEST_TEMPERATURE)
        token = native_choose_by_logits(row, temperature, key)
        return reference_choice(softmax(row, temperature), key) if token is None else token


def reference_choice(p: Float64, key: int) -> int:
    """What `Noise` chooses where the kernels are not loaded.

    Raises:
        ValueError: if no token has any probability.
    """
    possible = np.flatnonzero(p > 0)
    if not len(possible):
        raise ValueError("p: no token has any probability")
    with np.errstate(over="ignore"):  # of the improbable
        return int(possible[np.argmin(exponentials(possible, key) / p[possible])])


def perturbed(p: Float64, token_ids: NDArray[np.int64], key: int) -> Float64:
    """[v] log p + G of a draft's probabilities, of which `token_ids` are the target's tokens."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p) - np.log(exponentials(token_ids, key)))


def exponentials(token_ids: NDArray[np.int64], key: int) -> Float64:
    """[v] the noise E of tokens: SplitMix64 by token, as uniforms strictly between 0 and 1."""
    z = np.uint64(key) + (token_ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.asarray(-np.log(((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52))
