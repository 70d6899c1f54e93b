"""The SSM drafter against the logits of `transformers` for the same small model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.drafters.growth import shape_of
from specinfer.drafters.ssm import SsmDrafter, window_starts
from specinfer.drafters.vocabulary import drafted_tokens
from specinfer.errors import InvalidInputError, SettingError, SpecInferError
from specinfer.model.batch import Segment
from specinfer.model.drafting.task import GREEDY_SCORE_TEMPERATURE, GrowthShape
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits, check_tree
from specinfer.tree.shape import depths
from tests.chaos.model_directory import write_model
from tests.support.tiny_models import reference_logits, runner_of, tiny_transformers
from tests.support.trees import paths

MODEL = tiny_transformers("llama", seed=3)
CONTEXTS = [[5, 17, 3, 88], [41], [9, 60, 2, 71, 33, 34, 35, 90, 11, 7, 52, 19, 64, 23, 8, 1, 95]]


def make(shape: GrowthShape | None = None, window: int = 0, **options: Any) -> SsmDrafter:
    description = DrafterDescription("tiny", 97)
    return SsmDrafter(runner_of(MODEL, **options), description, shape or GrowthShape(), window=window)


def draft(drafter: SsmDrafter, jobs: list[DraftJob]) -> list[TokenTree]:
    trees = drafter.draft(jobs)
    drafter._runner.cache.check()
    for tree, job in zip(trees, jobs, strict=True):
        assert isinstance(tree, TokenTree), tree
        check_tree(tree, 97, job.limits.nodes + 1)
    return trees  # type: ignore[return-value]


def jobs_for(limits: TreeLimits, sampling: Sampling = GREEDY) -> list[DraftJob]:
    return [DraftJob(f"r{i}", list(c), limits, sampling) for i, c in enumerate(CONTEXTS)]


def top(context: list[int], k: int, temperature: float = 1.0) -> list[tuple[int, float]]:
    p = (reference_logits(MODEL, context)[-1] / temperature).softmax(-1)
    values, ids = p.topk(k)
    return list(zip(ids.tolist(), values.tolist(), strict=True))


def test_an_expansion_vector_expands_the_top_tokens_of_every_leaf() -> None:
    drafter = make(GrowthShape(ExpansionVector((2, 1, 3))))
    for tree, context in zip(draft(drafter, jobs_for(TreeLimits(50, 8))), CONTEXTS, strict=True):
        root = context[-1]
        expected = {(root,)}
        for a, _ in top(context, 2):
            ((b, _),) = top([*context, a], 1)
            expected |= {(root, a), (root, a, b)} | {(root, a, b, c) for c, _ in top([*context, a, b], 3)}
        assert paths(tree) == expected


def test_sequence_is_the_models_own_greedy_continuation() -> None:
    trees = draft(make(), jobs_for(TreeLimits(4, 4, width=1)))
    for tree, context in zip(trees, CONTEXTS, strict=True):
        tokens = list(context)
        for _ in range(4):
            tokens.append(top(tokens, 1)[0][0])
        assert tree.sequence_of(len(tree) - 1) == tuple(tokens[len(context) - 1 :])


def test_best_first_keeps_the_most_probable_paths_of_the_whole_tree() -> None:
    """With a beam as wide as the budget, best-first growth is exact: compared with all paths of depth 3.

    For a greedy target, scores use a lower temperature than the draft's distribution.
    """
    budget = 6
    shape = GrowthShape(beam=budget)
    for tree, context in zip(draft(make(shape), jobs_for(TreeLimits(budget, 3))), CONTEXTS, strict=True):
        reach = {(): 1.0}
        for _ in range(3):
            for path, p in list(reach.items()):
                if len(path) == max(map(len, reach)):
                    for token, q in top([*context, *path], budget, GREEDY_SCORE_TEMPERATURE):
                        reach[(*path, token)] = p * q
        best = sorted((path for path in reach if path), key=lambda path: -reach[path])[:budget]
        assert paths(tree) == {(context[-1],)} | {(context[-1], *path) for path in best}


def test_best_first_trees_are_cut_at_a_depth_and_chains_are_not() -> None:
    """A tree with a maximum depth equals one for which only that depth was requested."""
    cut, whole = make(GrowthShape(deepest=1)), make(GrowthShape())
    actual, expected = draft(cut, jobs_for(TreeLimits(90, 5))), draft(whole, jobs_for(TreeLimits(90, 1)))
    deep = draft(make(GrowthShape()), jobs_for(TreeLimits(90, 5)))
    assert [paths(tree) for tree in actual] == [paths(tree) for tree in expected]
    assert [paths(tree) for tree in actual] != [paths(tree) for tree in deep]
    for chain in draft(cut, jobs_for(TreeLimits(5, 5, width=1))):
        assert len(chain) == 6


@pytest.mark.parametrize(("of_all", "of_request"), [(0.02, 0.0), (0.0, 0.02), (0.02, 0.01)])
def test_best_first_trees_are_not_grown_below_improbable_paths(of_all: float, of_request: float) -> None:
    """The limit may be set for all requests or for one; the other nodes of the tree stay the same. Chains ignore it."""
    least = max(of_all, of_request)
    jobs = jobs_for(TreeLimits(90, 4, min_path_probability=of_request))
    trees = draft(make(GrowthShape(min_path_probability=of_all)), jobs)
    whole = draft(make(), jobs_for(TreeLimits(90, 4)))
    shortened = 0
    for tree, other in zip(trees, whole, strict=True):
        reach = reach_of(tree)
        assert all(reach[parent] >= least for parent in tree.parents[1:])
        shared = dict(zip(map(other.sequence_of, range(len(other))), reach_of(other), strict=True))
        followed = {path for path, p in shared.items() if len(path) == 1 or shared[path[:-1]] >= least}
        assert followed <= paths(tree)
        shortened += len(followed) < len(shared)
    assert shortened
    for chain in draft(make(GrowthShape(min_path_probability=0.9)), jobs_for(TreeLimits(5, 5, 1, 0.9))):
        assert len(chain) == 6


def test_levels_without_probable_paths_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make(GrowthShape(min_path_probability=0.9))
    passes = passes_of(drafter, monkeypatch)
    draft(drafter, jobs_for(TreeLimits(20, 5)))
    assert len(passes) == 1, "the context, and no level: no first token is so probable"


def passes_of(drafter: SsmDrafter, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record, for each later pass, the number of context tokens that it reads of each request."""
    passes: list[list[int]] = []
    forward = drafter._runner.forward

    def recording(segments: Any) -> Any:
        passes.append([len(segment.delta) for segment in segments])
        return forward(segments)

    monkeypatch.setattr(drafter._runner, "forward", recording)
    return passes


def reach_of(tree: TokenTree) -> list[float]:
    """Return each node's path probability by the draft."""
    reach = [1.0]
    for parent, score in zip(tree.parents[1:].tolist(), tree.scores[1:].tolist(), strict=True):
        reach.append(reach[parent] * score)
    return reach


def test_a_context_that_grows_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = make()
    context = list(CONTEXTS[0])
    passes = passes_of(drafter, monkeypatch)
    limits = TreeLimits(3, 2, width=1)
    first = draft(drafter, [DraftJob("r", context, limits, GREEDY)])[0]
    context += [first.token_ids[1], 12, 13]
    again = draft(drafter, [DraftJob("r", context, limits, GREEDY)])[0]
    fresh = draft(make(), [DraftJob("r", context, limits, GREEDY)])[0]
    assert [sum(read) for read in passes if sum(read)] == [4, 3]
    assert paths(again) == paths(fresh)


def test_a_common_prefix_of_prompts_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks are shared, even after the first request has ended; drafts equal those of a fresh cache."""
    drafter, shared = make(kv_tokens=256), [(7 * i) % 97 for i in range(37)]
    passes = passes_of(drafter, monkeypatch)
    limits = TreeLimits(6, 3)
    draft(drafter, [DraftJob("first", [*shared, 5], limits, GREEDY)])
    drafter.release("first")
    jobs = [DraftJob(f"r{end}", [*shared, end], limits, GREEDY) for end in (8, 9)]
    jobs.append(DraftJob("short", shared[:32], limits, GREEDY))
    again, fresh = draft(drafter, jobs), draft(make(), jobs)
    assert [n for read in passes for n in read if n] == [38, 6, 6, 16], "the last token is read in any case"
    assert [paths(tree) for tree in again] == [paths(tree) for tree in fresh]


def test_a_drafter_that_lacks_much_context_reads_it_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """This drafter may lack a long prompt that the service has read for another drafter."""
    drafter, limits = make(), TreeLimits(3, 2)
    (whole,) = draft(make(), jobs_for(limits)[2:])
    monkeypatch.setattr("specinfer.drafters.ssm._CATCH_UP", 6)
    job = DraftJob("r", CONTEXTS[2], limits, GREEDY)
    sizes = [len(draft(drafter, [job])[0]) for _ in range(2)]
    assert sizes == [1, 1], "12 of 17 tokens are read, nothing is drafted"
    (tree,) = draft(drafter, [job])
    assert paths(tree) == paths(whole)


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models of few positions have windows."""
    monkeypatch.setattr("specinfer.drafters.ssm._CATCH_UP", 32)


LONG = [(7 * i + i // 5) % 97 for i in range(61)]
WINDOWED = 48
"""First position that a window of 12 tokens reads of `LONG`."""


@pytest.mark.usefixtures("small_reads")
def test_a_window_reads_the_end_of_a_long_prompt_and_then_all_new_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter, limits, context = make(window=12), TreeLimits(6, 3), list(LONG)
    passes = passes_of(drafter, monkeypatch)
    for _ in range(3):
        (tree,) = draft(drafter, [DraftJob("r", context, limits, GREEDY)])
        (expected,) = draft(make(), [DraftJob("r", context[WINDOWED:], limits, GREEDY)])
        assert paths(tree) == paths(expected)
        context += [5, 9]
    assert [sum(read) for read in passes if sum(read)] == [len(LONG) - WINDOWED, 2, 2]
    (short,) = draft(drafter, [DraftJob("short", LONG[:12], limits, GREEDY)])
    assert paths(short) == paths(draft(make(), [DraftJob("short", LONG[:12], limits, GREEDY)])[0])


@pytest.mark.usefixtures("small_reads")
def test_a_windowed_context_that_fills_the_model_starts_again() -> None:
    drafter = make(window=12)
    assert drafter.description.max_context_len == 0
    last, context = drafter._runner.config.max_positions, list(LONG)
    while len(context) < 2 * last:
        (tree,) = draft(drafter, [DraftJob("r", context, TreeLimits(2, 2), GREEDY)])
        assert len(tree) == 3
        assert drafter._read["r"].sequence.length < last
        context += LONG[:9]


@pytest.mark.usefixtures("small_reads")
def test_noise_and_draws_of_a_windowed_context_follow_its_whole_positions() -> None:
    """The same text gets other random numbers at other positions, and the same distribution."""
    sampled = Sampling(temperature=1.0, seed=4)
    (tree,) = draft(make(window=12), [DraftJob("r", LONG, TreeLimits(1, 1), sampled)])
    p = probabilities(reference_logits(MODEL, LONG[WINDOWED:])[-1], sampled)
    assert int(tree.token_ids[1]) == Noise(sampled.seed, len(LONG)).choose(p)
    shape = GrowthShape(kind=ProposalKind.WITHOUT_REPLACEMENT, q_support=4)
    jobs = [DraftJob("r", text, TreeLimits(1, 1), sampled, draw_seed=3) for text in (LONG, LONG[WINDOWED:])]
    (long,), (short,) = draft(make(shape, window=12), jobs[:1]), draft(make(shape), jobs[1:])
    assert str(long.proposals[0].q_probabilities) == str(short.proposals[0].q_probabilities)


@pytest.mark.parametrize(("length", "window"), [(5, 0), (12, 12), (13, 12), (61, 12), (4000, 512), (9, 1)])
def test_a_window_starts_where_it_leaves_its_tokens_and_at_most_half_as_many_more(
    length: int, window: int
) -> None:
    starts = window_starts(length, window)
    assert list(starts) == sorted(set(starts))
    assert starts[0] == 0
    if window:
        assert min(length, window) <= length - starts[-1] <= window + window // 2


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_nothing_is_grown_below_the_least_likely_node_of_a_full_tree(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    drafter = make(GrowthShape(beam=1))
    passes = passes_of(drafter, monkeypatch)
    (tree,) = draft(drafter, [DraftJob("r", CONTEXTS[2], TreeLimits(nodes, 9), GREEDY)])
    assert len(tree) == nodes + 1
    deepest = int(max(depths(tree.parents)))
    assert len(passes) <= nodes, "a level adds a node at least"
    assert nodes > 1 or (deepest, len(passes)) == (1, 1)


def test_a_whole_model_drafts_its_most_frequent_tokens_and_those_that_end_answers(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    assert drafted_tokens(directory, 0) == drafted_tokens(directory, 90) == ()
    assert drafted_tokens(directory, 20) == tuple(range(20))
    content = json.loads((directory / "tokenizer.json").read_text())
    name = next(name for name, index in content["model"]["vocab"].items() if index == 70)
    special = {"id": 70, "content": name, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content["added_tokens"].append(special | flags)
    (directory / "tokenizer.json").write_text(json.dumps(content))
    assert drafted_tokens(directory, 20) == (*range(19), 70)


def test_a_model_of_transformers_drafts_all_its_tokens(tmp_path: Path) -> None:
    options = {"model": str(write_model(tmp_path / "model")), "dtype": "float32", "executor": "generic"}
    drafter = SsmDrafter.from_options(DrafterOptions.read({**options, "weights": "f32", "vocabulary": "20"}))
    whole = SsmDrafter.from_options(DrafterOptions.read({**options, "weights": "f32", "vocabulary": "0"}))
    jobs = jobs_for(TreeLimits(9, 4))
    for actual, expected in zip(draft(drafter, jobs), draft(whole, jobs), strict=True):
        assert actual.token_ids.tolist() == expected.token_ids.tolist()
        assert max(expected.token_ids[1:]) >= 20, "tokens that a trimmed head lacks"


def test_a_trimmed_model_drafts_as_the_whole_one_restricted_to_its_tokens(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model")
    kept = drafted_tokens(directory, 20)
    options = {"model": str(directory), "dtype": "float32", "executor": "torch", "weights": "f32"}
    drafter = SsmDrafter.from_options(DrafterOptions.read({**options, "vocabulary": "20"}))
    assert drafter.description.vocab_size == 97, "contexts may have any token"
    whole = SsmDrafter.from_options(DrafterOptions.read({**options, "vocabulary": "0"}))
    for tree, context in zip(draft(drafter, jobs_for(TreeLimits(9, 4))), CONTEXTS, strict=True):
        sequence = whole._runner.open()
        (logits,) = whole._runner.forward([Segment(sequence, context, want_last=True)])
        expected = (logits[0, : len(kept)] / GREEDY_SCORE_TEMPERATURE).softmax(-1)
        (first,) = [p for p in tree.proposals if p.parent == 0]
        tokens = [int(tree.token_ids[child]) for child in first.children]
        assert set(tree.token_ids[1:].tolist()) <= set(kept)
        assert tokens == expected.topk(len(tokens)).indices.tolist()
        scores = [float(tree.scores[child]) for child in first.children]
        np.testing.assert_allclose(scores, expected[tokens], rtol=1e-4)


@pytest.mark.parametrize("kind", [ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT])
def test_sampled_trees_carry_the_distribution_they_were_drawn_from(kind: ProposalKind) -> None:
    sampling = Sampling(temperature=0.7, seed=5)
    shape = GrowthShape(kind=kind, q_support=10)
    trees = draft(make(shape), jobs_for(TreeLimits(8, 3), sampling))
    for tree, context in zip(trees, CONTEXTS, strict=True):
        assert len(tree) > 3
        for proposal in tree.proposals:
            assert proposal.kind is kind
            path = [*context[:-1], *tree.sequence_of(proposal.parent)]
            p = (reference_logits(MODEL, path)[-1] / 0.7).softmax(-1)
            expected = p[torch.from_numpy(proposal.q_token_ids).long()]
            assert proposal.q_token_ids.tolist() == p.topk(10).indices.tolist()
            torch.testing.assert_close(
                torch.from_numpy(proposal.q_probabilities), expected / expected.sum(), rtol=1e-3, atol=1e-5
            )


def test_points_of_sampled_requests_are_chosen_by_noise() -> None:
    """The tokens that the draft itself would choose at these positions with the request's noise."""
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=5)
    drafter = make(shape_of(DrafterOptions(proposal="point")))
    chains = draft(drafter, jobs_for(TreeLimits(5, 5, width=1), sampling))
    trees = draft(make(shape_of(DrafterOptions(proposal="point"))), jobs_for(TreeLimits(8, 5), sampling))
    for chain, tree, context in zip(chains, trees, CONTEXTS, strict=True):
        path = list(context)
        for _ in range(5):
            p = probabilities(reference_logits(MODEL, path)[-1], sampling)
            path.append(Noise(sampling.seed, len(path)).choose(p))
        assert chain.sequence_of(5) == tuple(path[len(context) - 1 :])
        assert {p.kind for p in (*chain.proposals, *tree.proposals)} == {ProposalKind.POINT}
        assert path[len(context)] in tree.token_ids.tolist()


def test_points_of_requests_whose_noise_is_hidden_are_the_most_probable_tokens() -> None:
    """The tokens do not depend on seeds; their scores are the softmax at the request's temperature."""
    trees = []
    for seed in (1, 2):
        sampling = Sampling(temperature=0.7, seed=seed)
        job = DraftJob("r", CONTEXTS[0], TreeLimits(3, 1), sampling, draw_seed=seed, sees_noise=False)
        trees += draft(make(GrowthShape()), [job])
    p = probabilities(reference_logits(MODEL, list(CONTEXTS[0]))[-1], Sampling(temperature=0.7))
    best = np.argsort(-p)[:3]
    for tree in trees:
        assert tree.token_ids[1:].tolist() == best.tolist()
        np.testing.assert_allclose(tree.scores[1:], p[best], rtol=1e-4)
        assert {proposal.kind for proposal in tree.proposals} == {ProposalKind.POINT}


@pytest.mark.parametrize("temperature", [0.4, 1.0])
def test_stochastic_requests_get_points_unless_draws_are_asked_for(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=5)
    for options, kind in (
        (DrafterOptions(), ProposalKind.POINT),
        (DrafterOptions(proposal="without_replacement"), ProposalKind.WITHOUT_REPLACEMENT),
        (DrafterOptions(proposal="with_replacement"), ProposalKind.WITH_REPLACEMENT),
    ):
        (tree, *_) = draft(make(shape_of(options)), jobs_for(TreeLimits(8, 3), sampling))
        assert {p.kind for p in tree.proposals} == {kind}
        assert make(shape_of(options)).description.draws == (kind is not ProposalKind.POINT)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(("context", "window"), [(CONTEXTS[0], 0), (LONG, 12)])
def test_draws_follow_q_and_differ_between_positions_and_seeds(context: list[int], window: int) -> None:
    """Chi-square test of the first draws with 400 seeds against q; probability of a false alarm 1e-4."""
    from scipy import stats

    drafter = make(GrowthShape(kind=ProposalKind.WITHOUT_REPLACEMENT, q_support=4), window)
    limits = TreeLimits(1, 1)
    trees = []
    for seed in range(400):
        trees += draft(drafter, [DraftJob("r", context, limits, Sampling(seed=1), draw_seed=seed)])
        drafter.release("r")
    q = trees[0].proposals[0]
    counts = [sum(int(t.token_ids[1]) == token for t in trees) for token in q.q_token_ids.tolist()]
    expected = q.q_probabilities.astype(np.float64) * 400
    assert stats.chisquare(counts, expected * (400 / expected.sum())).pvalue > 1e-4


def test_a_full_cache_costs_one_request_its_draft() -> None:
    drafter = make(kv_tokens=64)
    big = DraftJob("big", [3] * 60, TreeLimits(8, 4), GREEDY)
    small = DraftJob("small", [3, 4], TreeLimits(2, 2), GREEDY)
    refused, served = drafter.draft([big, small])
    assert isinstance(refused, SpecInferError)
    assert isinstance(served, TokenTree)
    assert len(served) == 3
    drafter.release("small")
    drafter._runner.cache.check()


def test_bad_options_are_named() -> None:
    with pytest.raises(SettingError, match="proposal = 'sometimes'"):
        shape_of(DrafterOptions(proposal="sometimes"))
    with pytest.raises(InvalidInputError, match="expansion = '2,x'"):
        shape_of(DrafterOptions(expansion="2,x"))


def test_requests_of_different_scopes_share_no_prompt() -> None:
    """Otherwise a caller could detect other callers' prompts by the time to the first token."""
    drafter = make()
    engine, prompt = SpeculatorEngine([drafter]), [3 + place % 90 for place in range(40)]

    def shared(name: str, scope: str) -> int:
        before = drafter._runner.cache.pool.shared_tokens
        engine.draft([DraftEntry(name, 0, prompt, TreeLimits(2, 2), GREEDY, cache_scope=scope)])
        return drafter._runner.cache.pool.shared_tokens - before

    assert [shared("a", "alice"), shared("b", "bob"), shared("c", "alice"), shared("d", "")] == [0, 0, 32, 0]
