"""Settings of a speculator (environment prefix SPECINFER_SPECULATOR_)."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specinfer.drafters import DRAFTERS, DrafterOptions
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.service.settings import ServiceSettings

_DEFAULTS = DrafterOptions()


class SpeculatorSettings(ServiceSettings):
    """A speculator service guesses token trees with one drafter or several."""

    model_config = SettingsConfigDict(
        **{**ServiceSettings.model_config, "env_prefix": "SPECINFER_SPECULATOR_"}
    )

    listen: str = Field("127.0.0.1:50053", description="Address to listen on, host:port.")
    metrics_port: int = Field(
        9466, ge=0, le=65535, description="Port of the Prometheus endpoint; 0 switches it off."
    )
    name: str = Field(
        "",
        description="Name in statistics; empty takes the drafter's. For several it precedes theirs.",
    )
    drafter: str = Field(
        "ngram", description=f"Drafting method: {', '.join(DRAFTERS)}; or several, as in ngram+ssm."
    )
    threads: int = Field(0, ge=0, description="CPU threads; 0 leaves torch's default.")
    max_nodes: int = Field(128, ge=1, description="Most nodes in one tree, root excluded.")
    idle_seconds: float = Field(300.0, gt=0, description="A request not heard of for this long is forgotten.")

    model: str = Field(
        DEFAULT_MODEL, description="ssm: model, as for the verifier; recycling, retrieval: whose tokens."
    )
    layers: int = Field(
        _DEFAULTS.layers, ge=0, description="ssm: keep only so many layers, the first; 0 keeps all."
    )
    dtype: str = Field(_DEFAULTS.dtype, description="ssm: numeric type: float32, bfloat16 or float16.")
    device: str = Field(_DEFAULTS.device, description="ssm: torch device.")
    weights: str = Field(
        _DEFAULTS.weights,
        description="ssm: how weights are held: converted, as dtype says; native, the blocks of a GGUF "
        "file; native-a8, these with activations of 8 bits; int8, int4 and w8a8 (activations too) quantise "
        "while loading, the device executor int8 and fp8; auto takes w8a8 where the native kernels multiply "
        "bytes.",
    )
    executor: str = Field(
        _DEFAULTS.executor,
        description="ssm: what runs passes: native (compiled CPU kernels), torch, generic (any causal model "
        "of transformers), or auto, the first of them that can; or device (fused kernels for a GPU; not yet "
        "run on one).",
    )
    attention: str = Field(_DEFAULTS.attention, description="ssm: attention backend of the torch executor.")
    kv_tokens: int = Field(_DEFAULTS.kv_tokens, ge=16, description="ssm: context tokens the KV cache holds.")
    expansion: str = Field(
        _DEFAULTS.expansion,
        description='ssm: expansion vector: children per node, level by level, such as "1,1,3,1"; empty '
        "grows best-first.",
    )
    beam: int = Field(
        _DEFAULTS.beam, ge=1, description="ssm: most nodes expanded per level when growing best-first."
    )
    depth: int = Field(
        _DEFAULTS.depth, ge=1, description="ssm: most levels of a best-first tree; each costs a pass."
    )
    min_path_probability: float = Field(
        _DEFAULTS.min_path_probability,
        ge=0,
        le=1,
        description="ssm: least probability of a path that a best-first tree follows further.",
    )
    proposal: str = Field(
        _DEFAULTS.proposal,
        description="ssm: children for stochastic requests: point (what the target's noise favours: a seed "
        "then gives the text of plain decoding), with_replacement or without_replacement (drawn). "
        "custom: anything but point lets the function draw.",
    )
    q_support: int = Field(
        _DEFAULTS.q_support, ge=1, description="ssm: tokens kept of the draft distribution."
    )
    ngram_max: int = Field(_DEFAULTS.ngram_max, ge=1, description="ngram: longest match tried.")
    ngram_min: int = Field(_DEFAULTS.ngram_min, ge=1, description="ngram: shortest match tried.")
    ngram_branches: int = Field(
        _DEFAULTS.ngram_branches, ge=1, description="ngram: most matches that become branches."
    )
    suffix_learn: bool = Field(
        _DEFAULTS.suffix_learn, description="suffix: also draft from finished requests."
    )
    lookahead_window: int = Field(
        _DEFAULTS.lookahead_window,
        ge=1,
        le=32,
        description="lookahead: future positions that are guessed (W).",
    )
    lookahead_ngram: int = Field(
        _DEFAULTS.lookahead_ngram, ge=2, le=8, description="lookahead: tokens of an n-gram (N)."
    )
    lookahead_candidates: int = Field(
        _DEFAULTS.lookahead_candidates,
        ge=1,
        le=32,
        description="lookahead: n-grams kept for each first token, and proposed (G).",
    )
    lookahead_share: bool = Field(
        _DEFAULTS.lookahead_share, description="lookahead: all requests share their n-grams."
    )
    datastore: str = Field(
        _DEFAULTS.datastore, description="retrieval: files of text or JSONL, separated by colons."
    )
    retrieval_min: int = Field(
        _DEFAULTS.retrieval_min, ge=1, le=16, description="retrieval: shortest match tried."
    )
    function: str = Field(_DEFAULTS.function, description="custom: the function that drafts, module:name.")

    @property
    def drafters(self) -> list[str]:
        """Names of the drafting methods.

        Raises:
            SettingError: if one is named twice.
        """
        found = self.drafter.split("+")
        if len(set(found)) < len(found):
            raise SettingError("drafter", self.drafter, "each may be named once")
        return found

    @property
    def names(self) -> list[str]:
        """Names of the speculators, in the order of `drafters`."""
        if len(self.drafters) == 1:
            return [self.name or self.drafter]
        return [f"{self.name}-{drafter}" if self.name else drafter for drafter in self.drafters]

    def drafter_options(self) -> DrafterOptions:
        """Return the options of the drafter."""
        names = DrafterOptions.__dataclass_fields__
        return DrafterOptions(**{name: getattr(self, name) for name in names})
