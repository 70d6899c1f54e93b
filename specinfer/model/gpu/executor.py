"""The GPU executor: fused Triton kernels and CUDA graphs.

One array of numbers describes a pass and is copied once. Small passes are rounded up to a bucket, whose graph was
captured at start. `specinfer.model.gpu.refusal` lists what needs torch.

Of a model divided among ranks, each rank runs its part without graphs: all ranks would have to capture and replay the
same collectives in the same order, which no machine with several GPUs has shown to work yet.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from specinfer.model.arrays import Array
from specinfer.model.batch import Batch, PassFeatures
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots, blocks_for
from specinfer.model.drafting.task import GrowthShape, GrowthTask
from specinfer.model.gpu.attention import AttentionPlan, splits_for, tree_attention
from specinfer.model.gpu.choice import choose
from specinfer.model.gpu.decoder import GpuTransformer
from specinfer.model.gpu.description import Bucket, describe, exact_bucket
from specinfer.model.gpu.graphs import (
    MAX_ROWS,
    CudaGraphs,
    EagerPasses,
    Graphs,
    Sizes,
    bucket_for,
    bucket_grid,
    largest,
)
from specinfer.model.gpu.growth import GpuGrowth, can_grow
from specinfer.model.gpu.growth_description import GrowthModel
from specinfer.model.gpu.launch import Inputs, check_device, current, processors
from specinfer.model.gpu.layer_kernels import move
from specinfer.model.gpu.weights import quantiser
from specinfer.model.sampling.choices import Choices, ChoiceTask
from specinfer.model.torch.linear import Surgery
from specinfer.model.torch.rotary import rotate
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights
from specinfer.options.model_options import AUTO
from specinfer.tree import TokenTree


class GpuExecutor:
    """The decoder on a GPU, with caches [layers, KV heads, slots, D]."""

    name = "gpu"

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        num_blocks: int,
        device: str,
        weights_format: str = AUTO,
        surgery: Surgery | None = None,
        captured: bool = True,
    ) -> None:
        """Load the model, and capture its passes.

        Args:
            weights_format: that of the layers' matrices: int8, fp8, or unquantised.
            surgery: divides the layers among tensor-parallel ranks; None: no ranks.
            captured: False: passes run without graphs.
        """
        check_device(device)
        self._config, self._device, self._processors = config, device, processors(device)
        self._model = GpuTransformer(config, weights, dtype, device, quantiser(weights_format), surgery)
        shape = (config.layers, config.kv_heads, num_blocks * BLOCK_TOKENS, config.head_dim)
        self._keys, self._values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self._group, self._positions = config.heads // config.kv_heads, config.max_positions
        grid = bucket_grid(self._group)
        # rows without a request have finite numbers, so that later operations do not overflow
        self._attended = torch.zeros(MAX_ROWS, config.heads, config.head_dim, dtype=dtype, device=device)
        # a tree may have more nodes than positions: only its depth needs positions, but each node a cache slot
        blocks = blocks_for(self._positions + MAX_ROWS) * max(bucket.requests for bucket in grid)
        self._inputs = Inputs(largest(grid).starts["blocks"] + blocks, device)
        self._graphs = self._graphs_of(self._replayed)
        model = GrowthModel(device, self._group, config.vocab_size, self._positions)
        self._growth = GpuGrowth(self.run, self._scored, self._graphs_of, model)
        with current(device), torch.inference_mode():
            self._graphs.capture(grid if captured else [])

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    @property
    def cache_bytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def run(self, batch: Batch) -> torch.Tensor:
        with current(self._device):
            return self._run(batch)

    def _run(self, batch: Batch) -> torch.Tensor:
        bucket = None if batch.features else bucket_for(batch, self._group)
        if bucket is None:
            hidden, logit_rows = self._exact(batch)
            return self._model.logits(hidden[logit_rows])
        self._inputs.load(describe(batch, bucket))
        # a copy, as the next pass overwrites the graph's output
        return self._graphs.run(bucket)[: len(batch.logit_rows)].clone()

    def hidden(self, batch: Batch, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return hidden states [T, hidden] after the layers, without a graph; write keys and values.

        Args:
            x: [T, hidden] input of the first layer; None: the embeddings of the batch's tokens.
        """
        with current(self._device):
            return self._exact(batch, x)[0]

    def logits(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [R, V] of logit rows from `hidden` [T, hidden]."""
        with current(self._device):
            return self._model.logits(hidden[torch.tensor(batch.logit_rows, device=self._device)])

    def choose(self, tasks: Sequence[ChoiceTask]) -> list[Choices]:
        with current(self._device), torch.inference_mode():
            return choose(tasks)

    def move(self, source: Slots, target: Slots) -> None:
        with current(self._device):
            move(self._keys, self._values, source, target)

    def rotate(self, slots: Slots, delta: int) -> None:
        here = torch.tensor(slots, dtype=torch.int64, device=self._device)
        angles = torch.tensor(self._config.inv_freq, device=self._device).repeat(2) * delta
        turned = rotate(self._keys.index_select(2, here).float(), angles.cos(), angles.sin())
        self._keys.index_copy_(2, here, turned.to(self._keys.dtype))

    def can_grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape) -> bool:
        return can_grow(tasks, shape)

    def grow(self, tasks: Sequence[GrowthTask], shape: GrowthShape, token_ids: Array) -> list[TokenTree]:
        with current(self._device):
            return self._growth.grow(tasks, shape, token_ids)

    def _graphs_of(self, run: Callable[[Sizes], torch.Tensor]) -> Graphs[Sizes]:
        return CudaGraphs(run) if torch.device(self._device).type == "cuda" else EagerPasses(run)

    def _scored(self, bucket: Bucket, sections: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run the pass over one level's nodes; return logits [rows, V]."""
        kept = self._attended
        if bucket.rows > len(kept):
            kept = kept.new_zeros(bucket.rows, *kept.shape[1:])
        return self._pass(bucket, sections, self._positions, kept[: bucket.rows])

    def _replayed(self, bucket: Bucket) -> torch.Tensor:
        sections = bucket.views(self._inputs.numbers)
        return self._pass(bucket, sections, self._positions, self._attended[: bucket.rows])

    def _exact(self, batch: Batch, x: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the layers of a pass of any size; return hidden states and `batch.logit_rows`."""
        bucket = exact_bucket(batch, self._group)
        sections = bucket.views(self._inputs.load(describe(batch, bucket)))
        longest = max(part.length for part in batch.rows)
        out = self._attended.new_empty(bucket.rows, *self._attended.shape[1:])
        hidden = self._hidden(bucket, sections, longest, out, batch.features, x)
        return hidden, sections["logit_rows"]

    def _pass(
        self,
        bucket: Bucket,
        sections: Mapping[str, torch.Tensor],
        longest: int,
        out: torch.Tensor,
    ) -> torch.Tensor:
        """Run a pass in a bucket's layout; return float32 logits."""
        return self._model.logits(self._hidden(bucket, sections, longest, out)[sections["logit_rows"]])

    def _hidden(
        self,
        bucket: Bucket,
        sections: Mapping[str, torch.Tensor],
        longest: int,
        out: torch.Tensor,
        features: PassFeatures | None = None,
        x: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the layers in a bucket's layout; return hidden states [rows, hidden].

        Args:
            longest: number of positions of the longest request.
            out: [rows, H, D] buffer for attention's output.
            x: [rows, hidden] input of the first layer; None: the tokens' embeddings.
        """
        c = self._config
        splits = splits_for(bucket, c.kv_heads, longest, self._processors)
        plan = AttentionPlan.of(bucket, sections, splits, c.heads, c.head_dim)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            cache = self._keys[layer], self._values[layer]
            return tree_attention(query, key, value, cache, plan, out)

        positions = sections["positions"]
        if x is None:
            x = self._model.embed(sections["token_ids"], positions)
        return self._model.through(x, positions, attend, features)
