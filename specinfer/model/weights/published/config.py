"""`config.json` of a published draft: each field is read, or refused by its name and value."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.draft_checkpoint import checked_config, target_config, verifier_fields
from specinfer.model.weights.published.layers import DraftLayers, read_layers

_DESCRIBED = frozenset(
    {"architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "speculators_version"}
    | {"speculators_model_type", "speculators_config", "transformer_layer_config", "_name_or_path"}
    | {"has_no_defaults_at_init", "base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan"}
)
"""Fields of every algorithm that say who wrote the file, or are read by themselves."""
EAGLE_LAYERS = "eagle_aux_hidden_state_layer_ids"
_UNTIED = {"tie_word_embeddings": False}
_PROPOSAL: Mapping[str, Any] = {"proposal_type": "greedy", "verifier_accept_k": 1, "accept_tolerance": 0.0}
"""A proposal method without loss."""


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    """Contents of a published `config.json`."""

    fields: Mapping[str, Any]
    """The algorithm's own fields, with the library's value where the file has none."""
    layers: DraftLayers
    target: ModelConfig
    tokens: int
    """Tokens that the draft is meant to guess."""

    def count(self, name: str) -> int:
        """Return a field that is a positive whole number."""
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise IncompatibleError(f"{name} = {value!r}: must be a positive whole number")
        return value

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        value = self.fields[name]
        if not isinstance(value, bool):
            raise IncompatibleError(f"{name} = {value!r}: must be true or false")
        return value

    def token(self, name: str) -> int:
        """Return a field that is a token of the target."""
        value, size = self.fields[name], self.target.vocab_size
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
            raise IncompatibleError(f"{name} = {value!r}: must be one of the target's {size} tokens")
        return value

    def read_layers(self, name: str) -> tuple[int, ...]:
        """Return a field of layers of the target whose hidden states are read, in its order."""
        value, most = self.fields[name], self.target.layers
        if value is None and name == EAGLE_LAYERS:
            return usual_layers(most)
        whole = isinstance(value, list) and all(isinstance(n, int) and 0 <= n <= most for n in value)
        if not whole or not value or len(set(value)) < len(value):
            raise IncompatibleError(f"{name} = {value!r}: must be different layers from 0 to {most}")
        return tuple(value)


def usual_layers(layers: int) -> tuple[int, int, int]:
    """Return the layers whose hidden states EAGLE-3's kin read of a target with so many, by default."""
    return 2, layers // 2, layers - 3


@contextmanager
def naming(directory: Path) -> Iterator[None]:
    """Let errors of a checkpoint say where it is."""
    try:
        yield
    except IncompatibleError as error:
        if str(error).startswith(str(directory)):
            raise
        raise IncompatibleError(f"{directory}: {error}") from error


def read_published(
    directory: Path, target_directory: Path, algorithm: str, known: Mapping[str, Any]
) -> PublishedConfig:
    """Read the `config.json` of a checkpoint.

    Args:
        known: the algorithm's fields, each with the library's value where the file has none.

    Raises:
        IncompatibleError: naming the field that is not understood, or that does not fit the target.
    """
    config = checked_config(directory, target_directory, algorithm)
    known = {**known, **_UNTIED}
    for name in sorted(config.keys() - known.keys() - _DESCRIBED):
        raise IncompatibleError(f"{name} = {config[name]!r}: not understood for {algorithm}")
    fields = {name: config.get(name, value) for name, value in known.items()}
    target = target_config(target_directory)
    must_be(fields, _UNTIED)
    try:
        layers = read_layers(config["transformer_layer_config"])
        _check_verifier(config, layers, target, target_directory)
        longest = min(layers.config.max_positions, target.max_positions)  # nothing is drafted beyond
        layers = replace(layers, config=replace(layers.config, max_positions=longest))
        return PublishedConfig(fields, layers, target, _tokens(config["speculators_config"], algorithm))
    except KeyError as error:
        raise IncompatibleError(f"config.json lacks {error}") from error


def must_be(fields: Mapping[str, Any], only: Mapping[str, Any]) -> None:
    """Check fields of which only one value is understood.

    Raises:
        IncompatibleError: naming the field that has another.
    """
    for name, value in only.items():
        if fields.get(name, value) != value:
            raise IncompatibleError(f"{name} = {fields[name]!r}: only {value!r} is understood")


def _check_verifier(
    config: Mapping[str, Any], layers: DraftLayers, target: ModelConfig, target_directory: Path
) -> None:
    """Compare the target with what a checkpoint says of its verifier."""
    named = verifier_fields(config).get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise IncompatibleError(f"verifier.architectures = {named!r}: must be names")
    found = json.loads((target_directory / "config.json").read_text()).get("architectures") or ()
    if named and found and not set(named) & set(found):
        told = f"verifier.architectures = {named!r}"
        raise IncompatibleError(f"{told}: {target_directory} is of {list(found)!r}")
    own = layers.config
    for name, ours, theirs in (
        ("transformer_layer_config.hidden_size", own.hidden_size, target.hidden_size),
        ("transformer_layer_config.vocab_size", own.vocab_size, target.vocab_size),
        ("target_hidden_size", config.get("target_hidden_size") or own.hidden_size, target.hidden_size),
    ):
        if ours != theirs:
            raise IncompatibleError(f"{name} = {ours}: {target_directory} has {theirs}")


def _tokens(described: Mapping[str, Any], algorithm: str) -> int:
    """Return the tokens to be guessed, if the proposal is one without loss."""
    must_be(described, {"algorithm": algorithm, "default_proposal_method": "greedy"})
    methods = described["proposal_methods"]
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise IncompatibleError(f"proposal_methods = {methods!r}: must be objects")
    for method in methods:
        for name in sorted(method.keys() - {*_PROPOSAL, "speculative_tokens"}):
            raise IncompatibleError(f"proposal_methods.{name} = {method[name]!r}: not understood")
        must_be(method, _PROPOSAL)
    tokens = methods[0].get("speculative_tokens") if methods else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise IncompatibleError(f"speculative_tokens = {tokens!r}: must be a positive whole number")
    return tokens
