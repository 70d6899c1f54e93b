"""Print tables, remarks and progress on the command line."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote

from rich.box import SIMPLE_HEAD
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

from specinfer.cli.bench import BenchRun
from specinfer.client import Answer, Retry, StreamLostError
from specinfer.client.described import draft_words, name_of, target_words
from specinfer.system.progress import LOGGER
from specinfer.system.running import RunningServer, resident_bytes
from specinfer.v1 import generation_pb2

console = Console(stderr=True)
"""Console of progress and remarks, on standard error."""
output = Console()
"""Console of results, on standard output."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield a progress display that vanishes when done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show a text while work runs; on terminals with a spinner.

    The yielded function shows another text. Log lines about progress in this process are shown, too.
    """
    if console.is_terminal:
        with console.status(what) as spinner, _progress_shown(spinner.update):
            yield spinner.update
        return

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with _progress_shown(line):
        yield line


@contextmanager
def _progress_shown(show: Callable[[str], None]) -> Iterator[None]:
    logger, handler = logging.getLogger(LOGGER), logging.Handler()
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    level, inherited = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = inherited


def print_runs(runs: Sequence[BenchRun]) -> None:
    """Print the comparison: a table if it fits, else lines."""
    rows = [_row(run) for run in runs]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    needed = output.measure(table, options=output.options.update(width=_UNLIMITED)).maximum
    if needed <= output.width:
        output.print(table)
    else:
        for row in rows:
            output.print(", ".join(f"{name} {value}" for name, value in row.items()), highlight=False)
    for line in (*win_lines(runs), _LEGEND):
        output.print(line, markup=False, highlight=False)


_UNLIMITED = 1000
_LEGEND = (
    "±: standard error over the turns. speedup: ratio to incremental decoding in the same turns. tok/step: "
    "tokens per step, with the bonus token. ttft, tpot: median milliseconds to the first token (of a cached "
    "prompt) and per later token."
)


def _row(run: BenchRun) -> dict[str, str]:
    speedup = "-" if run.speedup is None else _with_error(f"{run.speedup:.2f}x", run.speedup_error, 2)
    return {
        "mode": run.mode,
        "batch": str(run.batch),
        "tok/s": _with_error(f"{run.tokens_per_second:.1f}", run.tokens_per_second_error, 1),
        "speedup": "-" if run.mode == "incremental" else speedup,
        "tok/step": f"{run.acceptance_length:.2f}",
        "accepted": f"{run.acceptance_rate:.0%}" if run.speculators else "-",
        "ttft": f"{run.ttft_ms['p50']:.0f}",
        "tpot": f"{run.tpot_ms['p50']:.1f}",
    }


def _with_error(value: str, error: float | None, digits: int) -> str:
    return value if error is None else f"{value} ±{error:.{digits}f}"


def win_lines(runs: Sequence[BenchRun]) -> list[str]:
    """Return a line per speculative run: `wins` of each speculator."""
    return [
        f"{run.mode}, batch {run.batch}: of {run.steps} steps "
        + ", ".join(f"{name} won {row['wins']}" for name, row in run.speculators.items())
        for run in runs
        if run.speculators
    ]


def status_table(
    address: str, status: generation_pb2.StatusReply, server: RunningServer | None = None
) -> Table:
    """Return the state of a system; `server` is its record on this machine."""
    table = Table(title=f"gateway at {address}")
    table.add_column("what")
    table.add_column("state")
    lossy = ", LOSSY: windowed cache" if status.lossy else ""
    draining = ", draining: takes no new requests" if status.draining else ""
    table.add_row("gateway", f"{status.gateway_id}, {status.gateways} alive{draining}")
    table.add_row("redis", ready_words(status.redis_ready))
    table.add_row("model", f"{target_words(status)}, context {status.max_context_len}{lossy}")
    table.add_row("draft", draft_words(status).removeprefix("draft "))
    if server is not None:
        table.add_row(server.command, f"{server.url or server.address}, {memory_words(server)}")
    table.add_row("verifier", ready_words(status.verifier_ready))
    for verifier in status.verifiers:
        table.add_row(f"verifier {verifier.address}", verifier_words(verifier, status.gateway_id))
    table.add_row("requests", f"{status.running} running, {status.waiting} waiting")
    table.add_row("last minute", recent_words(status.last_minute))
    table.add_row("since start", f"{status.new_tokens} tokens in {status.steps} steps")
    table.add_row("latest step", planner_words(status.planner))
    for s in status.speculators:
        table.add_row(
            f"speculator {name_of(s)}",
            f"{ready_words(s.ready)}, {s.answered} in time, {s.missed} missed, {s.failed} failed"
            f"{learning_words(s)}",
        )
    return table


def memory_words(server: RunningServer) -> str:
    """Describe the resident memory of a server's processes."""
    return f"{resident_bytes(server.pid) / 1e9:.2f} GB of memory"


def recent_words(recent: generation_pb2.RecentState) -> str:
    """Describe the rates of the last minute, and what trees produced."""
    if not recent.new_tokens or not recent.steps:
        return "no tokens"
    rates = f"{recent.new_tokens / recent.seconds:.1f} tokens/s, {recent.finished} requests finished"
    if not recent.drafted:
        return f"{rates}; no guesses: plain decoding"
    return (
        f"{rates}; trees: {recent.accepted} of {recent.drafted} guesses accepted, "
        f"{recent.new_tokens / max(1, recent.new_tokens - recent.accepted):.2f} tokens per pass"
    )


def ready_words(ready: bool) -> str:
    return "ready" if ready else "not answering"


def learning_words(speculator: generation_pb2.SpeculatorState) -> str:
    """Describe what a speculator has learned; empty if it does not learn."""
    if not speculator.HasField("learning"):
        return ""
    state = speculator.learning
    judged = state.held_out_tokens_per_step
    return (
        f", weights {state.version}, learns from {state.replay_tokens} tokens"
        + (f", held out {judged:.2f} tokens a step" if judged else "")
        + f", {state.swaps} swaps, {state.take_backs} taken back"
    )


_ROOM_TOKENS = 4096
"""Context tokens per request, to express a cache's capacity in requests."""


def room_words(capacity: int, longest: int) -> str:
    """Describe a cache's capacity: tokens, and requests of `_ROOM_TOKENS`."""
    length = min(_ROOM_TOKENS, longest, capacity)
    return f"{capacity} tokens: {capacity // length} requests of {length}"


def verifier_words(verifier: generation_pb2.VerifierState, gateway_id: str) -> str:
    """Describe a verifier's state and gateway."""
    if not verifier.gateway_id:
        return f"{ready_words(verifier.ready)}, driven by no gateway"
    if verifier.gateway_id != gateway_id:
        return f"{ready_words(verifier.ready)}, driven by gateway {verifier.gateway_id}"
    requests = f"{verifier.running} running, {verifier.waiting} waiting"
    return f"{ready_words(verifier.ready)}, driven by this gateway: {requests}"


def planner_words(planner: generation_pb2.PlannerState) -> str:
    """Describe the planner's latest choice: tokens of a request, cost of a step, reason."""
    if not planner.speculators:
        return f"plain decoding: {planner.reason}"
    nodes = planner.tree_nodes or planner.step_nodes
    chosen = f"{' + '.join(planner.speculators)}, {nodes} node{'s' if nodes != 1 else ''}"
    if not planner.batch:
        return f"{chosen}: {planner.reason}"
    tokens = planner.expected_tokens / planner.batch
    steps = planner.expected_seconds * planner.plain_tokens_per_second / planner.batch
    return f"{chosen}: {tokens:.2f} tokens at {steps:.2f} of a plain step ({planner.reason})"


def answer_line(answer: Answer) -> str:
    """Return a line with an answer's tokens, steps, times and winning speculators."""
    summary, stats = answer.summary, answer.stats
    parts = [
        f"{summary.new_tokens} tokens in {stats.steps} steps",
        f"{stats.acceptance_length:.2f} tokens/step",
        *(f"{speculator.name} won {speculator.wins}" for speculator in stats.speculators),
        answer.finish_reason,
        *(["typical acceptance: not lossless"] if stats.lossy else []),
    ]
    return ", ".join(parts)


def note(text: str) -> None:
    """Print a dim line on standard error."""
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)


def print_answer_line(answer: Answer) -> None:
    """Print `answer_line` after an answer's text."""
    note(answer_line(answer))


def print_retry(retry: Retry) -> None:
    """Print a note at the first of consecutive failures."""
    if retry.failures == 1:
        note(f"\ngateway unavailable ({retry.failure.details}); trying again")


def print_way_back(error: StreamLostError) -> None:
    """Print the command that continues a lost request's stream."""
    if error.from_token:
        way = f"specinfer attach {quote(error.request_id)} --from-token {error.from_token}"
        note(f"\nto stream the rest, if a gateway has it: {way}")
