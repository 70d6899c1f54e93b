"""Steps as lines of JSON, to learn from later: what was asked, drafted and accepted, and how long it took.

No text and no tokens: of a tree only its form, its scores and who proposed what. See
`docs/operations.md#planner` for the fields.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specinfer.errors import SettingError
from specinfer.planning.acceptance import Outcomes
from specinfer.planning.feedback import FinishedStep, report_of
from specinfer.planning.latency import SpeculatorSet
from specinfer.tree import NOBODY, Proposal, ProposalKind, TokenTree

_DIGITS = 5
"""Of probabilities and seconds."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What a line tells."""

    asked: SpeculatorSet
    nodes: int
    """Planned for each request."""
    contexts: Mapping[str, int]
    """Tokens of the requests that wanted drafts, when the step began."""
    matches: Mapping[str, int]
    """Of the same, how long a stretch at their end stands in them before (`repeats`)."""
    outcomes: Outcomes
    """Of the requests that had merged trees."""


def line_of(step: FinishedStep, names: Sequence[str], matches: Mapping[str, int]) -> str | None:
    """A step as a line; None if prompts were read in it, or nobody wanted drafts.

    Args:
        names: of the speculators, by number.
        matches: of the requests, what `repeats` tells.
    """
    report = report_of(step)
    if report is None or not report.outcomes:
        return None
    told = {
        "batch": report.batch,
        "speculators": list(names),
        "asked": sorted(step.choice.speculators),
        "nodes": step.choice.nodes,
        "reason": step.choice.reason,
        "tokens": report.tokens,
        "seconds": round(step.seconds, _DIGITS),
        "pass_s": round(report.pass_s, _DIGITS),
        "draft_s": round(max((draft.total_s for draft in report.drafts), default=0.0), _DIGITS),
        "requests": {
            name: {"context": report.contexts[name], "match": matches[name], **_told(tree, accepted)}
            for name, (tree, accepted) in report.outcomes.items()
        },
    }
    return json.dumps(told)


def _told(tree: TokenTree, accepted: Sequence[int]) -> dict[str, Any]:
    return {
        "parents": tree.parents.tolist(),
        "scores": [round(score, _DIGITS) for score in tree.scores.tolist()],
        "proposals": [[p.parent, p.speculator, list(p.children)] for p in tree.proposals],
        "accepted": list(accepted),
    }


def read_steps(setting: str, paths: Iterable[Path]) -> tuple[list[RecordedStep], list[str]]:
    """The steps of files, and the names of their speculators, by numbers that mean the same in all of them.

    Raises:
        SettingError: naming the setting, the file, and the line that cannot be read.
    """
    steps, names = list[RecordedStep](), list[str]()
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(setting, str(path), f"cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            try:
                steps.append(_step_of(json.loads(line), names))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                why = f"line {number} is no recorded step: {error!r}"
                raise SettingError(setting, str(path), why) from error
    return steps, names


def _step_of(told: dict[str, Any], names: list[str]) -> RecordedStep:
    """A line's step; `names` grows by those of speculators that are new."""
    names += [name for name in dict.fromkeys(map(str, told["speculators"])) if name not in names]
    numbers = {number: names.index(str(name)) for number, name in enumerate(told["speculators"])}
    numbers[NOBODY] = NOBODY
    if not told["requests"]:
        raise ValueError("nobody wanted drafts")
    contexts, matches = dict[str, int](), dict[str, int]()
    outcomes = dict[str, tuple[TokenTree, Sequence[int]]]()
    for name, request in told["requests"].items():
        contexts[name], matches[name] = int(request["context"]), int(request["match"])
        outcomes[name] = _tree_of(request, numbers), tuple(map(int, request["accepted"]))
    asked = frozenset(numbers[speculator] for speculator in told["asked"])
    return RecordedStep(asked, int(told["nodes"]), contexts, matches, outcomes)


def _tree_of(told: dict[str, Any], numbers: Mapping[int, int]) -> TokenTree:
    """A tree of that form, of points; its tokens are numbers of nodes."""
    parents, scores = np.array(told["parents"], np.int32), np.array(told["scores"], np.float32)
    nodes = range(len(parents))
    if not nodes or len(nodes) != len(scores) or any(parents[node] >= node for node in nodes):
        raise ValueError("parents and scores are those of no tree")
    proposals = [
        Proposal(int(parent), numbers[speculator], ProposalKind.POINT, tuple(map(int, children)))
        for parent, speculator, children in told["proposals"]
    ]
    named = {child for proposal in proposals for child in proposal.children}
    if not named | set(map(int, told["accepted"])) <= set(nodes):
        raise ValueError("nodes that the tree does not have")
    return TokenTree(np.arange(len(nodes), dtype=np.int32), parents, tuple(proposals), scores)
