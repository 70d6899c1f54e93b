"""Draft vocabularies that change with the tokens of requests."""

import pytest
import torch

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.ssm import SsmDrafter
from specinfer.drafters.vocabulary import TrafficVocabulary
from specinfer.model.drafting.task import GrowthShape
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ProposalKind, TokenTree, TreeLimits
from tests.support.tiny_models import replaceable_head, runner_of, tiny_transformers

KEPT = tuple(range(20))
MODEL = tiny_transformers("llama", seed=3, head_dim=16)


def test_missing_tokens_take_the_rows_of_those_unused_for_longest() -> None:
    vocabulary = TrafficVocabulary([0, 1, 2, 3, 90], pinned=[90])
    vocabulary.note([3, 50, 1, 51, 50, 90])
    assert list(vocabulary.missing) == [50, 51]
    assert vocabulary.swap() == {2: 50, 0: 51}, "2 and 0 were never used, 2 has the higher id"
    vocabulary.note([50, 2])
    assert vocabulary.swap() == {3: 2}
    assert vocabulary.swap() == {}, "nothing is missing"


def test_more_missing_tokens_than_rows() -> None:
    vocabulary = TrafficVocabulary([0, 1, 90], pinned=[90])
    vocabulary.note([5, 6, 7])
    assert vocabulary.swap() == {1: 6, 0: 7}
    pinned = TrafficVocabulary([0, 1], pinned=[0, 1])
    pinned.note([5])
    assert pinned.swap() == {}


def drafter(token_ids: tuple[int, ...], kind: ProposalKind) -> SsmDrafter:
    runner = runner_of(MODEL, token_ids=token_ids, executor="native")
    replaceable_head(MODEL, runner, token_ids)
    shape = GrowthShape(kind=kind, q_support=64)
    return SsmDrafter(runner, DrafterDescription("tiny", 97), shape, torch.tensor(token_ids))


@pytest.mark.native
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, seed=3)])
@pytest.mark.parametrize("kind", [ProposalKind.POINT, ProposalKind.WITHOUT_REPLACEMENT])
def test_a_drafter_drafts_what_a_prompt_contains(kind: ProposalKind, sampling: Sampling) -> None:
    """Missing tokens of a prompt get rows in the same step; every q is over the vocabulary of that step."""
    prompt = [5, 17, 3, *range(60, 90)]
    job = DraftJob("r", prompt, TreeLimits(8, 3), sampling, draw_seed=7)
    follows = drafter(KEPT, kind)
    (tree,) = follows.draft([job])
    now = tuple(follows._token_ids.tolist())
    assert len(now) == 20
    assert set(now) <= set(prompt), (
        "all rows are those of the prompt, which has more tokens than there are rows"
    )
    fixed = drafter(now, kind)
    fixed._vocabulary = None
    (expected,) = fixed.draft([job])
    assert isinstance(tree, TokenTree)
    assert isinstance(expected, TokenTree)
    assert tree.token_ids.tolist() == expected.token_ids.tolist()
    for one, other in zip(tree.proposals, expected.proposals, strict=True):
        assert str(one) == str(other)
    assert max(tree.token_ids[1:]) >= 60


@pytest.mark.native
def test_single_tokens_wait_until_there_are_enough() -> None:
    follows, context = drafter(KEPT, ProposalKind.POINT), [5, 17, 3]
    for token in range(60, 76):
        assert follows._token_ids.tolist() == list(KEPT)
        context.append(token)
        follows.draft([DraftJob("r", context, TreeLimits(4, 2), GREEDY)])
    assert set(range(60, 76)) <= set(follows._token_ids.tolist())


def test_a_whole_head_does_not_change() -> None:
    whole = SsmDrafter(runner_of(MODEL), DrafterDescription("tiny", 97), GrowthShape())
    whole.draft([DraftJob("r", list(range(60, 97)), TreeLimits(4, 2), GREEDY)])
    assert whole._token_ids.tolist() == list(range(97))
