"""Train an SSM on texts that arrive during training.

Labels are the tokens that the target chose. Frequent tokens of the texts are added to the draft vocabulary.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from specinfer.drafters.heads_layers import output_head
from specinfer.hub import resolve_model
from specinfer.model.weights.config_files import load_config
from specinfer.model.weights.draft_checkpoint import DraftModel, load_ssm, save_ssm, verifier_of
from specinfer.model.weights.families import open_weights
from specinfer.training.corpus import Continuation, Examples, Labels, batches
from specinfer.training.distil import ssm_loss, train_step
from specinfer.training.generate import in_draft_vocabulary
from specinfer.training.student import Student
from specinfer.v1 import learning_pb2

TOKENS_PER_BATCH = 1024
MAX_NEW_TOKENS = 2048
"""Maximum tokens added to the draft vocabulary."""
MIN_OCCURRENCES = 4
"""Minimum occurrences of an added token."""
REPLAY_TOKENS = 1_000_000
"""Maximum tokens of texts in this process; the newest are kept."""
REFUSALS = 5
"""Number of consecutive refusals before training restarts at the accepted weights."""


class OnlineTraining:
    """An SSM in training, and its texts."""

    def __init__(self, name: str, out: Path, learning_rate: float, place: str) -> None:
        """Start from a trained SSM; `place` is the torch device."""
        directory = resolve_model(name)
        self._target_name = verifier_of(directory)
        self._target = resolve_model(self._target_name)
        self._name, self._out, self._rate, self._place = name, out, learning_rate, place
        self._first = load_ssm(directory, self._target)
        self._accepted: dict[int, DraftModel] = {}
        """Last two accepted drafts by version: the service may revert the last."""
        self._version: int | None = None
        """Version of the served weights, once known."""
        self._draft = self._first
        self._max_tokens = len(self._first.token_ids) + MAX_NEW_TOKENS
        self.texts: list[Continuation] = []
        self._expire: list[float] = []
        """Monotonic time at which each text expires."""
        self.newest = 0
        self._rng = np.random.default_rng(0)
        self._refusals = self._seen = 0
        self._begin()

    def add(self, episodes: Sequence[learning_pb2.Episode]) -> None:
        """Add texts; drop expired texts, and the oldest above `REPLAY_TOKENS`."""
        for episode in episodes:
            tokens = tuple(episode.token_ids)
            self.texts.append(Continuation(tokens[: episode.prompt_len], tokens[episode.prompt_len :]))
            self._expire.append(time.monotonic() + episode.expires_seconds)
            self.newest = episode.number
        size, now = sum(text.tokens for text in self.texts), time.monotonic()
        while self.texts and (size > REPLAY_TOKENS or self._expire[0] < now):
            size -= self.texts.pop(0).tokens
            self._expire.pop(0)

    def train(self, seconds: float) -> tuple[float, int]:
        """Train for `seconds`; return the mean loss and the number of tokens."""
        grown = with_frequent_tokens(self._current(), self.texts, self._target, self._max_tokens)
        if len(grown.token_ids) > len(self._draft.token_ids):
            self._draft = grown
            self._begin()
        examples = labelled(self.texts, self._draft.token_ids.numpy())
        ends, losses = time.monotonic() + seconds, list[float]()
        while not losses or time.monotonic() < ends:
            for _, batch in batches(examples, TOKENS_PER_BATCH, self._rng):
                losses.append(train_step(self._student, self._optimizer, batch, ssm_loss))
                self._seen += len(batch.next_tokens)
                if time.monotonic() >= ends:
                    break
        return float(np.mean(losses)), self._seen

    def save(self) -> None:
        trained = {"command": f"specinfer train follow, from {self._name}", "tokens_seen": self._seen}
        config, tensors = self._student.config, self._student.tensors()
        token_ids = self._draft.token_ids
        save_ssm(self._out, tensors, token_ids, config, self._target, self._target_name, trained)

    def note(self, accepted: bool, version: int) -> None:
        """Record the service's answer to the last offer, and the served version.

        Training restarts at the served weights if the service reverted weights, or refused `REFUSALS` offers in a
        row.
        """
        if accepted:
            self._accepted = dict([*self._accepted.items(), (version, self._current())][-2:])
            self._version, self._refusals = version, 0
            return
        taken_back = self._version is not None and version != self._version
        self._version, self._refusals = version, self._refusals + 1
        if taken_back or (self._accepted and self._refusals % REFUSALS == 0):
            self._draft, self._refusals = self._accepted.get(version, self._first), 0
            self._begin()

    def _begin(self) -> None:
        """Create student and optimizer from `self._draft`."""
        self._student = Student.from_draft(self._draft).to(self._place)
        self._optimizer = torch.optim.AdamW(
            self._student.parameters(), self._rate, weight_decay=0.01, fused=True
        )

    def _current(self) -> DraftModel:
        """Return a copy of the SSM in training."""
        tensors = {name: tensor.clone().cpu() for name, tensor in self._student.tensors().items()}
        return replace(self._draft, weights={**self._draft.weights, **tensors})


def labelled(texts: Sequence[Continuation], vocabulary: NDArray[np.int64]) -> Examples:
    """Label texts with the target's choices; `vocabulary`: ascending target ids."""
    labels = [
        Labels(np.array(text.output, np.int32)[:, None], np.ones((len(text.output), 1), np.float16))
        for text in texts
    ]
    return Examples(texts, [in_draft_vocabulary(text_labels, vocabulary) for text_labels in labels])


def with_frequent_tokens(
    draft: DraftModel, texts: Sequence[Continuation], target: Path, max_tokens: int
) -> DraftModel:
    """Extend an SSM's draft vocabulary by frequent tokens, to at most `max_tokens`.

    New rows of the head are copied from the target.
    """
    known = set(draft.token_ids.tolist())
    counts = Counter(token for text in texts for token in text.output if token not in known)
    room = max(0, max_tokens - len(known))
    new = [token for token, count in counts.most_common(room) if count >= MIN_OCCURRENCES]
    if not new:
        return draft
    config = load_config(target)
    rows = output_head(config, open_weights(target, config), torch.tensor(new))
    token_ids = torch.cat([draft.token_ids, torch.tensor(new)])
    head = torch.cat([draft.weights["lm_head.weight"].float(), rows.float()])
    order = token_ids.argsort()
    return replace(
        draft,
        config=replace(draft.config, vocab_size=len(token_ids)),
        weights={**draft.weights, "lm_head.weight": head[order]},
        token_ids=token_ids[order],
    )
