"""Measured sizes, full or for Triton's interpreter, and models of random weights."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specinfer.model.options import DTYPES, RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.account import HEAD
from specinfer.model.weights.config_files import from_transformers

Clock = Callable[[], float]


class Budget:
    """A time limit that starts now."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left; negative after the end."""
        return self._end - self._clock()

    def part(self, seconds: float) -> "Budget":
        """Return a budget of `seconds`, or of the rest if shorter."""
        return Budget(min(seconds, self.left), self._clock)


GIB = 2**30
_DEVIATION = 0.02
"""Standard deviation of weights, as in Llama's initialisation."""


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Numbers and width of the heads of an attention layer."""

    query: int
    kv: int
    width: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A launch: requests with equal contexts and numbers of nodes."""

    heads: HeadShape
    batch: int
    context: int
    nodes: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Llama model without weights."""

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: HeadShape
    vocabulary: int
    head_deviation: float = _DEVIATION
    """Standard deviation of the head's weights.

    A larger deviation makes distributions sharper.
    """


@dataclass(frozen=True, slots=True)
class Scale:
    name: str
    dtype: str
    copy_bytes: int
    checks: tuple[Cell, ...]
    cells: tuple[Cell, ...]
    """Cells in order of importance; time or memory may exclude cells."""
    distinct_bytes: int
    """Total bytes of a call's buffer sets; must exceed the chip's cache."""
    compiled: int
    """Number of first cells measured with `COMPILED` libraries, too."""
    shapes: tuple[ModelShape, ...]
    drafter: ModelShape
    """Shape of the small model that drafts trees."""
    positions: int
    context: int
    """Context tokens of every request."""
    nodes: tuple[int, ...]
    batches: tuple[int, ...]
    steps: int
    """Number of timed steps of the engine per figure."""


SEVEN, EIGHT = HeadShape(32, 32, 128), HeadShape(32, 8, 128)
"""Heads of Llama 2 7B, and of Llama 3 8B (GQA)."""
AIM_CELL = Cell(SEVEN, 1, 4096, 64)
AIM_SHAPE, AIM_NODES = "Llama 7B", 32


def _cells() -> tuple[Cell, ...]:
    first = [Cell(heads, batch, 4096, 64) for batch in (1, 8) for heads in (SEVEN, EIGHT)]
    by_context = [Cell(EIGHT, batch, context, 64) for context in (512, 32768) for batch in (1, 8, 32)]
    by_nodes = [Cell(EIGHT, batch, 4096, nodes) for nodes in (1, 16, 32, 128) for batch in (1, 8)]
    rest = [
        Cell(EIGHT, batch, context, nodes)
        for batch in (1, 4, 32)
        for context in (512, 4096, 32768)
        for nodes in (1, 16, 64, 128)
    ]
    return tuple(dict.fromkeys([*first, *by_nodes, *by_context, *rest]))


FULL = Scale(
    name="full",
    dtype="bfloat16",
    copy_bytes=4 * GIB,
    checks=(
        *(Cell(heads, 3, 300, nodes) for heads in (SEVEN, EIGHT) for nodes in (1, 33, 128)),
        *(Cell(EIGHT, 2, 5000, nodes) for nodes in (16, 64)),
        Cell(HeadShape(9, 3, 64), 4, 1000, 40),
    ),
    cells=_cells(),
    distinct_bytes=GIB // 4,
    compiled=6,
    shapes=(
        ModelShape(AIM_SHAPE, 4096, 11008, 32, SEVEN, 32000),
        ModelShape("Llama 13B", 5120, 13824, 40, HeadShape(40, 40, 128), 32000),
        ModelShape("Llama 1B", 2048, 8192, 16, HeadShape(32, 8, 64), 128256),
    ),
    # LLaMA-68M with heads of 128, whose kernels are compiled already, and distributions as sharp as a trained model's
    drafter=ModelShape("Llama 68M", 768, 3072, 2, HeadShape(6, 6, 128), 32000, head_deviation=0.2),
    positions=4096,
    context=1024,
    nodes=(1, 2, 4, 8, 16, 32, 64),
    batches=(1, 8),
    steps=24,
)
_SMALL = HeadShape(4, 2, 16)
TINY = Scale(
    name="tiny",
    dtype="float16",
    copy_bytes=2**20,
    checks=(Cell(_SMALL, 2, 40, 5),),
    cells=(Cell(_SMALL, 1, 40, 4), Cell(_SMALL, 2, 20, 1), Cell(_SMALL, 1, 20, 4)),
    distinct_bytes=0,
    compiled=0,
    shapes=(ModelShape("tiny", 64, 96, 2, _SMALL, 96),),
    drafter=ModelShape("tinier", 64, 64, 1, _SMALL, 96),
    positions=256,
    context=24,
    nodes=(1, 4),
    batches=(1, 2),
    steps=2,
)


def transformers_config(shape: ModelShape, positions: int) -> Any:
    """Return the shape's configuration of `transformers`."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads.query,
        num_key_value_heads=shape.heads.kv,
        head_dim=shape.heads.width,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
    )


class RandomWeights(Mapping[str, torch.Tensor]):
    """Reproducible random tensors of a shape, made on the device when read."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, device: str) -> None:
        self._dtype, self._device, self._head_deviation = dtype, device, shape.head_deviation
        self._shapes = dict(_tensors(shape))
        self._seeds = {name: number for number, name in enumerate(self._shapes)}

    def __getitem__(self, name: str) -> torch.Tensor:
        size = self._shapes[name]
        if len(size) == 1:
            return torch.ones(size, dtype=self._dtype, device=self._device)
        generator = torch.Generator(self._device).manual_seed(self._seeds[name])
        tensor = torch.empty(size, dtype=self._dtype, device=self._device)
        deviation = self._head_deviation if name == HEAD else _DEVIATION
        return tensor.normal_(0.0, deviation, generator=generator)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def pass_bytes(self) -> int:
        """Bytes of weights in a pass, without the embeddings."""
        numbers = {name: torch.Size(size).numel() for name, size in self._shapes.items()}
        return self._dtype.itemsize * (sum(numbers.values()) - numbers["model.embed_tokens.weight"])


def _tensors(s: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    query, kv = s.heads.query * s.heads.width, s.heads.kv * s.heads.width
    yield "model.embed_tokens.weight", (s.vocabulary, s.hidden)
    for layer in range(s.layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (s.hidden,)
        yield f"{at}.self_attn.q_proj.weight", (query, s.hidden)
        yield f"{at}.self_attn.k_proj.weight", (kv, s.hidden)
        yield f"{at}.self_attn.v_proj.weight", (kv, s.hidden)
        yield f"{at}.self_attn.o_proj.weight", (s.hidden, query)
        yield f"{at}.post_attention_layernorm.weight", (s.hidden,)
        yield f"{at}.mlp.gate_proj.weight", (s.intermediate, s.hidden)
        yield f"{at}.mlp.up_proj.weight", (s.intermediate, s.hidden)
        yield f"{at}.mlp.down_proj.weight", (s.hidden, s.intermediate)
    yield "model.norm.weight", (s.hidden,)
    yield HEAD, (s.vocabulary, s.hidden)


def random_runner(
    shape: ModelShape, dtype: str, device: str, positions: int, kv_tokens: int, executor: str = "gpu"
) -> ModelRunner:
    """Return a runner of a model with random weights."""
    options = RunnerOptions(dtype=dtype, device=device, executor=executor, kv_tokens=kv_tokens)
    weights = RandomWeights(shape, DTYPES[dtype], device)
    return ModelRunner.build(from_transformers(transformers_config(shape, positions)), weights, options)
