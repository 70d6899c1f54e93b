"""Save the tiny target as a directory; its greedy answers are those of `tests.support.oracle`."""

from pathlib import Path

from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import tiny_transformers


def save_target(directory: Path, **changes: int) -> Path:
    """Write the model and its tokenizer; return the directory. `changes` replace fields of its configuration."""
    tiny_transformers("llama", **changes).save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    return directory
