"""Heads with a Markov head: edge logits of every node, trees of the most probable paths, and exact draws."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from specinfer.drafters.checkpoint import load_draft
from specinfer.drafters.heads_layers import BlockwiseSource, HeadsSource, MedusaSource, save_heads
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.levels import grow_edges
from specinfer.model.drafting.task import GREEDY_SCORE_TEMPERATURE, GrowthShape, GrowthTask
from specinfer.model.sampling import drawing
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ProposalKind, TokenTree, TreeLimits, check_tree
from tests.support.exactness.enumeration import Branches, exact, joint, random_tables
from tests.support.tiny_models import tiny_transformers
from tests.unit.model.features.test_heads import HIDDEN, K, logits_of, random_heads, runner_for

KINDS = [MedusaSource, BlockwiseSource]
DRAWN = [ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT]
IDS = torch.arange(20, 32)
Bias = Callable[[torch.Tensor], torch.Tensor]


def with_markov(source: HeadsSource, rank: int = 4) -> HeadsSource:
    generator = torch.Generator().manual_seed(5)
    matrices = {
        "markov.in.weight": torch.randn(rank, HIDDEN, generator=generator),
        "markov.out.weight": torch.randn(len(source.token_ids), rank, generator=generator) / 4,
    }
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in matrices.items()}
    return replace(source, tensors={**source.tensors, **tensors})


def reference_bias(source: HeadsSource, token: int) -> torch.Tensor:
    """Compute W2 W1 e / rms(e) directly."""
    e = tiny_transformers("llama").model.embed_tokens.weight[token].detach()
    narrow = source.tensors["markov.in.weight"].float() @ (e / (e.square().mean() + 1e-7).sqrt())
    return source.tensors["markov.out.weight"].float() @ narrow


def task_of(limits: TreeLimits, sampling: Sampling = GREEDY, root: int = 7) -> GrowthTask:
    return GrowthTask(KVSequence(), [root], limits, sampling, offset=11)


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints_are_read_as_they_were_written(kind: type[HeadsSource], tmp_path: Path) -> None:
    tiny_transformers("llama").save_pretrained(tmp_path / "target")
    source = with_markov(random_heads(kind, IDS))
    save_heads(tmp_path / "h", source, tmp_path / "target", "tiny", {})
    heads = load_draft(tmp_path / "h", tmp_path / "target")
    assert isinstance(heads, kind)
    assert heads.markov
    assert not random_heads(kind, IDS).markov
    assert heads.tensors.keys() == source.tensors.keys()
    assert all(torch.equal(heads.tensors[name], tensor) for name, tensor in source.tensors.items())


def random_states(count: int) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("kind", KINDS)
def test_trees_have_the_likeliest_paths_by_edge_logits(kind: type[HeadsSource]) -> None:
    """Two requests in one batch, compared with every path of three levels, computed token by token."""
    source, states = with_markov(random_heads(kind, IDS)), random_states(2)
    runner = runner_for(source, tiny_transformers("llama"))
    heads = logits_of(runner_for(random_heads(kind, IDS), tiny_transformers("llama")), states)
    tasks = [task_of(TreeLimits(14, 5), root=root) for root in (7, 30)]
    trees = runner.grow(tasks, states, GrowthShape(beam=200), IDS)
    bias = {token: reference_bias(source, token) for token in (7, 30, *IDS.tolist())}
    for i, (task, tree) in enumerate(zip(tasks, trees, strict=True)):
        check_tree(tree, 97, 15)
        edges = {
            (depth, before): ((heads[depth][i] + bias[before]) / GREEDY_SCORE_TEMPERATURE).softmax(-1)
            for depth in range(K)
            for before in bias
        }
        reach = {
            path: float(
                np.prod(
                    [
                        edges[depth, before][token - 20]
                        for depth, (before, token) in enumerate(
                            zip((task.delta[-1], *path), path, strict=False)
                        )
                    ]
                )
            )
            for depth in (1, 2, 3)
            for path in product(IDS.tolist(), repeat=depth)
        }
        scores = {tree.sequence_of(node)[1:]: float(tree.scores[node]) for node in range(1, len(tree))}
        assert set(scores) == set(sorted(reach, key=lambda path: -reach[path])[:14])
        for path, score in scores.items():
            before = (task.delta[-1], *path)[-2]
            assert score == pytest.approx(float(edges[len(path) - 1, before][path[-1] - 20]), rel=2e-3)


def test_points_are_chosen_by_the_noise_from_edge_logits() -> None:
    source, state = with_markov(random_heads(MedusaSource, IDS)), random_states(1)
    sampling = Sampling(1.0, seed=9)
    runner = runner_for(source, tiny_transformers("llama"))
    (tree,) = runner.grow([task_of(TreeLimits(3, 3, width=1), sampling)], state, GrowthShape(), IDS)
    heads = logits_of(runner, state)
    before = 7
    for depth, token in enumerate(tree.token_ids[1:].tolist()):
        p = np.zeros(97)
        p[IDS] = probabilities(heads[depth][0] + reference_bias(source, before), sampling)
        assert token == Noise(9, 12 + depth).choose(p)
        before = token
    assert len(tree) == 1 + K


VOCABULARY = 3
SAMPLING = Sampling(temperature=1.0, seed=0)


def tables_of_edges() -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return logits of two depths, and a row of biases for each previous token (the root is token 0)."""
    generator = torch.Generator().manual_seed(4)
    levels = [torch.randn(1, VOCABULARY, generator=generator) for _ in range(2)]
    return levels, 2 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)


def drawn(kind: ProposalKind) -> TokenTree:
    levels, table = tables_of_edges()
    shape = GrowthShape(kind=kind, q_support=2)  # one token is never drawn
    task = task_of(TreeLimits(3, 2), SAMPLING, root=0)
    (tree,) = grow_edges(
        [task], levels, lambda *nodes: (table[nodes[2]], None), shape, torch.arange(VOCABULARY)
    )
    return tree


def without_the_path(tree: TokenTree) -> TokenTree:
    """Return a tree whose proposal distributions leave out the Markov head."""
    levels, _ = tables_of_edges()
    lies = []
    for proposal in tree.proposals:
        depth = len(tree.sequence_of(proposal.parent)) - 1
        alone = levels[depth][0].softmax(-1).numpy()[proposal.q_token_ids]
        lies.append(proposal._replace(q_probabilities=(alone / alone.sum()).astype(np.float32)))
    return replace(tree, proposals=tuple(lies))


@pytest.mark.parametrize("kind", DRAWN)
def test_draws_do_not_change_the_targets_distribution(
    kind: ProposalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All outcomes of the draws and of the verifier are enumerated. Negative control: q without the Markov head."""
    tables = random_tables(np.random.default_rng(1), VOCABULARY, 3)

    def draft(branches: Branches) -> list[TokenTree]:
        monkeypatch.setattr(drawing, "draw", lambda left, _: branches.choose(left))
        return [drawn(kind)]

    wanted = exact([tables], 2)
    np.testing.assert_allclose(joint(draft, [tables], 2), wanted, atol=1e-6)
    lying = joint(lambda branches: [without_the_path(tree) for tree in draft(branches)], [tables], 2)
    assert np.abs(lying - wanted).sum() > 0.05


@pytest.mark.parametrize("kind", DRAWN)
def test_the_q_that_is_sent_is_that_of_the_edge(kind: ProposalKind) -> None:
    levels, table = tables_of_edges()
    tree = drawn(kind)
    assert {len(tree.sequence_of(proposal.parent)) for proposal in tree.proposals} == {1, 2}
    for proposal in tree.proposals:
        *_, before = sequence = tree.sequence_of(proposal.parent)
        p = (levels[len(sequence) - 1][0] + table[before]).softmax(-1).numpy()[proposal.q_token_ids]
        np.testing.assert_allclose(proposal.q_probabilities, p / p.sum(), rtol=1e-5)
