"""Device memory of a captured growth: where it reads its descriptions, and the trees that it builds."""

from dataclasses import dataclass

import torch

from specinfer.model.cache.sequence import blocks_for
from specinfer.model.device.growth_description import Levels
from specinfer.model.device.inputs import Inputs


@dataclass(frozen=True, slots=True)
class GrowthModel:
    """What growth must know of its model."""

    device: str
    group: int
    """Query heads that share a key."""
    vocabulary_size: int
    max_positions: int


@dataclass(frozen=True, slots=True)
class GrowthMemory:
    """Where a captured sequence reads: always in the same places."""

    passes: Inputs
    parameters: Inputs
    roots: torch.Tensor
    """[tasks, V] logits behind each context."""

    @classmethod
    def of(cls, levels: Levels, model: GrowthModel) -> "GrowthMemory":
        """Zeros, enough for every growth of these sizes."""
        requests = levels.bucket.requests
        nodes = levels.levels * levels.beam  # behind a context that may have all positions but the deepest's
        blocks = requests * blocks_for(model.max_positions + nodes)
        return cls(
            Inputs(levels.pass_numbers + blocks, model.device),
            Inputs(levels.parameter_numbers, model.device),
            torch.zeros(requests, model.vocabulary_size, device=model.device),
        )


@dataclass(frozen=True, slots=True)
class GrowthState:
    """Trees under construction; the shapes are those of `extend`."""

    paths: torch.Tensor
    scores: torch.Tensor
    tokens: torch.Tensor
    parents: torch.Tensor
    frontier_paths: torch.Tensor
    frontier_cells: torch.Tensor

    @classmethod
    def empty(cls, levels: Levels, device: str) -> "GrowthState":
        """Of roots alone."""
        requests, cells = levels.bucket.requests, levels.cells
        frontier = torch.zeros(levels.levels + 1, requests, levels.beam, dtype=torch.float64, device=device)
        frontier[0, :, 0] = 1.0
        floats = torch.zeros(requests, cells, dtype=torch.float64, device=device)
        whole = torch.zeros(requests, cells, dtype=torch.int32, device=device)
        return cls(
            paths=floats,
            scores=floats.float(),
            tokens=whole,
            parents=torch.zeros_like(whole),
            frontier_paths=frontier,
            frontier_cells=torch.full_like(frontier, -1, dtype=torch.int32),
        )

    def best_nodes(self, count: int) -> torch.Tensor:
        """[tasks, count, 5] float64: (path, cell, parent's cell, token, score) of each tree's best nodes."""
        order = self.paths.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        found = [table.gather(1, order).double() for table in (self.parents, self.tokens, self.scores)]
        return torch.stack([self.paths.gather(1, order), order.double(), *found], dim=-1)
