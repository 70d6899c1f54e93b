"""Defines the settings of the verifier (environment prefix SPECINFER_VERIFIER_)."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specinfer.options.model_options import HostOptions, ServedOptions
from specinfer.service.settings import Listen, MetricsPort, ServiceSettings
from specinfer.verification.jobs import EngineLimits

_LIMITS = EngineLimits()


class VerifierSettings(ServiceSettings, ServedOptions, HostOptions):  # type: ignore[misc]  # not frozen
    """The verifier checks token trees in passes of the target."""

    group: ClassVar[str] = "Model"

    model_config = SettingsConfigDict(**{**ServiceSettings.model_config, "env_prefix": "SPECINFER_VERIFIER_"})

    listen: Listen = "127.0.0.1:50052"
    metrics_port: MetricsPort = 9465
    offload_directory: str = Field(
        "",
        description="Directory to which --offload disk writes the layers at start; empty: the cache directory.",
    )
    tensor_parallel: int = Field(
        1, ge=1, description="Ranks (processes, each with a device) that share every layer of the model."
    )
    pipeline_parallel: int = Field(
        1, ge=1, description="Stages of successive layers; each has --tensor-parallel ranks."
    )
    rank_timeout_seconds: float = Field(
        60.0,
        gt=0,
        description="Time without an answer after which a rank counts as lost and the verifier ends; must exceed "
        "the longest pass.",
    )
    kv_window: int = Field(
        0,
        ge=0,
        description="Context tokens to keep per request (StreamingLLM); lossy; 0 keeps all.",
    )
    max_nodes: int = Field(_LIMITS.max_nodes, ge=1, description="Maximum nodes in one tree, root included.")
    max_step_tokens: int = Field(_LIMITS.max_step_tokens, ge=1, description="Maximum tokens in one pass.")
