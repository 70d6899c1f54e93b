"""Decides whether the gpu executor can run a model."""

from collections.abc import Iterator
from importlib.util import find_spec

from specinfer.errors import SettingError
from specinfer.model.formats.base import GpuFormat
from specinfer.model.formats.registry import find_format
from specinfer.model.weights.config import ModelConfig
from specinfer.options.model_options import AUTO, PassOptions


def refusal(config: ModelConfig, options: PassOptions) -> str:
    """Return all reasons why the gpu executor cannot run a model; empty if it can.

    They apply to `--executor gpu` and to `auto`, which moreover leaves models with sliding windows to torch.
    """
    return "; ".join(_reasons(config, options))


def _reasons(config: ModelConfig, options: PassOptions) -> Iterator[str]:
    if find_spec("triton") is None:
        yield "triton is not installed (the extra `gpu`)"
    else:
        from specinfer.model.gpu.launch import check_device

        try:
            check_device(options.device)
        except SettingError as error:
            yield str(error)
    if isinstance(find_format(options.weights), GpuFormat) and find_spec("torchao") is None:
        yield f"weights = {options.weights!r}: torchao is not installed (the extra `gpu`)"
    if options.offload != "none":
        yield f"offload = {options.offload!r}: its layers must be on the device"
    if beyond := config.beyond_llama:
        yield f"model_type = {config.family!r}: {beyond}: not supported"
    elif options.executor == AUTO and config.windows:
        limit = config.up_to_window().max_positions
        yield f"model_type = {config.family!r}: sliding windows would limit contexts to {limit} tokens"
