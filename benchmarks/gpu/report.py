"""Write the report of `benchmarks.gpu` in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.scale import AIM_CELL, AIM_NODES, AIM_SHAPE
from benchmarks.synthetic import WARNING
from benchmarks.tables import head, line, origin

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Aim:
    """A target figure; `value` is None if not measured."""

    what: str
    formula: str
    target: float
    at_least: bool
    value: float | None

    @property
    def verdict(self) -> str:
        """Return met, missed or not measured."""
        if self.value is None:
            return "not measured"
        met = self.value >= self.target if self.at_least else self.value <= self.target
        return "met" if met else "missed"


def aims(results: Mapping[str, Rows]) -> list[Aim]:
    """Return all aims, from the rows of the sections."""
    attention = {"context": AIM_CELL.context, "nodes": AIM_CELL.nodes}
    lines = []
    for row in results.get("attention", ()):
        if attention.items() <= row.items() and row["batch"] in (1, 8) and "kernel_s" in row:
            where = f"{row['heads']}, batch {row['batch']}, 64 nodes on 4k context"
            lines.append(
                Aim(f"kernel, {where}", "bytes / copy bandwidth / kernel time", 0.8, True, row["of_bound"])
            )
            best = row["over_best_library"]
            lines.append(
                Aim(f"kernel, {where}", "time of the fastest library / kernel time", 1.0, True, best)
            )
    if not lines:
        lines.append(
            Aim("kernel, 64 nodes on 4k context", "bytes / copy bandwidth / kernel time", 0.8, True, None)
        )
    return [*lines, *_pass_aims(results)]


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


def _first(results: Mapping[str, Rows], section: str, key: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((row for row in results.get(section, ()) if key.items() <= row.items()), None)


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report: aims, skipped sections, a table per measured section."""
    results: Mapping[str, Rows] = report["results"]
    lines = ["# A GPU: kernels, passes and steps", "", _opening(report), ""]
    if report["scale"] != "full":
        lines += [f"**Scale {report['scale']}: a test of this benchmark. Its figures mean nothing.**", ""]
    if report["ended"] != "complete":
        lines += [f"**Not complete: {report['ended']}.**", ""]
    lines += [*_aims(results), *_left_out(report)]
    for name, table in TABLES.items():
        if measured := [row for row in results.get(name, ()) if "skipped" not in row]:
            lines += [*table(measured), ""]
    return "\n".join(lines)


def _opening(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{origin(report['about'])}; {machine['device']}; {versions}. {report['seconds']:.0f} s."


def _aims(results: Mapping[str, Rows]) -> list[str]:
    lines = ["## Aims", "", *head(["formula", "aim", "measured", ""])]
    for aim in aims(results):
        value = "-" if aim.value is None else f"{aim.value:.3f}"
        sign = "at least" if aim.at_least else "at most"
        lines.append(line(aim.what, [aim.formula, f"{sign} {aim.target:g}", value, aim.verdict]))
    return [*lines, ""]


def _left_out(report: Mapping[str, Any]) -> list[str]:
    lines = [f"- {name}: {reason}" for name, reason in report["skipped"].items()]
    for name, rows in report["results"].items():
        for row in rows:
            if "skipped" in row:
                cell = ", ".join(f"{key} {value}" for key, value in row.items() if key != "skipped")
                lines.append(f"- {name}, {cell}: {row['skipped']}")
    libraries = {
        (name, library["skipped"])
        for row in report["results"].get("attention", ())
        for name, library in row.get("libraries", {}).items()
        if "skipped" in library
    }
    lines += [f"- {name} in some or all cells: {reason}" for name, reason in sorted(libraries)]
    return ["## Left out", "", *lines, ""] if lines else []


def _check(rows: Rows) -> list[str]:
    lines = ["## Kernels against float64", "", *head(["error", "cache"], "cell")]
    return lines + [
        line(
            f"{row['kernel']} {row['cell']}",
            [f"{row['error']:.1e}", "exact" if row["cache_exact"] else "wrong"],
        )
        for row in rows
    ]


def _bandwidth(rows: Rows) -> list[str]:
    best = max(row["bytes_per_s"] for row in rows)
    return [
        "## Copy bandwidth",
        "",
        f"{best / 1e12:.2f} TB/s, bytes read and written (the better of {len(rows)} sizes).",
    ]


def _attention(rows: Rows) -> list[str]:
    names = list(rows[0]["libraries"])
    columns = [
        "batch",
        "context",
        "nodes",
        "bound, us",
        "kernel, us",
        "of the bound",
        *names,
        "best library / kernel",
    ]
    lines = ["## Tree attention, one layer: microseconds", "", *head(columns, "heads")]
    for row in rows:
        libraries = [_us(row["libraries"][name].get("seconds")) for name in names]
        ratio = "-" if row["over_best_library"] is None else f"{row['over_best_library']:.2f}x"
        cells = [str(row[key]) for key in ("batch", "context", "nodes")]
        cells += [_us(row["bound_s"]), _us(row["kernel_s"]), f"{row['of_bound']:.2f}", *libraries, ratio]
        lines.append(line(row["heads"], cells))
    return [
        *lines,
        "",
        "Bound: keys and values read once, queries read, results written, at the bandwidth of a copy.",
    ]


def _passes(rows: Rows) -> list[str]:
    columns = [
        "batch",
        "nodes",
        "pass, ms",
        "device, ms",
        "over one node",
        "pass / reading weights and cache",
    ]
    lines = ["## Verify passes on random weights", "", *head(columns, "shape")]
    for row in rows:
        cells = [str(row["batch"]), str(row["nodes"]), _ms(row["pass_s"]), _ms(row["queued_s"])]
        cells += [f"{row['over_one_node']:.3f}x", f"{row['pass_s'] / row['plain_bound_s']:.2f}x"]
        lines.append(line(row["shape"], cells))
    return lines


def _executors(rows: Rows) -> list[str]:
    lines = [
        "## The same passes by the torch executor",
        "",
        *head(["nodes", "gpu, ms", "torch, ms", "torch / gpu"], "shape"),
    ]
    for row in rows:
        ratio = "-" if row["gpu_s"] is None else f"{row['torch_s'] / row['gpu_s']:.2f}x"
        lines.append(line(row["shape"], [str(row["nodes"]), _ms(row["gpu_s"]), _ms(row["torch_s"]), ratio]))
    return lines


def _engine(rows: Rows) -> list[str]:
    columns = ["batch", "nodes", "step, ms", "device's pass, ms", "beside it", "tokens per step", "tokens/s"]
    lines = ["## Steps of the verifier's engine", "", f"**{WARNING}**", "", *head(columns, "shape")]
    for row in rows:
        cells = [str(row["batch"]), str(row["nodes"]), _ms(row["step_s"]), _ms(row["device_s"])]
        cells += [_share(row["beside_device"]), f"{row['tokens_per_step']:.2f}", f"{row['tokens_per_s']:.0f}"]
        lines.append(line(row["shape"], cells))
    return lines


def _drafting(rows: Rows) -> list[str]:
    columns = ["batch", "nodes", "depth", "captured, ms", "level by level, ms", "captured is faster by"]
    lines = ["## Growing trees of a small model", "", *head(columns, "shape")]
    for row in rows:
        cells = [str(row[key]) for key in ("batch", "nodes", "depth")]
        cells += [
            _ms(row["captured_s"]),
            _ms(row["by_level_s"]),
            f"{row['by_level_s'] / row['captured_s']:.2f}x",
        ]
        lines.append(line(row["shape"], cells))
    return lines


TABLES: Mapping[str, Callable[[Rows], list[str]]] = {
    "check": _check,
    "bandwidth": _bandwidth,
    "attention": _attention,
    "passes": _passes,
    "executors": _executors,
    "engine": _engine,
    "drafting": _drafting,
}


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e6 * seconds:.1f}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
