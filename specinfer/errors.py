"""Define errors caused by input and by other services.

    SpecInferError
    +- InvalidInputError          a field has an invalid value           INVALID_ARGUMENT
    |  +- MalformedTreeError      a token tree breaks its invariants     INVALID_ARGUMENT
    |  +- SettingError            a bad setting at start-up              exit code 2
    +- ConstraintError            a constraint is too complex or broken  INVALID_ARGUMENT
    +- NotFoundError              no such request or model               NOT_FOUND
    +- AlreadyExistsError         duplicate request id                   ALREADY_EXISTS
    +- IncompatibleError          tokenizer or model do not match        FAILED_PRECONDITION
    +- ExhaustedError             queue or cache full                    RESOURCE_EXHAUSTED
    +- UnavailableError           a service cannot be reached            UNAVAILABLE
    |  +- ServiceChangedError     another process answers at an address  UNAVAILABLE
    +- FencedError                another gateway has the lease          ABORTED
    +- FaultError                 an unexpected exception                INTERNAL
    +- UnauthenticatedError       no key, or an unknown one              UNAUTHENTICATED
    +- DeniedError                the key does not allow it              PERMISSION_DENIED

`wire.status` maps the classes to gRPC codes. `assert` is for bugs in SpecInfer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SpecInferError(Exception):
    """Base class of all errors defined by SpecInfer."""

    @property
    def for_logs(self) -> str:
        """Message without values that may come from a request's text or tokens."""
        return str(self)


class InvalidInputError(SpecInferError):
    """A field has an invalid value; the message names field and value.

    For a field that is too large, the value is its size, with a unit such as "bytes".
    """

    def __init__(self, field: str, value: object, why: str, unit: str = "") -> None:
        unit = unit and f" {unit}"
        super().__init__(f"{field} = {_shorten(value)}{unit}: {why}")
        self.field, self.value, self.why = field, value, why
        may_be_shown = isinstance(value, (bool, int, float)) and "token_ids" not in field
        self._shown = f" = {value}{unit}" if may_be_shown else ""

    @property
    def for_logs(self) -> str:
        """Message without the value, except numbers that are no token ids."""
        return f"{self.field}{self._shown}: {self.why}"


class MalformedTreeError(InvalidInputError):
    """A token tree from outside breaks an invariant of `TokenTree`."""


class SettingError(InvalidInputError):
    """A service or command was started with an invalid setting."""

    def renamed(self, name: str) -> "SettingError":
        """Return the error with the setting's name as the operator wrote it."""
        return SettingError(name, self.value, self.why)

    @property
    def for_logs(self) -> str:
        """Message with the value, as settings contain no request's text."""
        return str(self)


class ConstraintError(SpecInferError):
    """A request's constraint is too complex, or its tokens violate the constraint."""


class NotFoundError(SpecInferError):
    """The named request, model or key does not exist."""


class AlreadyExistsError(SpecInferError):
    """The named request or key already exists."""


class IncompatibleError(SpecInferError):
    """Two parts do not match, for example in their tokenizers."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a model's path to an IncompatibleError raised within."""
    try:
        yield
    except IncompatibleError as error:
        if str(error).startswith(str(path)):
            raise
        raise IncompatibleError(f"{path}: {error}") from error


class ExhaustedError(SpecInferError):
    """A queue, cache or quota is full; retry after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(SpecInferError):
    """A needed service is unavailable; retry after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceChangedError(UnavailableError):
    """A new process answers at a service's address."""


class FencedError(SpecInferError):
    """Another gateway has a newer lease of the verifier."""


class FaultError(SpecInferError):
    """An unexpected exception. Its message may quote a request: never log it."""

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(f"{what}: {type(cause).__name__}: {cause}")
        self._place = f"{what}: {type(cause).__name__}{_place_of(cause)}"

    @property
    def for_logs(self) -> str:
        """Failed operation, type of exception, and file and line of its origin."""
        return self._place


class UnauthenticatedError(SpecInferError):
    """A call has no API key, or an unknown key."""


class DeniedError(SpecInferError):
    """The caller's API key does not permit the request."""


def _place_of(error: BaseException) -> str:
    """Return the file and line that raised an exception, or ""."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


def _shorten(value: object, limit: int = 120) -> str:
    text = repr(value[:limit] if isinstance(value, str) else value)  # input may have megabytes
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
