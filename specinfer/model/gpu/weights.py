"""Loads weights to a device, with progress, quantised on request.

The matrices of the layers are quantised, not embeddings, head, norms and biases: each weight has eight bits,
each row has a scale (torchao). That halves the memory of bfloat16; every product dequantises first, so it
does not save time. The quantised model is another model, as those of `specinfer.model.formats.weights_in_format` are.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from rich.console import Console
from rich.progress import Progress

from specinfer.errors import SettingError
from specinfer.model.torch.linear import DenseLinear, Linear

QUANTISED = ("int8", "fp8")
Quantise = Callable[[Linear], Linear]


class ShownWeights(Mapping[str, torch.Tensor]):
    """Weights with progress on the terminal while they are read."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("loading weights", total=len(weights))

    def __enter__(self) -> "ShownWeights":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._weights[name]
        self._progress.advance(self._task)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._weights  # the default reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def quantiser(kind: str) -> Quantise | None:
    """Return a function that quantises layers' matrices, or None.

    Raises:
        SettingError: if torchao is not installed.
    """
    if kind not in QUANTISED:
        return None
    try:
        from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ModuleNotFoundError as error:
        raise SettingError("weights", kind, f"needs the extra `gpu`: {error}") from error
    config = {"int8": Int8WeightOnlyConfig, "fp8": Float8WeightOnlyConfig}[kind]()

    def quantise(linear: Linear) -> Linear:
        assert isinstance(linear, DenseLinear)
        rows, columns = linear.weight.shape
        module = torch.nn.Linear(columns, rows, bias=False, device="meta")
        module.weight = torch.nn.Parameter(linear.weight, requires_grad=False)
        quantize_(module, config)
        return DenseLinear(module.weight, linear.bias)

    return quantise
