"""Logits equal `transformers`' in float32, for contexts and trees, in ragged batches."""

import pytest
import torch

from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.tree import TokenTree, TreeBuilder
from tests.support.tiny_models import FAMILIES, SPECIAL, reference_logits, runner_of, tiny_transformers

PROMPTS = [
    [5, 17, 3, 88, 41, 9, 60],
    [2, 71],
    [33, 34, 35, 90, 11, 7, 7, 52, 19, 64, 23, 8, 1, 95, 14, 77, 31, 4],
]


def small_tree(root: int) -> TokenTree:
    """root-+-20-+-21
    |    +-22-23
    +-24"""
    builder = TreeBuilder(root)
    first, _ = builder.propose_points(0, [20, 24], [0.5, 0.4])
    _, second = builder.propose_points(first, [21, 22], [0.5, 0.4])
    builder.propose_points(second, [23], [0.5])
    return builder.build()


@pytest.mark.parametrize(
    ("executor", "head_dim"), [("torch", 8), *(("native", d) for d in (16, 64, 96, 128))]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_context_in_chunks_then_tree_equals_transformers(family: str, executor: str, head_dim: int) -> None:
    model = tiny_transformers(family, head_dim=head_dim)
    runner = runner_of(model, executor=executor)
    sequences = [runner.open() for _ in PROMPTS]
    runner.forward([Segment(s, p[:-1][:9]) for s, p in zip(sequences, PROMPTS, strict=True)])
    segments, trees = [], []
    for sequence, prompt in zip(sequences, PROMPTS, strict=True):
        tree = small_tree(prompt[-1])
        trees.append(tree)
        segments.append(
            Segment(
                sequence,
                prompt[sequence.length :],
                tree.token_ids[1:].tolist(),
                (tree.parents[1:] - 1).tolist(),
                want_last=True,
            )
        )
    for prompt, tree, logits in zip(PROMPTS, trees, runner.forward(segments), strict=True):
        for node in range(len(tree)):
            expected = reference_logits(model, [*prompt[:-1], *tree.sequence_of(node)])[-1]
            torch.testing.assert_close(logits[node], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox", *SPECIAL])
def test_committed_path_continues_like_the_same_context(family: str) -> None:
    model = tiny_transformers(family)
    runner = runner_of(model)
    sequence = runner.open()
    tree = small_tree(PROMPTS[0][-1])
    nodes, parents = tree.token_ids[1:].tolist(), (tree.parents[1:] - 1).tolist()
    runner.forward([Segment(sequence, PROMPTS[0], nodes, parents, want_last=True)])
    path = tree.path_to(tree.token_ids.tolist().index(23))
    runner.cache.commit(sequence, [node - 1 for node in path])
    runner.cache.check()
    (logits,) = runner.forward([Segment(sequence, [40], want_last=True)])
    expected = reference_logits(model, [*PROMPTS[0], 20, 22, 23, 40])[-1]
    torch.testing.assert_close(logits[0], expected, rtol=1e-4, atol=1e-4)


def test_tree_grown_level_by_level_equals_tree_scored_at_once() -> None:
    model = tiny_transformers("qwen3")
    runner = runner_of(model)
    at_once, stepwise = runner.open(), runner.open()
    (whole,) = runner.forward([Segment(at_once, [5, 6], [20, 24, 21, 22], [-1, -1, 0, 0], want_last=True)])
    (first,) = runner.forward([Segment(stepwise, [5, 6], [20, 24], [-1, -1], want_last=True)])
    (second,) = runner.forward([Segment(stepwise, (), [21, 22], [0, 0])])
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "old_names"),
    [
        ("opt", {"model.decoder.": "decoder."}),
        ("gpt_neox", {"lm_head.": "embed_out."}),
    ],
)
def test_checkpoints_with_old_names_are_read(family: str, old_names: dict[str, str]) -> None:
    """Old names of checkpoints on the hub; those files contain buffers, too."""
    model = tiny_transformers(family)
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for new, old in old_names.items():
        assert any(name.startswith(new) for name in weights)
        weights = {name.replace(new, old): tensor for name, tensor in weights.items()}
    weights["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    runner = ModelRunner.build(
        from_transformers(model.config), weights, RunnerOptions(dtype="float32", executor="torch")
    )
    (logits,) = runner.forward([Segment(runner.open(), PROMPTS[0], want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, PROMPTS[0])[-1], rtol=1e-4, atol=1e-4)
