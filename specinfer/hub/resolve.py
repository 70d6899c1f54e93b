"""Resolve a model's name to a directory with its files.

Needs no torch, except for the conversion of a new GGUF file. Downloads nothing; `specinfer.hub.pull` does.
"""

import re
from importlib import resources
from pathlib import Path

from specinfer.errors import SettingError
from specinfer.hub.gguf import gguf_directory, refresh
from specinfer.hub.registry import known_models
from specinfer.model.weights.gguf_files.parts import split_stem
from specinfer.model.weights.source import KEPT_GGUF, kept_gguf
from specinfer.system.cache_directory import cache_directory
from specinfer.system.json_files import parse_json

_NO_LONGER_SHIPPED = {"eagle-smollm2-135m": "eagle", "medusa-smollm2-135m": "medusa"}
"""Former names of shipped speculators, and how to train such."""


def model_directory(name: str) -> Path:
    """Return a pulled model's directory, which may not exist."""
    return cache_directory() / "models" / name.replace("/", "--")


def is_pulled(name: str) -> bool:
    """Return whether a model of the registry or the hub was pulled."""
    return model_directory(name).is_dir()


def shipped_directory(name: str) -> Path:
    """Return the directory of a shipped draft, which may not exist."""
    return Path(str(resources.files("models"))) / name.replace("/", "--")


def resolve_model(model: str) -> Path:
    """Return the directory of a model: path, registry name or hub id.

    For a GGUF file this is a directory derived from it.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        _check_not_for_file(path)
        return path
    if names_file(model):
        return gguf_directory(path)
    for directory in (model_directory(model), shipped_directory(model)):
        if directory.is_dir():
            refresh(directory)
            return directory
    if model in known_models() or is_hub_id(model):
        raise SettingError("model", model, f"not pulled yet: run `specinfer pull {model}`")
    if model in _NO_LONGER_SHIPPED:
        raise SettingError(
            "model", model, f"ships no more: `specinfer train {_NO_LONGER_SHIPPED[model]}` makes one"
        )
    known = ", ".join(known_models())
    raise SettingError("model", model, f"no such directory, and not a GGUF file, hub id or one of {known}")


def _check_not_for_file(directory: Path) -> None:
    """Refuse a folder with GGUF files: one of them must be given."""
    names = [path.name for path in directory.iterdir()]
    files = sorted(name for name in names if name.lower().endswith(".gguf") and name != KEPT_GGUF)
    if (
        files
        and KEPT_GGUF not in names
        and not any(name.endswith((".safetensors", ".bin")) for name in names)
    ):
        those = f"the file {directory / files[0]}" + (", or another of its files" if files[1:] else "")
        raise SettingError("model", str(directory), f"the directory has GGUF files: give {those}")


def model_name(model: str) -> str:
    """Return a model's served name: the path's last part, without .gguf."""
    path = Path(model).expanduser()
    if names_file(model):
        return split_stem(path.name)
    return path.resolve().name if path.is_dir() else model


def check_model_folder(model: str) -> Path:
    """Return a model's directory after a check of its files."""
    directory = resolve_model(model)
    tokenizer = directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise SettingError("model", model, f"no tokenizer.json in {directory}")
    return check_weights_folder(model, directory)


def check_weights_folder(model: str, directory: Path) -> Path:
    """Return a model's directory if it has configuration and weights."""
    try:
        read = parse_json((directory / "config.json").read_bytes())
    except FileNotFoundError as error:
        raise SettingError("model", model, f"no config.json in {directory}") from error
    except (OSError, ValueError) as error:
        raise SettingError("model", model, f"{directory / 'config.json'}: {error}") from error
    if not isinstance(read, dict):
        raise SettingError("model", model, f"{directory / 'config.json'}: must be a JSON object")
    kept_gguf(directory)  # raises if the linked file was moved
    if not any(path.suffix in _WEIGHTS for path in directory.iterdir()):
        raise SettingError("model", model, f"no weights (*.safetensors) in {directory}")
    return directory


_HUB_ID = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}(:[\w.-]{1,64})?", re.ASCII)
_WEIGHTS = (".safetensors", ".gguf", ".bin")


def is_hub_id(model: str) -> bool:
    """Return whether a text has the form of a hub id, `owner/name` or `owner/name:FORMAT`."""
    return bool(_HUB_ID.fullmatch(model)) and not names_file(model)


def names_file(model: str) -> bool:
    """Return whether a model is a file or a path in .gguf."""
    path = Path(model).expanduser()
    return path.suffix.lower() == ".gguf" or path.is_file()
