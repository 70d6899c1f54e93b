"""Find the API key of a call, and its limits."""

import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from specinfer.errors import SettingError, UnauthenticatedError
from specinfer.service.api_keys import MAX_PRIORITY, ApiKey, digest_of, read_keys
from specinfer.service.tls import stamp_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Owner of an API key; without API keys, any client."""

    name: str = ""
    """Name of the key, which owns requests; empty without API keys."""
    max_concurrent: int = 0
    """Maximum unfinished requests; 0: no limit."""
    tokens_per_minute: int = 0
    """Maximum tokens generated per minute; 0: no limit."""
    max_priority: int = MAX_PRIORITY
    """Maximum priority of the caller's requests."""
    no_training: bool = False
    """True if speculators must not learn from the caller's requests."""


ANYBODY = Caller()


GIVEN = "api-key"
"""Name of the caller with the key of the option `--api-key`."""
HEADER = "authorization"
SCHEME = "bearer "
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
Clock: TypeAlias = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


class Callers:
    """The configured API keys. Without a key file, every client is `ANYBODY`.

    Each call checks whether the file has changed, and reads it again if so. If the new file is invalid, the
    old keys stay.
    """

    def __init__(
        self, path: Path | None, keys: Sequence[ApiKey], clock: Clock = _now, given: str = ""
    ) -> None:
        """Set the keys of a file, and a further key, without limits."""
        self._path, self._keys, self._clock = path, list(keys), clock
        self._given = [_given_key(given)] if given else []
        self._seen = None if path is None else stamp_of(path)

    @classmethod
    def load(cls, path: Path | None, clock: Clock = _now, given: str = "") -> "Callers":
        """Load the keys of a file and a given key; without both, none are needed."""
        callers = cls(
            path, (), clock, given
        )  # takes the file's stamp before reading, to notice any later change
        if path is not None:
            callers._keys = read_keys(path)
        return callers

    def identify(self, metadata: Metadata | None) -> Caller:
        """Return the caller of a call with `authorization: Bearer KEY` in its metadata."""
        if self._path is None and not self._given:
            return ANYBODY
        if self._path is not None:
            self._reload(self._path)
        caller = _find([*self._given, *self._keys], digest_of(_key_in(metadata or ())))
        if caller is None:
            raise UnauthenticatedError(f"{HEADER}: no such key")
        if caller.has_expired(self._clock()):
            raise UnauthenticatedError(f"{HEADER}: the key has expired")
        return Caller(
            caller.name,
            caller.max_concurrent,
            caller.tokens_per_minute,
            caller.max_priority,
            caller.no_training,
        )

    def _reload(self, path: Path) -> None:
        now = stamp_of(path)
        if now == self._seen:
            return
        self._seen = now
        try:
            self._keys = read_keys(path)
        except SettingError as error:
            log.error("the changed key file is not used, the old API keys stay valid: %s", error)
        else:
            log.info("read %d API keys", len(self._keys))


def _key_in(metadata: Metadata) -> str:
    values = [value for name, value in metadata if name.lower() == HEADER]
    if len(values) != 1 or not isinstance(values[0], str) or not values[0].lower().startswith(SCHEME):
        raise UnauthenticatedError(f"{HEADER}: must be given once, as `Bearer KEY`")
    return values[0][len(SCHEME) :].strip()


def _given_key(key: str) -> ApiKey:
    return ApiKey.model_validate({"name": GIVEN, "sha256": digest_of(key).hex()})


def _find(keys: Sequence[ApiKey], digest: bytes) -> ApiKey | None:
    """Return the key with this hash.

    All keys are compared, each in constant time, so that the duration reveals nothing.
    """
    caller = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            caller = key
    return caller
