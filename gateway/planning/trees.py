"""From drafts to the trees that are verified: corrected, merged, and cut over the whole batch. Pure."""

from collections.abc import Sequence

from gateway.planning.feedback import Drafts
from gateway.requests.request import Speculation
from gateway.requests.step import StepEntry
from specinfer.speculators.calibration import Calibration
from specinfer.tree import TokenTree, cut_trees, merge_trees
from specinfer.tree.cut import Keeps


def trees_to_verify(
    entries: Sequence[StepEntry], drafts: Drafts, calibration: Calibration, keeps: Keeps
) -> dict[str, TokenTree]:
    """By request; only a root where nothing was drafted, and nothing for prompts that are still being read.

    Sequence speculation takes the chain of the first speculator that drafted one, cut like trees.
    """
    trees: dict[str, TokenTree] = {}
    drafted: list[StepEntry] = []
    for entry in entries:
        if not entry.final:
            continue
        found = drafts.get(entry.request_id, ())
        if entry.state.request.speculation is Speculation.SEQUENCE:
            found = found[:1]
        if found:
            drafted.append(entry)
        corrected = [(index, calibration.correct(index, tree)) for index, tree in found]
        trees[entry.request_id] = merge_trees(corrected) if found else TokenTree.root_only(entry.delta[-1])
    limits = [entry.limits.nodes + 1 for entry in drafted]
    whole = [trees[entry.request_id] for entry in drafted]
    cut = cut_trees(whole, limits, calibration.beliefs(), keeps)
    return trees | {entry.request_id: tree for entry, tree in zip(drafted, cut, strict=True)}
