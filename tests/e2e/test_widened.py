"""The default model, widened: the same text through the whole system, from the same speculators."""

from pathlib import Path

import pytest

from specinfer.cli.local import LocalOptions, LocalSystem
from specinfer.client import Answer, GatewayClient
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.widen import widen
from specinfer.v1 import common_pb2, generation_pb2

pytestmark = pytest.mark.slow


async def answer_of(model: str) -> Answer:
    request = generation_pb2.GenerateRequest(
        max_new_tokens=24, sampling=common_pb2.SamplingParams(temperature=0)
    )
    request.chat.messages.add(role="user", content="Why is the sky blue?")
    with LocalSystem(LocalOptions(model=model, dtype="float32")) as system:
        async with GatewayClient(system.address) as client:
            return await client.generate(request)


async def test_a_widened_model_gives_the_same_text_with_the_same_speculators(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPECINFER_CACHE", str(tmp_path))
        wide = widen(str(default_model), 2, lambda *_: None)
    original, widened = await answer_of(DEFAULT_MODEL), await answer_of(str(wide))
    assert widened.token_ids == original.token_ids
    assert len(widened.token_ids) == 24
    accepted = {speculator.name: speculator.accepted for speculator in widened.summary.stats.speculators}
    assert accepted["ssm"] > 0
