"""The trainer's weights after each verdict: it continues from the weights that the service drafts with."""

from pathlib import Path

import pytest
import torch

from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import save_ssm
from specinfer.model.weights.families import open_weights
from specinfer.training.online.online_training import REFUSALS, OnlineTraining
from specinfer.training.student import Student
from tests.support.models.saved_model import save_target


@pytest.fixture
def training(tmp_path: Path) -> OnlineTraining:
    target = save_target(tmp_path / "target")
    config, token_ids = load_config(target), torch.arange(40)
    student = Student.from_target(config, open_weights(target, config), [0], token_ids)
    save_ssm(tmp_path / "ssm", student.tensors(), token_ids, student.config, target, str(target), {})
    return OnlineTraining(str(tmp_path / "ssm"), tmp_path / "out", 1e-3, "cpu")


def move(training: OnlineTraining, to: float) -> None:
    """Set a row of the head, as if trained."""
    with torch.no_grad():
        training._student.tensors()["lm_head.weight"][0] = to


def place(training: OnlineTraining) -> float:
    return float(training._student.tensors()["lm_head.weight"][0, 0])


def test_after_a_revert_training_continues_at_the_previous_weights(training: OnlineTraining) -> None:
    for version in (1, 2):
        move(training, version)
        training.note(accepted=True, version=version)
    move(training, 3)
    training.note(accepted=False, version=2)
    assert place(training) == 3
    training.note(accepted=False, version=1)
    assert place(training) == 1


def test_after_a_revert_to_the_start_training_continues_there(training: OnlineTraining) -> None:
    start = place(training)
    move(training, 5)
    training.note(accepted=True, version=1)
    training.note(accepted=False, version=0)
    assert place(training) == start


def test_after_several_refusals_training_restarts_at_the_accepted_weights(training: OnlineTraining) -> None:
    move(training, 1)
    training.note(accepted=True, version=4)
    for refusal in range(1, 2 * REFUSALS + 1):
        move(training, 7)
        training.note(accepted=False, version=4)
        assert place(training) == (7 if refusal % REFUSALS else 1)


def test_refusals_before_any_acceptance_do_not_change_the_weights(training: OnlineTraining) -> None:
    for _ in range(2 * REFUSALS):
        move(training, 7)
        training.note(accepted=False, version=0)
        assert place(training) == 7
