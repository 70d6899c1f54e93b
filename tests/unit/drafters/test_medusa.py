"""Prediction heads draft from the hidden state of the last token before the root, once it has arrived."""

import numpy as np
import pytest
import torch

from specinfer.drafters import DrafterDescription
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.drafters.heads import BlockwiseDrafter, HeadsRunner
from specinfer.drafters.heads_layers import BlockwiseSource
from specinfer.model.drafting.task import GrowthShape
from specinfer.model.options import RunnerOptions
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.sampling.noise import Noise
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import TokenTree, TreeLimits
from tests.support.tiny_models import tiny_transformers

HIDDEN, K = 32, 2
STATES = np.random.default_rng(0).normal(size=(12, 1, HIDDEN))


def bits(start: int, stop: int) -> bytes:
    """Return the hidden states of these positions as bytes of a message."""
    return torch.from_numpy(STATES[start:stop]).to(torch.bfloat16).view(torch.int16).numpy().tobytes()


@pytest.fixture
def engine() -> SpeculatorEngine:
    torch.manual_seed(0)
    layers = {
        "in_proj": torch.nn.Linear(HIDDEN, K * HIDDEN),
        "out_proj": torch.nn.Linear(K * HIDDEN, K * HIDDEN),
    }
    model, tensors = tiny_transformers("llama"), torch.nn.ModuleDict(layers).state_dict()
    source = BlockwiseSource({name: 4 * tensor for name, tensor in tensors.items()}, torch.arange(97), K)
    options = RunnerOptions(dtype="float32")
    runner = HeadsRunner.build(source, from_transformers(model.config), model.state_dict(), options)
    description = DrafterDescription("b", 97, feature_layers=(3,), feature_size=HIDDEN)
    return SpeculatorEngine([BlockwiseDrafter(runner, description, GrowthShape(), source.token_ids)])


def draft(
    engine: SpeculatorEngine,
    base: int,
    delta: list[int],
    features: tuple[int, int],
    sampling: Sampling = GREEDY,
) -> list[int] | None:
    """Extend the context and send hidden states; return the drafted chain, or None without a draft."""
    states, limits = bits(*features), TreeLimits(4, 4)
    entry = DraftEntry("r", base, delta, limits, sampling, features=states, features_start=features[0])
    (outcome,) = engine.draft([entry])
    if not outcome.drafts:
        return None
    ((_, tree),) = outcome.drafts
    assert isinstance(tree, TokenTree)
    assert tree.token_ids[0] == delta[-1]
    return tree.token_ids[1:].tolist()


def test_there_is_a_draft_only_if_the_state_before_the_root_has_arrived(engine: SpeculatorEngine) -> None:
    assert draft(engine, 0, [5, 6, 7, 8], (0, 0)) is None, "nothing has come"
    assert draft(engine, 4, [9], (0, 3)) is None, "they come in parts, and the newest is not among them"
    whole = draft(engine, 5, [10], (3, 5))
    assert whole is not None
    assert len(whole) == K
    assert draft(engine, 6, [11, 12], (5, 7)) != whole, "another state gives another draft"


def test_points_for_sampled_requests_are_chosen_by_the_noise_of_their_positions(
    engine: SpeculatorEngine,
) -> None:
    context, sampling = [5, 6, 7, 8], Sampling(temperature=1.0, seed=9)
    chain = draft(engine, 0, context, (0, 3), sampling)
    (drafter,) = engine.drafters
    assert isinstance(drafter, BlockwiseDrafter)
    heads = drafter._runner._heads
    state = torch.from_numpy(STATES[2]).to(torch.bfloat16).float()
    with torch.inference_mode():
        logits = heads.logits(heads.outs(state).unbind(1))
    wanted = [
        Noise(9, len(context) + depth).choose(probabilities(rows[0], sampling))
        for depth, rows in enumerate(logits)
    ]
    assert chain == wanted


def test_earlier_hidden_states_do_not_matter(engine: SpeculatorEngine) -> None:
    """A service that misses earlier hidden states drafts the same as one that has them all."""
    tree = draft(engine, 0, [5, 6, 7, 8, 9, 10], (0, 5))
    engine.release(["r"])
    assert draft(engine, 0, [5, 6, 7, 8, 9], (0, 0)) is None
    assert draft(engine, 5, [10], (4, 5)) == tree is not None
