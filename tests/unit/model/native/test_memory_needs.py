"""The memory that a model needs is compared with the free memory before it is loaded."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from specinfer.errors import SettingError
from specinfer.model import memory
from specinfer.model.arrays import stored_as
from specinfer.model.cache.capacity import AUTO_TOKENS, token_bytes
from specinfer.model.memory import PROGRAM_BYTES, fitting_cache
from specinfer.model.options import RunnerOptions
from specinfer.model.weights.config_files import load_config
from specinfer.options.model_options import CACHE_TOKENS
from tests.support.tiny_models import tiny_transformers


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_transformers("llama").save_pretrained(tmp_path)
    return tmp_path


def fixed_bytes(model: Path) -> int:
    return (model / "model.safetensors").stat().st_size // 2 + PROGRAM_BYTES  # float32 is loaded as bfloat16


def test_a_default_cache_shrinks_to_what_fits(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    per_token = token_bytes(load_config(model), "bfloat16", "auto")
    options = RunnerOptions()
    assert fitting_cache(model, None, options, free=10**12) == CACHE_TOKENS
    assert fitting_cache(model, None, options, free=fixed_bytes(model) + 1000 * per_token) == 992
    assert "the cache has 992 tokens" in caplog.text


def test_a_cache_that_was_asked_for_is_refused_with_what_would_fit(model: Path) -> None:
    per_token = token_bytes(load_config(model), "bfloat16", "auto")
    options, free = RunnerOptions(kv_tokens=4096), fixed_bytes(model) + 1000 * per_token
    with pytest.raises(SettingError, match=r"kv_tokens = 4096: needs .* GB .*at most 992 tokens fit"):
        fitting_cache(model, None, options, free=free)


@pytest.mark.parametrize("tokens", [AUTO_TOKENS, CACHE_TOKENS, 4096])
def test_a_model_without_room_is_refused(model: Path, tokens: int) -> None:
    with pytest.raises(SettingError, match=r"needs 0\.3 GB .*, 0\.3 are free: choose a smaller model"):
        fitting_cache(model, None, RunnerOptions(kv_tokens=tokens), free=fixed_bytes(model) - 1)


def test_a_draft_counts_twice_weights_and_cache(model: Path) -> None:
    alone = memory._needs(model, None, RunnerOptions())
    both = memory._needs(model, model, RunnerOptions())
    assert alone is not None
    assert both is not None
    assert (both.draft, both.token) == (alone.weights, 2 * alone.token)


def test_a_draft_from_a_large_file_counts_as_requantised(tmp_path: Path) -> None:
    """Its embeddings stay as stored: half of these numbers are embeddings."""
    config = tiny_transformers("llama").config
    config.save_pretrained(tmp_path)
    count = 2 * config.vocab_size * config.hidden_size
    (tmp_path / "source.gguf").write_bytes(bytes(count))
    options = RunnerOptions()
    for bits, weights, wanted in (
        (8.0, "auto", (4.5 + 8) / 2),
        (8.0, "q4_0", (4.5 + 8) / 2),
        (8.0, "file", 8),
        (4.8, "auto", 8),
    ):
        record = {"parameters": count, "bytes": int(count * bits / 8)}
        (tmp_path / "gguf.json").write_text(json.dumps(record))
        needs = memory._needs(tmp_path, tmp_path, options, weights)
        assert needs is not None
        assert needs.draft == pytest.approx(count * wanted / 8, abs=8)
    needs = memory._needs(tmp_path, tmp_path, RunnerOptions(dtype="float32"))
    assert needs is not None
    assert needs.draft == count


def test_offloaded_weights_are_not_compared(model: Path) -> None:
    assert fitting_cache(model, None, RunnerOptions(offload="disk"), free=0) == CACHE_TOKENS


def test_bfloat16_of_numpy_is_that_of_torch() -> None:
    values = np.random.default_rng(1).standard_normal(10_000).astype(np.float32) * 3
    values = np.concatenate([values, np.float32([1 + 2**-8, 1 + 3 * 2**-8, -0.0, 3e38])])  # ties, too
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(stored_as(values, "bfloat16"), wanted)
