"""GGUF files on the gpu executor: blocks become numbers, or 8 bits, at load; the log tells which."""

import logging
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from specinfer.errors import SettingError
from specinfer.hub import resolve_model
from specinfer.llm import LLM, SamplingParams
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.gguf_weights import GgufWeights
from tests.support.models.gguf_files import Gguf
from tests.support.models.gguf_models import write_model_file
from tests.support.tiny_models import tiny_transformers
from tests.unit.model.gpu.passes import DEVICE
from tests.unit.model.gpu.test_weights import logits

SHAPE = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
GREEDY = {"temperature": 0.0}
KINDS = ("Q4_0", "Q8_0")


def write_file(path: Path, kind: str) -> Path:
    model = tiny_transformers("llama", intermediate_size=128, num_hidden_layers=2, **SHAPE)
    return Gguf.of(model, gguf.GGMLQuantizationType[kind]).write(path)


def runner_of_file(path: Path, **options: Any) -> ModelRunner:
    weights = GgufWeights(path)
    defaults = {"device": DEVICE, "executor": "gpu", "kv_tokens": 256}
    return ModelRunner.build(
        from_transformers(weights.config()), weights, RunnerOptions(**(defaults | options))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_dequantised_to_the_models_type(kind: str, tmp_path: Path) -> None:
    path = write_file(tmp_path / "model.gguf", kind)
    runner = runner_of_file(path, dtype="float32")
    theirs = runner_of_file(path, dtype="float32", device="cpu", executor="torch")
    torch.testing.assert_close(logits(runner), logits(theirs), rtol=1e-4, atol=1e-4)
    halves = runner_of_file(path, dtype="float16")  # Triton's interpreter computes wrongly in bfloat16
    sizes: list[Any] = [one._executor for one in (halves, runner)]
    assert 2 * sizes[0]._model.weight_bytes == sizes[1]._model.weight_bytes
    assert str(halves.weights).startswith("in float16, as the gpu executor in float16 multiplies no blocks: ")
    assert torch.nn.functional.cosine_similarity(logits(halves), logits(theirs)).min() > 0.99


@pytest.mark.parametrize(("kind", "dtype"), [("int8", torch.int8), ("fp8", torch.float8_e4m3fn)])
def test_blocks_are_quantised_again_where_that_is_asked_for(
    kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    pytest.importorskip("torchao")
    path = write_file(tmp_path / "model.gguf", "Q4_0")
    runner = runner_of_file(path, dtype="float32", weights=kind)
    executor: Any = runner._executor
    assert executor._model.layers[1]._mlp.down.weight.qdata.dtype is dtype
    assert str(runner.weights).startswith(f"quantised to {kind}, as asked: 14 {kind.upper()}")
    exact = logits(runner_of_file(path, dtype="float32"))
    assert torch.nn.functional.cosine_similarity(logits(runner), exact).min() > 0.9


def test_formats_of_blocks_are_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "model.gguf", "Q8_0")
    with pytest.raises(SettingError, match="weights = 'q8_0': needs the native executor"):
        runner_of_file(path, weights="q8_0")


@pytest.mark.usefixtures("on_gpu")
def test_a_file_is_served_by_auto_and_the_log_states_its_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    directory = resolve_model(str(write_model_file(tmp_path / "tiny.gguf")))
    runner = load_checked(directory, RunnerOptions("float32", DEVICE, kv_tokens=256))
    assert runner.executor_name == "gpu"
    assert "weights in float32, as the gpu executor in float32 multiplies no blocks" in caplog.text


@pytest.mark.thorough
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("sampling", [GREEDY, {"temperature": 0.9, "seed": 4, "presence_penalty": 0.5}])
def test_target_and_draft_on_a_gpu_answer_as_the_torch_executor(
    sampling: dict[str, Any], tmp_path: Path
) -> None:
    """The draft is a copy of the target, so that trees are accepted."""
    model, draft = (write_model_file(tmp_path / name / "tiny.gguf", layers=1) for name in ("a", "b"))
    params = SamplingParams(max_tokens=6, **sampling)
    texts = []
    for executor in ("auto", "torch"):
        with LLM(
            str(model),
            draft=f"ssm,model={draft},beam=1,depth=2,executor={executor}",
            executor=executor,
            device=DEVICE if executor == "auto" else "cpu",
            dtype="float32",
            kv_tokens=512,
            tree_nodes=3,
            adaptive=False,
        ) as llm:
            outputs = llm.generate(["hello", "abc"], params)
        texts.append([output.outputs[0].token_ids for output in outputs])
        counts = [output.metrics.speculative_decoding for output in outputs if output.metrics]
        assert all(count.accepted > 0 for count in counts)
    assert texts[0] == texts[1]
