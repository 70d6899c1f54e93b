"""Tables and progress displays of the command line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from specinfer.cli.bench import Run
from specinfer.cli.client import Answer, acceptance_length
from specinfer.v1 import generation_pb2

console = Console(stderr=True)
"""Displays go to standard error, so that standard output is the answer and nothing else."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress display that vanishes when done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


def run_table(runs: Sequence[Run]) -> Table:
    """One row per mode and batch size."""
    table = Table(title="ttft, tpot: median time to first token and per later token, in ms")
    for name in ("mode", "batch", "tok/s", "steps", "tok/step", "accepted", "ttft", "tpot"):
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.mode,
            str(run.batch),
            f"{run.tokens_per_second:.1f}",
            str(run.steps),
            f"{run.acceptance_length:.2f}",
            f"{run.acceptance_rate:.0%}" if run.speculators else "-",
            f"{run.ttft_ms['p50']:.0f}",
            f"{run.tpot_ms['p50']:.1f}",
        )
    return table


def win_lines(runs: Sequence[Run]) -> list[str]:
    """Per speculative run, which speculator won how many steps."""
    return [
        f"{run.mode}, batch {run.batch}: of {run.steps} steps "
        + ", ".join(f"{name} won {row['wins']}" for name, row in run.speculators.items())
        for run in runs
        if run.speculators
    ]


def status_table(address: str, status: generation_pb2.StatusReply) -> Table:
    """The state of a system."""
    table = Table(title=f"gateway at {address}")
    table.add_column("what")
    table.add_column("state")
    lossy = ", LOSSY: windowed cache" if status.lossy else ""
    table.add_row("model", f"{target_words(status)}, context {status.max_context_len}{lossy}")
    table.add_row("verifier", "ready" if status.verifier_ready else "not answering")
    table.add_row("requests", f"{status.running} running, {status.waiting} waiting")
    table.add_row("since start", f"{status.new_tokens} tokens in {status.steps} steps")
    for s in status.speculators:
        ready = "ready" if s.ready else "not answering"
        table.add_row(
            f"speculator {s.name} ({s.drafter or '?'})",
            f"{ready}, {s.answered} in time, {s.missed} missed, {s.failed} failed",
        )
    return table


def answer_line(answer: Answer) -> str:
    """What one answer took, and which speculators won steps."""
    summary, result = answer.summary, answer.to_json()
    steps, accepted = summary.stats.steps, summary.stats.accepted
    parts = [
        f"{summary.new_tokens} tokens in {steps} steps",
        f"{acceptance_length(steps, accepted):.2f} tokens/step",
        *(f"{speculator.name} won {speculator.wins}" for speculator in summary.stats.speculators),
        result["finish_reason"],
    ]
    return ", ".join(parts)


def ready_line(address: str, status: generation_pb2.StatusReply, logs: str) -> str:
    """What a system that has just started says of itself."""
    return f"ready at {address}: {target_words(status)}; logs in {logs}; Ctrl-C ends it"


def target_words(status: generation_pb2.StatusReply) -> str:
    """The target model and how it runs."""
    return (
        f"{status.model}, {status.executor} executor, {status.dtype}, {status.device}, "
        f"weights {status.weights}"
    )
