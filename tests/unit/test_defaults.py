"""Defaults of settings equal those of the classes that they configure."""

from dataclasses import fields

from gateway.settings import GatewaySettings
from specinfer.drafters import DrafterOptions
from specinfer.scheduling.limits import SchedulerLimits
from specinfer.verification.jobs import EngineLimits
from speculator_svc.settings import SpeculatorSettings
from verifier_svc.settings import VerifierSettings


def defaults(settings: type, of: type, but: set[str]) -> dict[str, tuple[object, object]]:
    """Return common fields whose defaults differ: (default of the settings, default of the class)."""
    pairs = {
        field.name: (settings.model_fields[field.name].default, field.default)
        for field in fields(of)
        if field.name in settings.model_fields and field.name not in but
    }
    assert len(pairs) >= 2
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def test_settings_have_the_defaults_of_the_configured_classes() -> None:
    assert defaults(SpeculatorSettings, DrafterOptions, {"model"}) == {}
    assert defaults(VerifierSettings, EngineLimits, {"max_context_len"}) == {}, "0 means the model's own"
    assert defaults(GatewaySettings, SchedulerLimits, set()) == {}


def test_caches_have_the_same_default_size_everywhere() -> None:
    from specinfer.model.options import RunnerOptions

    sizes = {RunnerOptions().kv_tokens, DrafterOptions().kv_tokens, VerifierSettings().kv_tokens}
    assert len(sizes) == 1
