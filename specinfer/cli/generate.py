"""`specinfer generate`, `attach` and `cancel`: requests in the terminal."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.connection import TRACE_VARIABLE
from specinfer.cli.local.running import load_in_process
from specinfer.cli.options.request import (
    ConstraintText,
    PromptFile,
    References,
    RequestFlags,
    read_constraint,
)
from specinfer.cli.options.shared import (
    DEFAULT_PATIENCE_S,
    GATEWAY_OPTIONS,
    LOCAL_OPTIONS,
    AccessFlags,
    Address,
    DraftFlag,
    JsonOutput,
    LocalFlags,
    PatienceSeconds,
    Raw,
    refuse_with,
)
from specinfer.cli.show import print_answer_line, print_retry, print_way_back
from specinfer.client import (
    Answer,
    AsyncClient,
    AsyncStream,
    Patience,
    StreamLostError,
    new_request_id,
)
from specinfer.client.options import checked
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.flag_groups import LOCAL
from specinfer.options.model_options import Model
from specinfer.request.stream import Generator
from specinfer.text.prompts import check_text, read_prompt, read_text

PromptText = Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")]
Here = Annotated[
    bool, typer.Option("--local", help="Answer in this process, without a gateway.", rich_help_panel=LOCAL)
]


def generate(
    context: typer.Context,
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    constraint: ConstraintText = None,
    *,
    request: RequestFlags,
    reference: References = None,
    raw: Raw = False,
    json_output: JsonOutput = False,
    address: Address = None,
    access: AccessFlags,
    patience_seconds: PatienceSeconds = DEFAULT_PATIENCE_S,
    local: Here = False,
    model: Model = DEFAULT_MODEL,
    options: LocalFlags,
    draft: DraftFlag = None,
) -> None:
    """Stream the answer to a prompt.

    Ctrl-C cancels the request; a lost connection is resumed.
    """
    _check_together(context, local)
    text = _prompt(prompt, prompt_file)
    fields = replace(
        request,
        chat=not raw,
        stop=[check_text("stop", stop) for stop in request.stop],
        request_id=check_text("request_id", request.request_id or new_request_id()),
        references=[read_text("reference", path) for path in reference or ()],
        **read_constraint(constraint),
    )
    checked(vars(fields))
    if local:
        llm = load_in_process(model, draft=draft, **options.here)
        answer = asyncio.run(_generate_here(llm, llm.ask(text, fields), quiet=json_output))
    else:
        connection = access.reach(address, os.environ.get(TRACE_VARIABLE, "")).check()
        client = connection.client(Patience(patience_seconds), print_retry)
        answer = asyncio.run(_generate(client, client.ask(text, fields), quiet=json_output))
    print_answer(answer, json_output)


def _check_together(context: typer.Context, local: bool) -> None:
    if local:
        refuse_with(context, GATEWAY_OPTIONS, "cannot be used with --local: it needs no gateway")
    else:
        refuse_with(context, LOCAL_OPTIONS, "needs --local: a running gateway keeps its own setting")


def print_answer(answer: Answer, as_json: bool) -> None:
    """Print a complete answer as JSON, or only its line of costs."""
    if as_json:
        typer.echo(json.dumps(answer.to_json()))
    else:
        typer.echo()
        print_answer_line(answer)


def _prompt(argument: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, a file or standard input."""
    if argument is not None and file is not None:
        raise InvalidInputError("--prompt-file", str(file), "cannot be used with a prompt as argument")
    if argument is None and file is None:
        raise InvalidInputError(
            "prompt", None, "required: as argument, - for standard input, or --prompt-file"
        )
    if argument is None or argument == "-":
        return read_prompt(file)
    return check_text("prompt", argument)


async def _generate_here(llm: Generator, stream: AsyncStream, quiet: bool) -> Answer:
    """Answer in this process, without gateway and Redis (`--local`)."""
    async with llm, stream:
        return await stream.read(silent if quiet else print_text)


async def _generate(client: AsyncClient, stream: AsyncStream, quiet: bool) -> Answer:
    async with client, stream:
        try:
            return await stream.read(silent if quiet else print_text)
        except StreamLostError as error:
            if error.request_id == stream.request_id:  # not of another request
                print_way_back(error)
            raise
        except (asyncio.CancelledError, SystemExit):  # Ctrl-C; SIGTERM, for which `main` exits
            await client.abandon(stream.request_id)
            raise


def print_text(text: str) -> None:
    typer.echo(text, nl=False)


def silent(text: str) -> None:
    """Print nothing, since the complete answer is printed as JSON later."""


AttachedId = Annotated[str, typer.Argument(help="Id of the request.")]


def attach(
    request_id: AttachedId,
    from_token: Annotated[int, typer.Option(help="Number of tokens already received.")] = 0,
    json_output: JsonOutput = False,
    address: Address = None,
    *,
    access: AccessFlags,
    patience_seconds: PatienceSeconds = DEFAULT_PATIENCE_S,
) -> None:
    """Stream the rest of a request's answer. Ctrl-C leaves the request running."""
    connection = access.reach(address)
    client = connection.client(Patience(patience_seconds), print_retry)
    check_text("request_id", request_id)
    print_answer(asyncio.run(_attach(client, request_id, from_token, json_output)), json_output)


async def _attach(client: AsyncClient, request_id: str, from_token: int, quiet: bool) -> Answer:
    async with client, client.attach(request_id, from_token) as stream:
        try:
            return await stream.read(silent if quiet else print_text)
        except StreamLostError as error:
            print_way_back(error)
            raise


def cancel(
    request_id: AttachedId,
    address: Address = None,
    *,
    access: AccessFlags,
) -> None:
    """Stop a running request, which keeps the tokens generated so far."""
    connection = access.reach(address)
    asyncio.run(_cancel(connection.client(), check_text("request_id", request_id)))


async def _cancel(client: AsyncClient, request_id: str) -> None:
    async with client:
        await client.cancel(request_id)
