"""`specinfer plan`: divisions of a model among devices, with their memory and speed."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from specinfer.cli.connection import describe_verifier
from specinfer.cli.options.choices import DtypeChoice
from specinfer.cli.options.shared import JsonOutput, check_positive
from specinfer.cli.show import output
from specinfer.errors import InvalidInputError, SettingError, UnavailableError
from specinfer.hub import resolve_model
from specinfer.service.channel import check_target

if TYPE_CHECKING:
    from specinfer.model.parallel.plan import Curve, Need, Plan

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STEP_TOKENS = 2048
"""`--max-step-tokens` of a verifier, by default."""


def plan(
    model: Annotated[
        str, typer.Argument(help="Registry name, hub id or directory; its config.json will do.")
    ],
    devices: Annotated[int, typer.Option(help="How many devices there are.")],
    memory: Annotated[float, typer.Option(help="Gigabytes (1e9 bytes) that a verifier may use of each.")],
    dtype: Annotated[
        DtypeChoice, typer.Option(help="Numeric type of weights and cache.")
    ] = DtypeChoice.BFLOAT16,
    context: Annotated[int | None, typer.Option(help="Tokens of a request; the model's most.")] = None,
    nodes: Annotated[int, typer.Option(help="Nodes of a request's tree, root included.")] = 64,
    batch: Annotated[int, typer.Option(help="Requests that a verifier decodes at once.")] = 16,
    verifier: Annotated[
        str | None,
        typer.Option(
            help="Address of a verifier with this model on one such device: its passes tell the speed."
        ),
    ] = None,
    curve: Annotated[
        Path | None, typer.Option(help='JSON file with {"pass_costs": [[tokens, seconds], ...]} instead.')
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Show which layouts of a model fit some devices: memory, cache, and speed at best."""
    from specinfer.model.parallel.plan import Need, plans
    from specinfer.model.weights.config import load_config

    if verifier and curve:
        raise InvalidInputError("--curve", str(curve), "give it or --verifier")
    if not memory > 0:  # also what is no number
        raise InvalidInputError("--memory", memory, "must be positive")
    check_positive("--devices", devices)
    check_positive("--nodes", nodes)
    check_positive("--batch", batch)
    config = load_config(resolve_model(model))
    length = check_positive("--context", context) or config.max_positions
    need = Need(devices, round(memory * 1e9), _BYTES[dtype], length, nodes, _STEP_TOKENS, batch)
    passes = read_curve(curve) if curve else ask_curve(verifier) if verifier else ()
    found = plans(config, need)
    if json_output:
        typer.echo(json.dumps([row_of(each, need, passes) for each in found]))
    else:
        output.print(table_of(found, need, passes))
    if not found[0].fits:
        raise UnavailableError(f"no layout has room for a request of {length} tokens")
    if not json_output:
        output.print(_advice(found[0]), markup=False, highlight=False, soft_wrap=True)


def read_curve(path: Path) -> "Curve":
    """Return (tokens, seconds) of the passes that a file lists.

    Raises:
        SettingError: if it cannot be read, or lists none.
    """
    try:
        rows = json.loads(path.read_text())["pass_costs"]
        found = sorted((int(tokens), float(seconds)) for tokens, seconds in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError("curve", str(path), f"no readable pass_costs: {error}") from error
    if not found:
        raise SettingError("curve", str(path), "pass_costs is empty")
    for tokens, seconds in found:
        if not (tokens > 0 and 0 < seconds < math.inf):
            raise SettingError("curve", str(path), f"pass_costs has [{tokens}, {seconds}]: must be positive")
    return found


def ask_curve(address: str) -> "Curve":
    """Return the durations of a verifier's passes.

    Raises:
        SettingError: if it is no address.
        UnavailableError: if it does not answer.
    """
    told = describe_verifier(check_target("--verifier", address))
    return [(cost.tokens, cost.microseconds / 1e6) for cost in told.pass_costs]


def table_of(found: Sequence["Plan"], need: "Need", curve: "Curve") -> Table:
    """Return one row per layout."""
    table = Table(box=None, pad_edge=False)
    columns = ["layout", "verifiers", "weights GB", "pass GB", "KV kB/token", "KV tokens", "requests"]
    for name in [*columns, *(["tokens/s plain <=", f"pass of {need.nodes}"] if curve else [])]:
        table.add_column(name, justify="left" if name == "layout" else "right", no_wrap=name == "layout")
    for each in found:
        row = [
            str(each.layout),
            str(each.verifiers),
            f"{each.memory.weights / 1e9:.2f}",
            f"{each.memory.working / 1e9:.2f}",
            f"{each.memory.kv_per_token / 1e3:.1f}",
            f"{each.tokens}" if each.fits else "does not fit",
            str(each.requests),
        ]
        table.add_row(*row, *(_speed(each, need, curve) if curve else ()))
    return table


def row_of(each: "Plan", need: "Need", curve: "Curve") -> dict[str, object]:
    """Return one layout as JSON; its speed where durations of passes are known."""
    from specinfer.model.parallel.plan import least_seconds

    seconds = [least_seconds(curve, each.layout, tokens) for tokens in (1, need.nodes)] if curve else []
    speed = dict(zip(("pass_seconds", "tree_pass_seconds"), seconds, strict=False))
    return {
        "tensor_parallel": each.layout.tensor,
        "pipeline_parallel": each.layout.stages,
        "verifiers": each.verifiers,
        "weight_bytes": each.memory.weights,
        "pass_bytes": each.memory.working,
        "kv_bytes_per_token": each.memory.kv_per_token,
        "kv_tokens": each.tokens,
        "requests": each.requests,
        "fits": each.fits,
        **speed,
    }


def _speed(each: "Plan", need: "Need", curve: "Curve") -> list[str]:
    from specinfer.model.parallel.plan import least_seconds

    one, tree = (least_seconds(curve, each.layout, tokens) for tokens in (1, need.nodes))
    return [f"{1 / one:.1f}", f"{tree / one:.2f}x of one token"]


def _advice(best: "Plan") -> str:
    flags = f"--tensor-parallel {best.layout.tensor} --pipeline-parallel {best.layout.stages}"
    return f"{best.verifiers} x python -m verifier_svc {flags} --kv-tokens {best.tokens // 16 * 16}"
