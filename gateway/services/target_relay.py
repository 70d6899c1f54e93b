"""All that services read of the target, hidden states and predictions: what a step is to return of it, and
what is kept of that on its way to them. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gateway.services.features import FeatureRelay, FeatureWish
from gateway.services.top_k import TopKRelay
from specinfer.scheduling.step import VerdictEntry
from specinfer.tree import TokenTree
from specinfer.v1 import verifier_pb2


class TargetWish(NamedTuple):
    """What of the target a step is to return."""

    features: FeatureWish = FeatureWish()
    top_k: Mapping[str, int] = MappingProxyType({})
    """By request, how many tokens per node; those that are not named want none."""

    def contradiction(self, request_id: str, nodes: int, answer: verifier_pb2.Verdict) -> str:
        """What of an answer for a tree of so many nodes cannot be for the wish; empty if nothing."""
        ids, wanted = len(answer.top_k_token_ids), nodes * self.top_k.get(request_id, 0)
        if ids and ids != wanted:
            return f"the verifier returned {ids} token ids of predictions instead of {wanted}"
        return self.features.contradiction(request_id, answer)


NO_WISH = TargetWish()


class TargetRelay:
    """What is kept of all requests of a lane."""

    def __init__(self, hidden: int) -> None:
        """The target's hidden states have so many numbers."""
        self.features, self.top_k = FeatureRelay(hidden), TopKRelay()

    def arrived(
        self, wish: TargetWish, trees: Mapping[str, TokenTree], verdicts: Mapping[str, VerdictEntry]
    ) -> None:
        """What a step returned."""
        for name, asked in wish.features.since.items():
            verdict = verdicts[name]
            if verdict.features:
                self.features.arrived(name, asked, verdict.features_start, verdict.features)
        for name in wish.top_k:
            if verdicts[name].top_k:
                self.top_k.arrived(name, trees[name], verdicts[name].top_k)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Requests that ended."""
        self.features.forget(request_ids)
        self.top_k.forget(request_ids)
