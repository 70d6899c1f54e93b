"""Tokens chosen on the device, interpreted if there is no GPU, equal those chosen from whole rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from specinfer.model.gpu.choice import choose
from specinfer.model.sampling.choices import ChoiceTask
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.tree.shape import depths
from specinfer.verification.acceptance import RequestRandomness, Target, drawable, find_rule
from specinfer.verification.target import BrokenModelError, ChosenTarget, LogitsTarget
from tests.support.effort import effort
from tests.unit.model.gpu.passes import DEVICE

V = 300
CASES = [
    GREEDY,
    Sampling(temperature=0.8, seed=2**64 - 1),
    Sampling(temperature=1e-5, seed=5),
    Sampling(temperature=1.5, top_k=7, seed=1),
    Sampling(temperature=1.0, top_p=0.6, seed=2),
    Sampling(temperature=1.3, top_k=30, top_p=0.9, seed=3),
    Sampling(temperature=1.7, min_p=0.05, seed=4),
    Sampling(temperature=2.0, top_k=40, top_p=0.8, min_p=0.1, seed=5),
]


def rows(count: int, seed: int, size: int = V, scale: float = 3.0) -> torch.Tensor:
    """Return logits [count, size]; some are -infinity, some equal, and the last row is flat."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, size, generator=generator) * scale
    logits = (logits * 4).round() / 4  # some logits become equal
    logits[0, ::3] = -torch.inf
    logits[-1] = 0.25
    return logits


def task(logits: torch.Tensor, sampling: Sampling, start: int = 40, **lists: object) -> ChoiceTask:
    positions = np.arange(start, start + len(logits), dtype=np.int32)
    return ChoiceTask(logits.to(DEVICE), sampling, positions, **lists)  # type: ignore[arg-type]


def test_tokens_of_a_batch_are_those_of_the_reference() -> None:
    logits = [rows(4, seed) for seed in range(len(CASES))]
    tasks = [task(x, sampling, 100 * i) for i, (x, sampling) in enumerate(zip(logits, CASES, strict=True))]
    for token, choice_task, x in zip(choose(tasks), tasks, logits, strict=True):
        target = LogitsTarget(x, choice_task.sampling)
        noises = [Noise(choice_task.sampling.seed, position) for position in choice_task.positions.tolist()]
        pick: Callable[[int], int] = target.best if choice_task.sampling.greedy else _by_noise(target, noises)
        assert token.tokens == [pick(row) for row in range(len(x))]


def _by_noise(target: LogitsTarget, noises: list[Noise]) -> Callable[[int], int]:
    return lambda row: target.choose(row, noises[row])


def test_long_rows_are_joined_from_blocks() -> None:
    logits, sampling = rows(3, 1, size=5000), Sampling(temperature=0.9, seed=8)
    (choice,), (best,) = choose([task(logits, sampling)]), choose([task(logits, GREEDY)])
    target = LogitsTarget(logits, sampling)
    assert choice.tokens == [target.choose(row, Noise(8, 40 + row)) for row in range(3)]
    assert len({token // 2048 for token in choice.tokens}) > 1, "winners of several blocks"
    assert best.tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("sampling", CASES[1:])
def test_excerpts_have_the_probabilities_of_the_reference(sampling: Sampling) -> None:
    """The excerpt also has the sum of all other probabilities, and the token that wins among them."""
    logits = rows(4, 9)
    lists = {row: np.unique(np.random.default_rng(row).integers(0, V, 70)).astype(np.int32) for row in (0, 2)}
    (choice,) = choose([task(logits, sampling, excerpts=lists)])
    target = LogitsTarget(logits, sampling)
    assert sorted(choice.excerpts) == [0, 2]
    for row, ids in lists.items():
        p, excerpt = target.probabilities(row), choice.excerpts[row]
        np.testing.assert_allclose(excerpt[ids], p[ids], rtol=1e-5, atol=1e-12)
        assert excerpt.sum() == pytest.approx(1, abs=1e-12)
        noise = Noise(sampling.seed, 40 + row)
        assert noise.choose(excerpt) == noise.choose(p)
        excerpt[ids], p[ids] = 0.0, 0.0
        assert excerpt.sum() == pytest.approx(p.sum(), rel=1e-5, abs=1e-12)
        if p.sum() > 0:
            assert noise.choose(excerpt) == noise.choose(p)
        else:
            with pytest.raises(ValueError, match="no token has any probability"):
                noise.choose(excerpt)


def test_rows_that_are_not_finite_are_refused_and_no_others() -> None:
    logits = rows(5, 2)
    logits[1, 7], logits[2, 8], logits[3] = torch.nan, torch.inf, -torch.inf
    for sampling in (CASES[0], CASES[1], CASES[5]):
        (choice,) = choose([task(logits, sampling)])
        assert [token < 0 for token in choice.tokens] == [False, True, True, True, False]
        target = ChosenTarget(choice)
        for row in (1, 2, 3):
            with pytest.raises(BrokenModelError):
                target.best(row)
        assert target.best(4) >= 0


def random_tree(rng: np.random.Generator, logits: torch.Tensor) -> TokenTree:
    """Return a tree with points and draws of every kind, of probable tokens."""
    builder = TreeBuilder(int(rng.integers(V)))
    for node in range(len(logits)):
        if node >= len(builder):
            break
        likely = logits[node].topk(5).indices.numpy()
        for speculator in range(int(rng.integers(1, 3))):
            kind = list(ProposalKind)[int(rng.integers(3))]
            if len(builder) + 3 > len(logits):
                return builder.build()
            tokens = rng.choice(likely, 2, replace=False).tolist()
            if kind is ProposalKind.POINT:
                builder.propose_points(node, tokens, [0.4, 0.3])
                continue
            q = rng.dirichlet(np.full(len(likely), 0.5)).astype(np.float32) + np.float32(1e-4)
            order = np.argsort(likely, kind="stable") if speculator else slice(None)
            builder.propose_samples(node, kind, tokens, (likely[order].astype(np.int32), q / q.sum()))
    return builder.build()


@pytest.mark.parametrize(
    "rule",
    [*(pytest.param(name, marks=pytest.mark.thorough) for name in ("multi_step", "naive")), "traversal"],
)
def test_verdicts_on_trees_with_draws_are_those_from_whole_rows(rule: str) -> None:
    """The same random streams are used; P differs only in its last bits, which decide no verdict here."""
    rng, accepted, rejected = np.random.default_rng(3), 0, 0
    for number in range(effort(14, 28)):
        logits = rows(12, 50 + number, scale=1.5)
        sampling = CASES[1 + number % (len(CASES) - 1)]
        tree = random_tree(rng, logits)
        positions = 40 + depths(tree.parents)
        choice_task = ChoiceTask(logits[: len(tree)].to(DEVICE), sampling, positions, drawable(tree))
        randomness = RequestRandomness(sampling, 40)
        targets: list[Target] = [ChosenTarget(choose([choice_task])[0]), LogitsTarget(logits, sampling)]
        actual, expected = (find_rule(rule)(tree, target, randomness) for target in targets)
        assert actual == expected
        accepted += len(actual.accepted)
        rejected += not actual.accepted
    assert accepted > 3
    assert rejected > 3
