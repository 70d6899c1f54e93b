"""Cases of the chart: every file of values next to it, and every switch."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from gateway.settings import GatewaySettings
from specinfer.options import model_options
from specinfer.service.settings import ServiceSettings
from speculator_svc.settings import SpeculatorSettings
from tests.deploy.helm.chart import render
from tests.deploy.helm.rendered import Object, Rendered, Workload
from verifier_svc.settings import VerifierSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "verifier": VerifierSettings,
    "speculator": SpeculatorSettings,
}
"""Settings class of each service, by the name of its container."""
API_KEYS = {"apiKeys": {"existingSecret": "specinfer-api-keys"}}
TLS = {"tls": {"enabled": True}}
OTHERS_REDIS = {
    "redis": {"enabled": False, "password": "", "url": "rediss://:replace-me@redis.example.com:6380/0"}
}
OWN_SECRET = {"redis": {"existingSecret": "of-ours", "password": ""}}
MONITORING = {
    "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")}
}
CASES: dict[str, tuple[Sequence[str], Mapping[str, Any]]] = {
    "cpu": ((), {}),
    "gpu": (("gpu",), {}),
    "gpu-multi-node": (("gpu", "gpu-multi-node"), {}),
    "load-autoscaling": (("load-autoscaling",), {}),
    "api-keys": ((), API_KEYS),
    "tls": ((), TLS),
    "monitoring": ((), MONITORING),
    "others-redis": ((), OTHERS_REDIS),
    "own-secret": ((), OWN_SECRET),
    "gpu-with-all": (("gpu", "load-autoscaling"), API_KEYS | TLS | MONITORING | OTHERS_REDIS),
    "gpu-multi-node-tls": (("gpu", "gpu-multi-node"), TLS),
}
"""(files of values, further values) by case."""
FILES_OF_TLS = ("tls.crt", "tls.key", "ca.crt")
EXISTING = {
    "specinfer-api-keys": ("keys.jsonl",),
    **{f"specinfer-{of}-tls": FILES_OF_TLS for of in ("gateway", "gateway-client", "verifier", "speculator")},
}
"""Secrets that the operator creates, and their files."""


def rendered_case(name: str) -> Rendered:
    """Return the rendered objects of a case, with placeholders for the Secrets that it names."""
    files, values = CASES[name]
    objects = render(files, values)
    password = "of-ours"
    url = f"redis://:{password}@specinfer-redis:6379/0"
    for secret in EXISTING:
        add_secret(objects, secret, dict.fromkeys(EXISTING[secret], "replace-me"))
    add_secret(objects, "of-ours", {"url": url, "password": password, "auth.conf": f"requirepass {password}"})
    return objects


def add_secret(objects: Rendered, name: str, files: Mapping[str, str]) -> None:
    """Add a Secret to the objects, like an operator."""
    data = {file: base64.b64encode(text.encode()).decode() for file, text in files.items()}
    metadata = {"name": name, "namespace": "specinfer"}
    objects.objects.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})


def services(objects: Rendered) -> Iterator[tuple[str, Workload, Object]]:
    """Yield (service, workload, container) of the project's own processes."""
    for workload in objects.workloads:
        for container in workload.pod["containers"]:
            if container["name"] in SETTINGS:
                yield container["name"], workload, container


def load_settings(word: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """Return the settings that a service reads from an environment; unknown names with its prefix are refused."""
    prefix = f"SPECINFER_{word.upper()}_"
    with monkeypatch.context() as context:
        for name, value in environment.items():
            if name.startswith(prefix) and "_TLS_" not in name:  # the files are not here
                context.setenv(name, value)
        context.setattr(model_options, "check_device", lambda device: None)  # the pod's, not this machine's
        settings = SETTINGS[word].load(word, [])
    unknown = {name for name in environment if name.startswith(prefix)} - {
        prefix + name.upper() for name in SETTINGS[word].model_fields
    }
    assert not unknown
    return settings
