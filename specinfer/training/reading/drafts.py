"""Train an EAGLE layer and blockwise heads on kept texts."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specinfer.drafters.heads_layers import BlockwiseSource, save_heads, tensors_of_target
from specinfer.drafters.published.eagle3 import save_eagle
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import planned_executor
from specinfer.model.runner import ModelRunner
from specinfer.model.torch.layer import Layer, Mlp
from specinfer.model.torch.parts import Parts
from specinfer.model.torch.rotary import rotary_tables
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.families import EMBEDDING, open_weights
from specinfer.training.corpus import Continuation, frequent_tokens
from specinfer.training.eagle_student import (
    FROZEN,
    EagleStudent,
    UnrolledAttention,
    UnrolledSuccess,
    starting_tensors,
)
from specinfer.training.feature_students import HeadsStudent, starting_heads
from specinfer.training.feature_training import FeatureFlags, FeatureTraining, TrainingMethod
from specinfer.training.reading.examples import KeptExamples, TargetHead
from specinfer.training.reading.kept import HELD_OUT, OWN, KeptText, KeptTexts
from specinfer.training.run import draft_vocabulary
from specinfer.training.train_features import MARKOV_RANK

STEPS, HEADS = 2, 3
"""Steps that EAGLE unrolls in the second half of its training; blockwise heads."""
OWN_WEIGHT = 4
"""Weight of the target's own answers in the choice of the draft vocabulary."""
_UNITS_TOKENS = 2048


class _WatchedMlp(Mlp):
    """Sums up how much each inner unit adds to the output."""

    def __init__(self, prefix: str, config: ModelConfig, parts: Parts) -> None:
        super().__init__(prefix, config, parts)
        self._down, self._norms = self.down, parts.tensor(f"{prefix}down_proj.weight").norm(dim=0)
        self.down, self.activity = self._watched, torch.zeros(len(self._norms))

    def _watched(self, x: torch.Tensor) -> torch.Tensor:
        self.activity += x.abs().sum(0) * self._norms
        return self._down(x)


class _WatchedLayer(Layer):
    mlp_type = _WatchedMlp

    def activity(self) -> torch.Tensor:
        assert isinstance(self._mlp, _WatchedMlp)
        return self._mlp.activity


def mlp_width(config: ModelConfig) -> int:
    """Return the number of inner units of a draft's MLP, limited by the target's."""
    return min(config.intermediate_size, 2 * config.hidden_size)


@torch.inference_mode()
def active_units(
    runner: ModelRunner, target: Mapping[str, torch.Tensor], texts: Iterable[Continuation]
) -> list[int]:
    """Return the inner units of the last MLP with the largest outputs, ascending."""
    config, last = runner.config, runner.config.layers - 1
    layer = _WatchedLayer(last, config, Parts(config, target, torch.float32, "cpu"))
    cos, sin = rotary_tables(config.draft_layer())
    tokens = 0
    for item in texts:
        segment = Segment(runner.open(), (item.prompt + item.output)[:-1])
        _, (states,) = runner.forward_with_features([segment], [last])
        runner.cache.release(segment.sequence)
        length = len(states)
        angles = (cos[:length, None], sin[:length, None])
        layer(states[:, 0].float(), angles, UnrolledAttention(1, length, config))
        tokens += length
        if tokens >= _UNITS_TOKENS:
            break
    units: list[int] = layer.activity().topk(mlp_width(config)).indices.sort().values.tolist()
    return units


class KeptTraining:
    """Trains drafts of one target on the same kept texts."""

    def __init__(
        self, directory: Path, config: ModelConfig, kept: KeptTexts, flags: FeatureFlags, device: str
    ) -> None:
        texts = [*kept.texts()]
        self._directory, self._config, self._flags, self._kept = directory, config, flags, kept
        self._target = open_weights(directory, config)
        self._training = [text for text in texts if text.kind != HELD_OUT]
        self._held_out = [text for text in texts if text.kind == HELD_OUT]
        counted = [text.item for text in self._training for _ in range(OWN_WEIGHT if text.kind == OWN else 1)]
        size = draft_vocabulary(flags.vocabulary, config.vocab_size)
        self._token_ids = torch.from_numpy(frequent_tokens(counted, size))
        self._head = TargetHead(config, self._target, self._token_ids, device)
        self._in_blocks = planned_executor(directory, RunnerOptions(device=device)) == "native"
        """True if EAGLE is served by the compiled kernels, in 4 bits."""

    def eagle(
        self, out: Path, minutes: float, layers: tuple[int, ...], units: Sequence[int]
    ) -> UnrolledSuccess:
        """Train EAGLE: one step in the first half of the time, `STEPS` in the second."""

        def make(target: Mapping[str, torch.Tensor], token_ids: torch.Tensor) -> EagleStudent:
            tensors = starting_tensors(self._config, target, len(layers), token_ids, torch.tensor(units))
            return EagleStudent(self._config, target[EMBEDDING], tensors, FROZEN)

        def save(student: EagleStudent, token_ids: torch.Tensor, trained: Mapping[str, Any]) -> None:
            where = (self._directory, self._flags.model, self._record(trained), self._in_blocks)
            save_eagle(out, student.tensors(), token_ids, layers, *where)

        training = self._examples(self._training, 1, layers)

        def progressed(share: float) -> None:
            training.steps = 1 if share < 0.5 else STEPS

        return self._trainer(out, minutes).fit(
            TrainingMethod("eagle", "", layers, STEPS, make, save),
            training,
            self._examples(self._held_out, STEPS, layers),
            self._token_ids,
            progressed,
        )

    def blockwise(self, out: Path, minutes: float) -> UnrolledSuccess:
        """Train heads that share the target's output head, with a Markov head."""
        config, kind = self._config, BlockwiseSource

        def make(target: Mapping[str, torch.Tensor], token_ids: torch.Tensor) -> HeadsStudent:
            trained = starting_heads(kind, HEADS, config, target, token_ids, self._flags.seed, MARKOV_RANK)
            frozen = tensors_of_target(kind, config, target, token_ids, True)
            return HeadsStudent(config, kind, HEADS, trained, frozen)

        def save(student: HeadsStudent, token_ids: torch.Tensor, trained: Mapping[str, Any]) -> None:
            source = kind(student.tensors(), token_ids, HEADS)
            save_heads(out, source, self._directory, self._flags.model, self._record(trained))

        return self._trainer(out, minutes).fit(
            TrainingMethod(kind.algorithm, "", (config.layers,), HEADS, make, save),
            self._examples(self._training, HEADS, [self._config.layers]),
            self._examples(self._held_out, HEADS, [self._config.layers]),
            self._token_ids,
        )

    def _record(self, trained: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checkpoint's record, with the command and the texts."""
        flags, tokens = self._flags, Counter[str]()
        for text in self._training:
            tokens[text.kind] += text.item.tokens
        command = f"specinfer train speculator --model {flags.model} --seed {flags.seed}"
        return {**trained, "command": command, "corpus": dict(tokens)}

    def _examples(self, texts: Sequence[KeptText], steps: int, layers: Sequence[int]) -> KeptExamples:
        return KeptExamples(texts, self._head, steps, self._kept.places(layers))

    def _trainer(self, out: Path, minutes: float) -> FeatureTraining:
        return FeatureTraining(replace(self._flags, out=out, minutes=minutes, overwrite=True))


def read_units(path: Path) -> list[int]:
    """Read the inner units that `active_units` chose."""
    units: list[int] = json.loads(path.read_bytes())
    return units
