"""The most probable tokens, searched by blocks, equal those of whole rows."""

import pytest
import torch

from specinfer.model.sampling.distributions import most_probable


@pytest.mark.parametrize("vocab_size", [10, 2048, 2049, 2304, 5003])
@pytest.mark.parametrize("k", [1, 8])
def test_they_are_those_of_whole_rows(vocab_size: int, k: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(7, vocab_size, generator=generator)
    logits[3, -1] = 9.0  # after the last whole block
    logits[4, :k] = 10.0 - torch.arange(k)  # all in one block
    assert most_probable(logits, k).tolist() == logits.topk(k, dim=-1).indices.tolist()
