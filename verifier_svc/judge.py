"""What becomes of the trees of one pass: logits in, rulings out. No caches here."""

import math
from dataclasses import dataclass

import torch

from specinfer.errors import FaultError, SpecInferError
from specinfer.model.sampling.distributions import probabilities
from specinfer.model.sampling.noise import Noise
from specinfer.sampling import SamplingParams
from specinfer.tree import TokenTree
from verifier_svc.acceptance import Float64, RequestRandomness, Verdict, find_rule
from verifier_svc.jobs import VerifyJob

_NOT_FINITE = "the model produced non-finite logits"


class BrokenModelError(SpecInferError):
    """The model's output is not usable."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a pass says about a job; no verdict if it had no tree."""

    verdict: Verdict | None = None
    logprobs: tuple[float, ...] = ()
    top_k: tuple[tuple[int, ...], ...] = ()


class LogitsTarget:
    """The target's predictions at the nodes of one tree, from logits [N, V].

    Looks only at nodes it is asked about: most of a tree is never visited, and rows are long.
    """

    def __init__(self, logits: torch.Tensor, sampling: SamplingParams) -> None:
        self.logits, self._sampling = logits, sampling

    def best(self, node: int) -> int:
        """The most probable next token.

        Raises:
            BrokenModelError: if the node's logits are not finite.
        """
        row = self.logits[node].cpu().numpy()
        index = int(row.argmax())  # of a row with a NaN: the NaN
        if not math.isfinite(row[index]):
            raise BrokenModelError(_NOT_FINITE)
        return index

    def probabilities(self, node: int) -> Float64:
        """[V] distribution under the request's sampling parameters.

        Raises:
            BrokenModelError: if the node's logits are not finite.
        """
        p = probabilities(self.logits[node], self._sampling)
        if not math.isfinite(p[0]):  # one NaN makes all of them NaN
            raise BrokenModelError(_NOT_FINITE)
        return p

    def choose(self, node: int, noise: Noise) -> int:
        """A token drawn from these probabilities.

        Raises:
            BrokenModelError: if the node's logits are not finite.
        """
        try:
            return noise.choose_by_logits(self.logits[node], self._sampling)
        except ValueError as error:
            raise BrokenModelError(_NOT_FINITE) from error


class Judge:
    """Applies the acceptance rules to what a pass says about trees."""

    def __init__(self, acceptance: str) -> None:
        self._greedy, self._stochastic = find_rule("greedy"), find_rule(acceptance)

    def rule(self, job: VerifyJob, rows: torch.Tensor | RuntimeError) -> Ruling | SpecInferError:
        """The ruling on a job from its logits, or why there is none. Changes nothing."""
        if isinstance(rows, RuntimeError):
            return BrokenModelError(FaultError("the model failed", rows).for_logs)
        if job.tree is None:
            return Ruling()
        rule = self._greedy if job.sampling.greedy else self._stochastic
        randomness = RequestRandomness(job.sampling, job.base_len + len(job.delta))
        try:
            verdict = rule(job.tree, LogitsTarget(rows, job.sampling), randomness)
        except BrokenModelError as error:
            return error
        logprobs = _logprobs(job.tree, verdict, rows) if job.logprobs else ()
        return Ruling(verdict, logprobs, _top_k(rows, job.top_k))


def _logprobs(tree: TokenTree, verdict: Verdict, rows: torch.Tensor) -> tuple[float, ...]:
    """Log-probability of each returned token under the model itself, before temperature and cuts."""
    nodes = [0, *verdict.accepted]
    tokens = [*(int(tree.token_ids[node]) for node in verdict.accepted), verdict.bonus]
    logp = rows[nodes].log_softmax(-1)
    return tuple(logp[torch.arange(len(nodes)), tokens].tolist())


def _top_k(rows: torch.Tensor, k: int) -> tuple[tuple[int, ...], ...]:
    if not k:
        return ()
    return tuple(tuple(row) for row in rows.topk(k, dim=-1).indices.tolist())
