"""Applies the acceptance rules to a pass: logits in, verdicts out.

Log-probabilities of returned tokens are computed before adjustments, temperature, top-k and top-p (vLLM's default).
So they do not depend on the request's parameters, and equal those of plain decoding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specinfer.errors import ConstraintError, FaultError, SpecInferError, UnavailableError
from specinfer.model.arrays import as_floats
from specinfer.model.batch import Segment
from specinfer.model.executor import Logits
from specinfer.model.runner import ModelRunner
from specinfer.model.sampling.choices import Chooser
from specinfer.model.sampling.distributions import most_probable
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import EntryStatus, LogprobRow
from specinfer.request.verdict import Verdict
from specinfer.tree import TokenTree
from specinfer.verification.acceptance import Acceptance, AcceptanceRule, RequestRandomness, Target, find_rule
from specinfer.verification.acceptance.typical import TypicalAcceptance
from specinfer.verification.adjustments import RequestAdjustment
from specinfer.verification.jobs import VerifyJob
from specinfer.verification.target import BrokenModelError, LateNodeError, Rows, targets_of


def logprobs_of(tree: TokenTree, verdict: Acceptance, rows: Logits, top: int) -> list[LogprobRow]:
    """Return log-probabilities of all output tokens, from logits [N, V].

    `top` is the number of most probable tokens to add to each.
    """
    nodes = [0, *verdict.accepted]
    tokens = [*(int(tree.token_ids[node]) for node in verdict.accepted), verdict.bonus]
    logp = _log_softmax(as_floats(rows[nodes]))
    chosen = logp[np.arange(len(nodes)), tokens].tolist()
    if not top:
        return [LogprobRow(value) for value in chosen]
    ids = most_probable(logp, top)
    lists = [
        list(zip(row, values, strict=True))
        for row, values in zip(ids.tolist(), np.take_along_axis(logp, ids, 1).tolist(), strict=True)
    ]
    return [LogprobRow(value, best) for value, best in zip(chosen, lists, strict=True)]


def _log_softmax(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = rows - rows.max(-1, keepdims=True)
    return np.asarray(rows - np.log(np.exp(rows).sum(-1, keepdims=True)))


class TreeVerifier:
    def __init__(self, acceptance: str | AcceptanceRule, chooser: Chooser | None = None) -> None:
        """Select the rules; `acceptance` is the rule for sampled requests.

        `chooser` chooses tokens on the logits' device; None: the host chooses.
        """
        self._greedy = find_rule("greedy")
        self.use(acceptance)
        self._chooser = chooser
        self.shortened = 0
        """Number of verdicts that were shortened because a mask was late."""

    def use(self, acceptance: str | AcceptanceRule) -> None:
        """Set the rule for sampled requests."""
        self._stochastic = find_rule(acceptance)
        self._name = (
            acceptance if isinstance(acceptance, str) else getattr(acceptance, "__name__", "function")
        )

    def targets(
        self,
        jobs: Sequence[VerifyJob],
        logits: Sequence[Rows],
        adjustments: Sequence[RequestAdjustment | None],
    ) -> list[Target | Exception | None]:
        """Return each job's target or error; None for jobs without a tree."""
        return targets_of(jobs, logits, adjustments, self._chooser)

    def verify(
        self,
        job: VerifyJob,
        rows: Rows,
        target: Target | Exception | None,
        adjustment: RequestAdjustment | None = None,
    ) -> Verdict | SpecInferError:
        """Return a job's verdict or error, from its logits."""
        if isinstance(target, UnavailableError):
            return target
        if isinstance(target, Exception):
            return BrokenModelError(FaultError("the model failed", target).for_logs)
        if job.tree is None or target is None or isinstance(rows, Exception):
            return Verdict(EntryStatus.OK)
        rule = self._rule(job.sampling)
        randomness = RequestRandomness(job.sampling, job.base_len + len(job.delta))
        try:
            try:
                found = rule(job.tree, target, randomness)
            except LateNodeError as error:
                found = _cut_at(job.tree, error.node)
                self.shortened += 1
        except (BrokenModelError, ConstraintError) as error:
            return error
        except Exception as error:  # noqa: BLE001  # rules are extensions, which may raise anything
            raise SpecInferError(
                FaultError(f"the acceptance rule {self._name} failed", error).for_logs
            ) from None
        if reason := _fault_of(found, job.tree, rows.shape[-1]):
            raise SpecInferError(f"the acceptance rule {self._name} is wrong: it returned {reason}")
        try:
            found, finished = _cut_at_end(job.tree, found, adjustment)
        except ConstraintError as error:
            return error
        return Verdict(
            EntryStatus.OK,
            accepted=found.accepted,
            bonus=found.bonus,
            logprobs=logprobs_of(job.tree, found, rows, job.top_logprobs) if job.logprobs else (),
            top_k=_top_k(rows, job.top_k),
            finished=finished,
        )

    def _rule(self, sampling: Sampling) -> AcceptanceRule:
        if sampling.greedy:
            return self._greedy
        if sampling.lossless:
            return self._stochastic
        return TypicalAcceptance(sampling.typical_epsilon, sampling.entropy_factor)


def _fault_of(found: object, tree: TokenTree, vocab_size: int) -> str:
    """Return the reason why a verdict is impossible; "" if it is not."""
    if not isinstance(found, Acceptance):
        return f"{type(found).__name__}, not an Acceptance"
    parent = 0
    for node in found.accepted:
        if not 0 < node < len(tree):
            return f"node {node} of a tree with {len(tree)} nodes"
        if tree.parents[node] != parent:
            return f"node {node}, which is no child of node {parent}"
        parent = node
    if not 0 <= found.bonus < vocab_size:
        return f"a bonus token outside the vocabulary of {vocab_size} tokens"
    return ""


def _cut_at(tree: TokenTree, node: int) -> Acceptance:
    """Return a verdict that ends with this node's token, the bonus.

    The rule has already accepted the node, so the output keeps its distribution: the next step continues there.
    """
    assert node, "a pass takes no request without its root's mask"
    *accepted, last = tree.path_to(node)
    return Acceptance(tuple(accepted), int(tree.token_ids[last]))


def _cut_at_end(
    tree: TokenTree, found: Acceptance, adjustment: RequestAdjustment | None
) -> tuple[Acceptance, bool]:
    """Shorten a verdict to the token that completes a constrained text.

    Returns the verdict, with that token as its bonus, and whether the text is complete.
    """
    if adjustment is None:
        return found, False
    tokens = [*(int(tree.token_ids[node]) for node in found.accepted), found.bonus]
    end = adjustment.end(tokens)
    if not end:
        return found, end is not None
    return Acceptance(found.accepted[: end - 1], tokens[end - 1]), True


def _top_k(rows: Logits, k: int) -> tuple[tuple[int, ...], ...]:
    if not k:
        return ()
    return tuple(tuple(row) for row in most_probable(rows, k).tolist())


log = logging.getLogger(__name__)


class Passes:
    """Runs and times the passes of a step."""

    def __init__(self, runner: ModelRunner, trees: TreeVerifier) -> None:
        self._runner, self._trees = runner, trees
        self.done: list[tuple[int, float]] = []
        """(Number of tokens and nodes, seconds) of each pass since `begin_step`."""
        self.faults = 0
        """Number of passes that failed for other reasons than unreadable offloaded layers."""

    def begin_step(self) -> None:
        """Reset `done`."""
        self.done = []

    def forward(self, segments: list[Segment]) -> list[Rows]:
        """Run one pass over all segments, or one each if it fails.

        So only entries that cause the fault fail. If an offloaded layer is unreadable, all entries fail.
        """
        if not segments:
            return []
        started = time.perf_counter()
        try:
            logits: list[Rows] = list(self._runner.run(segments))
            tokens = sum([len(segment.delta) + len(segment.nodes) for segment in segments])
            self.done.append((tokens, time.perf_counter() - started))
            return logits
        except UnavailableError as error:
            log.error("a pass of %d entries failed, the gateway sends them again: %s", len(segments), error)
            return [error] * len(segments)
        except Exception as error:
            self.faults += 1
            if len(segments) == 1:
                log.exception("a pass of one entry failed; the entry gets an error")
                return [error]
            log.exception("a batched pass failed; serving its %d entries one by one", len(segments))
        return [result for segment in segments for result in self.forward([segment])]

    def targets(
        self,
        jobs: Sequence[VerifyJob],
        logits: Sequence[Rows],
        adjustments: Sequence[RequestAdjustment | None],
    ) -> list[Target | Exception | None]:
        """Return the jobs' targets for acceptance rules.

        A device may finish the pass only here, so the time is added to the pass's.
        """
        started = time.perf_counter()
        targets = self._trees.targets(jobs, logits, adjustments)
        if self.done:
            tokens, seconds = self.done[-1]
            self.done[-1] = tokens, seconds + time.perf_counter() - started
        return targets
