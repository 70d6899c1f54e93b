"""Read and write the file of API keys, in JSON lines.

The file contains the SHA-256 of each key, never the key. A key is 256 random bits and cannot be guessed, so
a plain SHA-256 is enough; slow, salted hashes are for passwords. A user that can write the file can add keys.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from specinfer.errors import InvalidInputError, NotFoundError, SettingError

KEY_PREFIX = "specinfer_"
"""Prefix of every key; scanners for leaked secrets can search for it."""
SETTING = "api_keys"
NEW_FILE_MODE = 0o600
ID_CHARACTERS = 8
MAX_PRIORITY = 2**31 - 1
"""Maximum priority of a request; the default of `ApiKey.max_priority`."""


class ApiKey(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern="^[A-Za-z0-9_.@-]{1,64}$")
    """Name of the caller; several keys may have it, for rotation."""
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    max_concurrent: int = Field(0, ge=0)
    """Maximum unfinished requests; 0: no limit."""
    tokens_per_minute: int = Field(0, ge=0)
    """Maximum tokens generated per minute; 0: no limit."""
    max_priority: int = Field(MAX_PRIORITY, ge=-(2**31), le=MAX_PRIORITY)
    """Maximum priority of requests with this key."""
    no_training: bool = False
    """True if speculators must not learn from requests with this key."""
    expires: AwareDatetime | None = None
    """Time of expiry, with time zone; None: never."""

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.sha256)

    @property
    def key_id(self) -> str:
        """First `ID_CHARACTERS` of the hash, to distinguish keys of the same name."""
        return self.sha256[:ID_CHARACTERS]

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


def make_key(name: str, **limits: Any) -> tuple[str, ApiKey]:
    """Return a new key and its entry; `limits` are fields of `ApiKey`."""
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    try:
        return secret, ApiKey(name=name, sha256=digest_of(secret).hex(), **limits)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidInputError(".".join(map(str, first["loc"])), first["input"], first["msg"]) from error


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_keys(path: Path) -> list[ApiKey]:
    """Return all keys of a file; empty lines are left out."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "cannot be read"
        raise SettingError(SETTING, str(path), reason) from error
    keys = [_read_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if len({key.sha256 for key in keys}) < len(keys):
        raise SettingError(SETTING, str(path), "two lines have the same sha256")
    return keys


def write_keys(path: Path, keys: Sequence[ApiKey]) -> None:
    """Replace a key file atomically. A new file has mode 0600."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, NEW_FILE_MODE), "w") as file:
            file.writelines(_line(key) for key in keys)
            file.flush()
            os.fsync(file.fileno())
        _keep_access(path, new)
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise SettingError(SETTING, str(path), error.strerror or "cannot be written") from error


def limits_of(key: ApiKey) -> dict[str, Any]:
    """Return a key's limits as arguments of `make_key`, without the expiry."""
    return key.model_dump(include={"max_concurrent", "tokens_per_minute", "max_priority", "no_training"})


def revoke(keys: Sequence[ApiKey], name: str, key_id: str | None = None) -> list[ApiKey]:
    """Return the keys without those of `name`, or without key `key_id`."""
    left = [key for key in keys if key.name != name or (key_id is not None and key.key_id != key_id)]
    if len(left) == len(keys):
        raise NotFoundError(f"no key {name!r}" + (f" with id {key_id!r}" if key_id else ""))
    return left


def _line(key: ApiKey) -> str:
    return json.dumps(key.model_dump(mode="json", exclude_defaults=True)) + "\n"


def _read_line(path: Path, number: int, line: str) -> ApiKey:
    try:
        return ApiKey.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]  # the input may contain a key by mistake
        field = ".".join(map(str, first["loc"]))
        raise SettingError(SETTING, str(path), f"line {number}: {field}: {first['msg']}") from error


def _keep_access(path: Path, new: Path) -> None:
    """Give the new file the old file's mode, owner and group."""
    if not path.exists():
        return
    old = path.stat()
    new.chmod(old.st_mode)
    if (old.st_uid, old.st_gid) != (os.getuid(), os.getgid()):
        os.chown(new, old.st_uid, old.st_gid)
