"""Hidden states that passes return for speculators."""

from collections.abc import Sequence

import pytest
import torch

from specinfer.model.batch import Segment
from tests.support.tiny_models import runner_of, tiny_transformers

LAYERS = (0, 1, 3)
TEXTS = ([5, 17, 2, 80, 33, 33, 9], [4, 61, 7], list(range(20, 60)))
EXECUTORS = ["torch", pytest.param("native", marks=pytest.mark.native)]


def hidden_states(model: object, text: Sequence[int]) -> torch.Tensor:
    """Return hidden states [tokens, len(LAYERS), hidden] of `transformers`, the last one without the final norm."""
    kept: list[torch.Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: kept.append(args[0][0]))
        for layer in model.model.layers  # type: ignore[attr-defined]
    ]
    norm = model.model.norm  # type: ignore[attr-defined]
    hooks.append(norm.register_forward_pre_hook(lambda _, args: kept.append(args[0][0])))
    with torch.inference_mode():
        model(torch.tensor([list(text)]))  # type: ignore[operator]
    for hook in hooks:
        hook.remove()
    return torch.stack([kept[layer] for layer in LAYERS], 1)


def near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return True if states are equal within bfloat16, the type of ours."""
    return torch.allclose(ours.float(), theirs, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_contexts_of_a_batch_return_their_own_hidden_states(executor: str) -> None:
    model = tiny_transformers("llama", head_dim=16)
    runner = runner_of(model, executor=executor)
    segments = [Segment(runner.open(), text, want_last=True) for text in TEXTS]
    logits, states = runner.forward_with_features(segments, LAYERS)
    for text, state in zip(TEXTS, states, strict=True):
        assert state.dtype is torch.bfloat16
        assert near(state, hidden_states(model, text))
    again = [Segment(runner.open(), text, want_last=True) for text in TEXTS]
    for actual, plain in zip(logits, runner.forward(again), strict=True):
        assert torch.equal(actual, plain)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_node_has_the_hidden_state_of_its_path(executor: str) -> None:
    """A context read before, and a tree with the paths x-y and x-z."""
    model = tiny_transformers("llama", head_dim=16)
    runner = runner_of(model, executor=executor)
    sequence, (context, *_) = runner.open(), TEXTS
    runner.forward([Segment(sequence, context[:-1])])
    (_, (states,)) = runner.forward_with_features(
        [Segment(sequence, context[-1:], (11, 12, 13), (-1, 0, 0), want_last=True)], LAYERS
    )
    assert len(states) == 4
    assert near(states[[0, 1, 2]], hidden_states(model, [*context, 11, 12])[-3:])
    assert near(states[[0, 1, 3]], hidden_states(model, [*context, 11, 13])[-3:])
