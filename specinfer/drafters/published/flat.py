"""Read DFlash and JetSpec drafts in `transformers`' layout: a flat `config.json`.

The file describes the draft's Qwen3 layers, and has `block_size`, `num_target_layers` and an object
`dflash_config`:

    mask_token_id        token of the masks
    causal_head          true (JetSpec): positions of a block do not see later ones; else (DFlash) they do
    target_layer_ids     0-based layers after which hidden states are read; absent: evenly spaced
    target_hidden_size   must be `hidden_size`

Tensors are those of DFlash without head and embeddings, which are the target's. The option `target` names the target.
A draft that reads the last layer is refused, since some libraries read this layer's output before the final norm, and
others after it.
"""

from pathlib import Path
from typing import Any

from specinfer.drafters.published.block import DFlashSource, block_shapes, load_block_draft, read_block
from specinfer.drafters.published.config import (
    PublishedConfig,
    distinct_layers,
    must_be,
    must_equal,
    read_layers,
    refused,
)
from specinfer.errors import IncompatibleError, naming
from specinfer.model.sizes import check_sizes
from specinfer.model.weights.draft_checkpoint import OF_PUBLISHED, target_config
from specinfer.model.weights.source import FLAT_ARCHITECTURE, FLAT_FIELD, is_flat_draft
from specinfer.system.json_files import read_json

_MASK, _CAUSAL, _LAYERS, _WIDTH = (
    f"{FLAT_FIELD}.{name}"
    for name in ("mask_token_id", "causal_head", "target_layer_ids", "target_hidden_size")
)
_DEFAULTS = {_MASK: None, _CAUSAL: False, _LAYERS: None, _WIDTH: None}
_OWN = frozenset({"block_size", "num_target_layers", FLAT_FIELD})
_DESCRIBED = frozenset({"architectures", "auto_map"})
"""Fields that describe the file."""


def load_dflash(directory: Path, target_directory: Path) -> DFlashSource:
    """Read a DFlash or JetSpec checkpoint in either layout."""
    if not is_flat_draft(read_json(directory / "config.json")):
        return load_block_draft(DFlashSource, directory, target_directory)
    with naming(directory):
        config = _read(directory, target_directory)
        layers = _states_read(config)
        return read_block(
            DFlashSource,
            config,
            block_shapes(config, len(layers)),
            {},
            layers=layers,
            mask=config.token(_MASK),
            both_ways=(not config.flag(_CAUSAL),) * config.layers.config.layers,
        )


def _read(directory: Path, target_directory: Path) -> PublishedConfig:
    """Read `config.json`, and compare its sizes with the target's."""
    config: dict[str, Any] = read_json(directory / "config.json")
    check_sizes(config)
    must_be(config, {"architectures": [FLAT_ARCHITECTURE], "model_type": "qwen3"})
    shape = {name: value for name, value in config.items() if name not in _OWN | _DESCRIBED}
    layers, target = read_layers(shape, prefix=""), target_config(target_directory, OF_PUBLISHED)
    if any(layers.windows):
        raise refused("layer_types", config["layer_types"], "windows are not supported in this layout", "")
    try:
        fields = {name: config[name] for name in ("block_size", "num_target_layers")}
    except KeyError as error:
        raise IncompatibleError(f"config.json: {error.args[0]} is missing") from error
    published = PublishedConfig(
        directory, target_directory, {**fields, **_inner(config)}, layers.within(target), target, tokens=0
    )
    _check_target(published)
    return published


def _inner(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `dflash_config` by dotted names."""
    inner = config.get(FLAT_FIELD) or {}
    if not isinstance(inner, dict):
        raise IncompatibleError(f"{FLAT_FIELD} = {inner!r}: must be an object")
    named = {f"{FLAT_FIELD}.{name}": value for name, value in inner.items()}
    for name in sorted(named.keys() - _DEFAULTS.keys()):
        raise IncompatibleError(
            f"{name} = {named[name]!r}: unknown field; known are {', '.join(sorted(_DEFAULTS))}"
        )
    return _DEFAULTS | named


def _check_target(config: PublishedConfig) -> None:
    layer_config, target = config.layers.config, config.target
    width = config.fields[_WIDTH]
    must_equal(
        config.target_directory,
        ("num_target_layers", config.count("num_target_layers"), target.layers),
        ("hidden_size", layer_config.hidden_size, target.hidden_size),
        ("vocab_size", layer_config.vocab_size, target.vocab_size),
        (_WIDTH, layer_config.hidden_size if width is None else width, target.hidden_size),
    )


def _states_read(config: PublishedConfig) -> tuple[int, ...]:
    """Return the number of target layers before each hidden state."""
    ids, last = config.fields[_LAYERS], config.target.layers - 2
    if ids is None:
        ids = default_layer_ids(config.target.layers, config.layers.config.layers)
    return tuple(n + 1 for n in distinct_layers(_LAYERS, ids, last))


def default_layer_ids(target_layers: int, layers: int) -> list[int]:
    """Return the 0-based layers for a file without `target_layer_ids`."""
    if layers == 1:
        return [target_layers // 2]
    return [round(1 + place * (target_layers - 4) / (layers - 1)) for place in range(layers)]
