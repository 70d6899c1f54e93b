"""`specinfer train eagle`: states and labels of the target, training examples, and a checkpoint that drafts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specinfer.drafters import DrafterOptions, DraftJob, Features
from specinfer.drafters.eagle import EagleDrafter
from specinfer.errors import SettingError
from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import GREEDY
from specinfer.training.corpus import Continuation, Labels, write_continuations
from specinfer.training.distil import DistilOptions
from specinfer.training.eagle_student import UnrolledExamples, accepted_by_chains
from specinfer.training.feature_training import options_for
from specinfer.training.reading import reader
from specinfer.training.reading.examples import KeptExamples, TargetHead
from specinfer.training.reading.kept import KeptTexts
from specinfer.training.reading.reader import read_corpus_texts
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


def examples_of(corpus: list[Continuation], layers: Sequence[int], steps: int, work: Path) -> KeptExamples:
    """Let the tiny target read a corpus; the draft vocabulary is the whole one."""
    model = tiny_transformers("llama")
    kept = KeptTexts(work, "target", layers)
    texts = read_corpus_texts(runner_of(model), corpus, kept)
    head = TargetHead(from_transformers(model.config), model.state_dict(), torch.arange(97), "cpu")
    return KeptExamples(texts, head, steps, kept.places(layers))


def test_labels_are_the_targets_and_texts_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PASS_TOKENS", 20)  # several passes, each of several continuations
    runner, corpus = runner_of(tiny_transformers("llama")), corpus_of(7)
    batch = examples_of(corpus, LAYERS, 1, tmp_path).batch(range(7))
    best = iter(batch.steps[0].label_ids[:, 0].tolist())
    for item in corpus:
        rest = item.output[:-1]
        segment = Segment(runner.open(), item.prompt, rest, range(-1, len(rest) - 1), True)
        (logits,) = runner.forward([segment])
        assert logits.argmax(-1).tolist() == [next(best) for _ in item.output]
    monkeypatch.setattr(ModelRunner, "forward_with_features", None)
    assert torch.equal(batch.states, examples_of(corpus, LAYERS, 1, tmp_path).batch(range(7)).states)


def test_kept_states_of_more_layers_are_used_for_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus_of(7)
    wide = examples_of(corpus, (0, 1, 3), 1, tmp_path).batch(range(7)).states
    monkeypatch.setattr(ModelRunner, "forward_with_features", None)
    for layers, places in (((3,), [2]), ((0, 1), [0, 1]), ((0, 3), [0, 2])):
        some = examples_of(corpus, layers, 1, tmp_path).batch(range(7)).states
        assert torch.equal(wide[:, :, places], some)
    with pytest.raises(SettingError, match=r"work = .*has states of"):
        examples_of(corpus, (2, 3), 1, tmp_path)


def test_each_step_predicts_the_token_that_many_places_ahead(tmp_path: Path) -> None:
    corpus = corpus_of(3)
    examples = examples_of(corpus, LAYERS, 3, tmp_path)
    one = [replace(examples, steps=1).batch([i]) for i in range(3)]
    batch = examples.batch([2, 0])
    width = batch.token_ids.shape[1]
    for step, step_labels in enumerate(batch.steps):
        for row, token, ids in zip(
            step_labels.rows.tolist(), step_labels.next_tokens.tolist(), step_labels.label_ids, strict=True
        ):
            index = (2, 0)[row // width]
            item = corpus[index]
            whole, place = item.prompt + item.output, row % width + 2 + step
            assert whole[place] == token
            assert torch.equal(ids, one[index].steps[0].label_ids[place - len(item.prompt)])
            assert batch.token_ids.flatten()[row] == whole[row % width + 1], "one ahead of the hidden state"
            alone = one[index].states[0, row % width]
            assert torch.equal(batch.states[row // width, row % width], alone), "the row's own hidden state"
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
