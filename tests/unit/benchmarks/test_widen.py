"""A widened model says what the original says, costs more and is called what it is."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import widen as widening
from benchmarks.widen import widen
from specinfer.errors import IncompatibleError, InvalidInputError, SettingError
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config import load_config
from specinfer.model.weights.draft_checkpoint import embedding_fingerprint
from specinfer.model.weights.families import open_weights
from specinfer.tokenizer import Tokenizer
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import reference_logits, tiny_generic, tiny_transformers

ROWS = ([5, 17, 3, 88, 41], [2, 71, 9])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    return tmp_path


def saved(family: str, directory: Path) -> Path:
    """A tiny model in bfloat16 with a tokenizer beside it."""
    tiny_transformers(family).to(torch.bfloat16).save_pretrained(directory)
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    return directory


@pytest.mark.parametrize("factor", [2, 8])
@pytest.mark.parametrize("family", ["llama", "qwen2", "llama-untied", "opt", "gpt_neox"])
def test_the_function_is_kept(family: str, factor: int, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widening, "_SHARD_BYTES", 20_000)  # several files
    source = saved(family, cache / "tiny")
    wide = widen(str(source), factor)
    assert len(list(wide.glob("*.safetensors"))) > 2
    assert load_config(wide).intermediate_size == factor * load_config(source).intermediate_size
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    same = AutoModelForCausalLM.from_pretrained(wide, dtype=torch.float32)
    runner = ModelRunner.load(wide, RunnerOptions(dtype="float32", kv_tokens=64, executor="torch"))
    for row in ROWS:
        expected = reference_logits(model, row)
        torch.testing.assert_close(reference_logits(same, row), expected, rtol=1e-5, atol=1e-5)
        (ours,) = runner.forward([Segment(runner.open(), row, want_last=True)])
        torch.testing.assert_close(ours[0], expected[-1], rtol=1e-4, atol=1e-4)
    for weights in (open_weights(wide, load_config(wide)), open_weights(source, load_config(source))):
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_a_wrong_factor_would_be_seen(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a division that is one per cent off is no rounding."""
    right = widening.widen_tensor

    def wrong(name: str, tensor: torch.Tensor, factor: int) -> torch.Tensor:
        return right(name, tensor, factor) * (1.01 if ".down_proj." in name else 1.0)

    monkeypatch.setattr(widening, "widen_tensor", wrong)
    source = saved("llama", cache / "tiny")
    same = AutoModelForCausalLM.from_pretrained(widen(str(source), 2), dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    difference = reference_logits(same, ROWS[0]) - reference_logits(model, ROWS[0])
    assert difference.abs().max() > 1e-3


def test_speculators_of_the_original_draft_for_it(cache: Path) -> None:
    """They share the vocabulary, and trained ones the embeddings."""
    source = saved("llama", cache / "tiny")
    wide = widen(str(source), 4)
    assert Tokenizer.load(wide).fingerprint() == Tokenizer.load(source).fingerprint()
    prints = [embedding_fingerprint(open_weights(path, load_config(path))) for path in (source, wide)]
    assert prints[0] == prints[1]


@pytest.mark.parametrize("factor", [0, 1, 3, 12, -2])
def test_a_bad_factor_is_named(factor: int, cache: Path) -> None:
    saved("llama", cache / "tiny")
    with pytest.raises(InvalidInputError, match=f"factor = {factor}: must be a power of two"):
        widen(str(cache / "tiny"), factor)


def test_nothing_is_overwritten_and_nothing_half_done(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(saved("llama", cache / "tiny"))
    with monkeypatch.context() as patch:
        patch.setattr(widening, "save_file", interrupt)
        with pytest.raises(KeyboardInterrupt):
            widen(source, 2)
    assert list((cache / "models").iterdir()) == []
    wide = widen(source, 2)
    with pytest.raises(InvalidInputError, match=r"model = '.*tiny': is widened already: .*tiny-widened-2"):
        widen(source, 2)
    with pytest.raises(IncompatibleError, match="tiny-widened-2 is a widened model: widen tiny instead"):
        widen(str(wide), 2)
    with pytest.raises(SettingError, match="model = 'nobody'"):
        widen("nobody", 2)


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_other_families_are_refused(cache: Path) -> None:
    tiny_generic("gpt2").save_pretrained(cache / "gpt2")
    with pytest.raises(IncompatibleError, match="model_type = 'gpt2'"):
        widen(str(cache / "gpt2"), 2)
    assert list((cache / "models").iterdir()) == []
