"""Options of an `LLM`, with their defaults and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from specinfer.errors import SettingError
from specinfer.model.cache.kv_cache import CACHE_TOKENS
from specinfer.model.cache.kv_types import AUTO_KV, PREFIX_MEGABYTES
from specinfer.model.formats.registry import AUTO
from specinfer.options.option_names import meant
from specinfer.verification.acceptance import DEFAULT_RULE

_RANKS = ("tensor_parallel_size", "pipeline_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMOptions:
    """Options for loading and running the model of an `LLM`.

    Raises:
        SettingError: naming the option and its value.
    """

    dtype: str = "bfloat16"
    """Numeric type: float32, bfloat16 or float16."""
    device: str = "cpu"
    """Torch device, for example cpu or cuda."""
    weights: str = AUTO
    """Format of weights; see `python -m verifier_svc --help`."""
    executor: str = "auto"
    """Executor of passes: native, torch, generic, gpu, or auto."""
    acceptance: str = DEFAULT_RULE
    """Rule for sampled requests: traversal, multi_step or naive."""
    max_num_seqs: int = 16
    """Maximum requests in a batch; other requests wait."""
    max_model_len: int = 0
    """Maximum context length in tokens; 0: the model's."""
    kv_tokens: int | str = CACHE_TOKENS
    """Context tokens in the KV cache; "auto": what fits into free memory."""
    kv_type: str = AUTO_KV
    """Storage of keys and values: auto (the numeric type), bf16 or q8_0."""
    prefix_cache_directory: str = ""
    """Directory of the KV cache's prefixes on disk; empty: none."""
    prefix_cache_megabytes: int = PREFIX_MEGABYTES
    """Maximum size of `prefix_cache_directory` in MB."""
    offload: str = "none"
    """Place of the decoder layers: none, host or disk."""
    tensor_parallel_size: int = 1
    """Number of local processes, including this one, that split every layer."""
    pipeline_parallel_size: int = 1
    """Number of pipeline stages, each of `tensor_parallel_size` processes."""
    tree_nodes: int = 0
    """Maximum nodes of a tree; 0: the maximum tokens of a pass."""
    parse_special_tokens: bool = False
    """Parse names of special tokens in conversations as special tokens."""
    adaptive: bool = True
    """Choose speculators and nodes adaptively; False: all speculators, `tree_nodes` nodes."""

    def __post_init__(self) -> None:
        if isinstance(self.kv_tokens, str) and self.kv_tokens != "auto":
            raise SettingError("kv_tokens", self.kv_tokens, 'must be a number or "auto"')
        for name in ("max_num_seqs", "kv_tokens", "prefix_cache_megabytes", *_RANKS):
            value = getattr(self, name)
            if name == "kv_tokens" and value == "auto":
                continue
            if not isinstance(value, int):
                raise SettingError(name, value, "must be a whole number")
            if value < 1:
                raise SettingError(name, value, "must be positive")
        for name in ("max_model_len", "tree_nodes"):
            if getattr(self, name) < 0:
                raise SettingError(name, getattr(self, name), "must not be negative")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "LLMOptions":
        """Read keyword arguments.

        Raises:
            TypeError: for an unknown option, with the most similar known one.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = meant(name, [*known, "draft", "speculators", "model"])
                hint = f", did you mean {close}?" if close else f": there are {', '.join(known)}"
                raise TypeError(f"LLM: unknown option {name!r}{hint}")
        return cls(**options)
