"""A trainer and the verdicts on its offers: it goes on at the weights that the service drafts with."""

from pathlib import Path

import pytest
import torch

from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import save_ssm
from specinfer.model.weights.families import open_weights
from speculator_svc.learning.online_training import REFUSALS, OnlineTraining
from speculator_svc.training.student import Student
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


def test_training_goes_on_at_the_weights_before_those_that_were_taken_back(training: OnlineTraining) -> None:
    for version in (1, 2):
        move(training, version)
        training.note(accepted=True, version=version)
    move(training, 3)
    training.note(accepted=False, version=2)
    assert place(training) == 3
    training.note(accepted=False, version=1)
    assert place(training) == 1


def test_taken_back_to_the_start_it_goes_on_there(training: OnlineTraining) -> None:
    start = place(training)
    move(training, 5)
    training.note(accepted=True, version=1)
    training.note(accepted=False, version=0)
    assert place(training) == start


def test_refused_again_and_again_it_begins_anew_at_what_was_taken(training: OnlineTraining) -> None:
    move(training, 1)
    training.note(accepted=True, version=4)
    for refusal in range(1, 2 * REFUSALS + 1):
        move(training, 7)
        training.note(accepted=False, version=4)
        assert place(training) == (7 if refusal % REFUSALS else 1)


def test_refused_without_anything_taken_it_trains_on(training: OnlineTraining) -> None:
    for _ in range(2 * REFUSALS):
        move(training, 7)
        training.note(accepted=False, version=0)
        assert place(training) == 7
