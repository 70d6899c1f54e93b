"""Runs the decoder on a GPU, with fused kernels for small operations.

It extends `specinfer.model.torch.transformer`. torch computes the parts of a layer that differ from Llama's (another
norm or activation, parallel attention and MLP); attention always uses the kernel.
"""

from functools import partial

import torch

from specinfer.model.batch import PassFeatures
from specinfer.model.gpu.description import power_above
from specinfer.model.gpu.layer_kernels import add_norm, gate, turn_heads
from specinfer.model.gpu.weights import Quantise, ShownWeights, few_rows
from specinfer.model.torch.layer import Attend, Layer, Mlp
from specinfer.model.torch.linear import Surgery
from specinfer.model.torch.parts import Norm, Parts, RMSNorm
from specinfer.model.torch.transformer import (
    Transformer,
)
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights

_GATE_BLOCK = 1024


def normed(x: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    """Return the RMS norm of x [T, hidden]."""
    return _add_norm(x, x, x, norm)


def added_and_normed(
    x: torch.Tensor, change: torch.Tensor, norm: RMSNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + change [T, hidden], and its RMS norm."""
    total = torch.empty_like(x)
    return total, _add_norm(x, change, total, norm)


def _add_norm(x: torch.Tensor, change: torch.Tensor, total: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    rows, size = x.shape
    out = torch.empty_like(x)
    add_norm[rows,](
        *(x, change, norm.weight, total, out, norm.eps),
        SIZE=size,
        WIDTH=power_above(size),
        ADDS=total is not x,
    )
    return out


def turn(
    projected: torch.Tensor,
    heads: int,
    kv_heads: int,
    angles: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[RMSNorm, RMSNorm] | None = None,
) -> None:
    """Rotate queries and keys in place.

    `projected` is [T, heads + 2 KV heads, D]; `angles` are cosines and sines [T, 1, R]. `norms` are applied before the
    rotation, if given.
    """
    cos, sin = angles
    half = cos.shape[-1] // 2
    weights = [norm.weight for norm in norms] if norms else [cos, cos]
    turn_heads[len(projected),](
        *(projected, cos, sin, *weights, projected.stride(0), norms[0].eps if norms else 0.0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        D=projected.shape[-1],
        HALF=half,
        ROWS=power_above(heads + kv_heads),
        WIDTH=power_above(half),
        NORMS=norms is not None,
    )


def gated(both: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [T, I] of [gate, up] [T, 2 I]."""
    rows, size = len(both), both.shape[1] // 2
    out = both.new_empty(rows, size)
    gate[rows, -(-size // _GATE_BLOCK)](both, out, size, BLOCK=_GATE_BLOCK)
    return out


class FusedMlp(Mlp):
    """An MLP with a fused kernel for gated SiLU."""

    def __init__(self, prefix: str, config: ModelConfig, parts: Parts) -> None:
        super().__init__(prefix, config, parts)
        self._fused = config.gated and config.activation == "silu"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(gated(self.up(x))) if self._fused else super().__call__(x)


class FusedLayer(Layer):
    """A decoder layer with fused kernels for norms, rotation and activation."""

    mlp_type = FusedMlp

    def __init__(
        self, index: int, config: ModelConfig, parts: Parts, quantise: Quantise | None = None
    ) -> None:
        super().__init__(index, config, parts)
        assert isinstance(self._mlp, Mlp), "models with mixtures are refused"
        convert = few_rows if quantise is None else quantise
        self._qkv, self._out = convert(self._qkv), convert(self._out)
        self._mlp.up, self._mlp.down = convert(self._mlp.up), convert(self._mlp.down)
        self.sums_later = isinstance(self._post_norm, RMSNorm) and not config.parallel
        """True if the next layer's norm kernel adds the MLP's output."""

    def __call__(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None, attend: Attend
    ) -> torch.Tensor:
        return self.after_norm(x, _norm(x, self.input_norm), angles, attend)

    def after_norm(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        attend: Attend,
    ) -> torch.Tensor:
        """Return hidden states [T, hidden] after the layer.

        `normed` is attention's input, the norm of `x`.
        """
        if not self.sums_later:
            return super().after_norm(x, normed, angles, attend)
        return torch.add(*self._summands(x, normed, angles, attend))

    def summands(
        self,
        x: torch.Tensor,
        change: torch.Tensor | None,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's output as two summands for the next norm kernel.

        `x` and `change` are the summands from the layer before; None: there is no layer before.
        """
        assert isinstance(self.input_norm, RMSNorm)
        if change is None:
            return self._summands(x, normed(x, self.input_norm), angles, attend)
        return self._summands(*added_and_normed(x, change, self.input_norm), angles, attend)

    def _summands(
        self,
        x: torch.Tensor,
        normed: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor] | None,
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(self._post_norm, RMSNorm)
        query, key, value = self.project(normed, angles)
        change = self._out(attend(self._index, query, key, value).flatten(1))
        attended, normed_after = added_and_normed(x, change, self._post_norm)
        return attended, self._mlp(normed_after)

    def project(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query, key and value [T, heads, D], normed and rotated.

        torch computes layers that the kernel does not support.
        """
        c, norms = self._config, None
        if isinstance(self._q_norm, RMSNorm) and isinstance(self._k_norm, RMSNorm):
            norms = self._q_norm, self._k_norm
        if angles is None or (c.qk_norm and (norms is None or c.rotary_dim < c.head_dim)):
            return super().project(x, angles)
        projected = self._qkv(x).view(len(x), c.heads + 2 * c.kv_heads, c.head_dim)
        turn(projected, c.heads, c.kv_heads, angles, norms)
        query, key, value = torch.split(projected, [c.heads, c.kv_heads, c.kv_heads], dim=1)
        return query, key, value


def _norm(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    return normed(x, norm) if isinstance(norm, RMSNorm) else norm(x)


class GpuTransformer(Transformer):
    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: str,
        quantise: Quantise | None = None,
        surgery: Surgery | None = None,
    ) -> None:
        """Load the decoder, and show progress on the terminal.

        `quantise` converts each layer's matrices; None: they stay unquantised. `surgery` is as in `Transformer`.
        """
        self.layer_type = partial(FusedLayer, quantise=quantise)
        with ShownWeights(weights) as shown:
            super().__init__(config, shown, dtype, device)
        self._head = few_rows(self._head)
        if surgery is not None:
            self._operate(surgery)

    def through(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        features: PassFeatures | None = None,
    ) -> torch.Tensor:
        layers = [layer for layer in self.layers if isinstance(layer, FusedLayer) and layer.sums_later]
        if features is not None or len(layers) < len(self.layers) or self.config.layer_rotary:
            return super().through(x, positions, attend, features)
        angles, change = self.angles(positions), None
        for layer in layers:
            x, change = layer.summands(x, change, angles, attend)
        return x if change is None else x + change
