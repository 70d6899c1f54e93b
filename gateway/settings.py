"""Settings of the gateway (environment prefix SPECINFER_GATEWAY_)."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gateway.security import SecuritySettings
from specinfer.hub import DEFAULT_MODEL


class GatewaySettings(SecuritySettings):
    """The gateway owns every request, merges speculators' trees and asks the verifier."""

    model_config = SettingsConfigDict(**{**SecuritySettings.model_config, "env_prefix": "SPECINFER_GATEWAY_"})

    listen: str = Field("127.0.0.1:50051", description="Address to listen on, host:port.")
    model: str = Field(DEFAULT_MODEL, description="Model whose tokenizer and chat template are used.")
    verifier: str = Field("127.0.0.1:50052", description="Address of the verifier.")
    speculators: str = Field("", description="Addresses of the speculator services, separated by commas.")
    redis_url: str = Field("redis://127.0.0.1:6379/0", description="Redis that holds request state.")
    start_timeout_s: float = Field(60.0, gt=0, description="Time the verifier gets to answer at start-up.")
    verifier_patience_s: float = Field(30.0, ge=0, description="Time without verifier before requests fail.")
    draft_deadline_ms: float = Field(500.0, gt=0, description="Time the speculators get per iteration.")
    hung_seconds: float = Field(
        5.0,
        gt=0,
        description="Silence after which a speculator service is taken for dead in a step that has draws.",
    )
    max_batch: int = Field(16, ge=1, description="Most requests decoded at once.")
    max_waiting: int = Field(256, ge=1, description="Most requests waiting; more are refused.")
    prefill_chunk: int = Field(512, ge=1, description="Most prompt tokens per iteration.")
    tree_nodes: int = Field(
        0,
        ge=0,
        description="Most nodes of one request's tree, root excluded; 0: what the verifier's passes allow.",
    )
    step_nodes: int = Field(
        0,
        ge=0,
        description="Most nodes verified in one iteration, all trees together; 0: what passes allow.",
    )
    tree_depth: int = Field(0, ge=0, description="Deepest tree; 0: as deep as it has nodes.")
    sequence_length: int = Field(5, ge=1, description="Tokens drafted in sequence speculation.")
    adaptive: bool = Field(
        True, description="Choose speculators and nodes by measured gain and cost; off uses all always."
    )
    retention_seconds: int = Field(600, ge=1, description="Time finished requests stay in Redis.")

    @property
    def speculator_addresses(self) -> list[str]:
        """The speculator services, in order of preference."""
        return [address.strip() for address in self.speculators.split(",") if address.strip()]
