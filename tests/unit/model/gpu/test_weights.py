"""Quantised weights and products of few rows on the gpu executor."""

import sys
from typing import Any

import pytest
import torch

from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.gpu.weights import MAX_FEW_ROWS, FewRowsLinear, ShownWeights, few_rows
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.torch.linear import DenseLinear
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.unit.model.gpu.passes import DEVICE

SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
TOKENS = [5, 17, 2, 80, 33]


def logits(runner: ModelRunner) -> torch.Tensor:
    (rows,) = runner.forward([Segment(runner.open(), TOKENS, [7], [-1], want_last=True)])
    return rows.float().cpu()


def dequantised(model: Any, runner: ModelRunner) -> Any:
    """Return the `transformers` model with the dequantised weights of the runner."""
    executor: Any = runner._executor
    for ours, theirs in zip(executor._model.layers, model.model.layers, strict=True):
        q, k, v = ours._qkv.weight.dequantize().split([16, 8, 8])
        gate, up = ours._mlp.up.weight.dequantize().chunk(2)
        attention, mlp = theirs.self_attn, theirs.mlp
        for module, weight in (
            *((attention.q_proj, q), (attention.k_proj, k), (attention.v_proj, v)),
            *((attention.o_proj, ours._out.weight.dequantize()), (mlp.gate_proj, gate), (mlp.up_proj, up)),
            (mlp.down_proj, ours._mlp.down.weight.dequantize()),
        ):
            module.weight.data = weight.cpu().clone()
    return model


@pytest.mark.parametrize(("kind", "dtype"), [("int8", torch.int8), ("fp8", torch.float8_e4m3fn)])
def test_products_equal_those_of_the_dequantised_matrices(kind: str, dtype: torch.dtype) -> None:
    pytest.importorskip("torchao")
    model = tiny_transformers("llama", **SHAPE)
    exact = logits(runner_of(model))
    runner = runner_of(model, executor="gpu", device=DEVICE, weights=kind, kv_tokens=512)
    actual = logits(runner)
    executor: Any = runner._executor
    assert executor._model.layers[1]._mlp.down.weight.qdata.dtype is dtype, "eight bits each"
    torch.testing.assert_close(actual, logits(runner_of(dequantised(model, runner))), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(actual, exact, atol=1e-3), "quantisation changes the logits"
    assert torch.nn.functional.cosine_similarity(actual, exact).min() > 0.9


@pytest.mark.parametrize(("size", "columns", "biased"), [(48, 70, True), (128, 64, False), (576, 3, True)])
def test_a_product_of_few_rows_is_that_of_float64(size: int, columns: int, biased: bool) -> None:
    """Each row of a result has the same bits for any number of rows."""
    numbers = torch.Generator().manual_seed(size)
    weight, every = (
        torch.randn(n, size, generator=numbers).half().to(DEVICE) for n in (columns, MAX_FEW_ROWS + 1)
    )
    bias = torch.randn(columns, generator=numbers).half().to(DEVICE) if biased else None
    linear = FewRowsLinear(weight, bias)
    exact = every.double() @ weight.double().T + (0 if bias is None else bias.double())
    max_product = linear(every[:MAX_FEW_ROWS])
    for rows in (0, 1, 2, 17, MAX_FEW_ROWS, MAX_FEW_ROWS + 1):
        product = linear(every[:rows])
        torch.testing.assert_close(product.double(), exact[:rows], rtol=2e-3, atol=2e-2)
        assert rows > MAX_FEW_ROWS or torch.equal(product, max_product[:rows])
    apart = torch.cat([every, every], 1)[:5, size:]
    assert torch.equal(linear(apart), max_product[:5]), "rows may have a stride"


def test_the_kernel_is_used_only_for_large_matrices_in_sixteen_bits() -> None:
    wide = torch.ones(8192, 32).to(DEVICE)
    assert isinstance(few_rows(DenseLinear(wide.half(), None)), FewRowsLinear)
    for weight in (wide, wide.half()[:, :24].contiguous(), wide.half()[:, :16], wide.half()[:16]):
        assert not isinstance(few_rows(DenseLinear(weight, None)), FewRowsLinear)


def test_bad_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: str) -> str:
        with pytest.raises(SettingError) as error:
            RunnerOptions(**options)
        return str(error.value)

    assert "weights = 'q8_0': needs the native executor" in refused(executor="gpu", weights="q8_0")
    assert "weights = 'fp8': needs the gpu executor" in refused(weights="fp8")
    RunnerOptions(executor="gpu", weights="fp8")
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(SettingError, match="executor = 'gpu': weights = 'int8': torchao is not installed"):
        runner_of(tiny_transformers("llama", **SHAPE), executor="gpu", device=DEVICE, weights="int8")


def test_reading_is_shown_and_nothing_is_read_twice() -> None:
    class Counted(dict[str, torch.Tensor]):
        reads = 0

        def __getitem__(self, name: str) -> torch.Tensor:
            self.reads += 1
            return super().__getitem__(name)

    weights = Counted(a=torch.ones(1), b=torch.zeros(1))
    with ShownWeights(weights) as shown:
        assert "a" in shown
        assert "c" not in shown
        assert weights.reads == 0
        assert [shown[name].item() for name in shown] == [1, 0]
        (task,) = shown._progress.tasks
        assert (task.completed, task.total) == (2, 2)
