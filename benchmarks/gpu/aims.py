"""What was aimed at, by which formula, and what came out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.scale import AIM_CELL, AIM_NODES, AIM_SHAPE

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim: `value` is None where it was not measured."""

    what: str
    formula: str
    target: float
    at_least: bool
    value: float | None

    @property
    def verdict(self) -> str:
        """In words."""
        if self.value is None:
            return "not measured"
        met = self.value >= self.target if self.at_least else self.value <= self.target
        return "met" if met else "missed"


def aims(results: Mapping[str, Rows]) -> list[Aim]:
    """All of them, from the rows of the sections."""
    attention = {"context": AIM_CELL.context, "nodes": AIM_CELL.nodes}
    found = []
    for row in results.get("attention", ()):
        if attention.items() <= row.items() and row["batch"] in (1, 8) and "kernel_s" in row:
            where = f"{row['heads']}, batch {row['batch']}, 64 nodes on 4k context"
            found.append(
                Aim(f"kernel, {where}", "bytes / copy bandwidth / kernel time", 0.8, True, row["of_bound"])
            )
            best = row["over_best_library"]
            found.append(
                Aim(f"kernel, {where}", "time of the fastest library / kernel time", 1.0, True, best)
            )
    if not found:
        found.append(
            Aim("kernel, 64 nodes on 4k context", "bytes / copy bandwidth / kernel time", 0.8, True, None)
        )
    return [*found, *_pass_aims(results), _share_aim(results)]


def _pass_aims(results: Mapping[str, Rows]) -> list[Aim]:
    seven = {"shape": AIM_SHAPE, "batch": 1}
    passes = {
        row["nodes"]: row
        for row in results.get("passes", ())
        if seven.items() <= row.items() and "pass_s" in row
    }
    one, many = passes.get(1), passes.get(AIM_NODES)
    ratio = many["pass_s"] / one["pass_s"] if one and many else None
    bound = one["pass_s"] / one["plain_bound_s"] if one else None
    engine = _first(results, "engine", seven | {"nodes": 1})
    step = engine["step_s"] / one["plain_bound_s"] if engine and one else None
    reading = "(weights + keys and values) / copy bandwidth"
    return [
        Aim(
            f"{AIM_SHAPE}, batch 1, {AIM_NODES} nodes",
            f"pass of {AIM_NODES} / pass of one token",
            1.15,
            False,
            ratio,
        ),
        Aim(f"{AIM_SHAPE}, batch 1, plain pass", f"pass of one token / ({reading})", 1.25, False, bound),
        Aim(f"{AIM_SHAPE}, batch 1, plain decoding", f"step of the engine / ({reading})", 1.25, False, step),
    ]


def _share_aim(results: Mapping[str, Rows]) -> Aim:
    row = _first(results, "services", {"shape": AIM_SHAPE, "batch": 1, "mode": "plain"})
    formula = "1 - the device's pass / step of the gateway"
    value = row["beside_device"] if row else None
    return Aim("gateway, wire and host work, 7B, batch 1, plain", formula, 0.08, False, value)


def _first(results: Mapping[str, Rows], section: str, key: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in results.get(section, ()) if key.items() <= row.items()), None)
