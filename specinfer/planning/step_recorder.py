"""Record steps to a file, from which the learned planner is trained.

A recording is most useful if all speculators draft large trees in every step: run the gateway with
`--no-adaptive`, `--tree-nodes 16`, and `--step-nodes` of sixteen times the batch. Each line of the file is one
step as JSON. It has the structure, scores and proposers of each tree, but no text and no tokens
(`docs/algorithms.md#planner`).
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specinfer.errors import SettingError
from specinfer.planning.feedback import FinishedStep, report_of
from specinfer.planning.learned import TextMatches
from specinfer.system.atomic_files import AppendFile
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)


class StepRecorder:
    """Appends finished steps to a file."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        try:
            self._file: AppendFile | None = AppendFile(path)
        except OSError as error:
            raise SettingError(
                "record_steps", str(path), f"cannot be written: {error.strerror or error}"
            ) from error
        self._tokens: dict[str, Sequence[int]] = {}
        self._matches = TextMatches(lambda name: self._tokens[name])

    def write(self, step: FinishedStep, names: Sequence[str]) -> None:
        """Record a step that read no prompt; a file error ends recording."""
        report = report_of(step) if self._file is not None else None
        if self._file is None or report is None or not report.outcomes:
            return
        self._tokens = {entry.request_id: entry.state.tokens for entry in step.entries}
        matches = dict(zip(report.contexts, self._matches(report.contexts), strict=True))
        requests = {
            name: {"context": report.contexts[name], "match": matches[name], **_form_of(tree, accepted)}
            for name, (tree, accepted) in report.outcomes.items()
        }
        choice = {"asked": sorted(step.choice.speculators), "nodes": step.choice.nodes}
        try:
            line = {"speculators": list(names), **choice, "requests": requests}
            self._file.append(json.dumps(line).encode())
        except OSError as error:
            log.error("--record-steps: the file cannot be written, no more steps are recorded: %s", error)
            self.close()

    def close(self) -> None:
        """Close the file; further steps are not recorded."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _form_of(tree: TokenTree, accepted: Sequence[int]) -> dict[str, Any]:
    return {
        "parents": tree.parents.tolist(),
        "scores": [round(score, 5) for score in tree.scores.tolist()],
        "proposals": [[p.parent, p.speculator, list(p.children)] for p in tree.proposals],
        "accepted": list(accepted),
    }
