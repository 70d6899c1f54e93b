"""Cases of deploy/k8s: every overlay as it is, and with its components."""

from collections.abc import Iterator

import pytest

from gateway.settings import GatewaySettings
from specinfer.service.settings import ServiceSettings
from speculator_svc.settings import SpeculatorSettings
from tests.deploy.kustomize import COMPONENTS, OVERLAYS
from tests.deploy.rendered import Object, Rendered, Workload
from verifier_svc.settings import VerifierSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "verifier": VerifierSettings,
    "speculator": SpeculatorSettings,
}
"""By the word that names container, workload and prefix of a service."""
PLAIN = [(overlay, ()) for overlay in OVERLAYS]
ALONE = [("cpu", (component,)) for component in COMPONENTS]
ALL = [
    ("gpu", ("api-keys", "tls", "load-autoscaling")),
    ("cpu", ("api-keys", "monitoring", "managed-redis", "http")),
]
CASES = [*PLAIN, *ALONE, *ALL]


def services(objects: Rendered) -> Iterator[tuple[str, Workload, Object]]:
    """(word, workload, container) of our own processes."""
    for workload in objects.workloads:
        for container in workload.pod["containers"]:
            if container["name"] in SETTINGS:
                yield container["name"], workload, container


def load_settings(word: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """Return the settings that the service reads; it refuses names with its prefix that are no settings."""
    prefix = f"SPECINFER_{word.upper()}_"
    with monkeypatch.context() as context:
        for name, value in environment.items():
            if name.startswith(prefix) and "_TLS_" not in name:  # the files are not here
                context.setenv(name, value)
        settings = SETTINGS[word].load(word, [])
    unknown = {name for name in environment if name.startswith(prefix)} - {
        prefix + name.upper() for name in SETTINGS[word].model_fields
    }
    assert not unknown
    return settings
