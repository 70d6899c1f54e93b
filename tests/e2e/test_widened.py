"""The default model, widened: the same text, from the same speculators."""

from pathlib import Path

import pytest
import torch

from specinfer import LLM, SamplingParams
from specinfer.hub.widen import widen
from specinfer.model.weights.account import load_whole
from specinfer.tokenizer import Tokenizer
from tests.support.tiny_models import reference_logits

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

NEW_TOKENS = 24


def test_a_widened_model_gives_the_originals_text_with_its_speculators(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPECINFER_CACHE", str(tmp_path))
        wide = widen(str(default_model), 2)
    prompt = Tokenizer.load(default_model).encode_chat([{"role": "user", "content": "Why is the sky blue?"}])
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    with LLM(str(wide), dtype="float32", adaptive=False, tree_nodes=4) as llm:
        (answer,) = llm.generate({"prompt_token_ids": prompt}, sampling)
    token_ids = list(answer.outputs[0].token_ids)
    original = load_whole(default_model, "llama", torch.float32)
    logits = reference_logits(original, [*prompt, *token_ids])
    assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == token_ids
    assert len(token_ids) == NEW_TOKENS
    assert answer.metrics.speculative_decoding.accepted > 0
