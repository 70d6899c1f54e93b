"""Write the settings of services into the chart's schema: `python -m tests.deploy.helm.settings_schema`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from all_in_one.settings import ServeSettings
from gateway.settings import GatewaySettings
from http_svc.settings import HttpSettings
from specinfer.drafters import DRAFTERS
from specinfer.drafters.growth import PROPOSALS
from specinfer.model.formats.registry import FORMATS
from specinfer.options.model_options import DTYPES, EXECUTORS, KV_TYPES, OFFLOADS
from specinfer.service.settings import ProcessSettings
from specinfer.verification.acceptance import RULES
from speculator_svc.settings import SpeculatorSettings
from tests.deploy.helm.chart import CHART
from verifier_svc.settings import VerifierSettings

SCHEMA = CHART / "values.schema.json"
ROLES: dict[str, type[ProcessSettings]] = {
    "gateway": GatewaySettings,
    "verifier": VerifierSettings,
    "speculator": SpeculatorSettings,
    "http": HttpSettings,
    "serve": ServeSettings,
}
OF_THE_CHART = {"listen", "metrics_host", "metrics_port", "redis_url"}
"""Settings that only the chart sets, as its ports and Secrets depend on them."""
CHOICES: dict[str, Sequence[str]] = {
    "weights": tuple(FORMATS),
    "dtype": DTYPES,
    "executor": EXECUTORS,
    "acceptance": tuple(RULES),
    "kv_type": KV_TYPES,
    "offload": OFFLOADS,
    "proposal": tuple(PROPOSALS),
}
"""Accepted values by setting, where the service checks them only when they are used."""
_KINDS = {"integer": ["integer", "null"], "number": ["number", "null"], "boolean": ["boolean", "null"]}


def settings_schema(role: str) -> dict[str, Any]:
    fields = ROLES[role].model_json_schema()["properties"]
    hidden = OF_THE_CHART | ({"gateways"} if role == "serve" else set())
    required = ["drain_seconds", *(["start_timeout_seconds"] if role == "gateway" else [])]
    properties = {name: _field(name, fields[name]) for name in sorted(fields.keys() - hidden)}
    for name in required:
        properties[name]["type"] = "number"
    return {
        "type": "object",
        "description": "Flags of the service with underscores",
        "additionalProperties": False,
        "required": required,
        "properties": properties,
    }


def _field(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of one setting; null means unset."""
    bounds = {
        key: field[key] for key in ("minimum", "maximum", "exclusiveMinimum", "pattern") if key in field
    }
    if name == "drafter":
        one = f"({'|'.join(DRAFTERS)})"
        bounds["pattern"] = rf"^{one}(\+{one})*$"
    if name in CHOICES:
        return {"enum": [*CHOICES[name], None]}
    if "anyOf" in field:
        return {"anyOf": [*field["anyOf"], {"type": "null"}]}
    if "enum" in field:
        return {"enum": [*field["enum"], None]}
    kind = field.get("type", "string")
    return {"type": _KINDS.get(kind, ["string", "null"]), **bounds}


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with the settings of all roles."""
    for role in ROLES:
        schema["properties"][role]["properties"]["settings"] = settings_schema(role)
    return schema


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(with_settings(json.loads(SCHEMA.read_text())), indent=2) + "\n")
