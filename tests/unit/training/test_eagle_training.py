"""`specinfer train eagle`: states and labels of the target, training examples, and a checkpoint that drafts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specinfer.drafters import DrafterOptions, DraftJob, Features
from specinfer.drafters.eagle import EagleDrafter
from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.request.sampling import GREEDY
from specinfer.training import features as thinking
from specinfer.training.corpus import Continuation, Labels, write_continuations
from specinfer.training.distil import DistilOptions
from specinfer.training.eagle_student import UnrolledExamples, accepted_by_chains
from specinfer.training.feature_training import options_for
from specinfer.training.features import compute_states
from specinfer.training.train_features import train_eagle
from specinfer.tree import TokenTree, TreeLimits
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import runner_of, tiny_transformers

LAYERS = (1, 3)


def corpus_of(count: int) -> list[Continuation]:
    """Return continuations with prompts and outputs of different lengths."""
    rng = np.random.default_rng(0)
    sizes = [(3 + i % 4, 3 + i % 5) for i in range(count)]
    return [
        Continuation(tuple(rng.integers(3, 97, p).tolist()), tuple(rng.integers(3, 97, n).tolist()))
        for p, n in sizes
    ]


def test_states_and_labels_are_the_targets_and_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinking, "_TOKENS_PER_PASS", 20)  # several passes, each of several continuations
    runner, corpus = runner_of(tiny_transformers("llama")), corpus_of(7)
    outputs = compute_states(runner, corpus, LAYERS, tmp_path, lambda *_: None)
    for item, actual in zip(corpus, outputs, strict=True):
        tokens = (*item.prompt, *item.output)[:-1]
        rest = tokens[len(item.prompt) :]
        segment = Segment(runner.open(), item.prompt, rest, range(-1, len(rest) - 1), True)
        (logits,), (states,) = runner.forward_with_features([segment], LAYERS)
        read = torch.from_numpy(np.array(actual.states)).view(torch.bfloat16)
        torch.testing.assert_close(read.float(), states.float(), atol=0.02, rtol=0.02)
        assert actual.labels.ids[:, 0].tolist() == logits.argmax(-1).tolist()
    monkeypatch.setattr(runner, "forward_with_features", None)
    again = compute_states(runner, corpus, LAYERS, tmp_path, lambda *_: None)
    assert all(np.array_equal(a.states, b.states) for a, b in zip(outputs, again, strict=True))


def test_stored_states_of_more_layers_are_used_for_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, corpus = runner_of(tiny_transformers("llama")), corpus_of(7)
    wide = compute_states(runner, corpus, (0, 1, 3), tmp_path, lambda *_: None)
    monkeypatch.setattr(runner, "forward_with_features", None)
    for layers, places in (((3,), [2]), ((0, 1), [0, 1]), ((0, 3), [0, 2])):
        some = compute_states(runner, corpus, layers, tmp_path, lambda *_: None)
        assert all(np.array_equal(a.states[:, places], b.states) for a, b in zip(wide, some, strict=True))
    with pytest.raises(TypeError):  # no states of layer 2 are stored
        compute_states(runner, corpus, (2, 3), tmp_path, lambda *_: None)


def test_each_step_predicts_the_token_that_many_places_ahead(tmp_path: Path) -> None:
    corpus = corpus_of(3)
    outputs = compute_states(runner_of(tiny_transformers("llama")), corpus, LAYERS, tmp_path, lambda *_: None)
    states, labels = [t.states for t in outputs], [t.labels for t in outputs]
    batch = UnrolledExamples(corpus, states, labels, 3).batch([2, 0])
    width = batch.token_ids.shape[1]
    for step, step_labels in enumerate(batch.steps):
        for row, token, ids in zip(
            step_labels.rows.tolist(), step_labels.next_tokens.tolist(), step_labels.label_ids, strict=True
        ):
            item = corpus[(2, 0)[row // width]]
            whole, place = item.prompt + item.output, row % width + 2 + step
            assert whole[place] == token
            index = place - len(item.prompt)
            assert ids.tolist() == labels[(2, 0)[row // width]].ids[index].tolist()
            assert batch.token_ids.flatten()[row] == whole[row % width + 1], "one ahead of the hidden state"
            known = np.array(states[(2, 0)[row // width]][row % width])
            read = batch.states[row // width, row % width].view(torch.int16)
            assert np.array_equal(read.numpy(), known), "the hidden state is the row's own"
    assert [len(item.prompt) for item in (corpus[2], corpus[0])] == [5, 3]
    whole = len(corpus[2].output) + len(corpus[0].output)
    assert [len(step_labels.rows) for step_labels in batch.steps] == [whole, whole, whole - 1], (
        "no row before the first token"
    )


def test_accepted_lengths_count_right_tokens_up_to_the_first_wrong_one() -> None:
    """Compared with chains that are followed one by one through random hits; one prompt has a single token."""
    rng, corpus, steps = np.random.default_rng(1), [Continuation((5,), (6, 7, 8, 9)), *corpus_of(6)], 3
    labels = [
        Labels(np.zeros((len(c.output), 1), np.int32), np.ones((len(c.output), 1), np.float16))
        for c in corpus
    ]
    states = [np.zeros((len(c.prompt) + len(c.output) - 1, 1, 4), np.int16) for c in corpus]
    batch = UnrolledExamples(corpus, states, labels, steps).batch(range(len(corpus)))
    hits = [rng.random(len(step_labels.rows)) < 0.7 for step_labels in batch.steps]
    pairs = zip(batch.steps, hits, strict=True)
    by_row = [
        dict(zip(step_labels.rows.tolist(), length.tolist(), strict=True)) for step_labels, length in pairs
    ]
    wanted = [
        next((step for step in range(steps) if not by_row[step][row]), steps)
        for row in sorted(by_row[0])
        if all(row in lengths for lengths in by_row)  # a chain's steps read the same row
    ]
    assert sorted(accepted_by_chains(hits, corpus).tolist()) == sorted(wanted)
    assert {0, 1, 2, 3} <= set(wanted)


def test_the_command_trains_a_speculator_that_drafts(tmp_path: Path) -> None:
    model, target, lines = tiny_transformers("llama"), tmp_path / "target", tmp_path / "corpus.jsonl"
    save_target(target, model)
    corpus = corpus_of(12)
    write_continuations(lines, ((str(i), item) for i, item in enumerate(corpus)))

    def train(**options: Any) -> Path:
        out = tmp_path / "eagle"
        given = {"corpus": [lines], "model": str(target), "vocabulary": 40, "minutes": 0.01, "device": "cpu"}
        train_eagle(out=out, work=tmp_path / "work", **(given | options))
        return out

    with pytest.raises(SettingError, match="layers = '1,9':"):
        train(layers="1,9")
    drafter = EagleDrafter.from_options(
        DrafterOptions(model=str(train(steps=2)), dtype="float32", kv_tokens=512)
    )
    assert drafter.description.feature_layers == (1, 2, 3)
    trained = json.loads((tmp_path / "eagle/config.json").read_text())["trained"]
    assert "--layers 1,2,3 --steps 2 " in trained["command"]
    assert len(trained["success_held_out"]) == 2
    assert 1 <= trained["accepted_length_held_out"] <= 3
    context = [*corpus[0].prompt, 9]
    states = np.zeros((len(context) - 1, 3, 32), np.int16)
    job = DraftJob("r", context, TreeLimits(4, 2), GREEDY, features=Features(0, states))
    (tree,) = drafter.draft([job])
    assert isinstance(tree, TokenTree)
    assert len(tree) == 5
    with pytest.raises(SettingError, match="has a finished speculator"):
        train()


def test_wide_hidden_states_are_trained_with_small_steps() -> None:
    assert options_for(576, 5.0, None, 1) == DistilOptions(5.0, 1e-3, 1024, seed=1)
    wide = options_for(1536, 5.0, None, 1)
    assert (wide.learning_rate, wide.tokens_per_batch) == (pytest.approx(3.75e-4), 384)
    assert options_for(8192, 5.0, 2e-3, 1) == DistilOptions(5.0, 2e-3, 256, seed=1)
