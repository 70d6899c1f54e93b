"""Measure passes of a mixture of experts with random weights.

Matrices of one shape have equal values but separate memory, so the router decides which bytes a pass reads.
"""

from functools import cache
from typing import Any

import torch

from benchmarks.passes.measure import Figures, spread
from benchmarks.tables import head, line, origin
from specinfer.errors import SettingError
from specinfer.model.formats.base import BlockFormat
from specinfer.model.formats.registry import BLOCK_FORMATS, find_format
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.account import expected_tensors
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import EMBEDDING
from specinfer.model.weights.interfaces import Blocks, NamedTensors

TITLE = """# Passes of mixtures of experts

**Random weights** of the shape of a model, no model's own. A pass gives logits for rows of different random tokens that
follow a context; each row chooses its own experts. Medians of turns; in brackets the minimum and maximum.
Experts, MB: expected number of a layer's experts that a pass reads, if rows choose independently, and bytes of all
matrices with those. Ratio: to the pass of the fewest rows.
"""
_SHAPE = {
    "num_hidden_layers": 4,
    "vocab_size": 4096,
    "head_dim": 128,
    "norm_topk_prob": True,
    "max_position_embeddings": 8192,
}
"""Fields that differ from `transformers`' Qwen3 MoE defaults: few layers, small vocabulary."""


class RandomBlocks(NamedTensors):
    """Random weights of a configuration, in blocks of a format.

    Embeddings and vectors are float tensors.
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]], chosen: BlockFormat) -> None:
        self._names = self._shapes = shapes
        self._format = chosen
        self._numbers, self._quantised = cache(_random), cache(self._quantise)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._numbers(self._shapes[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._shapes[name]

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix in blocks; None for the embeddings and for vectors."""
        shape = self._shapes[name]
        return self._quantised(shape) if len(shape) == 2 and name != EMBEDDING else None

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a matrix."""
        blocks = self.blocks(name)
        return 0 if blocks is None else blocks[1].nbytes

    def _quantise(self, shape: tuple[int, ...]) -> Blocks:
        return self._format.type_name, torch.from_numpy(self._format.quantise(self._numbers(shape).numpy()))


def _random(shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02


class RandomMixture:
    """A random mixture of experts with the widths of Qwen3-30B-A3B."""

    def __init__(self, weights: str, tokens: int) -> None:
        """Create the model, with a cache of `tokens` tokens.

        Raises:
            SettingError: if `weights` is not a block format.
        """
        from transformers import Qwen3MoeConfig

        chosen = find_format(weights)
        if not isinstance(chosen, BlockFormat):
            names = ", ".join(weight_format.name for weight_format in BLOCK_FORMATS)
            raise SettingError("mixture", weights, f"must be one of {names}")
        hf = Qwen3MoeConfig(**_SHAPE)
        self.config = from_transformers(hf)
        shapes = {name: tensor.shape for name, tensor in expected_tensors(hf, self.config).items()}
        self._weights = RandomBlocks(shapes, chosen)
        options = RunnerOptions(kv_tokens=tokens, executor="native")
        self.runner = ModelRunner.build(self.config, self._weights, options)

    def section(self, tokens: int, figures: Figures, about: dict[str, Any]) -> tuple[str, str]:
        """Return title and text of the report's section on one context."""
        experts, rows = self.config.experts, [*figures.passes]
        assert experts is not None
        name = f"{experts.count} experts of {experts.intermediate_size}, {experts.used} a row"
        title = f"{self.config.hidden_size} wide, {self.config.layers} layers, {name}, after {tokens} tokens"
        lines = [f"## {title}", "", f"{origin(about)}.", f"Weights {self.runner.weights}.", ""]
        lines += head(["ms", "ratio", "experts", "MB"], "rows")
        for count in rows:
            times = spread([1000 * seconds for seconds in figures.passes[count]])
            ratio = figures.median(count) / figures.median(rows[0])
            read = expected_experts(self.config, count)
            cells = [times, f"{ratio:.2f}", f"{read:.0f}", f"{self._bytes(read) / 1e6:.0f}"]
            lines.append(line(str(count), cells))
        return title, "\n".join([*lines, ""])

    def _bytes(self, experts: float) -> float:
        """Return the matrix bytes of a pass over `experts` experts per layer."""
        total = self.config.experts
        assert total is not None
        of_experts = sum(self._weights.bytes_of(name) for name in self._weights if ".experts." in name)
        rest = sum(self._weights.bytes_of(name) for name in self._weights if ".experts." not in name)
        return rest + of_experts * experts / total.count


def expected_experts(config: ModelConfig, rows: int) -> float:
    """Return the expected experts per layer that `rows` independent rows choose."""
    experts = config.experts
    assert experts is not None
    return experts.count * (1 - (1 - experts.used / experts.count) ** rows)
