"""What the target predicted at the nodes of verified trees, on its way from the verifier to the speculator
services that read it. Pure.

Only the latest step of a request is kept: it is a hint, and a service that missed one lacks it. Where nobody
wants any, nothing is asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specinfer.tree import TokenTree
from specinfer.v1 import speculator_pb2


@dataclass(frozen=True, slots=True)
class _Predicted:
    tree: TokenTree
    top_k: NDArray[np.int64]
    """[nodes, k]"""


class TopKRelay:
    """What is kept of all requests of a lane."""

    def __init__(self) -> None:
        self.k = 0
        """The most that any service wants."""
        self._latest: dict[str, _Predicted] = {}

    def want(self, widths: Sequence[int]) -> None:
        """From now on services want so many tokens per node."""
        wanted = max(widths, default=0)
        if wanted != self.k:
            self.k = wanted
            self._latest.clear()

    def arrived(self, request_id: str, tree: TokenTree, ids: Sequence[int]) -> None:
        """What a verdict brought for the nodes of a tree, [nodes * k] in one row."""
        self._latest[request_id] = _Predicted(tree, np.array(ids, np.int64).reshape(len(tree), -1))

    def take(self, request_id: str, k: int) -> speculator_pb2.TargetTopK | None:
        """The message for a service that wants k tokens per node; None if there is nothing for it."""
        found = self._latest.get(request_id)
        if found is None or not k:
            return None
        return speculator_pb2.TargetTopK(
            token_ids=found.tree.token_ids.tolist(),
            parents=found.tree.parents.tolist(),
            top_k_token_ids=found.top_k[:, :k].ravel().tolist(),
        )

    def forget(self, request_ids: Sequence[str]) -> None:
        """Requests that ended."""
        for request_id in request_ids:
            self._latest.pop(request_id, None)
