"""Choose drafters by the option `--draft`, before a model is loaded."""

import logging
from pathlib import Path

from specinfer.drafters import DRAFTERS
from specinfer.drafters.pools import LARGE_TREES, TRAINED, Flags, check_speculator, read_speculators
from specinfer.drafters.tuned import VARIANTS, tuned_flags
from specinfer.errors import IncompatibleError, SettingError
from specinfer.hub import resolve_model
from specinfer.hub.registry import KnownModel, known_models
from specinfer.hub.resolve import is_pulled
from specinfer.model.weights.source import NO_MTP, algorithm_of, has_own_mtp, is_draft_checkpoint
from specinfer.options.model_options import AUTO_DRAFT, NO_DRAFT, PassOptions
from specinfer.text.tokenizer import tokenizer_facts

log = logging.getLogger(__name__)

_USUAL = PassOptions()
_SMALLER = 2.0
"""Minimum ratio of a model's bytes to the bytes of its draft."""
_METHODS = {"eagle3": "eagle"}
"""Drafters by kind of checkpoint, if the names differ."""


def draft_group(model: str, draft: str = AUTO_DRAFT, target: PassOptions = _USUAL) -> Flags | None:
    """Return the flags of the drafters that `--draft` names; None for "none".

    Args:
        model: the target, as its user names it.
        draft: "auto", "none", a model, or drafters in the form of `read_speculators`.
        target: options of the target. If its layers are offloaded, a pass is slow for any number of nodes, so a
            draft model drafts large trees. If its executor returns no hidden states, "auto" omits drafts that
            read them.
    """
    if draft == NO_DRAFT:
        return None
    if draft == AUTO_DRAFT:
        name = automatic_draft(model, target)
    elif names_drafters(draft):
        (flags,) = (read_speculators([draft]) or {}).values()
        return flags
    else:
        name = draft
        check_draft(model, draft)
    if not name:
        return {"drafter": "ngram"}
    method = method_of(resolve_model(name))
    if method == "ssm" and _is_same(model, name):
        method = "mtp"
    return {
        "drafter": f"ngram+{method}",
        "model": name,
        **(LARGE_TREES if target.offload != "none" and method == "ssm" else {}),
        **(tuned_flags(model, name, target) if method in VARIANTS else {}),
    }


def check_named_draft(model: str, draft: str, target: PassOptions = _USUAL) -> None:
    """Check a named draft before loading. "auto" is resolved later."""
    if draft != AUTO_DRAFT and (flags := draft_group(model, draft, target)):
        check_speculator("draft", flags)


def default_services(model: str, target: PassOptions = _USUAL) -> dict[str, Flags]:
    """Return the flags of the service that `--draft auto` starts, by service name."""
    group = draft_group(model, AUTO_DRAFT, target)
    return {group["drafter"]: group} if group else {}


def automatic_draft(model: str, target: PassOptions = _USUAL) -> str:
    """Return and log the available draft of a model; empty if none."""
    fitting = fitting_drafts(model)
    sibling = next((known.name for known in fitting if is_pulled(known.name)), "")
    own_layer = model if has_own_mtp(resolve_model(model)) else ""
    used = ""
    for name in filter(None, (own_layer, sibling, TRAINED.get(model, ""))):
        described = f"draft of {model}: " + ("the model's own MTP layer" if name == own_layer else name)
        reads_states = name == own_layer or (name != sibling and method_of(resolve_model(name)) != "ssm")
        if reads_states and not _returns_states(model, target):
            log.info("%s is not used: the generic executor returns no hidden states", described)
            continue
        log.info("%s (--draft none switches it off)", described)
        used = name
        break
    if fitting and used in ("", TRAINED.get(model)):
        log.info(
            "%s is decoded faster with a draft: `specinfer pull %s` (%s MB), then start again",
            model,
            fitting[0].name,
            fitting[0].megabytes,
        )
    return used


def fitting_drafts(model: str) -> list[KnownModel]:
    """Return the registered models that may draft, smallest first."""
    candidates = [known for known in known_models().values() if known.tokenizer]
    if not candidates:
        return []
    directory = resolve_model(model)
    max_bytes, fingerprint = weights_bytes(directory) / _SMALLER, tokenizer_facts(directory).fingerprint
    fitting = [k for k in candidates if k.tokenizer == fingerprint and k.megabytes * 1e6 <= max_bytes]
    return sorted(fitting, key=lambda known: known.megabytes)


def check_draft(model: str, draft: str) -> None:
    """Check that the model `draft` can draft for `model`."""
    try:
        directory = resolve_model(draft)
    except SettingError as error:
        names = f"also allowed are the drafters {', '.join(DRAFTERS)}"
        raise SettingError("draft", draft, f"{error.why}; {names}") from error
    if is_draft_checkpoint(directory):  # its target is checked when it is loaded
        return
    if _is_same(model, draft) and not has_own_mtp(directory):
        raise SettingError("draft", draft, f"is the model itself, which {NO_MTP}")
    ours, theirs = (tokenizer_facts(path).fingerprint for path in (resolve_model(model), directory))
    if ours != theirs:
        fits = [*filter(None, [TRAINED.get(model)]), *(known.name for known in fitting_drafts(model))]
        known = f"matching models: {', '.join(fits)}" if fits else "no known model matches"
        raise SettingError("draft", draft, f"has another tokenizer than {model}; {known}")


def method_of(directory: Path) -> str:
    """Return the drafter for a checkpoint.

    It is "ssm" for a whole model, else the kind of the trained speculator.
    """
    if not is_draft_checkpoint(directory):
        return "ssm"
    kind = algorithm_of(directory)
    method = _METHODS.get(kind, kind)
    if method not in DRAFTERS:
        raise IncompatibleError(f"{directory}: speculators_model_type = {kind!r} is not a known drafter")
    return str(method)


def _returns_states(model: str, target: PassOptions) -> bool:
    """Return whether the target's executor returns hidden states, which MTP reads."""
    from specinfer.model.options import RunnerOptions
    from specinfer.model.probe.load import planned_executor

    options = RunnerOptions(target.dtype, target.device, executor=target.executor)
    return planned_executor(resolve_model(model), options) is not None


def _is_same(model: str, draft: str) -> bool:
    return resolve_model(model) == resolve_model(draft)


def weights_bytes(directory: Path) -> int:
    """Return the total bytes of a model's weight files."""
    files = [path for path in directory.iterdir() if path.suffix in (".gguf", ".safetensors", ".bin")]
    return sum([path.stat().st_size for path in files])


def names_drafters(text: str) -> bool:
    """Return whether a text lists drafters and is not a model."""
    return all(part.strip() in DRAFTERS for part in text.split(",")[0].split("+"))
