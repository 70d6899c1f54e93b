"""The draft vocabulary gains frequent tokens of texts, up to its limit, and keeps trained rows."""

from pathlib import Path

import pytest
import torch

from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import DraftModel
from specinfer.model.weights.families import open_weights
from specinfer.training.corpus import Continuation
from specinfer.training.online.online_training import MIN_OCCURRENCES, labelled, with_frequent_tokens
from specinfer.training.student import Student
from tests.support.models.saved_model import save_target


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def draft(target: Path) -> DraftModel:
    """Return an SSM for the even tokens up to 40, with a head of its own."""
    config, token_ids = load_config(target), torch.arange(0, 41, 2)
    weights = open_weights(target, config)
    student = Student.from_target(config, weights, [0], token_ids)
    tensors = {**student.tensors(), "lm_head.weight": torch.randn(len(token_ids), config.hidden_size)}
    return DraftModel(student.config, {name: weights[name] for name in weights} | tensors, token_ids)


def text(*tokens: int) -> Continuation:
    return Continuation((1, 2), tokens)


def test_rows_of_known_tokens_stay_and_new_ones_are_the_targets(draft: DraftModel, target: Path) -> None:
    often = text(*[7] * MIN_OCCURRENCES, *[51] * MIN_OCCURRENCES, 4, 9)
    grown = with_frequent_tokens(draft, [often], target, 100)
    assert grown.token_ids.tolist() == sorted([*draft.token_ids.tolist(), 7, 51])
    assert grown.config.vocab_size == len(grown.token_ids)
    head, before = grown.weights["lm_head.weight"], draft.weights["lm_head.weight"]
    weights = open_weights(target, load_config(target))
    name = "model.embed_tokens.weight" if load_config(target).tied_embeddings else "lm_head.weight"
    for row, token in zip(head, grown.token_ids.tolist(), strict=True):
        known = token % 2 == 0 and token <= 40
        assert torch.equal(row, before[token // 2] if known else weights[name][token].float())


def test_it_never_grows_beyond_its_bound(draft: DraftModel, target: Path) -> None:
    max_tokens = len(draft.token_ids) + 3
    for first in (41, 51, 61):  # new tokens in every round
        texts = [text(*[token] * MIN_OCCURRENCES) for token in range(first, first + 10)]
        draft = with_frequent_tokens(draft, texts, target, max_tokens)
        assert len(draft.token_ids) <= max_tokens
    assert len(draft.token_ids) == max_tokens


def test_tokens_outside_the_vocabulary_have_no_label(draft: DraftModel) -> None:
    examples = labelled([text(4, 9)], draft.token_ids.numpy())
    assert examples.labels[0].ids[0, 0] == 2
    assert examples.labels[0].probabilities[:, 0].tolist() == [1, 0]
