"""`specinfer bench compare A.json B.json`: what differs between two results beyond the noise."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from specinfer.cli.show import output
from specinfer.errors import InvalidInputError

FIGURES = ("tokens_per_second", "speedup")
"""Of a run, each with its standard error under the name with `_error` behind it."""
NOISE = 2.0
"""Standard errors of a ratio within which it may as well be 1: by chance one in twenty is not."""
Runs = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""By pool ("" where the result has one pool only), mode and batch size."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one run in both results."""

    run: tuple[str, str, int]
    figure: str
    first: float
    second: float
    error: float | None
    """Standard error of the ratio; None where a result does not tell the noise of its own."""

    @property
    def ratio(self) -> float:
        """Second over first."""
        return self.second / self.first

    @property
    def verdict(self) -> str:
        """In one word or two."""
        if self.error is None:
            return "noise unknown"
        if abs(self.ratio - 1) <= NOISE * self.error:
            return "within noise"
        return "faster" if self.ratio > 1 else "slower"


def read_runs(path: Path) -> Runs:
    """The runs of a result file of `bench --json` or `bench suite`.

    Raises:
        InvalidInputError: naming the file.
    """
    try:
        runs = json.loads(path.read_text())["runs"]
        return {(run.get("pool", ""), run["mode"], run["batch"]): run for run in runs}
    except OSError as error:
        raise InvalidInputError("result", str(path), error.strerror or "cannot be read") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInputError("result", str(path), "is no result of `specinfer bench`") from error


def differences(first: Runs, second: Runs) -> list[Difference]:
    """Of all figures that both results have."""
    found = []
    for run, a in first.items():
        b = second.get(run, {})
        for figure in FIGURES:
            if a.get(figure) and b.get(figure):
                error = _error_of_ratio(a, b, figure)
                found.append(Difference(run, figure, a[figure], b[figure], error))
    return found


def _error_of_ratio(a: Mapping[str, Any], b: Mapping[str, Any], figure: str) -> float | None:
    errors = [run.get(f"{figure}_error") for run in (a, b)]
    if None in errors:
        return None
    shares = [error / run[figure] for error, run in zip(errors, (a, b), strict=True)]
    return float(b[figure] / a[figure] * (shares[0] ** 2 + shares[1] ** 2) ** 0.5)


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A.json", help="Result of `bench --json` or `bench suite`.")
    ],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Another one.")],
) -> None:
    """Say what differs between two results beyond their noise."""
    a, b = read_runs(first), read_runs(second)
    found = differences(a, b)
    if not found:
        raise InvalidInputError("result", str(second), f"has no run in common with {first}")
    output.print(_table(found))
    for name, missing in ((first, set(b) - set(a)), (second, set(a) - set(b))):
        if missing:
            output.print(
                f"not in {name}: {', '.join(_words(run) for run in sorted(missing))}",
                highlight=False,
                soft_wrap=True,
            )
    output.print(
        f"within noise: the ratio is 1 within {NOISE:g} standard errors", highlight=False, soft_wrap=True
    )


def _table(found: Sequence[Difference]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("run", "figure", "A", "B", "B / A", ""):
        table.add_column(name)
    for each in found:
        error = "" if each.error is None else f" ±{each.error:.3f}"
        numbers = f"{each.first:.2f}", f"{each.second:.2f}", f"{each.ratio:.3f}{error}"
        table.add_row(_words(each.run), each.figure.replace("_", " "), *numbers, each.verdict)
    return table


def _words(run: tuple[str, str, int]) -> str:
    pool, mode, batch = run
    return ", ".join([*([pool] if pool else []), mode, f"batch {batch}"])
