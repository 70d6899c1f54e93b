"""`LLM` stores prefixes of prompts in a directory, and sizes its cache by free memory."""

from pathlib import Path
from typing import Any

import pytest

from specinfer.errors import SettingError
from specinfer.llm import LLM, SamplingParams
from specinfer.llm.options import LLMOptions
from tests.support.models.saved_model import save_target

PROMPT = {"prompt_token_ids": [(7 * i) % 90 + 3 for i in range(60)]}
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(name="model", scope="module")
def model_fixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_target(tmp_path_factory.mktemp("target"), head_dim=16))


def cached(model: str, **options: Any) -> int | None:
    """Return the number of prompt tokens that a new `LLM` found in its cache."""
    with LLM(model, speculators="off", **{"kv_tokens": 256, **options}) as llm:
        (output,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
        return output.num_cached_tokens


@pytest.mark.native
def test_a_prompt_is_found_after_a_restart(model: str, tmp_path: Path) -> None:
    counts = [cached(model, prefix_cache_directory=str(tmp_path / "prefixes")) for _ in range(2)]
    assert counts == [0, 48]
    assert cached(model) == 0, "without the directory"
    other_format = cached(model, prefix_cache_directory=str(tmp_path / "prefixes"), kv_type="q8_0")
    assert other_format == 0, "another format of the cache"


def test_an_executor_that_keeps_no_prefixes_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="prefix_cache_directory = "):
        LLM(model, speculators="off", executor="torch", kv_tokens=256, prefix_cache_directory=str(tmp_path))


def test_the_cache_may_take_the_free_memory(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("specinfer.model.loading.fitting_tokens", lambda *_, **__: sizes.append(512) or 512)
    assert cached(model, kv_tokens="auto") == 0
    assert sizes == [512]


@pytest.mark.parametrize("value", ["all", 0, -16])
def test_a_wrong_size_of_the_cache_is_refused(value: int | str) -> None:
    with pytest.raises(SettingError, match=f"kv_tokens = {value!r}"):
        LLMOptions(kv_tokens=value)


@pytest.mark.parametrize("name", ["max_num_seqs", "prefix_cache_megabytes", "tensor_parallel_size"])
def test_only_the_size_of_the_cache_may_be_auto(name: str) -> None:
    with pytest.raises(SettingError, match=f"{name} = 'auto':"):
        LLMOptions(**{name: "auto"})
