"""Where training runs."""

from typing import Annotated

import torch
import typer

from specinfer.errors import SettingError

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")]


def place_for(device: str, threads: int) -> str:
    """The device to train on; where it is the CPU, with so many threads, or torch's default for 0.

    Raises:
        SettingError: if there is no such device here.
    """
    place = pick_device(device)
    if threads:
        torch.set_num_threads(threads)
    return place


def pick_device(name: str) -> str:
    """The device of this name.

    Raises:
        SettingError: if there is no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        raise SettingError("device", name, str(error).splitlines()[0]) from error
    return name


def bfloat16_is_fast(device: torch.device) -> bool:
    """Whether it is no slower than float32; a CPU without instructions for it takes twenty times as long."""
    return device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
