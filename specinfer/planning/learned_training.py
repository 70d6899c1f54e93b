"""Fit the learned policy to recorded steps: `specinfer train scheduler`."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from specinfer.errors import SettingError, SpecInferError
from specinfer.options.usage import USAGE_ERROR, as_typed, usage_message
from specinfer.planning.choice import Choice, SpeculatorSet
from specinfer.planning.learned import NAMES, LearnedGains, LinearModel, Rows, save_weights, set_name
from specinfer.planning.step_report import StepReport
from specinfer.tree import NOBODY, Proposal, ProposalKind, TokenTree

PROGRAM = "specinfer train scheduler"
_MIN_ROWS = 200
"""Minimum rows for fitting the weights of a speculator set."""
_BLOCK = 50
"""Consecutive steps per block; a block is either fitted or held out."""
_BLOCKS = 10
"""Blocks of which one is held out."""


RecordedStep = tuple[StepReport, Mapping[str, int]]
"""A step, and the lengths of its requests' matches (`Repeats`)."""


def read_steps(setting: str, paths: Iterable[Path]) -> tuple[list[RecordedStep], list[str]]:
    """Return the steps of files, and their speculators' names by number."""
    steps, names = list[RecordedStep](), list[str]()
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(setting, str(path), f"cannot be read: {error}") from error
        for number, line in enumerate(lines, 1):
            try:
                steps.append(_step_of(json.loads(line), names))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                reason = f"line {number} must be a step as the gateway's --record-steps writes it: {what}"
                raise SettingError(setting, str(path), reason) from error
    return steps, names


def _step_of(content: dict[str, Any], names: list[str]) -> RecordedStep:
    """Return the step of a line; add new speculators to `names`."""
    names += [name for name in dict.fromkeys(map(str, content["speculators"])) if name not in names]
    numbers = {number: names.index(str(name)) for number, name in enumerate(content["speculators"])}
    numbers[NOBODY] = NOBODY
    if unknown := set(content["asked"]) - numbers.keys():
        raise ValueError(f"asked has {min(unknown)}: must be numbers of speculators, from 0")
    if not content["requests"]:
        raise ValueError("requests is empty")
    requests: dict[str, Any] = content["requests"]
    outcomes = {
        name: (_tree_of(request, numbers), tuple(map(int, request["accepted"])))
        for name, request in requests.items()
    }
    choice = Choice(frozenset(numbers[speculator] for speculator in content["asked"]), int(content["nodes"]))
    contexts = {name: int(request["context"]) for name, request in requests.items()}
    report = StepReport(choice, len(requests), 0, 0.0, [], 0.0, outcomes, contexts=contexts)
    return report, {name: int(request["match"]) for name, request in requests.items()}


def _tree_of(content: dict[str, Any], numbers: Mapping[int, int]) -> TokenTree:
    """Return a tree of points from JSON; token ids are node numbers."""
    parents, scores = np.array(content["parents"], np.int32), np.array(content["scores"], np.float32)
    nodes = range(len(parents))
    if not nodes or len(nodes) != len(scores) or any(parents[node] >= node for node in nodes):
        raise ValueError("parents and scores do not form a tree")
    proposals = [
        Proposal(int(parent), numbers[speculator], ProposalKind.POINT, tuple(map(int, children)))
        for parent, speculator, children in content["proposals"]
    ]
    named = {child for proposal in proposals for child in proposal.children}
    if not named | set(map(int, content["accepted"])) <= set(nodes):
        raise ValueError(f"proposals and accepted must be nodes below {len(nodes)}")
    return TokenTree(np.arange(len(nodes), dtype=np.int32), parents, tuple(proposals), scores)


def lessons_of(
    steps: Sequence[RecordedStep], names: Sequence[str]
) -> Iterator[tuple[int, SpeculatorSet, Rows]]:
    """Yield (step number, speculator set, rows) in order of the steps."""
    matches: dict[str, int] = {}
    gains = LearnedGains({}, names, lambda contexts: [matches[name] for name in contexts])
    gains.enrol(frozenset(range(len(names))))
    for number, (report, found) in enumerate(steps):
        matches = dict(found)
        gains.follow(report.contexts)
        for speculators, rows in gains.lessons(report).items():
            yield number, speculators, rows
        gains.observe([report])  # refines no weights, as `lessons` has removed the features


def fit(
    steps: Sequence[RecordedStep], names: Sequence[str]
) -> tuple[dict[str, LinearModel], dict[str, list[float]]]:
    """Return fitted models and their errors, by set name.

    Errors are mean squared errors on held-out steps: [error of the model, error of the table].
    """
    parts = defaultdict[SpeculatorSet, tuple[list[Rows], list[Rows]]](lambda: ([], []))
    for number, speculators, rows in lessons_of(steps, names):
        parts[speculators][number // _BLOCK % _BLOCKS == _BLOCKS - 1].append(rows)
    models, errors = dict[str, LinearModel](), dict[str, list[float]]()
    for speculators, (taught, judging) in parts.items():
        if sum(len(rows) for rows, _ in taught) < _MIN_ROWS:
            continue
        name = set_name(names[speculator] for speculator in speculators)
        model = models[name] = _fitted(_together(taught))
        if judging:
            judged, accepted = _together(judging)
            both = model.weights, LinearModel.usual().weights
            errors[name] = [float(((accepted - judged @ weights) ** 2).mean()) for weights in both]
    return models, errors


def _fitted(lessons: Rows) -> LinearModel:
    """Return weights fitted by least squares, slightly regularised towards the table."""
    rows, accepted = lessons
    mean = rows.T @ rows / len(rows) + 1e-3 * np.eye(len(NAMES))
    start = LinearModel.usual().weights
    return LinearModel(start + np.linalg.solve(mean, rows.T @ (accepted - rows @ start) / len(rows)))


def _together(parts: Sequence[Rows]) -> Rows:
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([came for _, came in parts])


def train_scheduler(
    recording: Annotated[
        list[Path], typer.Option(help="File of steps recorded by a gateway (--record-steps); repeatable.")
    ],
    out: Annotated[Path, typer.Option(help="File of the weights, for --planner.")],
) -> None:
    """Fit the learned planner's weights to recorded steps."""
    steps, names = read_steps("recording", recording)
    models, errors = fit(steps, names)
    if not models:
        reason = f"{len(steps)} steps are too few: no speculator set has {_MIN_ROWS} rows"
        raise SettingError("recording", ", ".join(map(str, recording)), reason)
    save_weights(out, models, {"steps": len(steps)})
    for name, (learned, measured) in errors.items():
        typer.echo(f"{name}: squared error {learned:.3f}, table {measured:.3f}")


def main() -> None:
    """Run `specinfer train scheduler`; bad input ends with one line and exit code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train_scheduler)
    try:
        app(prog_name=PROGRAM, standalone_mode=False)
    except (USAGE_ERROR, SpecInferError) as error:
        message = as_typed(usage_message(error), app, sys.argv[1:])
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
