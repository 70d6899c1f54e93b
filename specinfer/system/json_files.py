"""Read JSON of a model's files, which others made."""

import json
from pathlib import Path
from typing import Any

from specinfer.errors import SettingError


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or objects are nested too deeply") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing."""
    try:
        content = parse_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise SettingError("model", str(path), f"must be a JSON object: {error}") from error
    if not isinstance(content, dict):
        raise SettingError("model", str(path), "must be a JSON object")
    return content
