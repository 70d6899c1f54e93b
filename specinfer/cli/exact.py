"""`specinfer exact`: check that speculation does not change a server's answers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from specinfer.cli.connection import API_KEY_VARIABLE
from specinfer.cli.options.shared import JsonOutput, check_positive
from specinfer.cli.show import output, progress_bar
from specinfer.errors import InvalidInputError
from specinfer.openai_api.comparison import Compared, exit_code
from specinfer.openai_api.completion import Question
from specinfer.openai_api.exact import PROMPTS, check, sides
from specinfer.openai_api.server import ApiServer
from specinfer.text.prompts import read_prompts

_ROUNDS = 3
_SHOWN = 5
"""Maximum differences shown for greedy and for seeded requests each."""


def exact(
    base_url: Annotated[str, typer.Argument(help="Server of OpenAI's API, as http://HOST:PORT.")],
    against: Annotated[
        str | None,
        typer.Option(help="Server that decodes plainly; not given: the same one without speculation."),
    ] = None,
    off: Annotated[
        str | None,
        typer.Option(
            help="JSON object of body fields that switch speculation off; not needed for SpecInfer and llama.cpp."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model id; else the first in the server's list.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help='JSONL file of {"turns": ["text"]}; else 12 built-in prompts.')
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of an answer.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="Of seeded requests; 0: only greedy ones.")
    ] = 0.8,
    concurrency: Annotated[int, typer.Option(help="Requests that run at once.")] = 1,
    tie: Annotated[
        float,
        typer.Option(
            min=0.0, help="Maximum difference of two tokens in nats that rounding may decide (a tie)."
        ),
    ] = 0.0,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=API_KEY_VARIABLE, show_default=False, help="Key, if the servers require one."),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Compare answers with and without speculation; exit with 1 if any differs.

    Requests are greedy, and sampled with a seed. Plain decoding runs twice to find answers that differ without
    speculation. If plain decoding repeats no answer, nothing is proved: exit code 3.
    """
    check_positive("--max-tokens", max_tokens)
    check_positive("--concurrency", concurrency)
    other = None if against is None else ApiServer.at(against, api_key)
    plain, speculating = sides(ApiServer.at(base_url, api_key), other, _read_off(off))
    texts = PROMPTS if prompts is None else read_prompts(prompts)
    questions = [Question(text, max_tokens) for text in texts]
    if temperature:
        questions += [Question(text, max_tokens, temperature, seed) for seed, text in enumerate(texts, 1)]
    with progress_bar() as bar:
        task = bar.add_task("asking", total=_ROUNDS * len(questions))
        compared = check(plain, speculating, questions, concurrency, model, lambda: bar.advance(task))
    if json_output:
        typer.echo(json.dumps([{**asdict(one), "wrong": one.is_wrong(tie)} for one in compared]))
    else:
        for line in report(compared, tie):
            output.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(compared, tie))


def report(compared: Sequence[Compared], tie: float) -> list[str]:
    """Return the lines of the report."""
    lines = []
    for kind in dict.fromkeys(one.kind for one in compared):
        these = [one for one in compared if one.kind == kind]
        same = sum(one.difference is None for one in these)
        repeated = sum(one.unrepeated is None for one in these)
        tokens = sum(one.tokens for one in these)
        lines.append(
            f"{kind}: {same} of {len(these)} answers are the same with speculation"
            + (f", {tokens} tokens" if tokens else "")
            + f"; plain decoding repeats {repeated} of them"
        )
        lines += [_line(one, tie) for one in these if one.difference is not None][:_SHOWN]
    return lines


def _line(one: Compared, tie: float) -> str:
    assert one.difference is not None
    difference = one.difference
    gap = ""
    if difference.gap is not None:
        gap = f", {abs(difference.gap):.3f} nats {'more' if difference.gap < 0 else 'less'} probable"
    verdict = "differs" if one.is_wrong(tie) else "a tie, or plain decoding does not repeat itself"
    return (
        f"  prompt {one.prompt + 1}, {difference.unit} {difference.position + 1}: plain {difference.plain!r}, "
        f"with speculation {difference.other!r}{gap}: {verdict}"
    )


def _read_off(text: str | None) -> dict[str, object] | None:
    """Parse the body fields in `--off`; None without `--off`."""
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise InvalidInputError("--off", text, f"must be a JSON object: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidInputError("--off", text, "must be a JSON object")
    return fields
