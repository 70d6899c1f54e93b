"""The report of kinds of SSM side by side, as Markdown."""

from collections.abc import Sequence
from typing import Any

from benchmarks.tables import head, line, opening


def kinds_markdown(report: dict[str, Any], depth: int, beam: int) -> str:
    """All of it."""
    passes, kinds = report["pass_ms"], report["kinds"]
    budgets = [nodes for nodes in passes if nodes]
    took = ", ".join(f"{passes[n][1]:.1f} with {n} nodes" for n in budgets)
    rest = (
        f", greedy, target in bfloat16. A step of plain decoding takes {passes[0][1]:.1f} ms, a pass of the "
        f"target {took}. Trees are best-first, {depth} deep, beam {beam}. MB: matrices that a level reads. "
        "±: standard error over prompts; milliseconds with quartiles. Speed: tokens per step over draft and "
        "pass, beside plain decoding, at batch 1, services left out."
    )
    columns = ["layers", "weights", "million parameters", "MB", "first guess right, %"]
    for nodes in budgets:
        columns += [f"tokens a step, {nodes} nodes", f"ms a draft, {nodes}", f"speed, {nodes}"]
    lines = [*opening("Kinds of SSM", report, rest), *head(columns)]
    lines += [*(line(kind["name"], _cells(kind, budgets)) for kind in kinds), ""]
    return "\n".join([*lines, *(f"- {note}" for note in report["notes"]), ""])


def _cells(kind: dict[str, Any], budgets: Sequence[int]) -> list[str]:
    sizes = [f"{kind['million_parameters']:.1f}", f"{kind['megabytes']:.1f}", f"{kind['top1']:.1f}"]
    cells = [str(kind["layers"]), kind["weights"], *sizes]
    for nodes in budgets:
        low, middle, high = kind["draft_ms"][nodes]
        cells += [
            f"{kind['tokens_per_step'][nodes]:.2f} ± {kind['standard_error'][nodes]:.2f}",
            f"{middle:.1f} ({low:.1f} to {high:.1f})",
            f"{kind['speed'][nodes]:.2f}x",
        ]
    return cells
