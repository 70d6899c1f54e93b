"""Speculator services of a local system: by default or by name."""

from collections.abc import Collection, Mapping, Sequence

from specinfer.drafters import DRAFTERS, Drafter, DrafterOptions, make_drafter
from specinfer.errors import InvalidInputError, SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model

NONE = "none"
LEARNT = "ssm"
"""Method whose weights a service with --learn learns."""
Flags = Mapping[str, str]
"""Flags of a service by name, without dashes."""

MODEL_DRAFTERS = frozenset(
    {"ssm", "eagle", "dflash", "dspark", "peagle", "mtp", "medusa", "blockwise"}
    | {"recycling", "lookahead", "retrieval"}
)
"""Drafters that use the target's model, type and device by default."""

TRAINED: dict[str, Mapping[str, str]] = {
    DEFAULT_MODEL: {
        "ssm": "ssm-smollm2-135m",
        "eagle": "eagle-smollm2-135m",
        "medusa": "medusa-smollm2-135m",
    }
}
"""Trained speculators that ship with the project (models/), by target and drafter."""


LARGE_TREES = {"beam": "16", "depth": "12", "min-path-probability": "0"}
"""Flags of an SSM for slow targets.

Their pass takes many times the SSM's own, and no longer for 128 nodes than for one.
"""


INDEPENDENT: dict[str, Flags] = {"suffix": {"drafter": "suffix"}}
"""Services next to the verifier's own speculators, used when they pay off."""


def trained_for(model: str) -> Mapping[str, str]:
    """Return a model's trained speculators by drafter."""
    return TRAINED.get(model, {})


def read_speculators(texts: Sequence[str] | None) -> dict[str, Flags] | None:
    """Parse services as `DRAFTER[+DRAFTER...][,FLAG=VALUE...]`; None if none are given.

    `none` by itself stands for no service.

    Raises:
        InvalidInputError: naming what cannot be read.
    """
    if not texts:
        return None
    if list(texts) == [NONE]:
        return {}
    pool: dict[str, Flags] = {}
    for text in texts:
        drafter, *pairs = (part.strip() for part in text.split(","))
        flags = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if not drafter or len(flags) < len(pairs):
            raise InvalidInputError("speculator", text, "must be DRAFTER[+DRAFTER...][,FLAG=VALUE...]")
        name = drafter if drafter not in pool else f"{drafter}-{len(pool) + 1}"
        pool[name] = {"drafter": drafter, **flags}
    return pool


def check_speculator(setting: str, flags: Flags, known_names: Collection[str] = ()) -> None:
    """Check the flags of drafters before anything is loaded.

    Args:
        setting: name of the option that the flags are from.
        flags: of the drafters, with their methods under `drafter`.
        known_names: flags that are no drafter's and are checked elsewhere.

    Raises:
        SettingError: naming the drafter that there is not, or the flag that cannot be read.
    """
    options = {flag.replace("-", "_"): text for flag, text in flags.items()}
    for name in options.pop("drafter").split("+"):
        if name not in DRAFTERS:
            raise SettingError(setting, name, f"must be one of {', '.join(DRAFTERS)}")
    if "model" in options:
        resolve_model(options["model"])
    DrafterOptions.read({flag: text for flag, text in options.items() if flag not in known_names})


SERVICE_FLAGS = frozenset(
    {"name", "threads", "learn", "drain_seconds"}
    | {"metrics_host", "metrics_port", "otlp_endpoint"}
    | {"log_format", "log_level", "log_requests", "tls_certificate", "tls_client_ca", "tls_key"}
)
"""Flags of a speculator service that are no drafter's."""


def load_drafters(setting: str, flags: Flags, target: Flags) -> dict[str, Drafter]:
    """Return the drafters that flags name, by method; they share contexts.

    Args:
        setting: name of the option that the flags are from.
        flags: of the drafters, with their methods under `drafter`.
        target: model, numeric type and device of the target, for drafters that read it.

    Raises:
        SettingError: naming the flag that cannot be read, or the drafter that is named twice.
    """
    own_flags = dict(flags)
    methods = own_flags.pop("drafter").split("+")
    if len(set(methods)) < len(methods):
        raise SettingError(setting, "+".join(methods), "each drafter may be named once")
    common = {**target, "target": target["model"]} if MODEL_DRAFTERS & set(methods) else {}
    options = DrafterOptions.read({**common, **own_flags})
    return {method: make_drafter(method, options) for method in methods}
