"""The tiny target as a directory, whose greedy answers are those of `tests.support.oracle`."""

from pathlib import Path

from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import tiny_transformers


def save_target(directory: Path, **changes: int) -> Path:
    """Write the model and its tokenizer; return the directory. `changes` are those of its configuration."""
    tiny_transformers("llama", **changes).save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    return directory
