"""A KV cache that is sized by the free memory."""

from pathlib import Path

import pytest

from specinfer.cli.show import room_words
from specinfer.errors import SettingError
from specinfer.model import loading
from specinfer.model.cache.capacity import AUTO_TOKENS, SHARE, fitting_tokens, token_bytes
from specinfer.model.loading import load_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from tests.support.tiny_models import tiny_transformers

MODEL = tiny_transformers("llama", head_dim=16)
CONFIG = from_transformers(MODEL.config)


def test_the_cache_takes_its_share_of_the_memory_beyond_the_weights() -> None:
    assert fitting_tokens(10_000_000, 2_000_000, 100, 1 << 20) == 8_000_000 * SHARE // 100
    assert fitting_tokens(10_000_000_000, 0, 100, 512) == 16 * 512, "no more than sixteen full requests"


def test_too_little_memory_is_refused() -> None:
    with pytest.raises(SettingError, match="kv_tokens = 'auto':"):
        fitting_tokens(3_000_000, 2_000_000, 100_000, 512)


@pytest.mark.native
@pytest.mark.parametrize("kv_type", ["auto", "bf16", "q8_0"])
def test_a_model_is_loaded_with_the_cache_that_fits(
    kv_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MODEL.save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").stat().st_size
    monkeypatch.setattr(loading, "free_memory", lambda device: weights + 2_000_000)
    per_token = token_bytes(CONFIG, "float32", kv_type)
    options = RunnerOptions("float32", executor="native", kv_tokens=AUTO_TOKENS, kv_type=kv_type)
    runner = ModelRunner(*load_model(tmp_path, options))
    assert 1_500_000 - 16 * per_token < runner.cache_bytes <= 1_500_000 + 16 * per_token
    assert runner.cache_bytes == per_token * runner.cache.capacity_tokens


@pytest.mark.parametrize(
    ("capacity", "longest", "words"),
    [
        (36864, 32768, "36864 tokens: 9 requests of 4096"),
        (36864, 512, "36864 tokens: 72 requests of 512"),
        (1000, 32768, "1000 tokens: 1 requests of 1000"),
    ],
)
def test_status_states_how_many_requests_fit(capacity: int, longest: int, words: str) -> None:
    assert room_words(capacity, longest) == words
