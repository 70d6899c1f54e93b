"""Choose the kind of speculator to train for a target."""

from enum import StrEnum
from typing import NamedTuple

from specinfer.model.weights.config import ModelConfig

LARGE = 1e9
"""Minimum parameters of a target to choose EAGLE or heads."""
NO_EAGLE = ("opt", "gpt_neox")
"""Families without EAGLE: biased norms or learned positions."""


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
    small compared to the target's pass.
    """
    size = f"{parameters(config) / 1e6:,.0f} M parameters"
    if parameters(config) < LARGE:
        return ChosenMethod(
            SpeculatorMethod.SSM, f"{size}, under {LARGE / 1e6:,.0f} M: an SSM of two target layers"
        )
    if config.family in NO_EAGLE:
        reason = f"{size}, and EAGLE has no layer of family {config.family}: heads on hidden states"
        return ChosenMethod(SpeculatorMethod.BLOCKWISE, reason)
    reason = f"{size}, at least {LARGE / 1e6:,.0f} M: a layer on hidden states, compared with heads"
    return ChosenMethod(SpeculatorMethod.EAGLE, reason)
