"""`specinfer train medusa|blockwise`: heads start with the target's next guess, learn, and draft."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specinfer.drafters import DrafterOptions, DraftJob, Features, make_drafter
from specinfer.drafters.heads_layers import BlockwiseSource, HeadsSource, MedusaSource, tensors_of_target
from specinfer.errors import SettingError
from specinfer.model.runner import ModelRunner
from specinfer.model.weights.config_files import from_transformers
from specinfer.request.sampling import GREEDY
from specinfer.training import distil
from specinfer.training.corpus import write_continuations
from specinfer.training.eagle_student import unrolled_loss
from specinfer.training.feature_students import HeadsStudent, starting_heads
from specinfer.training.run import InterruptionError
from specinfer.training.train_features import train_blockwise, train_medusa
from specinfer.tree import TokenTree, TreeLimits
from tests.support.models.saved_model import save_target
from tests.support.tiny_models import tiny_transformers
from tests.unit.training.test_eagle_training import corpus_of, examples_of

KINDS = [MedusaSource, BlockwiseSource]
COMMANDS = {"medusa": train_medusa, "blockwise": train_blockwise}
LAST = 3
"""Number of layers of the target."""


def student_of(kind: type[HeadsSource], count: int, rank: int = 0) -> HeadsStudent:
    model, token_ids = tiny_transformers("llama"), torch.arange(97)
    config, weights = from_transformers(model.config), model.state_dict()
    trained = starting_heads(kind, count, config, weights, token_ids, 0, rank)
    frozen = tensors_of_target(kind, config, weights, token_ids, rank > 0)
    return HeadsStudent(config, kind, count, trained, frozen)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_start_as_the_target_and_learn_to_predict_later_tokens(
    kind: type[HeadsSource], tmp_path: Path
) -> None:
    corpus = corpus_of(8)
    examples = examples_of(corpus, [LAST], 2, tmp_path)
    student, batch = student_of(kind, 2), examples.batch(range(len(corpus)))
    # an untrained head gives the target's guess of the next token, the label one position before its own
    guesses = student(examples.batch([0]))[0].argmax(-1)
    labels = replace(examples, steps=1).batch([0]).steps[0].label_ids
    assert guesses[1:].tolist() == labels[:-1, 0].tolist()
    optimizer = torch.optim.AdamW(student.parameters(), 0.01)
    for _ in range(60):
        loss = unrolled_loss(student, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    best = [rows.argmax(-1) for rows in student(batch)]
    right = [
        float((a == labels.label_ids[:, 0]).float().mean())
        for a, labels in zip(best, batch.steps, strict=True)
    ]
    assert min(right) > 0.8, "each head predicts the token at its distance"


@pytest.mark.parametrize("kind", KINDS)
def test_a_markov_head_starts_without_effect_and_learns_from_the_previous_token(
    kind: type[HeadsSource], tmp_path: Path
) -> None:
    """The previous token is the one before the token that a row predicts, in the prompt or the output."""
    corpus = corpus_of(4)
    examples = examples_of(corpus, [LAST], 3, tmp_path)
    batch, student, plain = examples.batch(range(4)), student_of(kind, 3, rank=5), student_of(kind, 3)
    alone = plain(batch)
    assert all(torch.equal(a, b) for a, b in zip(student(batch), alone, strict=True))
    wide, narrow = student.get_parameter("markov/out/weight"), student.get_parameter("markov/in/weight")
    torch.nn.init.normal_(wide)
    table = F.rms_norm(tiny_transformers("llama").model.embed_tokens.weight.detach(), (32,))
    for step, (rows, labels) in enumerate(zip(student(batch), batch.steps, strict=True)):
        before: list[int] = []
        for item in corpus:
            tokens = [*item.prompt, *item.output]
            first = max(0, 2 + step - len(item.prompt))
            before += [tokens[len(item.prompt) + place - 1] for place in range(first, len(item.output))]
        torch.testing.assert_close(
            rows - alone[step], table[before] @ narrow.T @ wide.T, atol=1e-3, rtol=1e-3
        )
        assert len(before) == len(labels.rows)


@pytest.mark.parametrize("method", COMMANDS)
def test_the_command_is_interrupted_continues_and_its_heads_draft(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, lines, work = tmp_path / "target", tmp_path / "corpus.jsonl", tmp_path / "work"
    save_target(target)
    corpus = corpus_of(12)
    write_continuations(lines, ((str(i), item) for i, item in enumerate(corpus)))

    def train(minutes: float, heads: int = 2) -> None:
        given: dict[str, Any] = {"corpus": [lines], "model": str(target), "vocabulary": 40, "device": "cpu"}
        COMMANDS[method](out=tmp_path / "heads", work=work, minutes=minutes, heads=heads, **given)

    step = distil.train_step

    def interrupted(*arguments: Any) -> float:
        os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    monkeypatch.setattr(distil, "train_step", interrupted)
    with pytest.raises(
        InterruptionError, match=f"are saved in .*state-{method}.pt; the same command continues"
    ):
        train(1.0)
    monkeypatch.setattr(distil, "train_step", step)
    monkeypatch.setattr(ModelRunner, "forward_with_features", None)  # states are stored
    with pytest.raises(SettingError, match="work = "):
        train(1.0, heads=3)
    train(0.01)
    assert not (work / f"state-{method}.pt").exists()
    config = json.loads((tmp_path / "heads/config.json").read_text())
    assert config["speculators_model_type"] == method
    assert f"train {method} --model {target} --heads 2 --markov-rank 256 " in config["trained"]["command"]
    assert len(config["trained"]["success_held_out"]) == 2
    with pytest.raises(SettingError, match="has a finished speculator"):
        train(0.01)

    drafter = make_drafter(method, DrafterOptions(model=str(tmp_path / "heads"), dtype="float32"))
    assert drafter.description.feature_layers == (LAST,)
    context = [*corpus[0].prompt, 9]
    states = np.zeros((len(context) - 1, 1, 32), np.int16)
    job = DraftJob("r", context, TreeLimits(4, 4), GREEDY, features=Features(0, states))
    (tree,) = drafter.draft([job])
    assert isinstance(tree, TokenTree)
    assert len(tree) == 5
