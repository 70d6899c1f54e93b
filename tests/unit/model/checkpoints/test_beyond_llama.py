"""Options that support only layers like Llama's are refused for other families by name."""

from pathlib import Path

import pytest
import torch

from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.loading import build_model
from specinfer.model.options import RunnerOptions
from specinfer.model.parallel.layout import Layout, check_layout
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.draft_checkpoint import OF_PUBLISHED, OF_TRAINED_SSMS, target_config
from tests.support.models.families import HYBRIDS, random_model, save_random
from tests.support.tiny_models import FAMILIES, SPECIAL, tiny_transformers

REASONS = {
    "gemma": "factors on embeddings",
    "gemma2": "norms after attention and MLP, factors on .*, a factor on attention scores, soft caps",
    "gemma3": "norms after .*, rotary positions by layer",
    "smollm3": "rotary positions by layer",
    "granite": "factors on .*, a factor on attention scores",
    "olmo2": "norms after attention and MLP, norms of whole rows of queries and keys",
    "olmo3": "norms after .*, rotary positions by layer",
    "gpt_oss": "attention sinks, a mixture of experts",
    "qwen3_moe": "a mixture of experts",
    "qwen2_moe": "a mixture of experts",
    "mixtral": "a mixture of experts",
    "olmoe": "norms of whole rows of queries and keys, a mixture of experts",
    "granitemoe": "factors on .*, a factor on attention scores, a mixture of experts",
}
LIKE_LLAMA = [name for name in FAMILIES if name not in REASONS]


@pytest.mark.parametrize("family", REASONS)
def test_options_of_other_parts_are_refused(family: str) -> None:
    model = tiny_transformers(family)
    config, weights, reason = from_transformers(model.config), dict(model.state_dict()), REASONS[family]
    with pytest.raises(IncompatibleError, match=f"kv_window = 64: {reason}.*: not supported"):
        build_model(config, weights, RunnerOptions("float32", executor="torch", kv_window=64))
    with pytest.raises(SettingError, match=f"executor = 'gpu': .*: {reason}.*: not supported"):
        build_model(config, weights, RunnerOptions("float32", executor="gpu"))


@pytest.mark.parametrize("family", REASONS)
def test_ranks_are_refused(family: str) -> None:
    config = from_transformers(tiny_transformers(family).config)
    for layout, name in ((Layout(2, 1), "tensor_parallel = 2"), (Layout(1, 3), "pipeline_parallel = 3")):
        with pytest.raises(IncompatibleError, match=f"{name}: {REASONS[family]}"):
            check_layout(config, layout)


@pytest.mark.parametrize("entry", HYBRIDS)
def test_recurrent_layers_are_refused_by_every_other_part(entry: str) -> None:
    config = from_transformers(random_model(entry).config)
    mixture = ".*a mixture of experts" if config.experts else ""
    reasons = f"{mixture}.*recurrent layers.*"
    with pytest.raises(IncompatibleError, match=f"kv_window = 64: {reasons}: not supported"):
        build_model(config, {}, RunnerOptions("float32", kv_window=64))
    with pytest.raises(SettingError, match=f"executor = 'gpu': .*: {reasons}: not supported"):
        build_model(config, {}, RunnerOptions("float32", executor="gpu"))
    for layout, name in ((Layout(2, 1), "tensor_parallel = 2"), (Layout(1, 3), "pipeline_parallel = 3")):
        with pytest.raises(IncompatibleError, match=f"{name}: {reasons}"):
            check_layout(config, layout)


@pytest.mark.parametrize("family", LIKE_LLAMA)
def test_the_other_families_are_like_llama_up_to_their_windows(family: str) -> None:
    config = from_transformers(tiny_transformers(family).config)
    actual = config.like_llama("x")
    assert (actual.windows, actual.max_positions) == ((), min([config.max_positions, *config.windows]))
    assert len({*REASONS, *LIKE_LLAMA}) == len(FAMILIES)
    assert {*SPECIAL} <= {*FAMILIES}


def test_a_window_of_the_cache_is_that_of_a_model_up_to_its_own() -> None:
    """The layers see no token that the cache drops, up to the model's own window."""
    model = tiny_transformers("mistral-windowed", sliding_window=64)
    weights = dict(model.state_dict())
    options = RunnerOptions("float32", executor="torch", kv_window=48)
    loaded = build_model(from_transformers(model.config), weights, options)
    assert (loaded.config.windows, loaded.config.max_positions) == ((), 64)
    model.config.sliding_window = 512
    assert from_transformers(model.config).windows == (), "the window has all positions"


def test_ssms_and_published_drafts_are_for_targets_like_llama(tmp_path: Path) -> None:
    save_random("gemma2", tmp_path)
    for kind in (OF_TRAINED_SSMS, OF_PUBLISHED):
        with pytest.raises(IncompatibleError, match=f"'gemma2': {kind}: norms after"):
            target_config(tmp_path, kind)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("opt", "norms by mean and variance, or learnt positions"),
        ("gpt_neox", "norms by mean and variance, or learnt positions"),
        ("mixtral", "a mixture of experts"),
        ("gpt_oss", "a mixture of experts"),
    ],
)
def test_targets_that_an_eagle_layer_does_not_fit_are_refused(family: str, reason: str) -> None:
    config = from_transformers(tiny_transformers(family).config)
    with pytest.raises(IncompatibleError, match=f"{family!r}: an EAGLE layer: {reason}: not supported"):
        config.draft_layer()


def test_layers_are_counted_until_all_kinds_occur() -> None:
    config = from_transformers(tiny_transformers("smollm3").config)
    assert (config.varied_layers, config.first_layers(1).varied_layers) == (2, 1)
    assert config.first_layers(2).layer_rotary == config.layer_rotary[:2]
    assert from_transformers(tiny_transformers("llama").config).varied_layers == 1
    assert torch.tensor(from_transformers(tiny_transformers("gemma3").config).windows).tolist() == [5, 0, 5]
