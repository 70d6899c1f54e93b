"""Computes mixtures of experts; each expert computes the tokens that chose it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from specinfer.model.families.experts import ROUTER, ROUTER_BIAS, SHARED_GATE, Experts
from specinfer.model.torch.parts import Parts

Mlp = Callable[[torch.Tensor], torch.Tensor]


class Mixture:
    """A layer's router, experts, and optional shared expert."""

    def __init__(self, prefix: str, experts: Experts, parts: Parts, make_mlp: Callable[[str], Mlp]) -> None:
        """Read the tensors; `make_mlp` makes an MLP from tensor names' prefix."""
        self._experts = experts
        self._router = parts.keep(parts.tensor(f"{prefix}{ROUTER}", torch.float32))
        self._bias: torch.Tensor | None = None
        if experts.biased:
            self._bias = parts.keep(parts.tensor(f"{prefix}{ROUTER_BIAS}", torch.float32))
        self._each = [make_mlp(f"{prefix}mlp.experts.{number}.") for number in range(experts.count)]
        self._shared = make_mlp(f"{prefix}mlp.") if experts.shared_size else None
        self._shared_gate: torch.Tensor | None = None
        if experts.gated_shared:
            self._shared_gate = parts.keep(parts.tensor(f"{prefix}{SHARED_GATE}", torch.float32))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x.float(), self._router, self._bias)
        best, chosen = scores.topk(self._experts.used, dim=-1)
        shares = best if self._experts.renormalised else scores
        weights = (best - shares.logsumexp(-1, keepdim=True)).exp()
        total = torch.zeros_like(x)
        if self._shared is not None:
            shared = self._shared(x)
            if self._shared_gate is not None:
                shared *= torch.sigmoid(F.linear(x.float(), self._shared_gate)).to(x.dtype)
            total += shared
        for number, expert in enumerate(self._each):
            rows, place = torch.where(chosen == number)
            if len(rows):
                total[rows] += weights[rows, place, None].to(x.dtype) * expert(x[rows])
        return total
