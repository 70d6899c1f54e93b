"""Save the tiny target as a directory; its greedy answers are those of `tests.support.oracle`."""

from pathlib import Path
from typing import Any

from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import tiny_transformers


def save_target(directory: Path, model: Any = None, **changes: float) -> Path:
    """Write the model or another one and its tokenizer; return the directory.

    `changes` replace fields of the configuration of the model.
    """
    (model or tiny_transformers("llama", **changes)).save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    return directory
