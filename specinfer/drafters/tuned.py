"""A draft's fastest settings on this machine, measured by `specinfer models tune`."""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from specinfer.drafters.pools import Flags
from specinfer.hub import resolve_model
from specinfer.model.native.compiler import sources_digest
from specinfer.model.threads import pass_threads
from specinfer.model.weights.fingerprint import weights_fingerprint
from specinfer.options.model_options import AUTO, PassOptions
from specinfer.system.cache_directory import cache_directory
from specinfer.system.derived import derived_path, store_value, stored_value
from specinfer.system.machine import processor_name

log = logging.getLogger(__name__)
_KIND = "tuned"
VARIANTS: Mapping[str, tuple[Flags, ...]] = {
    "ssm": ({}, {"weights": "file"}, {"weights": "q4_0"}, {"weights": "q8_0"}),
}
"""Settings that `models tune` measures by drafter, the default first."""


def tuned_flags(model: str, draft: str, target: PassOptions) -> Flags:
    """Return and log the kept settings of a draft; empty without any, or for unusual targets."""
    usual = PassOptions()
    if target.executor not in (AUTO, "native") or any(
        getattr(target, name) != getattr(usual, name) for name in ("dtype", "device", "offload")
    ):
        return {}
    if not (cache_directory() / _KIND).is_dir():
        return {}
    kept = stored_value(_path(model, draft))
    if not isinstance(kept, dict) or not (flags := kept.get("flags")):
        return {}
    _log_once(f"draft of {model}: {draft} with {as_setting(flags)}, as `specinfer models tune` measured")
    return {str(name): str(value) for name, value in flags.items()}


@cache
def _log_once(line: str) -> None:
    log.info(line)  # a named draft is checked before it is loaded


def keep_tuned(model: str, draft: str, flags: Flags, measured: Any) -> None:
    """Keep the fastest settings; `measured` documents them."""
    store_value(_path(model, draft), {"flags": dict(flags), "measured": measured})


def as_setting(flags: Flags) -> str:
    """Return, for example, "weights=q4_0"; "the default" without flags."""
    return ",".join(f"{name}={value}" for name, value in flags.items()) or "the default"


def _path(model: str, draft: str) -> Path:
    models = [weights_fingerprint(resolve_model(name)) for name in (model, draft)]
    return derived_path(_KIND, [*models, sources_digest(), processor_name(), str(pass_threads())])
