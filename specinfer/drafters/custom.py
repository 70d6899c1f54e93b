"""Draft with a user's own function: the paper's "user-defined function".

The function is named by its import path and called as `function(context, limits)`, with the committed tokens and the
tree's limits. It returns a `TokenTree`, or None for no draft; docs/drafters.md has an example of ten lines. An
exception or an invalid tree costs only the draft of this request.
"""

import sys
from collections.abc import Callable, Sequence

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.errors import FaultError, MalformedTreeError, SpecInferError
from specinfer.system.named_function import named_function
from specinfer.tree import TokenTree, TreeLimits, check_tree, truncate

DraftFunction = Callable[[Sequence[int], TreeLimits], object]
"""(context, limits) -> tree or None; the result is checked."""
_ANY_TOKEN = 2**31 - 1
"""Maximum token id, as the vocabulary is unknown; gateways check again."""


class CustomDrafter:
    """Drafter that calls a function for every request."""

    def __init__(self, function: DraftFunction, name: str, draws: bool = False) -> None:
        """Wrap the function; `draws`: trees may have drawn (sampled) children."""
        self._function, self._name, self._draws = function, name, draws
        self.description = DrafterDescription(name, draws=draws)

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "CustomDrafter":
        """Import the function; modules may be in the working directory."""
        function = named_function("function", options.function)
        return cls(function, options.function, options.proposal != "point")

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        return [self._draft(job) for job in jobs]

    def release(self, request_id: str) -> None:
        """Do nothing: no state is kept."""

    def _draft(self, job: DraftJob) -> TokenTree | SpecInferError:
        nothing = TokenTree.root_only(job.context[-1])
        if job.limits.empty:
            return nothing
        try:
            tree = self._function(tuple(job.context), job.limits)
        except Exception as error:  # noqa: BLE001  it is not our code: it may raise anything
            return FaultError(f"{self._name} failed", error)
        if tree is None:
            return nothing
        if not isinstance(tree, TokenTree):
            return SpecInferError(f"{self._name} returned {type(tree).__name__}, not a TokenTree")
        try:
            check_tree(tree, _ANY_TOKEN, sys.maxsize)
            if len(tree) > job.limits.nodes + 1:
                tree = truncate(tree, job.limits.nodes + 1)
            if tree.has_draws and not self._draws and not job.sampling.greedy:
                raise MalformedTreeError(
                    "tree.proposals",
                    "drawn",
                    "the function returned sampled children, which --proposal point forbids",
                )
        except MalformedTreeError as error:
            return error
        return tree
