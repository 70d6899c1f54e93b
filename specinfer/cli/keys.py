"""`specinfer keys`: makes, lists and revokes API keys in the file that gateways read."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from specinfer.errors import AlreadyExistsError, NotFoundError
from specinfer.service.api_keys import ApiKey, limits_of, make_key, read_keys, revoke, write_keys

keys_app = typer.Typer(help="Make, list and revoke API keys of a gateway.", no_args_is_help=True)

KeyFile = Annotated[Path, typer.Option("--file", help="File of keys: the gateway's --api-keys.")]
KeyName = Annotated[str, typer.Option("--name", help="Whom the key belongs to: letters, digits and . _ @ -")]


@keys_app.command("create")
def create(
    name: KeyName,
    file: KeyFile,
    max_concurrent: Annotated[int | None, typer.Option(help="Most unfinished requests at once.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Most tokens generated in a minute.")] = None,
    max_priority: Annotated[int | None, typer.Option(help="Highest priority that it may ask for.")] = None,
    expires_days: Annotated[int | None, typer.Option(min=1, max=36500, help="Days until it ends.")] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Another key, with the same limits, for a name that has one.")
    ] = False,
) -> None:
    """Print a new key, once, and add its hash to the file.

    What is not given has no limit.
    """
    keys = read_keys(file) if file.exists() else []
    given = {
        "max_concurrent": max_concurrent,
        "tokens_per_minute": tokens_per_minute,
        "max_priority": max_priority,
    }
    limits = _limits_before(keys, name, rotate) | {
        key: value for key, value in given.items() if value is not None
    }
    secret, key = make_key(name, expires=_end(expires_days), **limits)
    write_keys(file, [*keys, key])
    typer.echo(secret)


@keys_app.command("list")
def list_keys(file: KeyFile) -> None:
    """Show names, ids, limits and ends; never keys."""
    for key in read_keys(file):
        expires = key.expires.isoformat(timespec="seconds") if key.expires else "never"
        typer.echo(
            f"{key.name}\t{key.key_id}\tconcurrent {key.max_concurrent or 'any'}"
            f"\ttokens/min {key.tokens_per_minute or 'any'}\tpriority {key.max_priority}\texpires {expires}"
        )


@keys_app.command("revoke")
def revoke_key(
    name: KeyName,
    file: KeyFile,
    key_id: Annotated[
        str | None, typer.Option("--id", help="Only this key of the name; `list` shows ids.")
    ] = None,
) -> None:
    """Remove the keys of a name. Calls that begin afterwards are refused."""
    write_keys(file, revoke(read_keys(file), name, key_id))


def _limits_before(keys: Sequence[ApiKey], name: str, rotate: bool) -> dict[str, Any]:
    """Limits of the latest key of a name, which a key that replaces it keeps."""
    before = [key for key in keys if key.name == name]
    if before and not rotate:
        raise AlreadyExistsError(f"{name!r} has a key already; --rotate adds another one")
    if rotate and not before:
        raise NotFoundError(f"{name!r} has no key to rotate")
    return limits_of(before[-1]) if before else {}


def _end(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)
