"""Chooses the executor of a model's passes.

native   compiled kernels for CPUs with AVX-512 or AVX2 (`specinfer.model.native`)
torch    any device and type
generic  causal models of `transformers`, unchanged (`specinfer.model.torch.generic`)
gpu      fused kernels for a GPU (`specinfer.model.gpu`); only by name
auto     native if it can run the model, otherwise torch; the log states the reason
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from specinfer.errors import IncompatibleError, SettingError, UnavailableError
from specinfer.model.executor import Executor
from specinfer.model.formats.base import Format
from specinfer.model.lazy_torch import torch
from specinfer.model.offload.stores import LayerStore
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights
from specinfer.options.model_options import AUTO

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
    supports: Callable[[ModelConfig, str, str], str]
    """Return the reason why a model cannot run; empty if it can."""
    make: Callable[[Work], Executor]
    offloads: bool = False
    automatic: bool = False
    """True if `auto` may choose it."""
    kv_types: bool = False
    """True if the cache's numeric type may differ from the model's."""

    def runs(self, config: ModelConfig, chosen: Format, dtype: str, device: str) -> str:
        """Return the reason why a model cannot run; empty if it can."""
        return chosen.fits(config, self.name, dtype) or self.supports(config, dtype, device)

    def stores(self, kv_type: str, dtype: str) -> bool:
        default_type = "bf16" if dtype == "bfloat16" else AUTO
        return self.kv_types or kv_type in (AUTO, default_type)


def _supports_native(config: ModelConfig, dtype: str, device: str) -> str:
    from specinfer.model.native.model import check_supported

    try:
        check_supported(config, dtype, device)
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
    try:
        from specinfer.model.gpu.executor import GpuExecutor
    except ModuleNotFoundError as error:
        raise SettingError("executor", "gpu", f"needs the extra `gpu`: {error}") from error
    dtype = getattr(torch, work.dtype)
    return GpuExecutor(work.config, work.weights, dtype, work.num_blocks, work.device, work.format.name)


def _supports_torch(config: ModelConfig, dtype: str, device: str) -> str:
    if any(config.recurrent_layers) or config.output_gate:
        return f"torch executor: model_type = {config.family!r}: recurrent layers need the native or generic executor"
    return ""


def _supports_all(config: ModelConfig, dtype: str, device: str) -> str:
    return ""


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("native", _supports_native, _make_native, True, True, True),
        Backend("torch", _supports_torch, _make_torch, True, True),
        Backend("generic", _supports_all, _make_generic),
        Backend("gpu", _supports_all, _make_gpu),
    )
}


def refusal(config: ModelConfig, dtype: str, device: str) -> str:
    """Return the reasons why `auto` finds no backend; empty if one runs."""
    reasons = [backend.supports(config, dtype, device) for backend in candidates("auto")]
    return "; ".join(reasons) if all(reasons) else ""


def candidates(name: str) -> list[Backend]:
    """Return the backends to try for a value of `--executor`, best first."""
    if name != "auto":
        return [BACKENDS[name]]
    return [backend for backend in BACKENDS.values() if backend.automatic]


def choose_backend(name: str, config: ModelConfig, chosen: Format, dtype: str, device: str) -> Backend:
    """Return the first backend of `candidates(name)` that can run a model.

    Logs the reasons why the candidates before cannot.
    """
    reasons: list[str] = []
    for backend in candidates(name):
        reason = backend.runs(config, chosen, dtype, device)
        if not reason:
            if reasons:
                log.warning("%s; using the %s executor", "; ".join(reasons), backend.name)
            if name == "auto" and backend.name == "torch" and device.startswith("cuda"):
                log.info(
                    "device = %s: `--executor gpu` would run passes faster (4 to 7 times on an H200)", device
                )
            if backend.name != "native" and dtype != "float32":
                why = "rounding depends on a pass's size: speculation may change close choices"
                log.info("%s executor in %s: %s", backend.name, dtype, why)
            return backend
        reasons.append(reason)
    if all(chosen.fits(config, candidate.name, dtype) for candidate in candidates(name)):
        raise SettingError("weights", chosen.name, reasons[0])
    field, value = ("executor", name) if name != "auto" else ("weights", chosen.name)
    raise SettingError(field, value, reasons[0])
