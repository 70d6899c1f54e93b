"""`specinfer batch`: answer a file of requests in OpenAI's batch format."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.connection import API_KEY_VARIABLE
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.running import local_system
from specinfer.cli.options.shared import DraftFlag, Speculators, check_positive, check_writable, refuse_with
from specinfer.cli.show import console, progress_bar
from specinfer.drafters.pools import read_speculators
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.openai_api.batch import BatchTotals, answer_all, keep_answered, sole_run
from specinfer.openai_api.batch_input import read_jobs
from specinfer.openai_api.server import ApiServer
from specinfer.options.model_options import AUTO, Dtype, Model, Weights


def batch(
    context: typer.Context,
    input_file: Annotated[Path, typer.Argument(metavar="INPUT", help="JSONL file of requests.")],
    output_file: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="Answers; an earlier run's file is continued.")
    ],
    base_url: Annotated[
        str | None,
        typer.Option(help="A running server of OpenAI's API; not given: a system is started for the batch."),
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Requests that run at once.")] = 16,
    patience_seconds: Annotated[
        float, typer.Option(min=0.0, help="Time for which a request is retried while the server is full.")
    ] = 600.0,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=API_KEY_VARIABLE, show_default=False, help="Key, if the server requires one."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = AUTO,
    draft: DraftFlag = None,
    speculator: Speculators = None,
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Run the command again to continue: requests with an answer are not sent again. A refusal counts as an answer.
    Exit code 1 if the server failed to answer a request.
    """
    check_positive("--concurrency", concurrency)
    if input_file.resolve() == output_file.resolve():
        raise InvalidInputError("OUTPUT", str(output_file), "must be another file than INPUT")
    if base_url is not None:
        reason = "not allowed with --base-url, which names a running server"
        refuse_with(context, ("model", "dtype", "weights", "draft", "speculator"), reason)
    jobs = read_jobs(input_file)
    options = LocalOptions(
        model=model,
        dtype=dtype,
        verifier={"weights": weights},
        speculators=read_speculators(speculator),
        draft=draft,
    )
    totals = BatchTotals()
    with sole_run(output_file):
        answered = keep_answered(output_file, jobs)
        check_writable("OUTPUT", output_file)
        left = [job for job in jobs if job.custom_id not in answered]
        if left:
            with _server(base_url, api_key, options) as server, progress_bar() as bar:
                task = bar.add_task("answering", total=len(jobs), completed=len(answered))
                totals = answer_all(
                    server, left, output_file, concurrency, patience_seconds, lambda _: bar.advance(task)
                )
    shown = f"{totals.succeeded} answered, {totals.refused} refused, {totals.failed} failed"
    console.print(f"{shown}, {len(answered)} by earlier runs", markup=False, highlight=False)
    raise typer.Exit(int(totals.failed > 0))


@contextmanager
def _server(base_url: str | None, api_key: str | None, options: LocalOptions) -> Iterator[ApiServer]:
    """Yield the server at `base_url`, or that of a new local system."""
    if base_url is not None:
        yield ApiServer.at(base_url, api_key)
        return
    (port,) = free_ports(1)
    with local_system(replace(options, http=f"127.0.0.1:{port}")):
        yield ApiServer.at(f"http://127.0.0.1:{port}")
