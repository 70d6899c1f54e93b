"""Loads weights to a GPU, and multiplies few rows by a matrix.

Only the layers' matrices are quantised (torchao): eight bits per weight, a scale per row. That takes half the memory
of bfloat16, but saves no time, as every product dequantises first. As with `QuantisedWeights`, outputs change.
"""

from collections.abc import Callable, Iterator, Mapping
from math import gcd

import torch
from rich.console import Console
from rich.progress import Progress

from specinfer.model.gpu.description import MIN_TILE, power_above
from specinfer.model.gpu.launch import processors, shared_bytes
from specinfer.model.gpu.layer_kernels import multiply
from specinfer.model.torch.linear import DenseLinear, Linear

QUANTISED = ("int8", "fp8")
Quantise = Callable[[Linear], Linear]


class ShownWeights(Mapping[str, torch.Tensor]):
    """Weights whose reading advances a progress bar on the terminal."""

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
        return name in self._weights  # Mapping's default would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def quantiser(kind: str) -> Quantise | None:
    """Return a function that quantises a layer's matrix; None: it stays unquantised."""
    if kind not in QUANTISED:
        return None
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    config = {"int8": Int8WeightOnlyConfig, "fp8": Float8WeightOnlyConfig}[kind]()

    def quantise(linear: Linear) -> Linear:
        assert isinstance(linear, DenseLinear)
        rows, columns = linear.weight.shape
        module = torch.nn.Linear(columns, rows, bias=False, device="meta")
        module.weight = torch.nn.Parameter(linear.weight, requires_grad=False)
        quantize_(module, config)
        return DenseLinear(module.weight, linear.bias)

    return quantise


MAX_FEW_ROWS = 64
"""Maximum rows for the kernel `multiply`; for more, torch's product is faster."""
COLUMNS = 64
"""Columns per program of the kernel `multiply`."""
_MAX_IDLE = 3
"""Maximum multiprocessors per program of `multiply`; for more, torch is faster.

A matrix of 2048 x 8192 has 32 programs: on 132 multiprocessors it takes 1.2 times torch's time.
"""
MAX_STEP = 128
"""Maximum columns of x that a program reads per loop iteration."""
STAGES, MANY_STAGES = 3, 6
"""Number of overlapping loop iterations: with many programs, and with few."""


class FewRowsLinear(DenseLinear):
    """A 16-bit linear layer with a kernel for up to 64 rows.

    On an H200 one row takes 1.06 to 1.5 times as long as reading the weights, torch's product 1.2 to 1.7 times
    (benchmarks/results/gpu.md).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        device, self._step = str(weight.device), gcd(weight.shape[1], MAX_STEP)
        full = processors(device) * COLUMNS <= len(weight)
        fitting = shared_bytes(device) // ((COLUMNS + MAX_FEW_ROWS) * self._step * weight.element_size())
        self._stages = min(STAGES if full else MANY_STAGES, max(fitting, 1))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows, (columns, size) = len(x), self.weight.shape
        if not 0 < rows <= MAX_FEW_ROWS:
            return super().__call__(x)
        out, bias = x.new_empty(rows, columns), self.weight if self.bias is None else self.bias
        multiply[-(-columns // COLUMNS),](
            *(x, self.weight, bias, out, rows, columns, x.stride(0)),
            SIZE=size,
            BIASED=self.bias is not None,
            ROWS=max(power_above(rows), MIN_TILE),
            COLUMNS=COLUMNS,
            STEP=self._step,
            num_warps=4,
            num_stages=self._stages,
        )
        return out


def few_rows(linear: Linear) -> Linear:
    """Return a `FewRowsLinear` if the weights' type and shape allow, otherwise `linear`."""
    if not isinstance(linear, DenseLinear) or linear.weight.dtype not in (torch.float16, torch.bfloat16):
        return linear
    if not linear.weight.is_contiguous() or linear.weight.shape[1] % MIN_TILE:
        return linear
    if len(linear.weight) * _MAX_IDLE < processors(str(linear.weight.device)) * COLUMNS:
        return linear
    return FewRowsLinear(linear.weight, linear.bias)
