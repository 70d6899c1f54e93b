"""Settings of a speculator service (environment prefix SPECINFER_SPECULATOR_)."""

from typing import ClassVar

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specinfer.drafters import DRAFTERS, DrafterOptions
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.cache.kv_types import KV_TYPE_HELP
from specinfer.model.formats.registry import weights_help
from specinfer.service.settings import ServiceSettings
from specinfer.system.threads import THREADS_HELP

_DEFAULTS = DrafterOptions()


class SpeculatorSettings(ServiceSettings):
    """A speculator service drafts token trees with one drafter or several."""

    group: ClassVar[str] = "Drafters"

    model_config = SettingsConfigDict(
        **{**ServiceSettings.model_config, "env_prefix": "SPECINFER_SPECULATOR_"}
    )

    listen: str = Field("127.0.0.1:50053", description="Address to listen on, host:port.")
    metrics_port: int = Field(
        9466, ge=0, le=65535, description="Port of the Prometheus endpoint; 0 switches it off."
    )
    name: str = Field(
        "",
        description="Name in statistics; empty: the drafter's name. For several drafters, a prefix of their names.",
    )
    drafter: str = Field(
        "ngram", description=f"Drafting method: {', '.join(DRAFTERS)}; or several, as in ngram+ssm."
    )
    threads: int = Field(0, ge=0, description=f"CPU threads; {THREADS_HELP}.")

    model: str = Field(
        DEFAULT_MODEL,
        description="ssm: model, as in the verifier; recycling, retrieval: model of the tokenizer.",
    )
    target: str = Field(
        _DEFAULTS.target,
        description="dflash: target of a checkpoint that names none, as in the verifier.",
    )
    dtype: str = Field(_DEFAULTS.dtype, description="ssm: numeric type: float32, bfloat16 or float16.")
    device: str = Field(_DEFAULTS.device, description="ssm: torch device.")
    weights: str = Field(
        _DEFAULTS.weights,
        description=f"ssm: format of weights: {weights_help()}. auto is q8_0 for a checkpoint without block formats.",
    )
    kv_tokens: int = Field(_DEFAULTS.kv_tokens, ge=16, description="ssm: context tokens in the KV cache.")
    kv_type: str = Field(
        _DEFAULTS.kv_type, description=f"ssm, eagle: {KV_TYPE_HELP[0].lower()}{KV_TYPE_HELP[1:]}."
    )
    expansion: str = Field(
        _DEFAULTS.expansion,
        description='ssm: expansion vector, the children per node of each level, such as "1,1,3,1"; empty: '
        "best-first trees.",
    )
    vocabulary: int = Field(
        _DEFAULTS.vocabulary,
        ge=0,
        description="Maximum draft vocabulary of a whole model, of its most frequent tokens; 0: all.",
    )
    beam: int = Field(
        _DEFAULTS.beam, ge=1, description="ssm: maximum nodes that a best-first tree expands per level."
    )
    depth: int = Field(
        _DEFAULTS.depth, ge=1, description="ssm: maximum levels of a best-first tree; each costs a pass."
    )
    min_path_probability: float = Field(
        _DEFAULTS.min_path_probability,
        ge=0,
        le=1,
        description="ssm: minimum probability of a path that a best-first tree extends.",
    )
    proposal: str = Field(
        _DEFAULTS.proposal,
        description="ssm: children for sampled requests: point (tokens favoured by the target's seed), or "
        "sampled with_replacement or without_replacement. custom: other values than point allow the "
        "function to sample.",
    )
    suffix_learn: bool = Field(
        _DEFAULTS.suffix_learn, description="suffix: also draft from finished requests."
    )
    datastore: str = Field(
        _DEFAULTS.datastore, description="retrieval: files of text or JSONL, separated by colons."
    )
    learn: str = Field(
        "",
        description="ssm: directory of weights that `specinfer train follow` learns from requests; empty: "
        "requests are not stored.",
    )
    function: str = Field(_DEFAULTS.function, description="custom: function that drafts, MODULE:NAME.")

    @property
    def drafters(self) -> list[str]:
        """Names of the drafters."""
        names = self.drafter.split("+")
        if len(set(names)) < len(names):
            raise SettingError("drafter", self.drafter, "must name each drafter once")
        return names

    @property
    def names(self) -> list[str]:
        """Names of the speculators, in the order of `drafters`."""
        if len(self.drafters) == 1:
            return [self.name or self.drafter]
        return [f"{self.name}-{drafter}" if self.name else drafter for drafter in self.drafters]

    def drafter_options(self) -> DrafterOptions:
        names = DrafterOptions.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return DrafterOptions(**{name: getattr(self, name) for name in names})
