"""Runs the torch decoder with offloaded layers."""

from math import prod

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.offload.stores import LayerStore
from specinfer.model.offload.stream import BUFFERS, LayerStream, make_buffers
from specinfer.model.torch.layer import Attend, Layer
from specinfer.model.torch.linear import DenseLinear, Linear
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.transformer import LayerCall, Transformer
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights

_ALIGNMENT = 256
"""Alignment of a layer's tensors in bytes, as in a GPU's allocator."""


class _Collected(Parts):
    """Creates a layer in host memory, and collects its tensors' bytes."""

    def __init__(self, config: ModelConfig, weights: Weights, dtype: torch.dtype) -> None:
        super().__init__(config, weights, dtype, "cpu")
        self.pieces: list[torch.Tensor] = []

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        data = tensor.contiguous().flatten().view(torch.uint8)
        self.pieces += [data, data.new_zeros(-len(data) % _ALIGNMENT)]
        return tensor

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return DenseLinear(weight, bias)


class _Placed(Parts):
    """Creates a layer whose tensors are views of a buffer.

    The order is that of `_Collected`.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, memory: torch.Tensor
    ) -> None:
        super().__init__(config, weights, dtype, "cpu")
        self._memory, self._at = memory, 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        size = prod(tensor.shape) * tensor.itemsize
        placed = self._memory[self._at : self._at + size].view(tensor.dtype).view(tensor.shape)
        self._at += -(-size // _ALIGNMENT) * _ALIGNMENT
        return placed

    def make(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return DenseLinear(weight, bias)


class _StreamedLayer:
    """One decoder layer; it runs in the buffer that contains it."""

    def __init__(self, index: int, stream: LayerStream, in_buffer: list[Layer]) -> None:
        self._index, self._stream, self._in_buffer = index, stream, in_buffer

    def __call__(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None, attend: Attend
    ) -> torch.Tensor:
        with self._stream.hold(self._index) as buffer:
            return self._in_buffer[buffer](x, angles, self._of_this_layer(attend))

    def _of_this_layer(self, attend: Attend) -> Attend:
        """Return attention with this layer's index; layers in buffers have index 0."""
        return lambda _, query, key, value: attend(self._index, query, key, value)


class StreamedTransformer(Transformer):
    """The decoder with `BUFFERS` layers on the device at a time.

    Embeddings, final norm and head stay on the device.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: str, store: LayerStore
    ) -> None:
        self._store = store
        super().__init__(config, weights, dtype, device)

    def _make_layers(self, weights: Weights) -> list[LayerCall]:
        config, dtype = self.config, self.dtype
        if config.experts is not None and config.experts.dense_layers:
            raise IncompatibleError(
                "offload: must be none for the torch executor: the model has dense layers and mixtures"
            )
        for index in range(config.layers):
            parts = _Collected(config, weights, dtype)
            self.layer_type(index, config, parts)
            self._store.append(parts.pieces)
        buffers = make_buffers(BUFFERS, self._store, self.device)
        in_buffer = [self.layer_type(0, config, _Placed(config, weights, dtype, s.memory)) for s in buffers]
        stream = LayerStream(self._store, buffers)
        return [_StreamedLayer(index, stream, in_buffer) for index in range(config.layers)]
