"""Choice of the executor and of the format of weights."""

import logging
import re

import pytest

from specinfer.errors import SettingError, UnavailableError
from specinfer.model.backends import BACKENDS, choose_backend
from specinfer.model.native import model as native_model
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.config_files import from_transformers
from specinfer.options.model_options import EXECUTORS, PassOptions, described
from tests.support.tiny_models import runner_of, tiny_transformers

CONFIG: ModelConfig = from_transformers(tiny_transformers("llama").config)


def chosen(executor: str, weights: str = "auto", dtype: str = "bfloat16", device: str = "cpu") -> str:
    options = PassOptions(dtype, device, weights, executor=executor)
    return choose_backend(CONFIG, options).name


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_model, "check_supported", lambda *_: None)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise UnavailableError("the processor lacks avx2")

    monkeypatch.setattr(native_model, "check_supported", unsupported)


@pytest.mark.usefixtures("kernels")
def test_kernels_are_chosen_if_they_are_supported() -> None:
    assert chosen("auto") == chosen("native") == chosen("auto", "q4_1") == "native"
    assert chosen("torch") == "torch"
    assert chosen("gpu") == "gpu"


@pytest.mark.usefixtures("no_kernels")
def test_without_kernels_torch_runs_unquantised_models_and_logs_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert chosen("auto") == "torch"
    assert "the processor lacks avx2; using the torch executor" in caplog.text
    with pytest.raises(SettingError, match="executor = 'native':"):
        chosen("native")
    with pytest.raises(SettingError, match="weights = 'q4_1':"):
        chosen("auto", "q4_1")


@pytest.mark.usefixtures("kernels")
def test_a_format_that_does_not_fit_is_named() -> None:
    with pytest.raises(SettingError, match="weights = 'q4_1':"):
        chosen("torch", "q4_1")
    with pytest.raises(SettingError, match="weights = 'bf16':"):
        chosen("auto", "bf16", "float32")
    with pytest.raises(SettingError, match="weights = 'fp8':"):
        chosen("native", "fp8")


def test_help_and_choices_name_all() -> None:
    assert EXECUTORS == ("auto", *BACKENDS) == ("auto", "native", "torch", "generic", "gpu")
    assert all(f"{name}, " in described(PassOptions)["executor"].help for name in BACKENDS)


@pytest.mark.parametrize(
    ("executor", "dtype", "kv_type", "reason"),
    [
        ("torch", "bfloat16", "q8_0", "kv_type = 'q8_0': must be auto for the torch executor in bfloat16"),
        ("torch", "float32", "bf16", "kv_type = 'bf16': must be auto for the torch executor in float32"),
        ("gpu", "bfloat16", "q8_0", "kv_type = 'q8_0': must be auto for the gpu executor"),
        ("native", "bfloat16", "q4_0", "kv_type = 'q4_0': must be one of auto, bf16, q8_0"),
    ],
)
def test_storages_of_keys_and_values_that_an_executor_lacks_are_refused(
    executor: str, dtype: str, kv_type: str, reason: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(reason)):
        runner_of(tiny_transformers("llama"), executor=executor, dtype=dtype, kv_type=kv_type)


@pytest.mark.native
@pytest.mark.parametrize(("kv_type", "element"), [("auto", 4), ("bf16", 2), ("q8_0", 1 + 4 / 16)])
def test_an_executor_counts_the_bytes_of_its_cache(kv_type: str, element: float) -> None:
    model = tiny_transformers("llama", head_dim=16)
    runner = runner_of(model, executor="native", kv_tokens=64, kv_type=kv_type)
    assert runner.cache_bytes == 64 * 2 * CONFIG.layers * CONFIG.kv_heads * 16 * element
