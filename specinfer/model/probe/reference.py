"""Builds models of `transformers` with few layers, as the reference of probes."""

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from specinfer.errors import IncompatibleError
from specinfer.model.weights.account import with_layers
from specinfer.model.weights.packed import open_checkpoint, quant_method

WHOLE_BYTES = 1 << 28
"""Maximum size of models whose layers are all compared, in float32 bytes."""
WIDE_BYTES = 8 << 30
"""Maximum float32 bytes of a copy; larger copies keep the model's type."""
FEWEST_LAYERS = 2


class ReferenceModel:
    """Runs a `transformers` model with its own attention."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, ids: Sequence[int], first: int) -> torch.Tensor:
        """Return the logits [T, V] of tokens at positions `first`, `first` + 1, ..."""
        tokens = torch.tensor([list(ids)])
        placed = {"position_ids": torch.arange(first, first + len(ids))[None]} if first else {}
        other = self._model.config._attn_implementation
        self._model.set_attn_implementation("eager")
        try:
            with torch.inference_mode():
                out = self._model(input_ids=tokens, use_cache=False, **placed)
        finally:
            self._model.set_attn_implementation(other)
        logits: torch.Tensor = out.logits[0].float()
        return logits


@contextmanager
def quiet() -> Iterator[None]:
    """Silence log lines and progress bars of `transformers`."""
    logger = logging.getLogger("transformers")
    level = logger.level
    from transformers.utils import logging as of_transformers

    bars = of_transformers.is_progress_bar_enabled()
    logger.setLevel(logging.CRITICAL)
    of_transformers.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if bars:
            of_transformers.enable_progress_bar()


def few_layers(model: Any) -> Any:
    """Copy a model's first layers, at least one of every kind.

    Small models are copied whole.
    """
    if 4 * sum(parameter.numel() for parameter in model.parameters()) <= WHOLE_BYTES:
        return copy.deepcopy(model).to(device="cpu", dtype=torch.float32)
    lists = layer_lists(model)
    whole = [(part, list(part)) for part in lists]
    kept = max((_kinds_end(layers) for _, layers in whole), default=0)
    try:
        for part in lists:
            del part[kept:]
        cut = copy.deepcopy(model)
    finally:
        for part, layers in whole:
            part.extend(layers[len(part) :])
    if lists:
        cut.config.get_text_config().num_hidden_layers = kept
    wide = 4 * sum(parameter.numel() for parameter in cut.parameters()) <= WIDE_BYTES
    return cut.to(device="cpu", dtype=torch.float32 if wide else model.dtype)


def layer_lists(model: Any) -> list[torch.nn.ModuleList]:
    count = model.config.get_text_config().num_hidden_layers
    lists = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == count]
    return [part for part in lists if not any(part in one.modules() for one in lists if one is not part)]


def _kinds_end(layers: Sequence[torch.nn.Module]) -> int:
    """Return the number of first layers that include every kind."""
    kinds = [_kind(layer) for layer in layers]
    return max(FEWEST_LAYERS, 1 + max(kinds.index(kind) for kind in kinds))


def _kind(layer: torch.nn.Module) -> tuple[object, ...]:
    """Return a value that is equal for layers of the same structure."""
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters())
    parts = tuple(
        (name, type(part).__name__, tuple(sorted(_plain(part).items())))
        for name, part in layer.named_modules()
    )
    return shapes, parts


def _plain(part: torch.nn.Module) -> dict[str, str]:
    return {
        name: str(value)
        for name, value in vars(part).items()
        if isinstance(value, (bool, int, float, str)) and name not in ("layer_idx", "layer_id", "training")
    }


def first_layers_of(directory: Path, hf: Any, count: int) -> Any:
    """Load a checkpoint's first layers in float32."""
    from transformers import AutoModelForCausalLM

    config = with_layers(hf, count)
    if quant_method(hf):
        return _dequantised(directory, config)
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, config=config, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if report["missing_keys"]:
        raise IncompatibleError(f"the model's weights lack {', '.join(sorted(report['missing_keys'])[:3])}")
    return model.eval()


def _dequantised(directory: Path, config: Any) -> Any:
    """Build a quantised checkpoint's model with dequantised weights.

    `transformers` itself needs a GPU for that.
    """
    from transformers import AutoModelForCausalLM

    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    weights = open_checkpoint(directory)
    wanted = model.state_dict()
    model.load_state_dict({name: weights[name] for name in wanted if name in weights}, strict=False)
    model.tie_weights()
    return model.eval()
