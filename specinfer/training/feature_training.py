"""Common parts of commands that train on the target's hidden states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import torch

from specinfer.hub import resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import fingerprint_in
from specinfer.model.weights.families import open_weights
from specinfer.options.model_options import Option
from specinfer.training.corpus import Material, frequent_tokens, read_corpora
from specinfer.training.distil import (
    DistilOptions,
    console,
    distil_with_bar,
    finishing,
)
from specinfer.training.eagle_student import (
    Unrolled,
    UnrolledSuccess,
    evaluate_unrolled,
    unrolled_loss,
)
from specinfer.training.feature_students import FeatureStudent, UnrolledBatch
from specinfer.training.reading.examples import KeptExamples, TargetHead
from specinfer.training.reading.kept import KeptTexts
from specinfer.training.reading.reader import read_corpus_texts
from specinfer.training.run import TrainingFlags, draft_vocabulary, place_for

CACHE_TOKENS = 8192
S = TypeVar("S", bound=FeatureStudent)


@dataclass(frozen=True, kw_only=True)
class FeatureFlags(TrainingFlags):
    """Flags of all commands that train on hidden states."""

    work: Annotated[Path, Option("Directory of features and state; a rerun continues it.")]
    minutes: Annotated[float, Option("Training time, without features.")] = 60.0
    learning_rate: Annotated[
        float | None,
        Option("Peak learning rate; not given: 0.001, less for targets with hidden states over 576 wide."),
    ] = None


@dataclass(frozen=True, slots=True)
class TrainingMethod(Generic[S]):
    """A kind of speculator to train."""

    method: str
    flags: str
    """The method's own command-line flags, for the checkpoint's record."""
    layers: tuple[int, ...]
    """Number of target layers before each hidden state that the draft reads."""
    steps: int
    """Number of tokens that a draft predicts."""
    make: Callable[[Mapping[str, torch.Tensor], torch.Tensor], S]
    """Create the student from (target's weights, draft vocabulary)."""
    save: Callable[[S, torch.Tensor, Mapping[str, Any]], None]
    """Write a checkpoint from (student, draft vocabulary, record)."""
    token_ids: torch.Tensor | None = None
    """Draft vocabulary; None: the corpus' most frequent tokens."""


class FeatureTraining:
    def __init__(self, asked: FeatureFlags) -> None:
        """Check the options."""
        asked.check("speculator")
        self._asked, self._device = asked, place_for(asked.device, asked.threads)
        self.directory = resolve_model(asked.model)
        self.config: ModelConfig = load_config(self.directory)
        self.options = options_for(self.config.hidden_size, asked.minutes, asked.learning_rate, asked.seed)
        self._vocabulary = draft_vocabulary(asked.vocabulary, self.config.vocab_size)

    def run(self, reader: TrainingMethod[S]) -> None:
        """Train and save a speculator."""
        self.fit(reader, *self._prepare(reader))

    def fit(
        self,
        reader: TrainingMethod[S],
        training: Material[UnrolledBatch],
        held_out: Unrolled,
        token_ids: torch.Tensor,
        progressed: Callable[[float], None] = lambda share: None,
    ) -> UnrolledSuccess:
        """Train and save a speculator; `progressed` gets the share of the time that is over."""
        asked = self._asked
        target = open_weights(self.directory, self.config)
        student = reader.make(target, token_ids).to(self._device)
        state = asked.work / f"state-{reader.method}.pt"

        def score() -> float:
            length = evaluate_unrolled(student, held_out, token_ids).accepted_length
            console.print(f"held out: {length:.3f} tokens per step by chains")
            return length

        seen = distil_with_bar(student, training, self.options, state, unrolled_loss, score, progressed)
        success = evaluate_unrolled(student, held_out, token_ids)
        console.print(f"held out: {success.accepted_length:.3f} tokens per step by chains, the best")
        for step, of_depth in enumerate(success.by_depth):
            console.print(f"held out, depth {step + 1}: {of_depth}")
        with finishing(state, asked.out):
            reader.save(student, token_ids, self._record(reader, len(token_ids), seen, success))
        return success

    def _record(
        self, reader: TrainingMethod[S], vocabulary: int, seen: int, success: UnrolledSuccess
    ) -> dict[str, Any]:
        """Return the checkpoint's record of the training, without local paths."""
        asked, options = self._asked, self.options
        return {
            "command": f"specinfer train {reader.method} --model {asked.model} {reader.flags} "
            f"--vocabulary {vocabulary} --minutes {options.minutes:g} "
            f"--learning-rate {options.learning_rate:g} --seed {options.seed}",
            "corpus": [path.name for path in asked.corpus],
            "tokens_seen": seen,
            "success_held_out": [of_depth.to_json() for of_depth in success.by_depth],
            "accepted_length_held_out": round(success.accepted_length, 3),
        }

    def _prepare(self, reader: TrainingMethod[S]) -> tuple[KeptExamples, KeptExamples, torch.Tensor]:
        """Return training data, held-out data and the draft vocabulary."""
        asked, options = self._asked, RunnerOptions(kv_tokens=CACHE_TOKENS, device=self._device)
        runner = load_checked(self.directory, options)
        kept = KeptTexts(asked.work / "states", fingerprint_in(self.directory), reader.layers)
        parts, held_out = read_corpora(asked.corpus)
        first = [item for part in parts for item in part]
        token_ids = reader.token_ids
        if token_ids is None:
            token_ids = torch.from_numpy(frequent_tokens(first, self._vocabulary))
        target = open_weights(self.directory, self.config)
        head = TargetHead(self.config, target, token_ids, self._device)
        training, tested = (
            KeptExamples(
                read_corpus_texts(runner, part, kept), head, reader.steps, kept.places(reader.layers)
            )
            for part in (first, held_out)
        )
        return training, tested, token_ids


_USUAL_HIDDEN = 576
"""Hidden size for which default learning rate and batch size were chosen."""


def options_for(hidden: int, minutes: float, learning_rate: float | None, seed: int) -> DistilOptions:
    """Return training options for a hidden size.

    Wider models get a lower learning rate and smaller batches.
    """
    narrow = min(1.0, _USUAL_HIDDEN / hidden)
    usual = DistilOptions(minutes, seed=seed)
    rate = usual.learning_rate * narrow if learning_rate is None else learning_rate
    return replace(usual, learning_rate=rate, tokens_per_batch=max(int(usual.tokens_per_batch * narrow), 256))
