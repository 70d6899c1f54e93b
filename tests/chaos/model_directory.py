"""Write a tiny random model for the services, with a token per printable ASCII character."""

import json
from pathlib import Path
from typing import Any

from tests.support.system import CHAT_TEMPLATE, ascii_tokenizer
from tests.support.tiny_models import tiny_transformers

MAX_POSITIONS = 512


def write_model(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write configuration, float32 weights and tokenizer; return the directory.

    Heads have a size that the compiled kernels support, as only their passes agree bit for bit.
    """
    directory.mkdir(parents=True, exist_ok=True)
    model = tiny_transformers("llama", seed, max_position_embeddings=MAX_POSITIONS, head_dim=16, **overrides)
    model.save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return directory
