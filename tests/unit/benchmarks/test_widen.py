"""A widened model computes the same function, costs more and has a name of its own."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import widen as widening
from benchmarks.widen import widen
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import embedding_fingerprint
from specinfer.model.weights.families import open_weights
from specinfer.tokenizer import Tokenizer
from tests.support.system import ascii_tokenizer
from tests.support.tiny_models import reference_logits, tiny_transformers

ROWS = ([5, 17, 3, 88, 41], [2, 71, 9])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECINFER_CACHE", str(tmp_path))
    return tmp_path


def saved(family: str, directory: Path) -> Path:
    """Save a tiny bfloat16 model and its tokenizer."""
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
    runner = load_checked(wide, RunnerOptions(dtype="float32", kv_tokens=64, executor="torch"))
    for row in ROWS:
        expected = reference_logits(model, row)
        torch.testing.assert_close(reference_logits(same, row), expected, rtol=1e-5, atol=1e-5)
        (ours,) = runner.forward([Segment(runner.open(), row, want_last=True)])
        torch.testing.assert_close(ours[0], expected[-1], rtol=1e-4, atol=1e-4)
    for weights in (open_weights(wide, load_config(wide)), open_weights(source, load_config(source))):
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def test_speculators_of_the_original_draft_for_it(cache: Path) -> None:
    """The widened model has the original's vocabulary, and its embeddings, which trained speculators share."""
    source = saved("llama", cache / "tiny")
    wide = widen(str(source), 4)
    assert Tokenizer.load(wide).fingerprint() == Tokenizer.load(source).fingerprint()
    prints = [embedding_fingerprint(open_weights(path, load_config(path))) for path in (source, wide)]
    assert prints[0] == prints[1]
