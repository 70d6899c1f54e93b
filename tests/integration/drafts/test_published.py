"""Drafters in published formats, in the verifier's process: right tokens are accepted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.feature_rows import FeatureRowsDrafter
from tests.support.models.published import METHODS, save_published, save_target
from tests.support.system import System, running_system
from tests.support.tiny_models import silence_attention, tiny_transformers

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]
TOKENS = 17


def loaded(directory: Path, **options: Any) -> FeatureRowsDrafter:
    drafter_options = DrafterOptions(
        model=str(directory), dtype="float32", kv_tokens=2048, min_path_probability=0.0, **options
    )
    drafter = make_drafter(directory.name, drafter_options)
    assert isinstance(drafter, FeatureRowsDrafter)
    return drafter


async def run(system: System, prompt: list[int], **fields: Any) -> tuple[list[int], Any]:
    """Return tokens and statistics of an answer."""
    replies = await system.generate(prompt, max_new_tokens=TOKENS, **fields)
    return [t for reply in replies for t in reply.token_ids], replies[-1].summary.stats


@pytest.mark.parametrize("method", METHODS)
async def test_right_guesses_are_accepted(redis_url: str, tmp_path: Path, method: str) -> None:
    """The target repeats its last token, and the drafter's vocabulary has only that token.

    An MTP drafter computes the same as the target. After the prompt's pass and a step without hidden states, every
    step accepts a whole path.
    """
    model = repeating()
    target, token, depth = save_target(tmp_path / "target", model), PROMPT[-1], 4
    drafted = {"drafted": [token]} if method != "mtp" else {}
    directory = save_published(tmp_path / method, method, target, **drafted)
    if method == "mtp":
        make_it_the_target(directory, model)
    async with running_system(
        redis_url, {method: loaded(directory)}, model=model, resident=True, sequence_length=depth
    ) as system:
        tokens, stats = await run(system, PROMPT)
    assert tokens == [token] * TOKENS
    assert stats.accepted >= TOKENS - stats.steps
    assert stats.steps <= 2 + (TOKENS - 2) // (depth + 1) + 1


def repeating() -> Any:
    """Return a target that repeats its last token: its hidden states and head are the embeddings."""
    model = tiny_transformers("qwen3", tie_word_embeddings=True)
    silence_attention(model)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    embedding = model.model.embed_tokens.weight
    torch.nn.init.ones_(model.model.norm.weight)
    with torch.no_grad():
        embedding /= embedding.norm(dim=-1, keepdim=True).clamp(min=1e-6)  # the padding's is zero
    return model


def make_it_the_target(directory: Path, model: Any) -> None:
    """Change a saved MTP layer so that it returns the embedding of its token."""
    from safetensors.torch import load_file, save_file

    file, hidden = directory / "model.safetensors", model.config.hidden_size
    tensors = load_file(file)
    for name in tensors:
        if "o_proj" in name or "down_proj" in name:
            tensors[name] = torch.zeros_like(tensors[name])
        elif name.endswith(("token_layernorm.weight", "final_layernorm.weight")):
            tensors[name] = torch.ones_like(tensors[name])
        elif "input_proj" in name:
            tensors[name] = torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], 1)
    save_file(tensors, file)
