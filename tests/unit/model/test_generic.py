"""Families that only `transformers` supports run through the generic executor, with and without trees."""

import copy
from pathlib import Path

import pytest
import torch

from specinfer.errors import IncompatibleError
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from tests.support.tiny_models import GENERIC, reference_logits, tiny_generic
from tests.unit.model.test_families import PROMPTS, small_tree

OPTIONS = RunnerOptions(dtype="float32", kv_tokens=1024)


@pytest.mark.parametrize("family", GENERIC)
def test_context_then_tree_then_commit_equals_transformers(family: str) -> None:
    model = tiny_generic(family)
    runner = ModelRunner.wrap(copy.deepcopy(model), model.config, OPTIONS)
    sequences = [runner.open() for _ in PROMPTS]
    runner.forward([Segment(s, p[:-1][:5]) for s, p in zip(sequences, PROMPTS, strict=True)])
    trees = [small_tree(p[-1]) for p in PROMPTS]
    segments = [
        Segment(s, p[s.length :], t.token_ids[1:].tolist(), (t.parents[1:] - 1).tolist(), want_last=True)
        for s, p, t in zip(sequences, PROMPTS, trees, strict=True)
    ]
    for prompt, tree, logits in zip(PROMPTS, trees, runner.forward(segments), strict=True):
        for node in range(len(tree)):
            expected = reference_logits(model, [*prompt[:-1], *tree.sequence_of(node)])[-1]
            torch.testing.assert_close(logits[node], expected, rtol=1e-4, atol=1e-4)
    path = trees[0].path_to(trees[0].token_ids.tolist().index(23))
    runner.cache.commit(sequences[0], [node - 1 for node in path])
    (after,) = runner.forward([Segment(sequences[0], [40], want_last=True)])
    expected = reference_logits(model, [*PROMPTS[0], 20, 22, 23, 40])[-1]
    torch.testing.assert_close(after[0], expected, rtol=1e-4, atol=1e-4)


def test_a_model_without_the_attention_interface_is_refused() -> None:
    model = tiny_generic("falcon")
    with pytest.raises(IncompatibleError, match="model_type = 'falcon':"):
        ModelRunner.wrap(model, model.config, OPTIONS)


def test_an_unknown_family_is_loaded_generically_unless_another_executor_is_asked_for(tmp_path: Path) -> None:
    model = tiny_generic("gpt2")
    model.save_pretrained(tmp_path)
    runner = load_checked(tmp_path, OPTIONS)
    (logits,) = runner.forward([Segment(runner.open(), PROMPTS[0], want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, PROMPTS[0])[-1], rtol=1e-4, atol=1e-4)
    with pytest.raises(IncompatibleError, match="model_type = 'gpt2'"):
        load_checked(tmp_path, RunnerOptions(dtype="float32", executor="torch"))


@pytest.mark.parametrize(
    ("family", "unusual"),
    [
        ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),  # OPT-350M
        ("opt", {"word_embed_proj_dim": 16}),
        ("gpt_neox", {"hidden_act": "gelu_fast"}),
    ],
)
def test_an_unusual_model_of_a_known_family_is_loaded_generically(
    family: str, unusual: dict[str, object], tmp_path: Path
) -> None:
    model = tiny_generic(family, **unusual)
    model.save_pretrained(tmp_path)
    with pytest.raises(IncompatibleError, match=next(iter(unusual))):
        load_checked(tmp_path, RunnerOptions(dtype="float32", executor="torch"))
    runner = load_checked(tmp_path, OPTIONS)
    (logits,) = runner.forward([Segment(runner.open(), PROMPTS[0], want_last=True)])
    torch.testing.assert_close(logits[0], reference_logits(model, PROMPTS[0])[-1], rtol=1e-4, atol=1e-4)
