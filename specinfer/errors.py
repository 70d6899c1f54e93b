"""Every error that outside data can cause; `specinfer.wire.status` maps each to a gRPC status.

    SpecInferError
    +- InvalidInputError          a field has a value it may not have    INVALID_ARGUMENT
    |  +- MalformedTreeError      a token tree breaks its invariants     INVALID_ARGUMENT
    |  +- SettingError            a bad setting at start-up              exit code 2
    +- ConstraintError            a constraint cannot be followed on     INVALID_ARGUMENT
    +- NotFoundError              no such request or model               NOT_FOUND
    +- AlreadyExistsError         duplicate request id                   ALREADY_EXISTS
    +- IncompatibleError          tokenizer or model do not match        FAILED_PRECONDITION
    +- ExhaustedError             queue or cache full                    RESOURCE_EXHAUSTED
    +- UnavailableError           a service cannot be reached            UNAVAILABLE
    |  +- ServiceChangedError     another process answers there now      UNAVAILABLE
    +- FencedError                another gateway holds the lease        ABORTED
    +- FaultError                 a bug, or code that is not ours        INTERNAL
    +- UnauthenticatedError       no key, or an unknown one              UNAUTHENTICATED
    +- DeniedError                the key does not allow it              PERMISSION_DENIED

`assert` is for bugs of ours; these are for mistakes of others.
"""


class SpecInferError(Exception):
    """Base of all errors raised on purpose."""

    @property
    def for_logs(self) -> str:
        """Message without values that may come from a request's text or tokens."""
        return str(self)


class InvalidInputError(SpecInferError):
    """A field has a value it may not have; the message names both."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field} = {_shorten(value)}: {why}")
        self.field, self.value, self.why = field, value, why
        may_be_shown = isinstance(value, (bool, int, float)) and "token_ids" not in field
        self._shown = f" = {value}" if may_be_shown else ""

    @property
    def for_logs(self) -> str:
        """Message with the field and the fault; with the value only if it is a number and no token."""
        return f"{self.field}{self._shown}: {self.why}"


class MalformedTreeError(InvalidInputError):
    """A token tree from outside breaks an invariant of `TokenTree`."""


class SettingError(InvalidInputError):
    """A service or command was started with a bad setting."""

    def renamed(self, name: str) -> "SettingError":
        """Return the same error about a setting as the operator wrote it."""
        return SettingError(name, self.value, self.why)

    @property
    def for_logs(self) -> str:
        """Message with the value, which is the operator's own."""
        return str(self)


class ConstraintError(SpecInferError):
    """A request's constraint is too complex to follow, or its tokens do not follow it."""


class NotFoundError(SpecInferError):
    """The named thing does not exist."""


class AlreadyExistsError(SpecInferError):
    """The named thing exists already."""


class IncompatibleError(SpecInferError):
    """Two parts that must agree do not, for example on the tokenizer."""


class ExhaustedError(SpecInferError):
    """A limit of space is reached at present; `retry_after_s` is a hint when to try again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(SpecInferError):
    """A service that is needed cannot be reached; `retry_after_s` is a hint when to try again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceChangedError(UnavailableError):
    """Another process answers at a service's address than the one that was described."""


class FencedError(SpecInferError):
    """A lease was lost: another gateway holds it, under a higher number."""


class FaultError(SpecInferError):
    """An unforeseen exception. Its message may quote a request, so logs leave it out."""

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(f"{what}: {type(cause).__name__}: {cause}")
        self._place = f"{what}: {type(cause).__name__}{_place_of(cause)}"

    @property
    def for_logs(self) -> str:
        """Failed operation, kind of the exception and the line that raised it."""
        return self._place


class UnauthenticatedError(SpecInferError):
    """A call has no key, or one that is not known."""


class DeniedError(SpecInferError):
    """The caller's key does not allow this."""


def _place_of(error: BaseException) -> str:
    """Return file and line that raised an exception."""
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


def _shorten(value: object, limit: int = 120) -> str:
    text = repr(value[:limit] if isinstance(value, str) else value)  # a text from outside may be of megabytes
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
