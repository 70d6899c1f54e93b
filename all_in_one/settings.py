"""Settings of the server in one process (environment prefix SPECINFER_SERVE_)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gateway.settings import RequestSettings
from http_svc.settings import ApiSettings
from specinfer.drafters.draft import AUTO_DRAFT, DRAFT_HELP
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.cache.kv_cache import CACHE_TOKENS
from specinfer.model.cache.kv_types import (
    AUTO_KV,
    KV_TOKENS_HELP,
    KV_TYPE_HELP,
    KV_TYPES,
    PREFIX_MEGABYTES,
    PREFIX_MEGABYTES_HELP,
    PREFIXES_HELP,
)
from specinfer.model.formats.registry import AUTO, FORMATS, unknown_format, weights_help
from specinfer.system.threads import THREADS_HELP, thread_count

_DTYPES = ("float32", "bfloat16", "float16")


class ServeSettings(ApiSettings, RequestSettings):
    """OpenAI's API for one model, all in one process."""

    group: ClassVar[str] = "Model"

    model_config = SettingsConfigDict(**{**ApiSettings.model_config, "env_prefix": "SPECINFER_SERVE_"})

    model: str = Field(DEFAULT_MODEL, description="Model: registry name, hub id, directory or GGUF file.")
    dtype: str = Field("bfloat16", description="Numeric type: float32, bfloat16 or float16.")
    device: str = Field("cpu", description="Torch device, for example cpu or cuda.")
    weights: str = Field(AUTO, description=f"Format of weights: {weights_help()}.")
    threads: int = Field(0, ge=0, description=f"CPU threads of the model; {THREADS_HELP}.")
    draft: str = Field(AUTO_DRAFT, description=DRAFT_HELP)
    kv_tokens: Annotated[int, Field(ge=16)] | Literal["auto"] = Field(
        CACHE_TOKENS, description=f"{KV_TOKENS_HELP}."
    )
    kv_type: str = Field(AUTO_KV, description=f"{KV_TYPE_HELP}.")
    prefix_cache_directory: str = Field("", description=f"{PREFIXES_HELP}.")
    prefix_cache_megabytes: int = Field(PREFIX_MEGABYTES, ge=1, description=f"{PREFIX_MEGABYTES_HELP}.")
    max_context_len: int = Field(
        0, ge=0, description="Longest context served, in tokens; 0 takes the model's own limit."
    )
    store: str = Field(
        "",
        description="File of requests and their tokens, so that streams continue after a restart; empty: in "
        "memory.",
    )

    def check(self) -> None:
        """Check the inherited settings, `threads`, `dtype`, `weights` and `kv_type`."""
        thread_count(self.threads)
        if self.dtype not in _DTYPES:
            raise SettingError("dtype", self.dtype, f"must be one of {', '.join(_DTYPES)}")
        if self.weights not in FORMATS:
            raise SettingError("weights", self.weights, unknown_format(self.weights))
        if self.kv_type not in KV_TYPES:
            raise SettingError("kv_type", self.kv_type, f"must be one of {', '.join(KV_TYPES)}")
        super().check()
