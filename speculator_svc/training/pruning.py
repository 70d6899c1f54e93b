"""Cuts a model down to what matters most on a text: layers, then heads and neurons of what is left."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch

from specinfer.errors import SettingError
from specinfer.model.layers.surgery import Surgery
from specinfer.model.layers.transformer import Transformer
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.prune import LayerCut, pruned_config, pruned_tensors, whole_layers
from speculator_svc.training.device import bfloat16_is_fast
from speculator_svc.training.effects import (
    Reader,
    Removal,
    Text,
    Verdict,
    Whole,
    measurements,
    part_effects,
    remove_layers,
)
from speculator_svc.training.progress import progress_bar

Tensors = Mapping[str, torch.Tensor]


class Size(NamedTuple):
    """How much stays."""

    layers: int
    kv_heads: int
    neurons: int

    @classmethod
    def checked(cls, config: ModelConfig, layers: int, kv_heads: int, neurons: int) -> "Size":
        """From options, of which 0 means all that this model has.

        Raises:
            SettingError: if it does not have so many, or if nothing would go.
        """
        whole = cls(config.layers, config.kv_heads, config.intermediate_size)
        asked = {"layers": layers, "kv_heads": kv_heads, "neurons": neurons}
        for (name, count), most in zip(asked.items(), whole, strict=True):
            if not 0 <= count <= most:
                raise SettingError(name, count, f"the model has {most}")
        size = cls(*(count or most for count, most in zip(asked.values(), whole, strict=True)))
        if size == whole:
            raise SettingError(
                "layers", layers, "nothing is to go: say how many layers, heads or neurons stay"
            )
        return size


class Pruned(NamedTuple):
    """What is left of a model."""

    config: ModelConfig
    tensors: dict[str, torch.Tensor]
    cuts: list[LayerCut]
    removed: list[Removal]
    """Layers, in the order in which they went."""
    verdict: Verdict
    """Of what is left, with the whole model."""


class Pruning:
    """A model, and the text on which effects are measured."""

    def __init__(self, weights: Tensors, config: ModelConfig, text: Text, device: str) -> None:
        self._weights, self._config, self._text, self._device = weights, config, text, device

    @torch.inference_mode()
    def run(self, size: Size) -> Pruned:
        """Measures and cuts, and shows how far it is."""
        reader = Reader(self._make(self._weights, self._config), self._text)
        whole = Whole(reader.logits(reader.start, range(reader.layers)))
        removed = self._layers(reader, whole, size.layers)
        gone = {removal.layer for removal in removed}
        cuts = whole_layers(self._config, [n for n in range(self._config.layers) if n not in gone])
        cuts = self._parts(cuts, size)
        tensors, config = self._cut(cuts)
        reader = Reader(self._make(tensors, config), self._text)
        verdict = whole.compare(reader.logits(reader.start, range(reader.layers)))
        return Pruned(config, tensors, cuts, removed, verdict)

    def _layers(self, reader: Reader, whole: Whole, keep: int) -> list[Removal]:
        removed: list[Removal] = []
        if keep == reader.layers:
            return removed
        with progress_bar() as bar:
            task = bar.add_task("measuring layers", total=measurements(reader.layers, keep))
            for removal in remove_layers(reader, whole, keep, lambda: bar.advance(task)):
                removed.append(removal)
                left = reader.layers - len(removed)
                told = f"{left} layers left, KL {removal.verdict.divergence:.3f} without {removal.layer}"
                bar.update(task, description=told)
        return removed

    def _parts(self, cuts: list[LayerCut], size: Size) -> list[LayerCut]:
        """The cuts without the heads and neurons that add least to their layers."""
        if (size.kv_heads, size.neurons) == (self._config.kv_heads, self._config.intermediate_size):
            return cuts
        tensors, config = self._cut(cuts)
        effects = part_effects(tensors, self._text, lambda watch: self._make(tensors, config, watch))
        return [
            replace(cut, kv_heads=_most(e.kv_heads, size.kv_heads), neurons=_most(e.neurons, size.neurons))
            for cut, e in zip(cuts, effects, strict=True)
        ]

    def _cut(self, cuts: list[LayerCut]) -> tuple[dict[str, torch.Tensor], ModelConfig]:
        return pruned_tensors(self._weights, self._config, cuts), pruned_config(self._config, cuts)

    def _make(self, weights: Tensors, config: ModelConfig, watch: Surgery | None = None) -> Transformer:
        dtype = torch.bfloat16 if bfloat16_is_fast(torch.device(self._device)) else torch.float32
        return Transformer(config, weights, dtype, self._device, watch)


def _most(effects: torch.Tensor, count: int) -> tuple[int, ...]:
    """Places of the largest, ascending."""
    return tuple(sorted(effects.topk(count).indices.tolist()))
