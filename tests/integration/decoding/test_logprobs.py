"""Log-probabilities in a whole system: those of the target at every token, with and without trees."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specinfer.v1 import generation_pb2
from tests.integration.decoding.test_adjustments import LENGTH, PROMPTS, WISHES, knowing
from tests.support.oracle import default_target
from tests.support.system import ScriptedDrafter, System, running_system, text_of

OFF, TOP = 3, 4
Replies = Sequence[generation_pb2.GenerateReply]


@torch.inference_mode()
def of_the_model(prompt: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Return the [T, V] log-probabilities of generated tokens, by `transformers`."""
    logits = default_target()(torch.tensor([[*prompt, *tokens]])).logits[0]
    return logits[len(prompt) - 1 : -1].log_softmax(-1)


async def answers(system: System, **fields: Any) -> list[Replies]:
    """Run one batch of requests that differ in adjustments, sampling and log-probabilities."""
    kinds: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": TOP},
        {"logprobs": True, "top_logprobs": 1},
        {"logprobs": True},
        {},
    ]
    return await asyncio.gather(
        *(
            system.generate(
                prompt,
                max_new_tokens=LENGTH,
                sampling={"temperature": 0.8 * (index % 2), "seed": index, **wanted},
                request_id=f"{fields}-{index}",
                **kinds[index % 4],
                **fields,
            )
            for index, (prompt, wanted) in enumerate(zip(PROMPTS, WISHES, strict=True))
        )
    )


def reported(replies: Replies) -> tuple[list[int], list[float], list[list[tuple[int, float]]]]:
    """Return the tokens, their log-probabilities, and the top ones of each."""
    tokens = [token for reply in replies for token in reply.token_ids]
    tops = [
        list(zip(row.token_ids, row.logprobs, strict=True)) for reply in replies for row in reply.top_logprobs
    ]
    return tokens, [value for reply in replies for value in reply.logprobs], tops


async def test_trees_and_plain_decoding_report_the_models_log_probabilities(redis_url: str) -> None:
    async with running_system(redis_url, {"knowing": ScriptedDrafter(knowing)}) as system:
        plain, trees = await answers(system, speculation=OFF), await answers(system)
        assert (await system.stub.Status(generation_pb2.StatusRequest())).accepted > LENGTH
    for index, (one, other) in enumerate(zip(plain, trees, strict=True)):
        (tokens, logprobs, tops), (expected, values, rows) = reported(other), reported(one)
        assert tokens == expected
        assert logprobs == pytest.approx(values, abs=1e-5)
        assert [[token for token, _ in row] for row in tops] == [[token for token, _ in row] for row in rows]
        model = of_the_model(PROMPTS[index], tokens)
        expected_logprobs = model[torch.arange(LENGTH), tokens].tolist()
        best = model.topk(TOP, dim=-1)
        if index % 4 == 3:
            assert not any(reply.logprobs or reply.token_bytes for reply in other)
            continue
        assert logprobs == pytest.approx(expected_logprobs, abs=1e-4), (
            "also where the text follows a changed P"
        )
        assert (
            b"".join(b for reply in other for b in reply.token_bytes).decode().endswith(text_of(tokens[-3:]))
        )
        if index % 4 == 0:
            assert [[token for token, _ in row] for row in tops] == best.indices.tolist()
            actual = [value for row in tops for _, value in row]
            assert actual == pytest.approx(best.values.flatten().tolist(), abs=1e-4)
        else:
            assert [len(row) for row in tops] == ([1] * LENGTH if index % 4 == 1 else [])
