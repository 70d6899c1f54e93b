"""The file of the learned policy's weights: JSON, by speculator set. Pure but for reading and writing it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specinfer.errors import SettingError
from specinfer.planning.features import NAMES
from specinfer.planning.linear import FUNCTIONS, LinearModel

_FORMAT = 1
_SIZE = len(NAMES) * FUNCTIONS


def set_name(names: Iterable[str]) -> str:
    """How a file names a speculator set."""
    return "+".join(sorted(names))


def save_weights(path: Path, models: Mapping[str, LinearModel], trained: Mapping[str, Any]) -> None:
    """Writes models by the names of their sets, with what is told of their training.

    Raises:
        SettingError: if the file cannot be written.
    """
    told = {
        "format": _FORMAT,
        "features": list(NAMES),
        "trained": trained,
        "sets": {
            name: {"weights": model.weights.tolist(), "pace": model.pace.tolist()}
            for name, model in models.items()
        },
    }
    try:
        path.write_text(json.dumps(told) + "\n")
    except OSError as error:
        raise SettingError("out", str(path), f"cannot be written: {error.strerror}") from error


def load_weights(setting: str, path: Path) -> dict[str, LinearModel]:
    """The models of a file.

    Raises:
        SettingError: naming the setting, the file and what is wrong in it.
    """
    try:
        told = json.loads(path.read_text())
        if told["format"] != _FORMAT or tuple(told["features"]) != NAMES:
            raise ValueError(f"format {told['format']} of features {told['features']}")
        return {str(name): _model_of(one) for name, one in told["sets"].items()}
    except OSError as error:
        raise SettingError(setting, str(path), f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"not what `specinfer train scheduler` writes: {error!r}"
        raise SettingError(setting, str(path), why) from error


def _model_of(told: Mapping[str, Any]) -> LinearModel:
    model = LinearModel.of(np.array(told["weights"], float), np.array(told["pace"], float))
    if model.weights.shape != (len(NAMES), FUNCTIONS) or model.pace.shape != (_SIZE, _SIZE):
        raise ValueError(f"weights of the form {model.weights.shape}, pace of {model.pace.shape}")
    if not (np.isfinite(model.weights).all() and np.isfinite(model.pace).all()):
        raise ValueError("not all numbers are finite")
    if np.linalg.eigvalsh((model.pace + model.pace.T) / 2)[0] <= 0:
        raise ValueError("pace is not positive definite, so that errors would grow")
    return model
