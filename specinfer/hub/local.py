"""List and remove models in the cache, and find their possible drafts."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from specinfer.errors import NotFoundError, SpecInferError
from specinfer.hub.gguf import derived_directories
from specinfer.hub.resolve import model_name
from specinfer.model.weights.gguf_files.parts import split_stem
from specinfer.model.weights.source import KEPT_GGUF, RECORD, read_record, stored_tensors
from specinfer.system.cache_directory import cache_directory
from specinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model with a directory in the cache."""

    name: str
    directory: Path
    format: str
    """Format name of a GGUF file's types, or the main type."""
    parameters: int
    size: int
    """Bytes of the weights."""
    vocabulary: str
    """Fingerprint of the tokenizer; empty without a tokenizer."""
    file: Path | None = None
    """The user's own GGUF file; None for pulled models."""

    @property
    def missing(self) -> bool:
        """True if the user's file is gone."""
        return self.file is not None and not self.file.is_file()


def local_models() -> list[LocalModel]:
    """Return all models of the cache, by name."""
    pulled, derived = _directories(cache_directory() / "models"), _directories(derived_directories())
    models = [_pulled(path) for path in pulled] + [_derived(path) for path in derived]
    return sorted(models, key=lambda model: (model.name, model.directory))


def drafts_for(model: LocalModel, models: Sequence[LocalModel]) -> list[str]:
    """Return the names of smaller models with the same tokenizer."""
    fit = {
        other.name
        for other in models
        if other.vocabulary == model.vocabulary != "" and 0 < other.parameters < model.parameters
    }
    return sorted(fit)


def remove_model(name: str) -> list[LocalModel]:
    """Remove a model from the cache; the user's own files stay.

    Args:
        name: name in `local_models`, or path of a GGUF file.
    """
    wanted, path = model_name(name), Path(name).expanduser()
    matching = [model for model in local_models() if model.name in (name, wanted)]
    if path.suffix.lower() == ".gguf" and path.name != name:  # a path, not a bare file name
        matching = [model for model in matching if model.file == path.absolute()]
    if not matching:
        known = ", ".join(sorted({model.name for model in local_models()})) or "nothing"
        raise NotFoundError(f"model = {name!r}: not in the cache; cached are: {known}")
    for model in matching:
        shutil.rmtree(model.directory)
    return matching


def _directories(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.name[0] != "." and (path / "config.json").is_file()]


def _derived(directory: Path) -> LocalModel:
    link = directory / KEPT_GGUF
    return _of_gguf(directory, split_stem(link.readlink().name), link.readlink())


def _pulled(directory: Path) -> LocalModel:
    name = directory.name.replace("--", "/")
    if (directory / KEPT_GGUF).is_file():
        return _of_gguf(directory, name, None)
    sizes = _sizes(directory)
    kinds = [(numbers, kind) for kind, numbers in sizes.items()]
    size = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return LocalModel(
        *(name, directory, max(kinds)[1] if kinds else "tokenizer", sum(sizes.values()), size),
        vocabulary=_vocabulary(directory),
    )


def _of_gguf(directory: Path, name: str, file: Path | None) -> LocalModel:
    record = read_record(directory)
    if record and "vocabulary" not in record:  # cached, since large tokenizers take a second
        record["vocabulary"] = _vocabulary(directory)
        (directory / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return LocalModel(
        *(name, directory, str(record.get("format", "?")), int(record.get("parameters", 0))),
        *(int(record.get("bytes", 0)), str(record.get("vocabulary", "")), file),
    )


def _vocabulary(directory: Path) -> str:
    try:
        return Tokenizer.load(directory).fingerprint()
    except SpecInferError:
        return ""


def _sizes(directory: Path) -> dict[str, int]:
    """Return the number of parameters by dtype, from the files' headers."""
    sizes: dict[str, int] = {}
    for path in directory.glob("*.safetensors"):
        for tensor in stored_tensors(path).values():
            sizes[tensor["dtype"]] = sizes.get(tensor["dtype"], 0) + prod(tensor["shape"])
    return sizes
