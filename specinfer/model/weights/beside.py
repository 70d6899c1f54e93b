"""Files of a model that do not depend on its layers: tokenizer, chat template, generation settings."""

import shutil
from pathlib import Path

_BESIDE = (
    "generation_config.json",
    "chat_template.j*",
    "additional_chat_templates/*.jinja",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens*",
    "added_tokens.json",
)


def copy_beside(source: Path, directory: Path) -> None:
    """Copy the files from one model's directory into that of a model made of it."""
    for pattern in _BESIDE:
        for path in source.glob(pattern):
            target = directory / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
