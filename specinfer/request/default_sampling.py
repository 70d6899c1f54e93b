"""Read a model's own defaults of sampling parameters, without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError, InvalidInputError
from specinfer.request.sampling import Sampling
from specinfer.system.json_files import read_json

FILE = "generation_config.json"
GGUF_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Names of the parameters in `generation_config.json`, by key of a GGUF file."""


def default_sampling(directory: Path) -> dict[str, Any]:
    """Return the sampling parameters in a model directory's `generation_config.json`."""
    return checked_sampling(read_json(directory / FILE), f"{directory / FILE}")


def checked_sampling(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the sampling parameters in `values`; null is no value."""
    given = {name: values[name] for name in GGUF_KEYS.values() if values.get(name) is not None}
    if given.get("top_k") == -1:
        del given["top_k"]
    try:
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else int | float):
                raise InvalidInputError(name, value, "must be a number")
        Sampling(**given)
    except InvalidInputError as error:
        raise IncompatibleError(f"{source}: {error}") from error
    return given
