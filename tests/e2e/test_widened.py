"""The default model, widened: the same text through the whole system, from the same speculators."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.client import AsyncClient
from specinfer.hub.widen import widen
from specinfer.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, generation_pb2
from tests.support.tiny_models import reference_logits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NEW_TOKENS = 24


async def test_a_widened_model_gives_the_originals_text_with_its_speculators(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPECINFER_CACHE", str(tmp_path))
        wide = widen(str(default_model), 2, lambda *_: None)
    prompt = Tokenizer.load(default_model).encode_chat([{"role": "user", "content": "Why is the sky blue?"}])
    request = generation_pb2.GenerateRequest(
        tokens=generation_pb2.TokenIds(ids=prompt),
        max_new_tokens=NEW_TOKENS,
        sampling=common_pb2.SamplingParams(temperature=0),
    )
    with LocalSystem(LocalOptions(model=str(wide), dtype="float32")) as system:
        async with AsyncClient(system.address) as client:
            answer = await client.generate(request)
    original = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
    logits = reference_logits(original, [*prompt, *answer.token_ids])
    assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == answer.token_ids
    assert len(answer.token_ids) == NEW_TOKENS
    accepted = {speculator.name: speculator.accepted for speculator in answer.summary.stats.speculators}
    assert accepted["ssm"] > 0
