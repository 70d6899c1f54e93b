"""Options for loading and running a model, and the values that go together."""

from dataclasses import dataclass

import torch

from specinfer.errors import SettingError
from specinfer.model.cache.kv_cache import CACHE_TOKENS
from specinfer.model.executor import EXECUTORS
from specinfer.model.offload.stores import OFFLOADS
from specinfer.model.torch.attention import BACKENDS
from specinfer.model.weights.quantise import BLOCK_TYPES

NATIVE = ("native", "native-a8")
WEIGHTS = ("converted", *NATIVE, *BLOCK_TYPES, "fp8")
DEVICE_WEIGHTS = ("converted", "int8", "fp8")
"""Formats of the device executor's weights."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Options for loading and running a model."""

    dtype: str = "bfloat16"
    device: str = "cpu"
    executor: str = "auto"
    attention: str = "reference"
    """Attention backend of the torch executor."""
    kv_tokens: int = CACHE_TOKENS
    weights: str = "converted"
    """"native" keeps the quantised blocks of the model's GGUF file; "native-a8" multiplies them with
    activations of eight bits instead of sixteen, as llama.cpp does; "int8", "int4" and "w8a8" quantise while
    loading (`quantise.py`). All five need the native executor in bfloat16. The device executor has an "int8"
    of its own, and "fp8"."""
    layers: int | None = None
    """Number of first layers to keep (with the model's own final norm and head); None keeps all."""
    kv_window: int = 0
    """Context tokens to keep per request (StreamingLLM); lossy. 0 keeps all."""
    kv_sinks: int = 4
    """First tokens that a windowed cache never drops."""
    offload: str = "none"
    """Place of the decoder layers, if not on the device: "host" or "disk" (`offload.stores`)."""
    offload_directory: str = ""
    """Directory of "disk"; empty: the cache directory."""


def holds_blocks(dtype: str, executor: str) -> bool:
    """Return whether these options allow quantised matrices: only the native executor does, in bfloat16."""
    return dtype == "bfloat16" and executor in ("auto", "native")


def check_options(options: RunnerOptions) -> None:
    """Check the names among the options.

    Raises:
        SettingError: naming the bad one.
    """
    if options.dtype not in DTYPES:
        raise SettingError("dtype", options.dtype, f"must be one of {', '.join(DTYPES)}")
    if options.weights not in WEIGHTS:
        raise SettingError("weights", options.weights, f"must be one of {', '.join(WEIGHTS)}")
    if options.executor not in EXECUTORS:
        raise SettingError("executor", options.executor, f"must be one of {', '.join(EXECUTORS)}")
    if options.attention not in BACKENDS:  # also where the executor has an attention of its own
        raise SettingError("attention", options.attention, f"must be one of {', '.join(BACKENDS)}")
    if options.offload not in OFFLOADS:
        raise SettingError("offload", options.offload, f"must be one of {', '.join(OFFLOADS)}")
    if options.offload != "none" and options.executor not in ("auto", "native", "torch"):
        raise SettingError("offload", options.offload, f"the {options.executor} executor holds whole models")
    _check_weights(options)
    _check_device(options.device)


def _check_weights(options: RunnerOptions) -> None:
    if options.executor == "device":
        if options.weights not in DEVICE_WEIGHTS:
            known = ", ".join(DEVICE_WEIGHTS)
            raise SettingError("weights", options.weights, f"the device executor holds {known}")
    elif options.weights == "fp8":
        raise SettingError("weights", options.weights, "needs the device executor")
    elif options.weights != "converted" and not holds_blocks(options.dtype, options.executor):
        raise SettingError("weights", options.weights, "needs the native executor in bfloat16")


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise SettingError("device", name, str(error).splitlines()[0]) from error
