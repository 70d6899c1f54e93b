"""Parse and check options that name drafters and speculator services."""

from collections.abc import Collection, Mapping, Sequence

from specinfer.drafters import DRAFTERS, Drafter, DrafterOptions, make_drafter
from specinfer.errors import InvalidInputError, SettingError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.system.machine import check_device

NONE = "none"
LEARNT = "ssm"
"""Drafter whose weights a service with --learn trains."""
Flags = Mapping[str, str]
"""Values of a service's flags, by name without dashes."""

MODEL_DRAFTERS = frozenset(
    {"ssm", "eagle", "dflash", "dspark", "peagle", "mtp", "medusa", "blockwise"}
    | {"recycling", "lookahead", "retrieval"}
)
"""Drafters that get the target's model, type and device by default."""

TRAINED = {DEFAULT_MODEL: "ssm-smollm2-135m", "qwen2.5-coder-1.5b": "eagle-qwen2.5-coder-1.5b"}
"""Drafts shipped in models/, by target."""


LARGE_TREES = {"beam": "16", "depth": "12", "min-path-probability": "0"}
"""Flags of an SSM for slow (offloaded) targets.

A pass of such a target takes many times longer than the SSM's pass, and equally long for 1 and 128 nodes.
"""


INDEPENDENT: dict[str, Flags] = {"suffix": {"drafter": "suffix"}}
"""Default speculator services, in addition to the verifier's own speculators."""


def read_speculators(texts: Sequence[str] | None) -> dict[str, Flags] | None:
    """Parse services as `DRAFTER[+DRAFTER...][,FLAG=VALUE...]`; None if none are given.

    A single `none` means no service.
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
    """Check the flags of drafters before a model is loaded.

    Args:
        setting: name of the option that the flags are from.
        flags: flags of the drafters, with their names under `drafter`.
        known_names: further flags, which are checked elsewhere.
    """
    options = {flag.replace("-", "_"): text for flag, text in flags.items()}
    for name in options.pop("drafter").split("+"):
        if name not in DRAFTERS:
            raise SettingError(setting, name, f"must be one of {', '.join(DRAFTERS)}")
    try:
        if "model" in options:
            resolve_model(options["model"])
        DrafterOptions.read({flag: text for flag, text in options.items() if flag not in known_names})
        check_device(options.get("device", "cpu"))
    except SettingError as error:
        raise error.renamed(f"{setting}: {error.field}") from error


SERVICE_FLAGS = frozenset(
    {"name", "threads", "learn", "drain_seconds"}
    | {"metrics_host", "metrics_port", "otlp_endpoint"}
    | {"log_format", "log_level", "log_requests", "tls_certificate", "tls_client_ca", "tls_key"}
)
"""Flags of a speculator service that do not belong to a drafter."""


def load_drafters(setting: str, flags: Flags, target: Flags) -> dict[str, Drafter]:
    """Return the loaded drafters that flags name, by name.

    Args:
        setting: name of the option that the flags are from.
        flags: flags of the drafters, with their names under `drafter`.
        target: model, numeric type and device of the target, defaults of `MODEL_DRAFTERS`.
    """
    own_flags = dict(flags)
    methods = own_flags.pop("drafter").split("+")
    if len(set(methods)) < len(methods):
        raise SettingError(setting, "+".join(methods), "must name each drafter once")
    common = {**target, "target": target["model"]} if MODEL_DRAFTERS & set(methods) else {}
    options = DrafterOptions.read({**common, **own_flags})
    return {method: make_drafter(method, options) for method in methods}
