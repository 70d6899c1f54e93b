"""Turns logits into the distribution a token is really drawn from: temperature, then top-k, then top-p.

Everything that verifies or drafts uses these functions, so that P and q mean the same everywhere.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.sampling import SamplingParams, StreamDomain, stream_key

Float64 = NDArray[np.float64]
SMALLEST_TEMPERATURE = 1e-4


def probabilities(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """[..., V] float64 probabilities of logits [..., V] under the sampling parameters.

    Greedy sampling gives all probability to the first most probable token.
    """
    if sampling.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros(logits.shape, dtype=torch.float64).scatter_(-1, best.cpu(), 1.0)
    scaled = logits.double() / max(sampling.temperature, SMALLEST_TEMPERATURE)
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        smallest = scaled.topk(sampling.top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < smallest, -torch.inf)
    p = scaled.softmax(-1)
    return _nucleus(p, sampling.top_p) if sampling.top_p < 1 else p


def _nucleus(p: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keeps the most probable tokens up to the one at which their sum reaches top_p."""
    ordered, index = p.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(p).scatter_(-1, index, kept)


def generator(
    sampling: SamplingParams, position: int, domain: StreamDomain, index: int = 0
) -> np.random.Generator:
    """The random stream of a request at an absolute position (see `stream_key`)."""
    key = np.array(stream_key(sampling.seed, position, domain, index), np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def draw(p: Float64, rng: np.random.Generator) -> int:
    """One index drawn from unnormalised probabilities p [V] by inversion."""
    cumulative = np.cumsum(p)
    index = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    # rounding can point behind the last token that has any probability
    return index if index < len(p) and p[index] > 0 else int(np.flatnonzero(p)[-1])
