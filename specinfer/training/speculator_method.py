"""Choose the kind of speculator to train for a target."""

from enum import StrEnum
from typing import NamedTuple

from specinfer.errors import IncompatibleError
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.draft_checkpoint import OF_TRAINED_SSMS

LARGE = 1e9
"""Parameters of a target from which EAGLE or heads are chosen in any case."""


class SpeculatorMethod(StrEnum):
    """Kind of the speculator; `auto` chooses by the size of the target."""

    AUTO = "auto"
    SSM = "ssm"
    EAGLE = "eagle"
    BLOCKWISE = "blockwise"


class ChosenMethod(NamedTuple):
    method: SpeculatorMethod
    reason: str


def parameters(config: ModelConfig) -> int:
    """Return the approximate number of parameters, without biases and norms."""
    attention = 2 * config.hidden_size * config.head_dim * (config.heads + config.kv_heads)
    mlp = (3 if config.gated else 2) * config.hidden_size * config.intermediate_size
    embeddings = (1 if config.tied_embeddings else 2) * config.vocab_size * config.hidden_size
    return config.layers * (attention + mlp) + embeddings


def choose_method(config: ModelConfig) -> ChosenMethod:
    """Choose a method by the size of the target.

    Small targets get an SSM, which had the best acceptance on the default target and needs no hidden states. For a
    large target, a reader of hidden states learns more in a short training than two layers of an SSM, and its cost is
    small compared to the target's pass. A target whose layers do not fit gets the next method.
    """
    size = f"{parameters(config) / 1e6:,.0f} M parameters"
    if parameters(config) < LARGE:
        try:
            check_method(SpeculatorMethod.SSM, config)
        except IncompatibleError as error:
            size = f"{size}; {error}"
        else:
            reason = f"{size}, under {LARGE / 1e6:,.0f} M: an SSM of two target layers"
            return ChosenMethod(SpeculatorMethod.SSM, reason)
    try:
        check_method(SpeculatorMethod.EAGLE, config)
    except IncompatibleError as error:
        return ChosenMethod(SpeculatorMethod.BLOCKWISE, f"{error}: heads on hidden states")
    return ChosenMethod(SpeculatorMethod.EAGLE, f"{size}: a layer on hidden states, compared with heads")


def check_method(method: SpeculatorMethod, config: ModelConfig) -> None:
    """Check that a method fits the target's layers."""
    if method is SpeculatorMethod.SSM:
        config.like_llama(OF_TRAINED_SSMS)
    elif method is SpeculatorMethod.EAGLE:
        config.draft_layer()
