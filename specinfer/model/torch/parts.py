"""Creates norms and linear layers from weights."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from specinfer.errors import IncompatibleError
from specinfer.model.torch.linear import Linear, make_linear
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights

Norm = Callable[[torch.Tensor], torch.Tensor]
"""Norm over the last dimension; the identity if the model has none."""


def soft_capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return `c * tanh(x / c)` for a bound c; 0: no bound."""
    return torch.tanh(x / cap) * cap if cap else x


class RMSNorm:
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class LayerNorm:
    """Norm by mean and variance over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


class Parts:
    """Creates a decoder's norms and linear layers from its weights."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: str) -> None:
        self._config, self._weights, self._dtype, self._device = config, weights, dtype, device
        self.loaded_bytes = 0

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a tensor by name, in `dtype` or else the decoder's type."""
        if name not in self._weights:
            raise IncompatibleError(f"the model's weights lack {name}")
        loaded = self._weights[name].to(device=self._device, dtype=dtype or self._dtype)
        self.loaded_bytes += loaded.nbytes
        return loaded

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor for a layer to use; subclasses may move it."""
        return tensor

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Create a linear layer from tensors that `keep` returned."""
        return make_linear(weight, bias)

    def norm(self, name: str) -> RMSNorm | LayerNorm:
        weight = self.keep(self.tensor(f"{name}.weight"))
        if self._config.layer_norm:
            return LayerNorm(weight, self.keep(self.tensor(f"{name}.bias")), self._config.norm_eps)
        return RMSNorm(weight, self._config.norm_eps)

    def linear(self, prefix: str, *names: str) -> Linear:
        """Return one linear layer that computes all `names`, concatenated."""
        weights = [self.tensor(f"{prefix}{name}.weight") for name in names]
        with_bias = f"{prefix}{names[0]}.bias" in self._weights
        weight, bias = self.keep(torch.cat(weights)), None
        if with_bias:
            bias = self.keep(torch.cat([self.tensor(f"{prefix}{name}.bias") for name in names]))
        return self.make(weight, bias)
