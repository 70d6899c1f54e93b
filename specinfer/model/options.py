"""Defines and checks the options for loading and running a model."""

from dataclasses import dataclass

import torch

from specinfer.errors import SettingError
from specinfer.model.backends import BACKENDS, EXECUTORS, candidates
from specinfer.model.cache.kv_cache import CACHE_TOKENS
from specinfer.model.cache.kv_types import AUTO_KV, KV_TYPES
from specinfer.model.formats.base import NumberFormat
from specinfer.model.formats.registry import AUTO, find_format
from specinfer.model.offload.stores import OFFLOADS

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Options for loading and running a model."""

    dtype: str = "bfloat16"
    device: str = "cpu"
    executor: str = "auto"
    """Name of the executor; auto: the first that can run the model."""
    kv_tokens: int = CACHE_TOKENS
    """Capacity in context tokens, over all requests; `AUTO_TOKENS`: all free memory."""
    weights: str = AUTO
    """Format of matrices: a key of `FORMATS`."""
    numbers_as: str = AUTO
    """Format that weights = "auto" uses for unquantised checkpoints, if supported."""
    layers: int | None = None
    """Number of first layers to load; None: all."""
    token_ids: tuple[int, ...] = ()
    """Tokens for which the head keeps rows, in order; empty: all."""
    kv_window: int = 0
    """Context tokens to keep per request (StreamingLLM); lossy. 0 keeps all."""
    kv_type: str = AUTO_KV
    """Numeric type of cached keys and values, one of `KV_TYPES`."""
    offload: str = "none"
    """Place of offloaded layers: "none", "host" or "disk" (`offload.stores`)."""
    offload_directory: str = ""
    """Directory of the file for offload = "disk"; empty: the cache directory."""


def check_options(options: RunnerOptions) -> None:
    """Check the options whose values are names."""
    if options.dtype not in DTYPES:
        raise SettingError("dtype", options.dtype, f"must be one of {', '.join(DTYPES)}")
    if options.executor not in EXECUTORS:
        raise SettingError("executor", options.executor, f"must be one of {', '.join(EXECUTORS)}")
    if options.offload not in OFFLOADS:
        raise SettingError("offload", options.offload, f"must be one of {', '.join(OFFLOADS)}")
    if options.offload != "none" and not any(backend.offloads for backend in candidates(options.executor)):
        raise SettingError("offload", options.offload, f"must be none for the {options.executor} executor")
    if options.kv_type not in KV_TYPES:
        raise SettingError("kv_type", options.kv_type, f"must be one of {', '.join(KV_TYPES)}")
    _check_weights(options)
    _check_device(options.device)


def check_kv_type(options: RunnerOptions, executor: str) -> None:
    if not BACKENDS[executor].stores(options.kv_type, DTYPES[options.dtype]):
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
    check_options(options)
    if options.executor not in ("auto", "torch"):
        raise SettingError("executor", options.executor, f"must be torch or auto for {subject}")
    check_numbers(options, f"{subject} {verb} stored")


def _check_weights(options: RunnerOptions) -> None:
    chosen = find_format(options.weights)
    reasons = [chosen.fits(None, backend.name, options.dtype) for backend in candidates(options.executor)]
    if all(reasons):
        raise SettingError("weights", options.weights, reasons[0])


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise SettingError("device", name, str(error).splitlines()[0]) from error
