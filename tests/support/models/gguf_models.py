"""Complete GGUF files of tiny models, with a tokenizer."""

from pathlib import Path
from typing import Any

from tests.support.models.families import random_model
from tests.support.models.gguf_files import Gguf
from tests.unit.model.checkpoints.test_gguf import random_llama
from tests.unit.model.checkpoints.test_gguf_tokenizer import bytewise


def model_file(more: int = 0, layers: int = 2, hidden: int = 64, template: str = "") -> Gguf:
    """Return the file of a Llama with a vocabulary like GPT-2's and `more` further tokens."""
    metadata = bytewise()
    metadata["tokenizer.ggml.tokens"] += [f"filler{number}" for number in range(more)]
    metadata["tokenizer.ggml.token_type"] += [1] * more
    if template:
        metadata["tokenizer.chat_template"] = template
    size = {"num_hidden_layers": layers, "hidden_size": hidden}
    file = Gguf.of(random_llama(vocab_size=len(metadata["tokenizer.ggml.tokens"]), **size))
    file.others |= metadata
    return file


def write_model_file(path: Path, **shape: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return model_file(**shape).write(path)


def write_family(family: str, directory: Path, **shape: Any) -> Path:
    """Write the file of a random model of a family, with a vocabulary like GPT-2's."""
    metadata = bytewise()
    file = Gguf.of(random_model(family, vocab_size=len(metadata["tokenizer.ggml.tokens"]), **shape))
    if family == "gemma3_text":
        file.values["attention.sliding_window_pattern"] = 2
    file.others |= metadata
    return file.write(directory / "target.gguf")
