"""Heads give the logits of the published modules; their trees have the most probable paths, or exact draws."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from specinfer.drafters.checkpoint import load_draft
from specinfer.drafters.heads import HeadsRunner
from specinfer.drafters.heads_layers import (
    BlockwiseSource,
    HeadsSource,
    MedusaSource,
    save_heads,
)
from specinfer.errors import IncompatibleError, SettingError
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.drafting.expansion import ReferenceGrowth
from specinfer.model.drafting.levels import grow_levels
from specinfer.model.drafting.task import GREEDY_SCORE_TEMPERATURE, GrowthShape, GrowthTask
from specinfer.model.options import RunnerOptions
from specinfer.model.sampling import drawing
from specinfer.model.weights.config_files import from_transformers
from specinfer.model.weights.families import open_weights
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits, check_tree
from tests.support.exactness.enumeration import Branches, exact, joint, random_tables
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.support.trees import paths

K, HIDDEN = 3, 32
TORCH = RunnerOptions(dtype="float32", executor="torch")
DRAWN = [ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT]


class ResBlock(nn.Module):
    """The block as the authors of Medusa publish it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.silu(self.linear(x))


def published(vocabulary: int = 97) -> nn.ModuleList:
    torch.manual_seed(3)
    heads = (nn.Sequential(ResBlock(), nn.Linear(HIDDEN, vocabulary, bias=False)) for _ in range(K))
    return nn.ModuleList(heads)


def random_heads(kind: type[HeadsSource], token_ids: torch.Tensor) -> HeadsSource:
    if kind is MedusaSource:
        tensors = {name: 3 * tensor for name, tensor in published(len(token_ids)).state_dict().items()}
    else:
        torch.manual_seed(3)
        layers = {"in_proj": nn.Linear(HIDDEN, K * HIDDEN), "out_proj": nn.Linear(K * HIDDEN, K * HIDDEN)}
        tensors = nn.ModuleDict(layers).state_dict()
    return kind({name: t.detach().to(torch.bfloat16) for name, t in tensors.items()}, token_ids, K)


def logits_of(runner: HeadsRunner, states: torch.Tensor) -> list[torch.Tensor]:
    with torch.inference_mode():
        return runner._heads.logits(runner._heads.outs(states).unbind(1))


def runner_for(source: HeadsSource, model: Any) -> HeadsRunner:
    return HeadsRunner.build(source, from_transformers(model.config), model.state_dict(), TORCH)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_published_heads_load_and_give_the_logits_of_their_modules(family: str, tmp_path: Path) -> None:
    """The authors' own tensor names, the whole vocabulary, no fingerprint; input is the output of the final norm."""
    model, heads = tiny_transformers(family), published()
    model.save_pretrained(tmp_path / "target")
    draft = tmp_path / "heads"
    draft.mkdir()
    save_file(heads.state_dict(), draft / "model.safetensors")
    verifier = {"name_or_path": "org/model", "architectures": []}
    config = {"num_heads": K, "speculators_config": {"algorithm": "medusa", "verifier": verifier}}
    (draft / "config.json").write_text(json.dumps({"speculators_model_type": "medusa"} | config))
    source = load_draft(draft, tmp_path / "target")
    assert isinstance(source, MedusaSource)
    assert source.token_ids.tolist() == list(range(97))
    states = torch.randn(5, HIDDEN)
    final_norm = model.model.norm if family == "llama" else model.gpt_neox.final_layer_norm
    target_config = from_transformers(model.config)
    runner = HeadsRunner.build(source, target_config, open_weights(tmp_path / "target", target_config), TORCH)
    for actual, head in zip(logits_of(runner, states), heads, strict=True):
        torch.testing.assert_close(actual, head(final_norm(states)).detach(), atol=1e-4, rtol=1e-4)


def test_blockwise_heads_that_add_nothing_give_the_targets_logits() -> None:
    """Their feature is the target's last hidden state before the norm, and their head the target's rows.

    The second head adds a bias, so its logits differ.
    """
    model, token_ids = tiny_transformers("llama-untied"), torch.arange(3, 90, 2)
    source = random_heads(BlockwiseSource, token_ids)
    silent = {n: t * 0 if n.startswith("out_proj") else t for n, t in source.tensors.items()}
    silent["out_proj.bias"][HIDDEN : 2 * HIDDEN] = 1.0
    target = runner_of(model)
    segment = Segment(target.open(), [5, 9, 11, 30], want_last=True)
    (logits,), (states,) = target.forward_with_features([segment], [3])
    heads = runner_for(BlockwiseSource(silent, token_ids, K), model)
    first, second, third = logits_of(heads, states[-1:, 0].float())
    torch.testing.assert_close(first, logits[-1:, token_ids], atol=0.05, rtol=0.05)
    assert torch.equal(first, third)
    assert float((second - first).abs().max()) > 0.5


@pytest.mark.parametrize("kind", [MedusaSource, BlockwiseSource])
def test_checkpoints_are_read_as_they_were_written(kind: type[HeadsSource], tmp_path: Path) -> None:
    target, token_ids = tmp_path / "target", torch.tensor([3, 5, 8, 90])
    tiny_transformers("llama").save_pretrained(target)
    source = random_heads(kind, token_ids)
    save_heads(tmp_path / "h", source, target, "tiny", {"seed": 1})
    stored = load_file(tmp_path / "h" / "model.safetensors")
    assert set(stored) == {*source.tensors, "d2t", "t2d"}
    heads = load_draft(tmp_path / "h", target)
    assert type(heads) is kind
    assert heads.count == K
    assert heads.token_ids.tolist() == token_ids.tolist()
    assert all(torch.equal(heads.tensors[name], tensor) for name, tensor in source.tensors.items())
    config = json.loads((tmp_path / "h" / "config.json").read_text())
    assert config["trained"] == {"seed": 1}
    (tmp_path / "h" / "config.json").write_text(json.dumps(config | {"num_heads": "many"}))
    with pytest.raises(IncompatibleError, match="num_heads = "):
        load_draft(tmp_path / "h", target)
    (tmp_path / "h" / "config.json").write_text(json.dumps(config))
    for tokens in ([3, 5, 8, 97], [-1, 5, 8, 90]):
        moved = torch.tensor(tokens) - torch.arange(4)
        save_file(stored | {"d2t": moved}, tmp_path / "h" / "model.safetensors")
        with pytest.raises(IncompatibleError, match="h: d2t must give distinct target tokens below 97"):
            load_draft(tmp_path / "h", target)


def test_what_cannot_run_heads_is_refused() -> None:
    model, source = tiny_transformers("llama"), random_heads(MedusaSource, torch.arange(40))
    for name, value, reason in (("executor", "native", "must be torch"), ("weights", "q8_0", "unquantised")):
        options = replace(RunnerOptions(), **{name: value})  # type: ignore[arg-type]
        with pytest.raises(SettingError, match=f"{name} = '{value}': .*{reason}"):
            HeadsRunner.build(source, from_transformers(model.config), model.state_dict(), options)
    with pytest.raises(IncompatibleError, match=r"lack 3\.0\.linear\.weight"):
        runner_for(replace(source, count=4), model)


def levels_of(seed: int, vocabulary: int = 40, spread: float = 3.0) -> list[torch.Tensor]:
    """Return logits of three depths."""
    return list(torch.randn(K, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread)


def task_of(limits: TreeLimits, sampling: Sampling = GREEDY) -> GrowthTask:
    return GrowthTask(KVSequence(), [7], limits, sampling, offset=11)


def test_the_tree_has_the_most_probable_paths_of_all() -> None:
    """Compared with every path of three levels."""
    levels, token_ids = levels_of(0, 12), torch.arange(20, 32)
    p = [(rows / GREEDY_SCORE_TEMPERATURE).softmax(-1).tolist() for rows in levels]
    reach = {
        path: float(np.prod([p[d][t] for d, t in enumerate(path)]))
        for depth in (1, 2, 3)
        for path in product(range(12), repeat=depth)
    }
    for nodes in (1, 5, 16, 40):
        tree = grow_levels(task_of(TreeLimits(nodes, 5)), levels, GrowthShape(), token_ids)
        check_tree(tree, 97, nodes + 1)
        best = sorted(reach, key=lambda path: -reach[path])[:nodes]
        assert paths(tree) == {(7,)} | {(7, *(20 + t for t in path)) for path in best}


def scores_by_path(tree: TokenTree) -> dict[tuple[int, ...], float]:
    return {tree.sequence_of(node): float(tree.scores[node]) for node in range(len(tree))}


SAMPLED = Sampling(temperature=0.8, seed=5)


@pytest.mark.parametrize(
    ("shape", "limits", "sampling"),
    [
        (GrowthShape(beam=16), TreeLimits(16, 3), GREEDY),
        (GrowthShape(beam=16), TreeLimits(16, 3), SAMPLED),
        (GrowthShape(beam=16, min_path_probability=0.1), TreeLimits(16, 3), GREEDY),
        (GrowthShape(), TreeLimits(3, 3, width=1), SAMPLED),
        (GrowthShape(ExpansionVector((2, 3))), TreeLimits(9, 3), GREEDY),
    ],
)
def test_points_are_those_of_the_reference_with_a_beam_as_wide_as_the_budget(
    shape: GrowthShape, limits: TreeLimits, sampling: Sampling
) -> None:
    levels, token_ids = levels_of(1), torch.arange(40)
    left = iter(levels)

    def forward(segments: Sequence[Segment]) -> list[torch.Tensor]:
        rows = next(left)
        return [rows.repeat(max(1, len(segment.nodes)), 1) for segment in segments]

    (expected,) = ReferenceGrowth(forward, shape, token_ids).grow([task_of(limits, sampling)])
    tree = grow_levels(task_of(limits, sampling), levels, shape, token_ids)
    assert scores_by_path(tree) == pytest.approx(scores_by_path(expected), rel=1e-4)
    assert len(expected) > 3


def test_no_tree_is_deeper_than_there_are_heads() -> None:
    tree = grow_levels(task_of(TreeLimits(8, 8, width=1)), levels_of(1), GrowthShape(), torch.arange(40))
    assert len(tree) == 1 + K
    tree = grow_levels(task_of(TreeLimits(0, 8)), levels_of(1), GrowthShape(), torch.arange(40))
    assert len(tree) == 1


DRAWING = Sampling(temperature=1.0, seed=0)
VOCABULARY, BUDGET = 3, 3


def drawn_tree(levels: list[torch.Tensor], kind: ProposalKind, seed: int) -> TokenTree:
    task = task_of(TreeLimits(BUDGET, 2), replace(DRAWING, seed=seed))
    shape = GrowthShape(kind=kind, q_support=2)  # one token is never drawn
    return grow_levels(task, levels[:2], shape, torch.arange(VOCABULARY))


def overstated(tree: TokenTree) -> TokenTree:
    """Return a tree with false proposal distributions."""
    lies = [p._replace(q_probabilities=np.full_like(p.q_probabilities, 0.5)) for p in tree.proposals]
    return replace(tree, proposals=tuple(lies))


@pytest.mark.parametrize("kind", DRAWN)
def test_draws_do_not_change_the_targets_distribution(
    kind: ProposalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All outcomes of the draws and of the verifier are enumerated. Negative control: a false q."""
    levels, tables = levels_of(4, VOCABULARY, 1.0), random_tables(np.random.default_rng(1), VOCABULARY, 3)

    def draft(branches: Branches) -> list[TokenTree]:
        monkeypatch.setattr(drawing, "draw", lambda left, _: branches.choose(left))
        return [drawn_tree(levels, kind, 0)]

    wanted = exact([tables], 2)
    np.testing.assert_allclose(joint(draft, [tables], 2), wanted, atol=1e-6)
    lying = joint(lambda branches: [overstated(tree) for tree in draft(branches)], [tables], 2)
    assert np.abs(lying - wanted).sum() > 0.05
