"""Defines the settings of the verifier (environment prefix SPECINFER_VERIFIER_)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specinfer.drafters.draft import DRAFT_HELP, NO_DRAFT
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.backends import executors_help
from specinfer.model.cache.kv_cache import CACHE_TOKENS
from specinfer.model.cache.kv_types import (
    AUTO_KV,
    KV_TOKENS_HELP,
    KV_TYPE_HELP,
    PREFIX_MEGABYTES,
    PREFIX_MEGABYTES_HELP,
    PREFIXES_HELP,
)
from specinfer.model.formats.registry import AUTO, weights_help
from specinfer.service.settings import ServiceSettings
from specinfer.system.threads import THREADS_HELP
from specinfer.verification.acceptance import DEFAULT_RULE
from specinfer.verification.jobs import EngineLimits

_LIMITS = EngineLimits()


class VerifierSettings(ServiceSettings):
    """The verifier checks token trees in passes of the target."""

    group: ClassVar[str] = "Model"

    model_config = SettingsConfigDict(**{**ServiceSettings.model_config, "env_prefix": "SPECINFER_VERIFIER_"})

    listen: str = Field("127.0.0.1:50052", description="Address to listen on, host:port.")
    metrics_port: int = Field(
        9465, ge=0, le=65535, description="Port of the Prometheus endpoint; 0 switches it off."
    )
    model: str = Field(DEFAULT_MODEL, description="Model: registry name, hub id, directory or GGUF file.")
    dtype: str = Field("bfloat16", description="Numeric type: float32, bfloat16 or float16.")
    device: str = Field("cpu", description="Torch device, for example cpu or cuda.")
    weights: str = Field(
        AUTO,
        description=f"Format of weights: {weights_help()}.",
    )
    executor: str = Field(
        "auto",
        description=f"What runs passes: {executors_help()}.",
    )
    offload: str = Field(
        "none",
        description="Place of the decoder layers: none (the device), host (pinned memory, for a GPU) or disk, "
        "from which each pass reads them. Needs the native or the torch executor.",
    )
    offload_directory: str = Field(
        "",
        description="Directory to which --offload disk writes the layers at start; empty: the cache directory.",
    )
    acceptance: str = Field(
        DEFAULT_RULE, description="Rule for sampled requests: traversal, multi_step or naive."
    )
    draft: str = Field(NO_DRAFT, description=DRAFT_HELP)
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
    threads: int = Field(0, ge=0, description=f"CPU threads of the model; {THREADS_HELP}.")
    kv_tokens: Annotated[int, Field(ge=16)] | Literal["auto"] = Field(
        CACHE_TOKENS, description=f"{KV_TOKENS_HELP}."
    )
    kv_type: str = Field(AUTO_KV, description=f"{KV_TYPE_HELP}.")
    prefix_cache_directory: str = Field("", description=f"{PREFIXES_HELP}.")
    prefix_cache_megabytes: int = Field(PREFIX_MEGABYTES, ge=1, description=f"{PREFIX_MEGABYTES_HELP}.")
    kv_window: int = Field(
        0,
        ge=0,
        description="Context tokens to keep per request (StreamingLLM); lossy; 0 keeps all.",
    )
    max_context_len: int = Field(
        0, ge=0, description="Longest context served, in tokens; 0 takes the model's own limit."
    )
    max_nodes: int = Field(_LIMITS.max_nodes, ge=1, description="Maximum nodes in one tree, root included.")
    max_step_tokens: int = Field(_LIMITS.max_step_tokens, ge=1, description="Maximum tokens in one pass.")
