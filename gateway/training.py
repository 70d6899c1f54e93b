"""`specinfer train scheduler`: weights of the learned planner, fitted to recorded steps.

A recording of all speculators' whole trees teaches most: a gateway with `--no-adaptive --tree-nodes 16
--step-nodes` of sixteen times the batch. Of what the planner chose only what was chosen can be learnt.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from specinfer.errors import SettingError, SpecInferError
from specinfer.planning.by_nodes import sizes_up_to
from specinfer.planning.features import Floats
from specinfer.planning.latency import SpeculatorSet
from specinfer.planning.learned import LearnedAcceptance
from specinfer.planning.linear import LinearModel
from specinfer.planning.recorded_steps import RecordedStep, read_steps
from specinfer.planning.weights import save_weights, set_name
from specinfer.usage import USAGE_ERROR, usage_message

PROGRAM = "specinfer train scheduler"
LEAST_ROWS = 200
"""Of a speculator set, below which it keeps the measured policy's weights."""
_BLOCK, _BLOCKS = 50, 10
"""Of so many blocks of so many steps the last one judges, and teaches nothing."""

Rows = tuple[Floats, Floats]
"""Rows, and the tokens that came."""


def lessons_of(
    steps: Sequence[RecordedStep], names: Sequence[str]
) -> Iterator[tuple[int, SpeculatorSet, Rows]]:
    """(number of a step, speculator set, rows) as a gateway would have seen them, which learns from a step
    when the next one is chosen."""
    matches: dict[str, int] = {}
    model = LearnedAcceptance({}, names, lambda contexts: [matches[name] for name in contexts])
    model.enrol(frozenset(range(len(names))))
    before: RecordedStep | None = None
    for number, step in enumerate(steps):
        matches = dict(step.matches)
        model.follow(step.contexts)
        model.expect(len(step.contexts), sizes_up_to(step.nodes))
        model.chosen(step.asked, step.nodes)
        if before is not None and before.asked and before.nodes > 0:
            told = before.asked, before.nodes, before.outcomes
            for asked, rows in model.lessons(*told, before.contexts).items():
                yield number - 1, asked, rows
            model.observe(len(before.contexts), *told)  # without contexts: no weights are refined
        before = step


def fit(
    steps: Sequence[RecordedStep], names: Sequence[str]
) -> tuple[dict[str, LinearModel], dict[str, dict[str, float]]]:
    """Models by the names of their sets, and the mean squared errors of them and of the measured policy over
    steps that taught nothing."""
    taught, judged = (
        defaultdict[SpeculatorSet, list[Rows]](list),
        defaultdict[SpeculatorSet, list[Rows]](list),
    )
    for number, asked, rows in lessons_of(steps, names):
        judges = number // _BLOCK % _BLOCKS == _BLOCKS - 1
        (judged if judges else taught)[asked].append(rows)
    models, errors = dict[str, LinearModel](), dict[str, dict[str, float]]()
    for asked, found in taught.items():
        lessons = _together(found)
        if len(lessons[0]) < LEAST_ROWS:
            continue
        name = set_name(names[speculator] for speculator in asked)
        models[name] = LinearModel.fitted(*lessons)
        if asked in judged:
            own, usual = _together(judged[asked]), LinearModel.usual()
            errors[name] = {
                "learned": models[name].squared_error(*own),
                "measured": usual.squared_error(*own),
            }
    return models, errors


def _together(found: Sequence[Rows]) -> Rows:
    return np.concatenate([rows for rows, _ in found]), np.concatenate([came for _, came in found])


def train_scheduler(
    recording: Annotated[
        list[Path], typer.Option(help="Steps recorded by a gateway (--record-steps); may be given again.")
    ],
    out: Annotated[Path, typer.Option(help="File of the weights, for --planner-weights.")],
) -> None:
    """Fit the learned planner's weights to recorded steps."""
    steps, names = read_steps("recording", recording)
    models, errors = fit(steps, names)
    if not models:
        why = f"{len(steps)} steps are too few: no speculators drafted {LEAST_ROWS} trees"
        raise SettingError("recording", ", ".join(map(str, recording)), why)
    save_weights(out, models, {"steps": len(steps), "squared_errors": errors})
    for name, found in errors.items():
        typer.echo(f"{name}: squared error {found['learned']:.3f}, measured policy {found['measured']:.3f}")


def main() -> None:
    """Entry point of `python -m gateway.training`: bad input is one line and exit code 2."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train_scheduler)
    try:
        app(prog_name=PROGRAM, standalone_mode=False)
    except (USAGE_ERROR, SpecInferError) as error:
        print(f"{PROGRAM}: error: {usage_message(error)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
