"""Common parts of published drafts: tensors, cached rows, shared target tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from specinfer.drafters import DrafterDescription, DrafterOptions
from specinfer.drafters.checkpoint import load_trained
from specinfer.drafters.feature_rows import FeatureRowsDrafter, RowRunner
from specinfer.drafters.heads_layers import output_head
from specinfer.drafters.published.config import DraftLayers, Shapes
from specinfer.drafters.ssm import shape_of
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.batch import Batch
from specinfer.model.cache.sequence import BLOCK_TOKENS, KVSequence, Slots, blocks_for
from specinfer.model.options import DTYPES, RunnerOptions, check_numbers
from specinfer.model.torch.attention import ReferenceAttention
from specinfer.model.torch.layer import Attend
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.draft_checkpoint import checked_tokens, own_tensors
from specinfer.model.weights.families import EMBEDDING, open_weights


class RowMemory:
    """Cache of rows' keys and values, by layer and slot."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: str, num_blocks: int) -> None:
        self._attention, self._device = ReferenceAttention(device), device
        shape = (num_blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self.keys, self.values = (
            [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)] for _ in range(2)
        )

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store keys and values [T, KV heads, D] in slots."""
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)

    def attention(self, batch: Batch, windows: Sequence[int | None]) -> Attend:
        """Return a batch's attention, which stores its rows; `windows`: by layer."""
        slots = torch.tensor(batch.write_slots, dtype=torch.int64, device=self._device)
        plans = {window: self._attention.plan(batch, window=window) for window in set(windows)}

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            self.write(layer, slots, key, value)
            return self._attention.attend(query, self.keys[layer], self.values[layer], plans[windows[layer]])

        return attend

    def move(self, source: Slots, target: Slots) -> None:
        raise NotImplementedError("rows of a draft are dropped, never moved")

    def rotate(self, slots: Slots, delta: int) -> None:
        raise NotImplementedError("rows of a draft are not rotated: their cache has no window")


def slots_of(sequence: KVSequence, start: int, stop: int) -> torch.Tensor:
    """Return the slots of a sequence's positions from `start` to `stop`."""
    places = torch.arange(start, stop)
    return torch.tensor(sequence.blocks)[places // BLOCK_TOKENS] * BLOCK_TOKENS + places % BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Embeddings and output head of a draft."""

    embedding: torch.Tensor
    """[V, hidden] embeddings."""
    head: torch.Tensor
    """[draft vocabulary, hidden] output head."""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        target: Mapping[str, torch.Tensor],
        stored: Mapping[str, torch.Tensor],
        token_ids: torch.Tensor,
    ) -> "Borrowed":
        """Return the checkpoint's tensors; in place of missing tensors, the target's."""
        embedding, head = stored.get("embed_tokens.weight"), stored.get("lm_head.weight")
        return cls(
            target[EMBEDDING] if embedding is None else embedding,
            output_head(config, target)[token_ids] if head is None else head,
        )


def in_order(states: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
    """Concatenate hidden states [R, layers, hidden] of ascending layers by `layers`.

    The result is [R, layers * hidden].
    """
    ascending = sorted(layers)
    return states[:, [ascending.index(layer) for layer in layers]].flatten(1)


_OF_TARGET = frozenset({"verifier_lm_head.weight", "verifier_norm.weight"})
"""Copies of the target's tensors, used only in training."""


def read_tensors(
    directory: Path, wanted: Shapes, optional: Shapes, draft_vocabulary: int, vocabulary: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a checkpoint's tensors, and the target token of each draft token."""
    tensors, token_ids = own_tensors(directory)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in _OF_TARGET}
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise IncompatibleError(f"the weights lack {missing[0]}, which config.json requires")
    shapes = wanted | optional
    for name, tensor in tensors.items():
        if name not in shapes:
            raise IncompatibleError(
                f"the weights have the tensor {name}, which config.json does not describe"
            )
        if tuple(tensor.shape) != shapes[name]:
            mismatch = f"{name} has shape {list(tensor.shape)}"
            raise IncompatibleError(f"{mismatch}: config.json implies {list(shapes[name])}")
    return tensors, _token_ids(token_ids, draft_vocabulary, vocabulary)


def _token_ids(tensor: torch.Tensor | None, draft_vocabulary: int, vocabulary: int) -> torch.Tensor:
    if tensor is None and draft_vocabulary == vocabulary:
        return torch.arange(vocabulary)
    return checked_tokens(tensor, draft_vocabulary, vocabulary)


def in_llama_names(tensors: Mapping[str, torch.Tensor], prefix: str = "layers.") -> dict[str, torch.Tensor]:
    """Return tensors under our decoder's names of layers and final norm."""
    renamed = {"norm.weight": "model.norm.weight"}
    return {
        renamed.get(name, f"model.layers.{name.removeprefix(prefix)}" if name.startswith(prefix) else name): t
        for name, t in tensors.items()
    }


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """Common parts of a published draft of any kind."""

    algorithm: ClassVar[str]
    tensors: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token."""
    draft_layers: DraftLayers
    layers: tuple[int, ...]
    """Target layers of the hidden states, in the order that `fc` reads."""


P = TypeVar("P", bound=PublishedSource)


@dataclass(frozen=True, slots=True)
class Published(Generic[P]):
    """A loaded checkpoint with everything needed to run it."""

    draft: P
    borrowed: Borrowed
    description: DrafterDescription
    memory: tuple[torch.dtype, str, int]
    """Numeric type, device and number of blocks of the draft's cache."""


def load_published(options: DrafterOptions, kind: type[P]) -> Published[P]:
    """Load the checkpoint `options.model`, with its target's shared tensors."""
    _check_torch(options, f"a draft of {kind.algorithm}")
    trained = load_trained(options, kind)
    draft, config = trained.draft, trained.config
    weights = open_weights(trained.target, config)
    description = replace(
        trained.description,
        feature_layers=tuple(sorted(draft.layers)),
        feature_size=config.hidden_size,
        max_context_len=min(config.max_positions, draft.draft_layers.config.max_positions),
    )
    return Published(
        draft,
        Borrowed.of(config, weights, draft.tensors, draft.token_ids),
        description,
        (DTYPES[options.dtype], options.device, blocks_for(options.kv_tokens)),
    )


class PublishedDrafter(FeatureRowsDrafter):
    """Draft with a published checkpoint of one kind."""

    kind: ClassVar[type[PublishedSource]]
    model: ClassVar[Callable[..., Any]]
    """Constructor of the model: (checkpoint, target's tensors, cache)."""
    runner: ClassVar[Callable[..., RowRunner]]
    """Constructor of the runner: (model, blocks of its cache)."""

    @classmethod
    def from_options(cls, options: DrafterOptions) -> Self:
        """Load a checkpoint."""
        shape, published = shape_of(options), load_published(options, cls.kind)
        runner = cls.runner(
            cls.model(published.draft, published.borrowed, *published.memory), published.memory[2]
        )
        return cls(runner, published.description, shape, published.draft.token_ids)


def _check_torch(options: DrafterOptions, what: str) -> None:
    """Check the options of a draft that only runs in torch."""
    runner_options = RunnerOptions(options.dtype, options.device, options.weights, executor=options.executor)
    if runner_options.executor not in ("auto", "torch"):
        raise SettingError("executor", runner_options.executor, f"must be torch or auto for {what}")
    check_numbers(runner_options, f"{what} is stored")
