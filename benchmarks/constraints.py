"""Tokens of a step with and without a constraint, on the default model with the usual speculators.

    python -m benchmarks.constraints

The same prompts are answered freely, by a schema, and by the same schema without white space. Greedy, all
trees of the same size (no planner), so tokens and steps are the same again; times are not measured.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.local import LocalOptions
from specinfer.cli.running import local_system
from specinfer.client import Answer, Client
from specinfer.client.options import RequestOptions
from specinfer.hub import DEFAULT_MODEL

_SUBJECTS = ("Paris", "chess")
_NEW_TOKENS = 48
_EVERY_STEP = {"adaptive": "false", "tree-nodes": "16", "draft-deadline-ms": "20000"}
"""Settings of the gateway: 16 nodes, however long drafts take."""
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"enum": ["place", "animal", "food", "instrument", "game", "machine", "planet"]},
        "properties": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        "well_known": {"type": "boolean"},
    },
    "required": ["name", "kind", "properties", "well_known"],
    "additionalProperties": False,
}
_FORMS: dict[str, RequestOptions] = {
    "free": {},
    "schema": {"json_schema": _SCHEMA},
    "schema, no white space": {"json_schema": _SCHEMA | {"x-guidance": {"whitespace_flexible": False}}},
}


def measure(client: Client, form: RequestOptions) -> dict[str, Any]:
    """All subjects in one form; the first one plainly, too, which must give the same."""
    trees = [_ask(client, subject, form, "tree") for subject in _SUBJECTS]
    assert _ask(client, _SUBJECTS[0], form, "off").token_ids == trees[0].token_ids
    stats = [answer.summary.stats for answer in trees]
    return {
        "tokens": sum(len(answer.token_ids) for answer in trees),
        "steps": sum(one.steps for one in stats),
        "accepted": sum(one.accepted for one in stats),
        "drafted": sum(one.drafted for one in stats),
        "by_speculators": sum(row.accepted for one in stats for row in one.speculators),
        "complete": sum(answer.finish_reason != "length" for answer in trees),
    }


def _ask(client: Client, subject: str, form: RequestOptions, speculation: str) -> Answer:
    prompt = f"Describe {subject} as a JSON object with name, kind, properties and well_known."
    options: RequestOptions = {"max_new_tokens": _NEW_TOKENS, "speculation": speculation, **form}
    answer = client.generate(prompt, **options)
    typer.echo(f"{subject}: {len(answer.token_ids)} tokens, {answer.summary.stats.steps} steps", err=True)
    return answer


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    texts = [
        line(name, [*(str(row[key]) for key in ("tokens", "steps", "complete")), _per_step(row)])
        for name, row in report["forms"].items()
    ]
    opening = (
        f"{origin(report['about'])}. {report['model']}, greedy, {len(_SUBJECTS)} prompts, at most "
        f"{_NEW_TOKENS} tokens. Plain decoding takes a step for each; for the first prompt it gave the same."
    )
    columns = ["tokens", "steps", "complete", "tokens of a step"]
    return "\n".join(
        [
            "# Tokens of a step with and without a constraint",
            "",
            opening,
            "",
            *head(columns, "form"),
            *texts,
            "",
        ]
    )


def _per_step(row: dict[str, Any]) -> str:
    return f"{row['tokens'] / row['steps']:.2f}"


def main(
    out: Annotated[Path, typer.Option(help="Where the report goes, without suffix.")] = RESULTS
    / "constraints",
    model: Annotated[str, typer.Option(help="Of the target.")] = DEFAULT_MODEL,
) -> None:
    """Measures all forms."""
    options = LocalOptions(model=model, gateway=_EVERY_STEP)
    with local_system(options) as system, Client(system.address) as client:
        forms = {name: measure(client, form) for name, form in _FORMS.items()}
    report = {"about": about_this_run(), "model": model, "forms": forms}
    publish(out, report, table(report))


if __name__ == "__main__":
    typer.run(main)
