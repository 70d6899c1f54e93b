"""Files of a model that do not depend on its layers: tokenizer, chat template, generation settings."""

import shutil
from pathlib import Path

_BESIDE = (
    "generation_config.json",
    "chat_template.jinja",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens*",
)


def copy_beside(source: Path, directory: Path) -> None:
    """Copy the files from one model's directory into that of a model made of it."""
    for pattern in _BESIDE:
        for path in source.glob(pattern):
            shutil.copyfile(path, directory / path.name)
