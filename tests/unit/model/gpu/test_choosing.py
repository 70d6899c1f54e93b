"""`auto` takes the gpu executor on a GPU, or names every reason why torch runs the model."""

import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specinfer.errors import SettingError
from specinfer.model.backends import choose_backend
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import planned_executor
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.options.model_options import PassOptions
from tests.support.models.families import save_random
from tests.support.tiny_models import tiny_transformers
from tests.unit.model.gpu.passes import DEVICE

WINDOWED = "model_type = 'mistral': sliding windows would limit contexts to 64 tokens"


def config_of(family: str, **shape: int) -> ModelConfig:
    return from_transformers(tiny_transformers(family, **shape).config)


LLAMA = config_of("llama")


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_auto_is_gpu_on_a_gpu(device: str, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert choose_backend(LLAMA, PassOptions(dtype, device)).name == "gpu"
    assert "using the" not in caplog.text
    assert choose_backend(LLAMA, PassOptions(dtype, device, executor="torch")).name == "torch"


def without(module: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(
    ("config", "options", "reason", "prepare"),
    [
        (LLAMA, {}, "triton is not installed (the extra `gpu`)", without("triton")),
        (LLAMA, {"offload": "host"}, "offload = 'host': its layers must be on the device", None),
        (config_of("mixtral"), {}, "model_type = 'mixtral': a mixture of experts: not supported", None),
        (config_of("smollm3"), {}, "model_type = 'smollm3': rotary positions by layer: not supported", None),
    ],
    ids=["no triton", "offload", "mixture", "rotary positions"],
)
def test_the_reason_is_the_same_for_auto_and_by_name(
    config: ModelConfig,
    options: dict[str, str],
    reason: str,
    prepare: Callable[[pytest.MonkeyPatch], None] | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if prepare is not None:
        prepare(monkeypatch)
    with pytest.raises(SettingError, match=re.escape(f"executor = 'gpu': {reason}")):
        choose_backend(config, PassOptions(device="cuda", executor="gpu", **options))
    assert choose_backend(config, PassOptions(device="cuda", **options)).name == "torch"
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line == f"gpu executor: {reason}; using the torch executor"


def test_a_device_too_old_is_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from specinfer.model.gpu import launch

    monkeypatch.setattr(launch, "interpreted", lambda: False)
    monkeypatch.setattr(launch.torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_backend(LLAMA, PassOptions(device="cuda")).name == "torch"
    assert "device = 'cuda': compute capability 7.5" in caplog.text


def test_sliding_windows_limit_contexts_only_by_name(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("mistral-windowed", sliding_window=64)
    assert choose_backend(config, PassOptions(device="cuda")).name == "torch"
    assert f"gpu executor: {WINDOWED}; using the torch executor" in caplog.text
    assert choose_backend(config, PassOptions(device="cuda", executor="gpu")).name == "gpu"


def test_formats_that_no_executor_of_a_gpu_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="weights = 'q4_0': needs the native executor"):
        choose_backend(LLAMA, PassOptions(device="cuda", weights="q4_0"))
    without("torchao")(monkeypatch)
    with pytest.raises(SettingError, match=r"weights = 'fp8': .*torchao is not installed"):
        choose_backend(LLAMA, PassOptions(device="cuda", weights="fp8"))


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(
    ("family", "executor", "planned"),
    [("llama", "gpu", "gpu"), ("olmo2", "torch", "torch"), ("falcon_h1", "generic", None)],
)
def test_directories_are_loaded_by_what_auto_chooses(
    family: str, executor: str, planned: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Layers with recurrent memory are left to `transformers`, as torch does not run them either."""
    save_random(family, tmp_path)
    options = RunnerOptions("float32", DEVICE, kv_tokens=256)
    loaded = load_model(tmp_path, options)
    assert (loaded.executor.name, planned_executor(tmp_path, options)) == (executor, planned)
    assert ("gpu executor: model_type" in caplog.text) == (executor != "gpu")
