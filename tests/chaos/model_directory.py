"""A model as services load it from a directory: random, tiny, with a token per printable ASCII character."""

import json
from pathlib import Path
from typing import Any

from tests.support.system import CHAT_TEMPLATE, ascii_tokenizer
from tests.support.tiny_models import tiny_transformers

MAX_POSITIONS = 512


def write_model(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    """Writes config, weights in float32 and tokenizer; returns the directory.

    Heads are as large as the compiled kernels want them: theirs are the passes that agree bit for bit.
    """
    directory.mkdir(parents=True, exist_ok=True)
    model = tiny_transformers("llama", seed, max_position_embeddings=MAX_POSITIONS, head_dim=16, **overrides)
    model.save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return directory
