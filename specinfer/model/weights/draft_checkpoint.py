"""Reads and writes checkpoints of trained draft models (SSMs, small speculative models).

A checkpoint, in the `speculators` format, has `config.json` and a safetensors file with all trained tensors: decoder
layers, final norm, a head over the draft vocabulary, and `d2t` (target id = draft id + d2t[draft id]). Embeddings, and
learnt positions if any, are read from the target. `config.json` names the target (`verifier`) and has a fingerprint of
its embeddings; another target is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from specinfer.errors import IncompatibleError, naming
from specinfer.model.lazy_torch import torch
from specinfer.model.sizes import check_sizes
from specinfer.model.weights.config import ModelConfig, shape_fields, with_shape
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.families import EMBEDDING, POSITIONS, open_weights
from specinfer.model.weights.files import TensorSlice, read_part, shape_of
from specinfer.model.weights.interfaces import Blocks, BlockWeights, NamedTensors
from specinfer.model.weights.packed import open_checkpoint
from specinfer.model.weights.source import KIND
from specinfer.system.json_files import read_json

FINGERPRINT = "embedding_fingerprint"
"""Field of `verifier` in `config.json` that only this package writes."""
ALGORITHM = "ssm"
OF_TRAINED_SSMS, OF_PUBLISHED = "a trained SSM", "a published draft"
"""Names of drafts for targets like Llama, in errors."""
_OFFSETS, _DRAFTED = "d2t", "t2d"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A trained SSM with its target's embeddings."""

    algorithm: ClassVar[str] = ALGORITHM
    config: ModelConfig
    weights: Mapping[str, torch.Tensor]
    token_ids: torch.Tensor
    """[draft vocabulary] target token of each draft token."""


def verifier_of(directory: Path) -> str:
    """Return the name of a checkpoint's target."""
    name = verifier_fields(read_json(directory / "config.json")).get("name_or_path")
    if not isinstance(name, str):
        field = "speculators_config.verifier.name_or_path"
        raise IncompatibleError(f"{directory}: {field} = {name!r}: must be the target's name")
    return name


def verifier_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that describe a checkpoint's target (verifier)."""
    described = config.get("speculators_config")
    verifier = described.get("verifier") if isinstance(described, dict) else None
    if not isinstance(verifier, dict):
        raise IncompatibleError(f"speculators_config.verifier = {verifier!r}: must be an object")
    return verifier


def save_ssm(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    config: ModelConfig,
    target_directory: Path,
    target_name: str,
    trained: Mapping[str, Any],
) -> None:
    """Write an SSM's checkpoint in bfloat16.

    Args:
        config: configuration of the SSM.
        trained: record of the training: data, command, seed, time and results.
    """
    fields = {"architectures": ["SsmSpeculator"], "trained": dict(trained)}
    shape = shape_fields(config, load_config(target_directory))
    save_checkpoint(directory, ALGORITHM, tensors, token_ids, fields, target_directory, target_name, shape)


def save_checkpoint(
    directory: Path,
    algorithm: str,
    tensors: Mapping[str, torch.Tensor],
    token_ids: torch.Tensor,
    fields: Mapping[str, Any],
    target_directory: Path,
    target_name: str,
    shape: Mapping[str, int],
) -> None:
    """Write a checkpoint, with float32 in bfloat16.

    `config.json` is written last, so that a checkpoint is complete or invalid.

    Args:
        fields: additional fields of `config.json` for this algorithm.
        shape: sizes of the draft's layers that differ from the target's, by `config.json` field.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").unlink(missing_ok=True)
    stored = {
        name: (tensor.to(torch.bfloat16) if tensor.dtype == torch.float32 else tensor).contiguous()
        for name, tensor in tensors.items()
    }
    vocab_size = load_config(target_directory).vocab_size
    stored[_OFFSETS] = token_ids - torch.arange(len(token_ids))
    stored[_DRAFTED] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, token_ids, True)
    from safetensors.torch import save_file

    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        KIND: algorithm,
        "draft_vocab_size": len(token_ids),
        **_speculators_config(algorithm, target_directory, target_name, shape),
        **fields,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _speculators_config(
    algorithm: str, target_directory: Path, target_name: str, shape: Mapping[str, int]
) -> dict[str, Any]:
    """Return the fields of `config.json` that the `speculators` format requires."""
    target = open_weights(target_directory, load_config(target_directory))
    target_config = read_json(target_directory / "config.json")
    return {
        "speculators_version": "0.1.0",
        "transformer_layer_config": {**target_config, **shape},
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": _found_anywhere(target_name, target_directory),
                "architectures": target_config.get("architectures", ["LlamaForCausalLM"]),
                FINGERPRINT: embedding_fingerprint(target),
            },
        },
    }


def _found_anywhere(name: str, directory: Path) -> str:
    """Return a target's name; a relative path becomes absolute."""
    path = Path(name).resolve()
    return str(path) if path == directory.resolve() else name


def own_tensors(directory: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Return a checkpoint's tensors, and the target token of each draft token.

    The latter are None if the checkpoint has no d2t.
    """
    stored = open_checkpoint(directory)
    tensors = {name: stored[name] for name in stored if name not in (_OFFSETS, _DRAFTED)}
    return tensors, _token_ids(stored)


def check_shapes(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check the tensors whose shape `config.json` implies."""
    for name in sorted(tensors.keys() & shapes.keys()):
        if (found := tuple(tensors[name].shape)) != shapes[name]:
            raise IncompatibleError(
                f"{name} has shape {list(found)}: config.json implies {list(shapes[name])}"
            )


def _token_ids(stored: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    offsets = stored.get(_OFFSETS)
    return None if offsets is None else offsets + torch.arange(len(offsets))


def check_target(config: Mapping[str, Any], directory: Path, target_directory: Path) -> None:
    """Check that a draft was trained with this target's embeddings.

    Checkpoints of other libraries have no fingerprint and are accepted.
    """
    expected = verifier_fields(config).get(FINGERPRINT)
    if expected is not None and (actual := fingerprint_in(target_directory)) != expected:
        raise IncompatibleError(
            f"{directory} was trained for a target with embeddings {expected}, {target_directory} has {actual}"
        )


def checked_config(directory: Path, target_directory: Path, algorithm: str) -> dict[str, Any]:
    """Return a checkpoint's `config.json`, after checking algorithm and target."""
    config: dict[str, Any] = read_json(directory / "config.json")
    if config.get(KIND) != algorithm:
        raise IncompatibleError(f"{directory}: {KIND} = {config.get(KIND)!r}: must be {algorithm!r}")
    check_sizes(config)
    check_target(config, directory, target_directory)
    return config


def target_config(directory: Path, what: str = OF_TRAINED_SSMS) -> ModelConfig:
    """Return a target's configuration, if drafts of a kind support its layers."""
    return load_config(directory).like_llama(what)


def load_ssm(directory: Path, target_directory: Path) -> DraftModel:
    config = checked_config(directory, target_directory, ALGORITHM)
    target = target_config(target_directory)
    target_weights = open_weights(target_directory, target)
    draft_weights = open_checkpoint(directory)
    shape = replace(
        with_shape(target, config["transformer_layer_config"]),
        vocab_size=config["draft_vocab_size"],
        tied_embeddings=False,
    )
    weights = Overlay(draft_weights, target_weights, frozen_names(target))
    with naming(directory):
        token_ids = checked_tokens(_token_ids(draft_weights), shape.vocab_size, target.vocab_size)
        if not bool((token_ids[1:] > token_ids[:-1]).all()):
            raise IncompatibleError(f"{_OFFSETS} must give ascending target tokens")
        rows = len(draft_weights["lm_head.weight"]) if "lm_head.weight" in draft_weights else 0
        if rows != len(token_ids):
            raise IncompatibleError(f"lm_head.weight has {rows} rows: must have {len(token_ids)}, as d2t")
    return DraftModel(shape, weights, token_ids)


def checked_tokens(token_ids: torch.Tensor | None, draft_vocabulary: int, vocabulary: int) -> torch.Tensor:
    """Return the target tokens of draft tokens, after checking them.

    Args:
        token_ids: from d2t; None: the checkpoint has no d2t.
        draft_vocabulary: `draft_vocab_size` of `config.json`.
        vocabulary: size of the target's vocabulary.
    """
    if token_ids is None or len(token_ids) != draft_vocabulary:
        what = "is missing" if token_ids is None else f"has {len(token_ids)} entries"
        needed = f"{draft_vocabulary} are needed, draft_vocab_size of config.json"
        raise IncompatibleError(f"tensor d2t {what}: {needed}")
    if (
        len(set(token_ids.tolist())) < len(token_ids)
        or int(token_ids.min()) < 0
        or int(token_ids.max()) >= vocabulary
    ):
        raise IncompatibleError(f"d2t must give distinct target tokens below {vocabulary}")
    return token_ids


def embedding_fingerprint(weights: Mapping[str, torch.Tensor]) -> str:
    """Return a hash of some rows of embeddings, to recognise a target."""
    count = shape_of(weights, EMBEDDING)[0]
    spans = [TensorSlice(0, row, row + 1) for row in range(0, count, max(1, count // 64))]
    rows = torch.cat([read_part(weights, EMBEDDING, span) for span in spans])
    return hashlib.sha256(rows.to(torch.bfloat16).view(torch.int16).numpy().tobytes()).hexdigest()[:16]


def fingerprint_in(directory: Path) -> str:
    return embedding_fingerprint(open_weights(directory, load_config(directory)))


def frozen_names(target: ModelConfig) -> tuple[str, ...]:
    """Return the names of tensors that a draft takes from its target."""
    return (EMBEDDING, POSITIONS) if target.learnt_positions else (EMBEDDING,)


class Overlay(NamedTensors):
    """A draft's tensors by name, and its target's for names in `shared`."""

    def __init__(
        self, draft: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor], shared: Sequence[str]
    ) -> None:
        self._names: dict[str, Mapping[str, torch.Tensor]] = {
            **dict.fromkeys(draft, draft),
            **dict.fromkeys(shared, target),
        }
        self._target = target

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._names[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        return shape_of(self._names[name], name)

    def blocks(self, name: str, as_stored: bool = False) -> Blocks | None:
        """Return a matrix of the target in blocks; None for the draft's own."""
        source = self._names[name]
        if source is not self._target or not isinstance(source, BlockWeights):
            return None
        return source.blocks(name, as_stored)
