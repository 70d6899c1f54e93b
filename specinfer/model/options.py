"""Defines and checks the options for loading and running a model."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from specinfer.errors import SettingError
from specinfer.model.backends import BACKENDS, candidates
from specinfer.model.cache.capacity import AUTO_TOKENS
from specinfer.model.formats.base import NumberFormat
from specinfer.model.formats.registry import find_format
from specinfer.model.lazy_torch import torch
from specinfer.options.model_options import AUTO, CACHE_TOKENS, PassOptions, check_values


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type of a value of `--dtype`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@dataclass(frozen=True)
class RunnerOptions(PassOptions):
    """Options for loading and running a model, checked without the model.

    Raises:
        SettingError: naming the option and its value.
    """

    kv_tokens: int = CACHE_TOKENS
    """Capacity in context tokens, over all requests; `AUTO_TOKENS`: all free memory."""
    numbers_as: str = AUTO
    """Format that weights = "auto" uses for unquantised checkpoints, if supported."""
    blocks_as: str = AUTO
    """Format that weights = "auto" uses for large blocks of GGUF files, if supported."""
    layers: int | None = None
    """Number of first layers to load; None: all."""
    token_ids: tuple[int, ...] = ()
    """Tokens for which the head keeps rows, in order; empty: all."""
    kv_window: int = 0
    """Context tokens to keep per request (StreamingLLM); lossy. 0 keeps all."""
    offload_directory: str = ""
    """Directory of the file for offload = "disk"; empty: the cache directory."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.offload != "none" and not any(
            backend.offloads for backend in candidates(self.executor, self.device)
        ):
            raise SettingError("offload", self.offload, f"must be none for the {self.executor} executor")
        _check_weights(self)

    @classmethod
    def of(cls, options: object, **more: Any) -> RunnerOptions:
        """Return the options of the same names in another class, and `more`."""
        given = {f.name: getattr(options, f.name) for f in fields(cls) if hasattr(options, f.name)} | more
        if given.get("kv_tokens") == AUTO:
            given["kv_tokens"] = AUTO_TOKENS
        return cls(**given)


def check_kv_type(options: RunnerOptions, executor: str) -> None:
    if not BACKENDS[executor].stores(options.kv_type, options.dtype):
        reason = f"must be auto for the {executor} executor in {options.dtype}; others need --executor native"
        raise SettingError("kv_type", options.kv_type, reason)


def check_numbers(options: RunnerOptions, subject: str) -> None:
    """Check that `weights` is not a quantised format.

    Args:
        subject: start of the error: what needs unquantised weights, with a verb.
    """
    chosen = find_format(options.weights)
    if chosen.name != AUTO and not isinstance(chosen, NumberFormat):
        raise SettingError(
            "weights", options.weights, f"must be auto, f32, f16 or bf16: {subject} unquantised"
        )


def check_torch(options: RunnerOptions, subject: str, verb: str = "is") -> None:
    """Check the options of drafts that only run in torch.

    `subject` and `verb` name the drafts in errors.
    """
    if options.executor not in ("auto", "torch"):
        raise SettingError("executor", options.executor, f"must be torch or auto for {subject}")
    check_numbers(options, f"{subject} {verb} stored")


def _check_weights(options: RunnerOptions) -> None:
    chosen = find_format(options.weights)
    backends = candidates(options.executor, options.device)
    reasons = [chosen.fits(None, backend.name, options.dtype) for backend in backends]
    if all(reasons):
        raise SettingError("weights", options.weights, reasons[0])
