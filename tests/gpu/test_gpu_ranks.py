"""A model divided among several GPUs over NCCL computes the pass of one."""

import numpy as np
import pytest
import torch

from specinfer.model.parallel.layout import Layout
from tests.support.models.rank_group import run_ranks
from tests.support.tiny_models import runner_of
from tests.unit.model.test_ranks import CLOSE, Model, logits_of_rank, model_of, tree_pass

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a GPU for each rank"),
]


@pytest.mark.parametrize("executor", ["torch", "gpu"])
@pytest.mark.parametrize("layout", [Layout(2, 1), Layout(1, 2)], ids=str)
def test_two_gpus_compute_the_pass_of_one(layout: Layout, executor: str) -> None:
    model = Model.of("llama-biased", executor)
    name, logits, _ = run_ranks(layout, logits_of_rank, model, device="cuda")
    assert name == executor
    np.testing.assert_allclose(logits, tree_pass(runner_of(model_of("llama-biased")))[0], **CLOSE)
