"""Parallel drafting (P-EAGLE) beside EAGLE: what all depths in one pass cost in success.

EAGLE runs its layer once per depth, each time on its own output and on the token drafted there. P-EAGLE runs
it once for all depths: from the second depth on a row reads a learnt vector for the output and another for
the token, which is not known yet. Both students here start from the same EAGLE speculator and train
for the same time on the same hidden states; the report has their held-out success by depth.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.weights.eagle_checkpoint import load_eagle
from specinfer.model.weights.families import EMBEDDING
from speculator_svc.training.distil import DistilOptions
from speculator_svc.training.eagle_student import EagleStudent
from speculator_svc.training.feature_training import Asked, FeatureTraining, Reader

MASK_HIDDEN, MASK_TOKEN = "mask_hidden", "mask_token"


class ParallelEagleStudent(EagleStudent):
    """EAGLE whose steps behind the first read learnt vectors instead of its outputs and tokens."""

    def _inputs(
        self, step: int, hidden: torch.Tensor, embedded: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if step == 0:
            return hidden, embedded
        found = self.all_tensors()
        return found[MASK_HIDDEN].expand_as(hidden), found[MASK_TOKEN].expand_as(embedded)


STUDENTS: dict[str, type[EagleStudent]] = {"EAGLE": EagleStudent, "P-EAGLE": ParallelEagleStudent}


def with_masks(tensors: Mapping[str, torch.Tensor], hidden: int) -> dict[str, torch.Tensor]:
    """The tensors of an EAGLE speculator, and vectors near zero for what is not known."""
    generator = torch.Generator().manual_seed(0)
    masks = {name: 0.02 * torch.randn(hidden, generator=generator) for name in (MASK_HIDDEN, MASK_TOKEN)}
    return {**tensors, **masks}


def train(kind: str, asked: Asked, eagle: Path, steps: int) -> list[dict[str, float]]:
    """Held-out success by depth after training one kind."""
    training = FeatureTraining(asked)
    found: list[dict[str, float]] = []
    base = load_eagle(eagle, training.directory)
    tensors = dict(base.tensors)
    if kind == "P-EAGLE":
        tensors = with_masks(tensors, training.config.hidden_size)

    def make(target: Mapping[str, torch.Tensor], _: torch.Tensor) -> EagleStudent:
        return STUDENTS[kind](training.config, target[EMBEDDING], tensors)

    def keep(_: EagleStudent, __: torch.Tensor, trained: Mapping[str, Any]) -> None:
        found.extend(trained["success_held_out"])

    training.run(Reader(kind, "", base.layers, steps, make, keep, base.token_ids))
    return found


def markdown(report: dict[str, Any]) -> str:
    """One table. Rows of EAGLE behind the first depth read the right tokens, as where these are accepted."""
    lines = ["# Parallel drafting (P-EAGLE) beside EAGLE", "", f"{origin(report['about'])}.", ""]
    lines += [
        f"Held-out success, top 1, %, after {report['minutes']:g} minutes each from the same start.",
        "",
    ]
    found = report["success"]
    lines += head([f"depth {d + 1}" for d in range(len(next(iter(found.values()))))])
    lines += [line(kind, [f"{100 * s['top1']:.1f}" for s in depths]) for kind, depths in found.items()]
    return "\n".join([*lines, ""])


def main(
    corpus: Annotated[Path, typer.Option(help="Continuations by the target.")],
    work: Annotated[Path, typer.Option(help="Where hidden states are kept.")],
    eagle: Annotated[str, typer.Option(help="The EAGLE speculator to start from.")] = "eagle-smollm2-135m",
    minutes: Annotated[float, typer.Option(help="Of training, each.")] = 10.0,
    steps: Annotated[int, typer.Option(help="Depths.")] = 4,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "parallel-eagle",
) -> None:
    """Train both for the same time and compare."""
    report: dict[str, Any] = {"about": about_this_run(), "minutes": minutes, "success": {}}
    for kind in STUDENTS:
        options = DistilOptions(minutes, 3e-4)
        asked = Asked([corpus], work / "unused", work, DEFAULT_MODEL, 8192, options, 2, "cpu", True)
        report["success"][kind] = train(kind, asked, resolve_model(eagle), steps)
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
