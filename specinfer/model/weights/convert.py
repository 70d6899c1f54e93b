"""Converts a GGUF file to a model directory with configuration and tokenizer.

As a program: `python -m specinfer.model.weights.convert FILE DIRECTORY`.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specinfer.errors import IncompatibleError, SpecInferError, naming
from specinfer.model.weights.gguf_files.vocabulary import save_tokenizer
from specinfer.model.weights.gguf_weights import GgufWeights
from specinfer.request.default_sampling import FILE, GGUF_KEYS, checked_sampling
from specinfer.system.apart import finish
from specinfer.system.progress import Report


def _silent(done: int, total: int) -> None: ...


def convert_gguf(gguf: Path, directory: Path, report: Report = _silent) -> dict[str, Any]:
    """Write a model directory; return the file's format, weights and bytes.

    Args:
        report: called with the number of finished steps, and of all steps.
    """
    try:
        with naming(gguf):
            return _convert(gguf, directory, report)
    except (SpecInferError, OSError):
        raise
    except Exception as error:  # libraries raise any type for unexpected values
        if full := re.search(r"\(os error (\d+)\)", str(error)):  # the tokenizers library could not write
            raise OSError(int(full[1]), os.strerror(int(full[1]))) from error
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise IncompatibleError(f"cannot read {gguf} as a GGUF file: {what}") from error


def _convert(gguf: Path, directory: Path, report: Report) -> dict[str, Any]:
    weights = GgufWeights(gguf)
    config = weights.config()
    config.dtype = "bfloat16"
    config.save_pretrained(directory)
    ends = weights.vocabulary.end_tokens()
    generation = checked_sampling(
        {name: weights.metadata.other(key) for key, name in GGUF_KEYS.items()}, "GGUF: general.sampling"
    )
    if len(ends) > 1:  # config.json can only have one id
        generation["eos_token_id"] = ends
    if generation:
        (directory / FILE).write_text(json.dumps(generation))
    report(1, 2)
    save_tokenizer(weights.metadata.architecture, weights.vocabulary, directory)
    report(2, 2)
    sizes = weights.bytes_by_type()
    return {
        "format": _format(weights.metadata.other("general.file_type"), sizes),
        "parameters": weights.parameters,
        "bytes": sum(sizes.values()),
    }


def _format(file_type: Any, sizes: Mapping[str, int]) -> str:
    """Return the name of a file's format, or its most frequent type."""
    import gguf

    known = {kind.value: kind.name for kind in gguf.LlamaFileType}
    if file_type in known:
        return str(known[file_type]).removeprefix("MOSTLY_").removeprefix("ALL_")
    return max(sizes, key=lambda kind: sizes[kind], default="?")


if __name__ == "__main__":
    sys.exit(finish(lambda: json.dumps(convert_gguf(Path(sys.argv[1]), Path(sys.argv[2])))))
