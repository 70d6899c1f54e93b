"""Compares a checkpoint's tensors with its configuration, by name and shape.

The expected names and shapes are those of the configuration's `transformers` model, built without memory. Every tensor
of the file must be expected, so that no tensor that changes the output remains unread.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specinfer.errors import IncompatibleError
from specinfer.model.families import family_of
from specinfer.model.families.experts import merged_experts
from specinfer.model.lazy_torch import torch
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import EMBEDDING, in_llama_names, original_name
from specinfer.model.weights.files import shape_of
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.model.weights.source import kept_gguf

HEAD = "lm_head.weight"
_LAYERS = "model.layers."
_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|attention\.(masked_)?bias$")
"""Names of tensors in old checkpoints that the configuration determines anyway."""
_SHOWN = 3


def check_tensors(hf: Any, config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Check names and shapes of a checkpoint's tensors.

    A tied head must equal the embeddings. No other tensor's data is read.

    Args:
        weights: tensors under Llama's names.
    """
    wanted = expected_tensors(hf, config)
    originals = {name: original_name(weights, name) for name in weights}
    optional = {HEAD} if config.tied_embeddings else set()
    if missing := sorted({wanted[name].name for name in wanted.keys() - originals.keys() - optional}):
        raise IncompatibleError(f"the model's weights lack {_some(missing)}, which config.json requires")
    extra = sorted(
        {originals[name] for name in originals.keys() - wanted.keys() if not _COMPUTED.search(name)}
    )
    if extra:
        raise IncompatibleError(
            f"the model's weights have tensors that config.json does not describe: {_some(extra)}"
        )
    for name in sorted(originals.keys() & wanted.keys()):
        shape, right = shape_of(weights, name), wanted[name].shape
        if shape != right:
            raise IncompatibleError(
                f"{originals[name]} has shape {list(shape)}: config.json requires {list(right)}"
            )
    if config.tied_embeddings and HEAD in originals and bool((weights[HEAD] != weights[EMBEDDING]).any()):
        raise IncompatibleError(
            f"tie_word_embeddings = true: {originals[HEAD]} must equal {originals[EMBEDDING]}"
        )


class ExpectedTensor(NamedTuple):
    """A tensor that a configuration requires."""

    name: str
    """Name in the checkpoint."""
    shape: tuple[int, ...]
    """Shape under Llama's name; ours may be a part of the checkpoint's."""


def expected_tensors(hf: Any, config: ModelConfig) -> dict[str, ExpectedTensor]:
    """Return the tensors that our decoder needs, by Llama's name."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        state = AutoModelForCausalLM.from_config(with_layers(hf, config.varied_layers)).state_dict()
    renamed = in_llama_names(config, state)
    expected = {
        name: ExpectedTensor(original_name(renamed, name), shape_of(renamed, name)) for name in renamed
    }
    tensors = {name: tensor for name, tensor in expected.items() if not name.startswith(_LAYERS)}
    for layer in range(config.layers):
        alike = next(n for n in range(layer + 1) if config.tensors_of(n) == config.tensors_of(layer))
        old, new = f".{alike}.", f".{layer}."
        tensors |= {
            name.replace(old, new, 1): tensor._replace(name=tensor.name.replace(old, new, 1))
            for name, tensor in expected.items()
            if name.startswith(f"{_LAYERS}{alike}.")
        }
    return tensors


def with_layers(hf: Any, count: int) -> Any:
    few = copy.deepcopy(hf)
    few.num_hidden_layers = count
    kinds = getattr(few, "layer_types", None)
    if kinds and len(kinds) > count:  # the list may already have the new length
        few.layer_types = kinds[:count]
    return few


def check_rope(config: ModelConfig, weights: GgufWeights) -> None:
    """Check that `config.json` and the GGUF file have equal rotary frequencies.

    A file without rotary metadata is not checked.
    """
    meta = weights.metadata
    if not (weights.rope_factors or meta.has("rope.freq_base")):
        return
    stated = from_transformers(weights.config())
    same = all(
        len(a) == len(b) and np.allclose(a, b, rtol=1e-4, atol=0.0)
        for a, b in (
            (stated.inv_freq, config.inv_freq),
            (stated.local_inv_freq, config.local_inv_freq),
        )
    )
    if not same or abs(stated.rotary_scale - config.rotary_scale) > 1e-4:
        raise IncompatibleError(
            "GGUF file (rope_freqs.weight, rope.scaling) and config.json differ in rotary scaling: pull the model again"
        )


def load_whole(directory: Path, family: str, dtype: torch.dtype) -> Any:
    """Load a whole model with `transformers`; every tensor must be used."""
    from transformers import AutoConfig, AutoModelForCausalLM

    gguf = kept_gguf(directory)
    if gguf is not None:
        weights = GgufWeights(gguf, blocks=False)
        tensors = {name: weights[name].to(dtype) for name in weights}
        return model_of(AutoConfig.from_pretrained(directory), tensors, dtype)
    return _loaded(AutoModelForCausalLM, directory, family, dtype, {})


def model_of(config: Any, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Any:
    """Return the `transformers` model of a configuration, with these tensors."""
    from transformers import AutoModelForCausalLM

    kind = AutoModelForCausalLM._model_mapping[type(config)]
    options = {"config": config, "state_dict": as_in_transformers(config, tensors)}
    return _loaded(kind, None, config.model_type, dtype, options)


def as_in_transformers(config: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a GGUF file's tensors in the names and shapes of `transformers`."""
    convert = family_of(config.model_type).to_transformers
    return merged_experts(convert(config, tensors) if convert else dict(tensors))


def _loaded(kind: Any, directory: Path | None, family: str, dtype: torch.dtype, options: Any) -> Any:
    try:
        model, report = kind.from_pretrained(
            directory, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except Exception as error:  # the model's own code may raise anything
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise IncompatibleError(f"model_type = {family!r}: transformers cannot load it: {what}") from error
    mismatched = [name for name, *_ in report["mismatched_keys"]]
    for problem, names in (
        ("lack", report["missing_keys"]),
        ("have, in another shape than config.json requires,", mismatched),
        ("have tensors that config.json does not describe:", report["unexpected_keys"]),
    ):
        if names:
            raise IncompatibleError(f"the model's weights {problem} {_some(sorted(names))}")
    return model


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
