"""Runs recurrent layers of `transformers` models over trees.

They are gated delta nets, state space models and short convolutions. Such a layer maps a state and some tokens to
outputs and the next state. A pass is cut into chains of consecutive tokens: a request's context, then its tree, level
by level. A chain begins with the state after its parent; chains of equal level and length share one call of the layer.
Layers read and write states through the cache interface of `transformers`, so any such layer runs unchanged.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.system.machine import free_memory

Tensors = dict[tuple[str, int], torch.Tensor]
"""One layer's states, by kind ("conv", "recurrent") and index."""
TokenState = dict[int, Tensors]
"""States after a token, by index among the recurrent layers."""
_CACHE_NAMES = ("cache_params", "past_key_values")
_MEMORY_PART = 0.5
"""Share of the free memory for states, after loading the model."""


class Chain(NamedTuple):
    """Consecutive tokens on one path, as rows of a pass."""

    rows: Sequence[int]
    parent: int | None
    """Slot of the token before the chain; None: it begins the context."""
    end: int
    """Slot of the chain's last token."""


def levels_of(batch: Batch, stepwise: bool = False) -> list[list[Chain]]:
    """Return a pass's chains by level; parents are in earlier levels.

    `stepwise`: each chain has only one token.
    """
    levels: defaultdict[int, list[Chain]] = defaultdict(list)
    for part in batch.rows:
        known: dict[int, int] = {}
        for chain in _chains(part, stepwise):
            level = known.get(chain.parent, -1) + 1 if chain.parent is not None else 0
            known[chain.end] = level
            levels[level].append(chain)
    return [levels[level] for level in sorted(levels)]


def _chains(part: AttentionRows, stepwise: bool) -> Iterator[Chain]:
    """Yield a request's chains: context, cut after whole blocks, then single nodes."""

    def slot(position: int) -> int:
        return part.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS

    delta = sum(not path for path in part.extra)
    if delta:
        first, last = part.visible[0] - 1, part.visible[delta - 1]
        cut = max((last - 1) // BLOCK_TOKENS * BLOCK_TOKENS, first)
        cuts = range(first, last + 1) if stepwise else sorted({first, cut, last})
        for start, stop in pairwise(cuts):
            rows = range(part.start + start - first, part.start + stop - first)
            yield Chain(rows, slot(start - 1) if start else None, slot(stop - 1))
    for offset in range(delta, part.stop - part.start):
        path = part.extra[offset]
        before = path[-2] if len(path) > 1 else part.visible[offset] - 1
        yield Chain([part.start + offset], slot(before) if before >= 0 else None, slot(path[-1]))


class LayerCall(NamedTuple):
    """Chains of one level and length, for one call of each layer."""

    chains: Sequence[Chain]
    rows: torch.Tensor
    """[chains, length] row numbers in the pass."""


class _LayerCache:
    """Implements `transformers`' cache interface, for one call of a layer."""

    def __init__(self, states: Tensors) -> None:
        self.states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.states.get(("recurrent", state_idx))

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self, inputs: torch.Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int = 0, **_: object
    ) -> torch.Tensor:
        """Append inputs [B, channels, n] to the state; return both concatenated.

        The last `conv_kernel_size` inputs are the new state.
        """
        before = self.states.get(("conv", state_idx))
        if before is None:
            before = inputs.new_zeros(*inputs.shape[:-1], max(conv_kernel_size - inputs.shape[-1], 0))
        inputs = torch.cat([before, inputs], -1)
        self.states["conv", state_idx] = inputs[..., -conv_kernel_size:]
        return inputs

    def update_recurrent_state(
        self, state: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> torch.Tensor:
        self.states["recurrent", state_idx] = state
        return state


class RecurrentLayers:
    """Replaces a model's recurrent layers during passes; stores their states."""

    def __init__(self, model: Any) -> None:
        self._layers = [
            (layer, name) for layer in model.modules() if (name := _cache_name(layer)) is not None
        ]
        self.states: RecurrentStates[TokenState] = RecurrentStates()
        self._max_bytes = int(_MEMORY_PART * free_memory(str(model.device))) if self._layers else 0
        self._calls: list[LayerCall] = []
        """Calls of each layer in the current pass, in order."""
        hidden = model.config.get_text_config().hidden_size
        kinds = {type(layer): (layer, name) for layer, name in self._layers}
        self._stepwise = not all(_goes_on(layer, name, hidden) for layer, name in kinds.values())

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def modules(self) -> list[torch.nn.Module]:
        return [layer for layer, _ in self._layers]

    @contextmanager
    def over(self, batch: Batch) -> Iterator[None]:
        """Let recurrent layers compute this pass's chains, within the block."""
        if not self._layers:
            yield
            return
        self._calls = [
            LayerCall(chains, torch.tensor([list(chain.rows) for chain in chains]))
            for level in levels_of(batch, self._stepwise)
            for chains in _alike(level)
        ]
        try:
            for number, (layer, name) in enumerate(self._layers):
                layer.forward = self._replaced(number, layer.forward, name)
            yield
        except BaseException:  # some layers have written states of tokens that no sequence has
            self.states.forget([chain.end for call in self._calls for chain in call.chains])
            raise
        finally:
            for layer, _ in self._layers:
                layer.__dict__.pop("forward", None)
        if self.states.limit is None:
            self.states.limit = self._fit()

    def _replaced(self, number: int, forward: Any, name: str) -> Any:
        def run(hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
            out: torch.Tensor | None = None
            for chains, rows in self._calls:
                cache = self._begin(number, chains)
                output = forward(hidden_states=hidden_states[0, rows], attention_mask=None, **{name: cache})
                if out is None:
                    out = hidden_states.new_empty(hidden_states.shape[1], output.shape[-1])
                out[rows] = output
                self._end(number, chains, cache)
            assert out is not None, "a pass has tokens"
            return out[None]

        return run

    def _begin(self, number: int, chains: Sequence[Chain]) -> _LayerCache:
        """Return a cache with the states before chains, [chains, ...]."""
        if chains[0].parent is None:
            return _LayerCache({})
        parents = [self.states[chain.parent][number] for chain in chains if chain.parent is not None]
        return _LayerCache({key: torch.stack([parent[key] for parent in parents]) for key in parents[0]})

    def _end(self, number: int, chains: Sequence[Chain], cache: _LayerCache) -> None:
        """Store the states after chains, from a cache."""
        for row, chain in enumerate(chains):
            tensors = {key: tensor[row].clone() for key, tensor in cache.states.items()}
            if number == 0:
                self.states[chain.end] = {}
            self.states[chain.end][number] = tensors

    def _fit(self) -> int:
        """Return the maximum number of states, from a stored state's size."""
        state = self.states[self._calls[0].chains[0].end]
        return self._max_bytes // sum(tensor.nbytes for layer in state.values() for tensor in layer.values())


def _alike(chains: Sequence[Chain]) -> list[list[Chain]]:
    """Group chains by length, and by whether they begin a context."""
    groups: defaultdict[tuple[int, bool], list[Chain]] = defaultdict(list)
    for chain in chains:
        groups[len(chain.rows), chain.parent is None].append(chain)
    return list(groups.values())


def _cache_name(layer: torch.nn.Module) -> str | None:
    """Return a layer's name of the cache argument; None: not recurrent."""
    if not hasattr(layer, "layer_idx") or not any(
        isinstance(child, torch.nn.Conv1d) for child in layer.children()
    ):
        return None
    parameters = inspect.signature(layer.forward).parameters
    if "hidden_states" not in parameters:
        raise IncompatibleError(f"{type(layer).__name__}: its forward must have an argument hidden_states")
    return next((name for name in _CACHE_NAMES if name in parameters), None)


@torch.inference_mode()
def _goes_on(layer: torch.nn.Module, name: str, hidden: int) -> bool:
    """Return whether a layer continues a state correctly with several tokens.

    Some layers then assume a zero state.
    """
    layer = copy.deepcopy(layer).to(device="cpu", dtype=torch.float32)
    inputs = torch.randn(1, 6, hidden, generator=torch.Generator().manual_seed(0))
    whole = layer(hidden_states=inputs, **{name: _LayerCache({})})
    cache = _LayerCache({})
    parts = [layer(hidden_states=part, **{name: cache}) for part in (inputs[:, :3], inputs[:, 3:])]
    return torch.allclose(torch.cat(parts, 1), whole, rtol=1e-3, atol=1e-3 * float(whole.std()))
