"""`specinfer generate`: one prompt, its answer streamed to standard output."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.client import Answer, GatewayClient, make_request
from specinfer.cli.local import LocalOptions
from specinfer.cli.options import (
    DEFAULT_ADDRESS,
    LOCAL_OPTIONS,
    Address,
    Dtype,
    LocalDevice,
    Model,
    Raw,
    SpeculationChoice,
    Weights,
    refuse_with,
)
from specinfer.cli.running import gateway
from specinfer.cli.show import answer_line, console
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.prompts import check_text, read_prompt
from specinfer.v1 import generation_pb2


def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads standard input.")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="Read the prompt from this file: UTF-8, without its last line break.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k most probable tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most probable tokens up to this mass.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Seed; drawn at random if not given.")] = None,
    speculation: Annotated[
        SpeculationChoice, typer.Option(help="How to speculate.")
    ] = SpeculationChoice.TREE,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this string; may be repeated.")] = None,
    raw: Raw = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end of sequence.")
    ] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Return log-probabilities (with --json).")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
    address: Address = DEFAULT_ADDRESS,
    local: Annotated[bool, typer.Option("--local", help="Start a temporary local system.")] = False,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "converted",
    device: LocalDevice = None,
) -> None:
    """Stream the answer to a prompt."""
    if local:
        refuse_with(context, ("address",), "excludes --local, which starts a gateway of its own")
    else:
        refuse_with(context, LOCAL_OPTIONS, "needs --local: a running gateway has its own")
    if seed is not None and seed < 0:
        raise InvalidInputError("seed", seed, "must be >= 0")
    if top_k < 0:
        raise InvalidInputError("top_k", top_k, "must be >= 0")
    request = make_request(
        _prompt(prompt, prompt_file),
        chat=not raw,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=[check_text("stop", text) for text in stop or ()],
        ignore_eos=ignore_eos,
        speculation=speculation.value,
        logprobs=logprobs,
    )
    options = LocalOptions(model=model, dtype=dtype, device=device, verifier={"weights": weights})
    with gateway(address if not local else None, options) as where:
        answer = asyncio.run(_generate(where, request, quiet=json_output))
    if json_output:
        typer.echo(json.dumps(answer.to_json()))
    else:
        typer.echo()
        console.print(answer_line(answer), style="dim", markup=False, highlight=False, soft_wrap=True)


def _prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from where the user has put it."""
    if argument is not None and file is not None:
        raise InvalidInputError("--prompt-file", str(file), "excludes a prompt as argument")
    if argument is None and file is None:
        raise InvalidInputError("prompt", None, "needed: as argument, - for standard input, or --prompt-file")
    if argument is None or argument == "-":
        return read_prompt(file)
    return check_text("prompt", argument)


async def _generate(address: str, request: generation_pb2.GenerateRequest, quiet: bool) -> Answer:
    client = GatewayClient(address)
    try:
        return await client.generate(
            request, on_text=lambda text: None if quiet else typer.echo(text, nl=False)
        )
    finally:
        await client.close()
