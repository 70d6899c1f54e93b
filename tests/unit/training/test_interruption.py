"""Interrupted training and corpus generation continue later, and never overwrite finished results."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from specinfer.errors import SettingError
from specinfer.training import distil as distilling
from specinfer.training.corpus import Continuation, Examples, Labels, finished_jobs
from specinfer.training.distil import DistilOptions, distil
from specinfer.training.make_corpus import make_corpus
from specinfer.training.run import InterruptionError, deferred_signals
from tests.support.background import in_background
from tests.support.models.saved_model import save_target
from tests.unit.training.test_training import make_student

ROOT = Path(__file__).resolve().parents[3]
SIGNALS = [signal.SIGINT, signal.SIGTERM]
RUN = """
import os, sys
import specinfer.training.__main__ as program
import specinfer.training.{module} as module
work = module.{function}
def interrupted(*arguments):
    {body}
if {signal}:
    module.{function} = interrupted
program.main()
"""
CONTINUE = """for number, item in enumerate(work(*arguments)):
        yield item
        if number == 1: os.kill(os.getpid(), {signal})"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"), initializer_range=0.4)


def run(
    module: str, function: str, body: str, number: int, *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run a command of `specinfer train` that gets a signal (unless 0) during `function`."""
    code = RUN.format(
        module=module, function=function, signal=int(number), body=body.format(signal=int(number))
    )
    return subprocess.run(
        in_background([sys.executable, "-c", code, *map(str, arguments)]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )


def examples() -> Examples:
    rng = np.random.default_rng(0)
    corpus = [Continuation(tuple(rng.integers(3, 97, 4).tolist()), (3, 4, 5, 6)) for _ in range(40)]
    labels = [Labels(np.full((4, 2), 3, np.int32), np.full((4, 2), 0.5, np.float16)) for _ in corpus]
    return Examples(corpus, labels)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_the_last_step_and_ends(number: signal.Signals, target: Path, tmp_path: Path) -> None:
    """The last step is saved at once, although the next regular saving is minutes away."""
    options, state = DistilOptions(minutes=0.4, tokens_per_batch=64), tmp_path / "state.pt"

    def interrupt_after(steps: int) -> list[int]:
        seen: list[int] = []

        def report(minutes: float, loss: float, tokens: int) -> None:
            seen.append(tokens)
            if len(seen) == steps:
                os.kill(os.getpid(), number)

        student = make_student(target, np.arange(40))
        with pytest.raises(InterruptionError, match=r"state\.pt"):
            distil(student, examples(), options, state, report)
        return seen

    first, second = interrupt_after(3), interrupt_after(2)
    assert len(first) == 3, "it ended at once"
    assert torch.load(state)["at"][1] == second[-1]
    assert second[0] - first[-1] == first[1] - first[0], "the next step"


def test_training_ends_without_better_scores_and_returns_the_best_student(
    target: Path, tmp_path: Path
) -> None:
    """The best student is part of the saved state, so that an interruption does not lose it."""
    options, state = DistilOptions(minutes=1e9), tmp_path / "state.pt"  # an epoch is one batch
    scores, students = iter([3.0, 7.0, 5.0, 7.0, 6.0, 2.0, 1.0, 0.0]), list[dict[str, torch.Tensor]]()

    def trained(stop_after: int) -> torch.nn.Module:
        student = make_student(target, np.arange(40))

        def score() -> float:
            students.append({name: tensor.clone() for name, tensor in student.state_dict().items()})
            if len(students) == stop_after:
                os.kill(os.getpid(), signal.SIGINT)
            return next(scores)

        distil(student, examples(), options, state, lambda *_: None, score=score)
        return student

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distilling, "SCORE_SHARE", 0.0)
        with pytest.raises(InterruptionError):
            trained(stop_after=4)
        best_state = trained(stop_after=0).state_dict()
    assert len(students) == 1 + 1 + distilling.PATIENCE + 1, "two better scores, five others, the last"
    assert all(torch.equal(best_state[name], tensor) for name, tensor in students[1].items())
    assert not all(torch.equal(best_state[name], tensor) for name, tensor in students[-1].items())


def test_a_run_that_was_saved_at_its_end_needs_no_further_step(target: Path, tmp_path: Path) -> None:
    options, state = DistilOptions(minutes=0.005, tokens_per_batch=64), tmp_path / "state.pt"
    steps: list[float] = []
    first = distil(make_student(target, np.arange(40)), examples(), options, state, lambda *_: None)
    again = distil(
        make_student(target, np.arange(40)), examples(), options, state, lambda at, *_: steps.append(at)
    )
    assert (again, steps) == (first, [])


def test_the_second_signal_acts_at_once() -> None:
    handler = signal.default_int_handler  # as the training commands set it, because a shell may ignore it
    before = signal.signal(signal.SIGINT, handler)
    with deferred_signals() as signalled:
        os.kill(os.getpid(), signal.SIGINT)
        assert signalled()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.thorough
def test_train_corpus_is_interrupted_continues_and_is_not_repeated(target: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "corpus.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"prompt {i}"]}) + "\n" for i in range(6)))
    flags = ["corpus", "--prompts", prompts, "--out", out, "--model", target, "--batch", 2]
    flags += ["--max-new-tokens", 5, "--device", "cpu"]
    done = run("make_corpus", "continue_prompts", CONTINUE, signal.SIGTERM, *flags)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"specinfer train: interrupted: while continuing prompts, 2 of 6 are in {out}; "
        "the same command without --overwrite continues"
    )
    kept = out.read_text()
    assert len(finished_jobs(out)) == 2

    def make(**more: object) -> None:
        make_corpus(prompts, out, str(target), batch=2, max_new_tokens=5, device="cpu", **more)  # type: ignore[arg-type]

    make()
    whole = out.read_text()
    assert whole.startswith(kept)
    assert len(finished_jobs(out)) == 6
    with pytest.raises(SettingError, match="out = "):
        make()
    with pytest.raises(SettingError, match="out = "):
        make(seed=1)
    assert out.read_text() == whole
    make(seed=1, overwrite=True)
    assert len(finished_jobs(out)) == 6
    assert out.read_text() != whole


def test_specinfer_train_passes_signals_on(tmp_path: Path, target: Path) -> None:
    """The command waits for prompts from a pipe; one process runs, which gets the signal."""
    pipe = tmp_path / "prompts"
    os.mkfifo(pipe)
    command = [
        "-m",
        "specinfer.cli",
        "train",
        "corpus",
        "--prompts",
        str(pipe),
        "--out",
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(
        in_background([sys.executable, *command, "--model", str(target)]),
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            with pipe.open("w"):  # waits until it reads
                process.send_signal(signal.SIGINT)
                assert process.wait(120) == 130
            assert process.stderr is not None
            assert "interrupted: finished work is kept" in process.stderr.read()
        finally:
            process.kill()
