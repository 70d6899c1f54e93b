"""Define the gateway's settings (environment prefix SPECINFER_GATEWAY_)."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.door_options import GatewayOptions
from specinfer.planning import PLANNERS
from specinfer.scheduling.limits import SchedulerLimits
from specinfer.service.channel import service_addresses, split_targets
from specinfer.service.settings import Listen, MetricsPort, ProcessSettings, ServiceSettings, as_path
from specinfer.service.tls import ClientTls, redis_tls

_LIMITS = SchedulerLimits()


class RequestSettings(ProcessSettings, GatewayOptions):
    """Settings of requests, shared by the gateway and the all-in-one process."""

    group: ClassVar[str] = "Requests"

    @property
    def key_file(self) -> Path | None:
        """File of API keys; None if calls need no key."""
        return as_path(self.api_keys)


class SecuritySettings(ServiceSettings):
    """TLS settings of connections to verifiers, speculator services and Redis."""

    group: ClassVar[str] = "Security"

    services_tls_ca: str = Field(
        "", description="PEM file of the authorities of verifiers and speculators; enables TLS to them."
    )
    services_tls_certificate: str = Field(
        "", description="PEM file of the gateway's certificate for services that require one."
    )
    services_tls_key: str = Field("", description="PEM file of the certificate's private key.")
    services_tls_name: str = Field(
        "", description="Name in the services' certificates; empty: the host of each address."
    )
    redis_tls_ca: str = Field(
        "", description="PEM file of the authorities of a rediss:// server; empty: the system's."
    )
    redis_tls_certificate: str = Field(
        "", description="PEM file of the gateway's certificate for a Redis that requires one."
    )
    redis_tls_key: str = Field("", description="PEM file of the certificate's private key.")

    @property
    def services_tls(self) -> ClientTls:
        """TLS files of channels to verifiers and speculators."""
        ca, certificate, key = map(
            as_path, (self.services_tls_ca, self.services_tls_certificate, self.services_tls_key)
        )
        return ClientTls(ca, certificate, key, self.services_tls_name, prefix="services_tls")

    def redis_tls(self, url: str) -> dict[str, Any]:
        """Return keyword arguments for `Redis.from_url(url)`."""
        files = (self.redis_tls_ca, self.redis_tls_certificate, self.redis_tls_key)
        return redis_tls(url, *map(as_path, files))


TRACE_RATIO = 0.01
"""Share of traced requests, among requests without a caller's `traceparent`."""
RETENTION_SECONDS = 600
"""Seconds for which finished requests stay in Redis."""
EMBEDDED = "embedded:"
"""Scheme of a `redis_url` that selects the embedded store."""


class GatewaySettings(SecuritySettings, RequestSettings):
    """The gateway stores requests, merges drafts and calls the verifier."""

    group: ClassVar[str] = "Gateway"

    model_config = SettingsConfigDict(**{**SecuritySettings.model_config, "env_prefix": "SPECINFER_GATEWAY_"})
    hung_seconds: ClassVar[float] = 5.0
    """Timeout in seconds of a silent speculator or verifier."""

    listen: Listen = "127.0.0.1:50051"
    metrics_port: MetricsPort = 9464
    model: str = Field(DEFAULT_MODEL, description="Model whose tokenizer and chat template are used.")
    verifiers: str = Field(
        "127.0.0.1:50052",
        description="Verifiers, separated by commas: host:port, or dns:///name:port for all addresses of a "
        "name, resolved every second.",
    )
    speculators: str = Field(
        "",
        description="Speculator services, separated by commas: host:port; replicas that share requests as "
        "host:port|host:port, or dns:///name:port for all addresses of a name.",
    )
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="Redis with the request state. For a single gateway: embedded: (in memory) or embedded:PATH"
        " (with a file).",
    )
    start_timeout_seconds: float = Field(
        60.0, gt=0, description="Seconds to wait for Redis and a verifier at start."
    )
    lease_seconds: float = Field(
        3.0,
        gt=0,
        description="Lifetime of this gateway's leases in seconds: after it, others take over from a dead gateway.",
    )
    verifier_patience_seconds: float = Field(
        30.0, ge=0, description="Seconds that requests wait for a verifier before they fail."
    )
    redis_patience_seconds: float = Field(
        300.0, ge=0, description="Seconds that running requests wait for a Redis that does not answer."
    )
    linger_seconds: float = Field(
        10.0,
        ge=0,
        description="Seconds that a request continues after its last client has left.",
    )
    trust_draws: bool = Field(
        True,
        description="Let speculators draw for sampled requests. A wrong distribution biases the output; "
        "--no-trust-draws accepts only points.",
    )
    prefill_chunk: int = Field(
        _LIMITS.prefill_chunk,
        ge=1,
        description="Maximum prompt tokens per step; fewer while requests decode.",
    )
    tree_nodes: int = Field(
        0,
        ge=0,
        description="Maximum nodes of a request's tree, root excluded; 0: derived from pass times.",
    )
    step_nodes: int = Field(
        0,
        ge=0,
        description="Maximum nodes verified in a step, all trees together; 0: derived from pass times.",
    )
    adaptive: bool = Field(
        True, description="Choose speculators and nodes by measured gain and cost; off: always use all."
    )
    planner: str = Field(
        PLANNERS[0],
        description="Planner: measured (a table of steps), learned (a linear model of accepted tokens), or a "
        "file of initial weights for the learned planner from `specinfer train scheduler`.",
    )
    record_steps: str = Field(
        "",
        description="File to which each step is appended, without text and tokens, for `specinfer train "
        "scheduler`.",
    )
    max_calls: int = Field(
        4096, ge=1, description="Maximum concurrent calls; more are refused (gRPC: RESOURCE_EXHAUSTED)."
    )

    def check(self) -> None:
        """Check addresses of verifiers and speculators, and the planner, too."""
        super().check()
        split_targets("verifiers", self.verifiers)
        service_addresses(self.speculators)
        if self.weights_file is not None and not self.weights_file.is_file():
            names = ", ".join(PLANNERS)
            raise SettingError("planner", self.planner, f"must be {names} or a file of weights")

    @property
    def weights_file(self) -> Path | None:
        """File of the learned planner's weights; None with another planner."""
        return None if self.planner in PLANNERS else Path(self.planner)

    @property
    def embedded_store(self) -> Path | Literal[""] | None:
        """File of the embedded store; "": store in memory; None: Redis."""
        if not self.redis_url.startswith(EMBEDDED):
            return None
        return as_path(self.redis_url.removeprefix(EMBEDDED)) or ""

    @property
    def recording(self) -> Path | None:
        """File to which steps are recorded; None: no recording."""
        return as_path(self.record_steps)

    @property
    def verifier_addresses(self) -> list[str]:
        """Addresses of the verifiers, without DNS lookups."""
        return split_targets("verifiers", self.verifiers)

    @property
    def speculator_services(self) -> list[str]:
        """Speculator services in order of preference, as from `service_addresses`."""
        return service_addresses(self.speculators)
