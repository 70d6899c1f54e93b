"""Chooses the executor of a model's passes.

native   compiled kernels for CPUs with AVX-512 or AVX2 (`specinfer.model.native`)
torch    any device and type
generic  causal models of `transformers`, unchanged (`specinfer.model.torch.generic`)
gpu      fused kernels for a GPU (`specinfer.model.gpu`)
auto     gpu on a GPU, native on other devices, or torch if they cannot run the model; the log states the reason
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from specinfer.errors import IncompatibleError, SettingError, UnavailableError
from specinfer.model.executor import Executor
from specinfer.model.formats.base import Format
from specinfer.model.formats.registry import find_format
from specinfer.model.gpu.refusal import refusal as refusal_of_gpu
from specinfer.model.lazy_torch import torch
from specinfer.model.offload.stores import LayerStore
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights
from specinfer.options.model_options import AUTO, PassOptions
from specinfer.system.machine import is_cuda

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """Arguments for constructing an executor."""

    config: ModelConfig
    weights: Weights
    format: Format
    dtype: str
    num_blocks: int
    device: str
    store: LayerStore | None = None
    """Store of offloaded layers; None: all layers are on the device."""
    kv_type: str = AUTO
    """Storage of keys and values, one of `KV_TYPES`."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An executor's name, abilities and factory."""

    name: str
    supports: Callable[[ModelConfig, PassOptions], str]
    """Return the reason why a model cannot run; empty if it can."""
    make: Callable[[Work], Executor]
    offloads: bool = False
    kv_types: bool = False
    """True if the cache's numeric type may differ from the model's."""

    def runs(self, config: ModelConfig, chosen: Format, options: PassOptions) -> str:
        """Return the reason why a model cannot run; empty if it can."""
        return chosen.fits(config, self.name, options.dtype) or self.supports(config, options)

    def stores(self, kv_type: str, dtype: str) -> bool:
        default_type = "bf16" if dtype == "bfloat16" else AUTO
        return self.kv_types or kv_type in (AUTO, default_type)


def _supports_native(config: ModelConfig, options: PassOptions) -> str:
    from specinfer.model.native.model import check_supported

    try:
        check_supported(config, options.dtype, options.device)
    except (UnavailableError, IncompatibleError) as error:
        return str(error)
    return ""


def _make_native(work: Work) -> Executor:
    from specinfer.model.native.executor import NativeExecutor

    return NativeExecutor(work.config, work.weights, work.dtype, work.num_blocks, work.store, work.kv_type)


def _make_torch(work: Work) -> Executor:
    from specinfer.model.torch.executor import TorchExecutor

    place = (work.num_blocks, work.device, work.store)
    return TorchExecutor(work.config, work.weights, getattr(torch, work.dtype), *place)


def _make_generic(work: Work) -> Executor:
    raise SettingError("executor", "generic", "loads only directories in the format of transformers")


def _make_gpu(work: Work) -> Executor:
    from specinfer.model.gpu.executor import GpuExecutor

    dtype = getattr(torch, work.dtype)
    return GpuExecutor(work.config, work.weights, dtype, work.num_blocks, work.device, work.format.name)


def _supports_torch(config: ModelConfig, options: PassOptions) -> str:
    if any(config.recurrent_layers) or config.output_gate:
        return f"torch executor: model_type = {config.family!r}: recurrent layers need the native or generic executor"
    return ""


def _supports_gpu(config: ModelConfig, options: PassOptions) -> str:
    reason = refusal_of_gpu(config, options)
    return f"gpu executor: {reason}" if reason and options.executor == AUTO else reason


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("native", _supports_native, _make_native, True, True),
        Backend("torch", _supports_torch, _make_torch, True),
        Backend("generic", lambda config, options: "", _make_generic),
        Backend("gpu", _supports_gpu, _make_gpu),
    )
}


def refusal(config: ModelConfig, options: PassOptions) -> str:
    """Return the reasons why `auto` finds no backend; empty if one runs."""
    reasons = [backend.supports(config, options) for backend in candidates(AUTO, options.device)]
    return "; ".join(reasons) if all(reasons) else ""


def candidates(name: str, device: str) -> list[Backend]:
    """Return the backends to try for a value of `--executor`, best first."""
    if name != AUTO:
        return [BACKENDS[name]]
    return [BACKENDS["gpu" if is_cuda(device) else "native"], BACKENDS["torch"]]


def planned_backend(config: ModelConfig, options: PassOptions) -> tuple[Backend | None, list[str]]:
    """Return the first suitable backend, or None, and the reasons against those before it."""
    chosen, reasons = find_format(options.weights), list[str]()
    for backend in candidates(options.executor, options.device):
        if not (reason := backend.runs(config, chosen, options)):
            return backend, reasons
        reasons.append(reason)
    return None, reasons


def choose_backend(config: ModelConfig, options: PassOptions) -> Backend:
    """Return the first suitable backend; log the reasons against those before it."""
    backend, reasons = planned_backend(config, options)
    name, dtype, weights = options.executor, options.dtype, find_format(options.weights)
    if backend is None:
        fitting = [
            one for one in candidates(name, options.device) if not weights.fits(config, one.name, dtype)
        ]
        field, value = ("executor", name) if name != AUTO and fitting else ("weights", weights.name)
        raise SettingError(field, value, reasons[0])
    if reasons:
        log.warning("%s; using the %s executor", "; ".join(reasons), backend.name)
    if backend.name != "native" and dtype != "float32":
        why = "rounding depends on a pass's size: speculation may change close choices"
        log.info("%s executor in %s: %s", backend.name, dtype, why)
    return backend
