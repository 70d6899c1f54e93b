"""Widened models: the same text from a model with larger MLPs, in the cache under a name that says so.

They stand in for large targets where only a small one is at hand: the cost of a pass grows, the acceptance
of drafts stays what it really is.
"""

import json
from pathlib import Path

from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.hub.atomic_directory import atomic_directory
from specinfer.hub.resolve import model_directory, model_name, resolve_model
from specinfer.system.progress import progress


def widen(model: str, factor: int) -> Path:
    """Write MODEL-widened-FACTOR into the cache and return its directory.

    Args:
        model: as `resolve_model` takes it.
        factor: how many times as many neurons each MLP gets: a power of two.

    Raises:
        InvalidInputError: if the factor is bad or the widened model is there already.
        IncompatibleError: if the family is none that our own decoder knows.
        UnavailableError: if it cannot be stored, or torch is missing.
    """
    if factor < 2 or factor & (factor - 1):
        raise InvalidInputError("factor", factor, "must be a power of two, 2 or more")
    source, name = resolve_model(model).resolve(), model_name(model)
    target = model_directory(f"{name}-widened-{factor}")
    if target.exists():
        raise InvalidInputError("model", model, f"is widened already: {target}")
    try:
        from specinfer.model.weights.widen import widen_model
    except ModuleNotFoundError as error:
        raise UnavailableError(f"widening needs {error.name}: pip install '.[model]'") from error
    try:
        with atomic_directory(target) as work, progress(f"widening {name}") as report:
            widen_model(source, work, factor, name, report)
    except OSError as error:
        raise UnavailableError(f"cannot store {target}: {error.strerror or error}") from error
    return target


def original_of(directory: Path) -> str | None:
    """Return the name of the model that the one in this directory was widened from; None if there is none."""
    path = directory / "config.json"
    if not path.is_file():
        return None
    mark = json.loads(path.read_text()).get("widened")
    return str(mark["original"]) if mark else None
