"""Medusa's heads and blockwise parallel decoding: perfect heads take the promised number of passes."""

from collections.abc import Sequence
from math import ceil
from typing import Any

import pytest
import torch
from torch import nn

from specinfer.drafters import DrafterDescription
from specinfer.drafters.heads import BlockwiseDrafter, HeadsDrafter, HeadsRunner
from specinfer.model.batch import Segment
from specinfer.model.drafting.task import GrowthShape
from specinfer.v1 import generation_pb2
from tests.support.oracle import greedy
from tests.support.system import running_system
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]
K, HIDDEN, LAYERS = 3, 32, 3
DESCRIPTION = DrafterDescription("heads", 97, feature_layers=(LAYERS,), feature_size=HIDDEN)


class PerfectHeads:
    """Heads that know the text, and find a hidden state's place in it."""

    markov = None

    def __init__(self, text: Sequence[int]) -> None:
        runner = runner_of(tiny_transformers("llama"))
        _, (states,) = runner.forward_with_features([Segment(runner.open(), text)], [LAYERS])
        self._states, self._text = states[:, 0].float(), [*text, *[0] * K]

    def outs(self, states: torch.Tensor) -> torch.Tensor:
        """Return [R, k, V] one-hot rows: for the state of the token before the root, the tokens after the root."""
        places = torch.cdist(states.float(), self._states).argmin(-1).tolist()
        ids = torch.tensor([self._text[place + 2 : place + 2 + K] for place in places])
        return nn.functional.one_hot(ids, 97).float() * 50

    def logits(self, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return list(outs)


def perfect(kind: type[HeadsDrafter], count: int) -> HeadsDrafter:
    """Return a drafter that knows the `count` tokens after the prompt."""
    heads: Any = PerfectHeads([*PROMPT, *greedy(PROMPT, count)])
    runner = HeadsRunner(heads, torch.float32, "cpu")
    return kind(runner, DESCRIPTION, GrowthShape(), torch.arange(97))


def stats(replies: list[generation_pb2.GenerateReply]) -> generation_pb2.SpeculationStats:
    return replies[-1].summary.stats


@pytest.mark.parametrize("count", [16, 17, 40])
async def test_a_perfect_predictor_takes_a_pass_for_every_block(redis_url: str, count: int) -> None:
    """The tokens of k heads and the target's own one are a block of k + 1 tokens.

    The pass over the prompt gives the first token; m further tokens take m / (k + 1) passes, as the pass that verifies
    a block also gives the hidden state for the next one.
    """
    block = K + 1
    async with running_system(redis_url, {"blockwise": perfect(BlockwiseDrafter, count)}) as system:
        replies = await system.generate(PROMPT, max_new_tokens=count)
        assert [t for reply in replies for t in reply.token_ids] == greedy(PROMPT, count)
        assert stats(replies).steps == 1 + ceil((count - 1) / block) <= count / block + 1.5
        assert stats(replies).drafted <= K * stats(replies).steps, "a chain, though trees may have more nodes"
