"""Runs resident speculators: drafters in the verifier's process."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from specinfer.drafters.engine import SpeculatorEngine, warm_up
from specinfer.drafters.pools import Flags, load_drafters
from specinfer.engine.local_pool import LocalPool
from specinfer.errors import IncompatibleError
from specinfer.model.runner import ModelRunner
from specinfer.remote.description import describe
from specinfer.v1 import speculator_pb2
from specinfer.verification.jobs import MAX_TOP_K
from verifier_svc.settings import VerifierSettings


class NamedDrafters(NamedTuple):
    """Drafters that are loaded, and their methods."""

    drafters: SpeculatorEngine
    methods: list[str]


LoadedDrafters: TypeAlias = NamedDrafters | None
"""None: `--draft none`."""


def load_drafters_of(settings: VerifierSettings, flags: Flags | None) -> LoadedDrafters:
    """Load the drafters of `--draft`, which `flags` name."""
    if flags is None:
        return None
    loaded = load_drafters("draft", flags, settings.for_drafts(settings.model))
    return NamedDrafters(SpeculatorEngine(list(loaded.values()), idle_seconds=math.inf), list(loaded))


class ResidentSpeculators:
    """Resident drafters, and their description in `Describe`."""

    def __init__(
        self, drafters: SpeculatorEngine | None, methods: Sequence[str], runner: ModelRunner
    ) -> None:
        """Attach drafters to a target; None: there are no drafters."""
        self.drafters = drafters
        self.description = speculator_pb2.DescribeSpeculatorReply()
        groups = []
        if drafters is not None:
            self.description = describe(drafters, methods, methods)
            groups = [(drafters, methods)]
            self._check(runner)
        self.pool = LocalPool(groups, runner.config.hidden_size, runner.config.vocab_size)

    @classmethod
    def of(cls, loaded: LoadedDrafters, runner: ModelRunner, fingerprint: str) -> "ResidentSpeculators":
        """Attach loaded drafters to a target.

        Args:
            loaded: result of `load_drafters_of`.
            runner: the target.
            fingerprint: fingerprint of the target's vocabulary.
        """
        if loaded is None:
            return cls(None, (), runner)
        loaded.drafters.check_tokenizer(fingerprint)
        warm_up(loaded.drafters)
        return cls(loaded.drafters, loaded.methods, runner)

    def _check(self, runner: ModelRunner) -> None:
        layers, size = list(self.description.feature_layers), self.description.feature_size
        feature_layers, hidden = runner.feature_layers, runner.config.hidden_size
        if layers and not feature_layers:
            runner.check_layers(layers)
        if layers and (layers[-1] > feature_layers or size != hidden):
            raise IncompatibleError(
                f"--draft reads hidden states of size {size} after layers {layers}; "
                f"the target has size {hidden} and {feature_layers} layers"
            )
        if self.description.target_top_k > min(MAX_TOP_K, runner.config.vocab_size):
            raise IncompatibleError(
                f"--draft reads the target's {self.description.target_top_k} most probable tokens per node: "
                f"must be at most {min(MAX_TOP_K, runner.config.vocab_size)}"
            )
