"""Provides the target's predictions at a tree's nodes to the acceptance rules.

If the logits are on the host, a node's distribution is computed when a rule visits the node: many nodes are never
visited. If the logits are on a device with a chooser (`specinfer.model.sampling.choices`), the device chooses
tokens for all nodes of all requests at once, and the logits stay there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import SpecInferError
from specinfer.model.arrays import as_floats, as_tensor
from specinfer.model.executor import Logits
from specinfer.model.lazy_torch import torch
from specinfer.model.sampling.choices import Choices, ChoiceTask, Chooser, Excerpt
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.sampling.noise import Noise
from specinfer.request.sampling import Sampling
from specinfer.text.constraints.masks import MaskLateError
from specinfer.tree import TokenTree
from specinfer.tree.shape import depths
from specinfer.verification.acceptance import Float64, Target, drawable
from specinfer.verification.adjustments import RequestAdjustment
from specinfer.verification.jobs import VerifyJob

log = logging.getLogger(__name__)
_NOT_FINITE = (
    "the model produced non-finite logits (NaN or infinity): try --dtype float32, or check the model's weights "
    "with `specinfer models check`"
)

Rows: TypeAlias = "Logits | Exception"
"""Logits [N, V] of a job's nodes, or its pass's error."""


class BrokenModelError(SpecInferError):
    """The model's logits are missing or not finite (NaN or infinity)."""


class LateNodeError(SpecInferError):
    """A node's constraint mask is not ready, but its ancestors' masks are."""

    def __init__(self, node: int) -> None:
        super().__init__("the node's mask is being computed")
        self.node = node


class LogitsTarget:
    """Predictions from logits [N, V] on the host, computed on first use."""

    def __init__(self, logits: Logits, sampling: Sampling) -> None:
        self.logits, self._sampling = logits, sampling

    def best(self, node: int) -> int:
        """Return the most probable next token."""
        row = as_floats(self.row(node))
        index = int(row.argmax())  # NaN if the row has one
        if not math.isfinite(row[index]):
            raise BrokenModelError(_NOT_FINITE)
        return index

    def probabilities(self, node: int) -> Float64:
        """Return the distribution [V] under the request's sampling parameters."""
        p = probabilities(self.row(node), self._sampling)
        if not math.isfinite(p[0]):  # one NaN makes all of them NaN
            raise BrokenModelError(_NOT_FINITE)
        return p

    def choose(self, node: int, noise: Noise) -> int:
        """Return a token sampled from the node's distribution."""
        try:
            return noise.choose_by_logits(self.row(node), self._sampling)
        except ValueError as error:
            raise BrokenModelError(_NOT_FINITE) from error

    def row(self, node: int) -> Logits:
        """Return the logits [V] after a node."""
        return self.logits[node]


class AdjustedTarget(LogitsTarget):
    """Predictions from logits that a request's biases, penalties or constraint change."""

    def __init__(
        self,
        logits: Logits,
        sampling: Sampling,
        tree: TokenTree,
        adjustment: RequestAdjustment,
    ) -> None:
        super().__init__(logits, sampling)
        self._tree, self._adjustment = tree, adjustment
        self._rows: dict[int, NDArray[np.float32]] = {}
        """Node -> adjusted logits [V]."""

    def row(self, node: int) -> Logits:
        """Return the adjusted logits [V] after a node."""
        if node not in self._rows:
            row = as_floats(self.logits[node]).copy()
            try:
                self._adjustment.change(row, self._tree.token_ids[self._tree.path_to(node)].tolist())
            except MaskLateError:
                raise LateNodeError(node) from None
            self._rows[node] = row
        return self._rows[node]


class ChosenTarget:
    """Next tokens that a device has chosen, for all nodes."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def best(self, node: int) -> int:
        """Return the most probable next token."""
        token = self._choices.tokens[node]
        if token < 0:
            raise BrokenModelError(_NOT_FINITE)
        return token

    def probabilities(self, node: int) -> Excerpt:
        """Return the target's probabilities of the drawn tokens below a node."""
        self.best(node)
        return self._choices.excerpts[node]

    def choose(self, node: int, noise: Noise) -> int:
        token, excerpt = self.best(node), self._choices.excerpts.get(node)
        return token if excerpt is None else noise.choose(excerpt)


def targets_of(
    jobs: Sequence[VerifyJob],
    logits: Sequence[Rows],
    adjustments: Sequence[RequestAdjustment | None],
    chooser: Chooser | None,
) -> list[Target | Exception | None]:
    """Return each job's target or error; None for jobs without a tree.

    If the device fails to choose for all jobs together, it chooses job by job, so that only jobs that cause the fault
    fail.
    """
    try:
        return _targets_of(jobs, logits, adjustments, chooser)
    except Exception as error:
        if len(jobs) == 1:
            log.exception("choosing tokens of one entry failed; the entry gets an error")
            return [error]
        log.exception("choosing tokens failed; choosing for %d entries one by one", len(jobs))
    triples = zip(jobs, logits, adjustments, strict=True)
    return [target for j, rows, a in triples for target in targets_of([j], [rows], [a], chooser)]


def _targets_of(
    jobs: Sequence[VerifyJob],
    logits: Sequence[Rows],
    adjustments: Sequence[RequestAdjustment | None],
    chooser: Chooser | None,
) -> list[Target | Exception | None]:
    verified = [
        index
        for index, (job, rows) in enumerate(zip(jobs, logits, strict=True))
        if job.tree is not None and not isinstance(rows, Exception)
    ]
    targets: dict[int, Target | Exception | None] = {
        index: rows for index, rows in enumerate(logits) if isinstance(rows, Exception)
    }
    # lossy rules read whole distributions, and adjustments change whole rows: both need logits on the host
    here = [
        i for i in verified if chooser is None or adjustments[i] is not None or not jobs[i].sampling.lossless
    ]
    targets |= {i: _target_here(jobs[i], _logits(logits[i]), adjustments[i]) for i in here}
    there = [i for i in verified if i not in here]
    if chooser is not None and there:
        tasks = [_task(jobs[i], as_tensor(_logits(logits[i]))) for i in there]
        targets |= {i: ChosenTarget(choices) for i, choices in zip(there, chooser.choose(tasks), strict=True)}
    return [targets.get(index) for index in range(len(jobs))]


def _target_here(job: VerifyJob, rows: Logits, adjustment: RequestAdjustment | None) -> Target:
    if adjustment is None or job.tree is None:
        return LogitsTarget(rows, job.sampling)
    return AdjustedTarget(rows, job.sampling, job.tree, adjustment)


def _logits(rows: Rows) -> Logits:
    assert not isinstance(rows, Exception)
    return rows


def _task(job: VerifyJob, rows: torch.Tensor) -> ChoiceTask:
    assert job.tree is not None
    positions = job.base_len + len(job.delta) + depths(job.tree.parents)
    return ChoiceTask(rows, job.sampling, positions, {} if job.sampling.greedy else drawable(job.tree))
