"""Every error that outside data can cause; `specinfer.wire.status` maps each to a gRPC status.

    SpecInferError
    +- InvalidInputError          a field has a value it may not have    INVALID_ARGUMENT
    |  +- MalformedTreeError      a token tree breaks its invariants     INVALID_ARGUMENT
    |  +- SettingError            a bad setting at start-up              exit code 2
    +- NotFoundError              no such request or model               NOT_FOUND
    +- AlreadyExistsError         duplicate request id                   ALREADY_EXISTS
    +- IncompatibleError          tokenizer or model do not match        FAILED_PRECONDITION
    +- ExhaustedError             queue or cache full                    RESOURCE_EXHAUSTED
    +- UnavailableError           a service cannot be reached            UNAVAILABLE
    |  +- ServiceChangedError     another process answers there now      UNAVAILABLE
    +- FencedError                somebody else holds the lease          ABORTED
    +- UnauthenticatedError       no key, or one nobody knows            UNAUTHENTICATED
    +- DeniedError                the key does not allow it              PERMISSION_DENIED

`assert` is for bugs of ours; these are for everybody else's mistakes.
"""


class SpecInferError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInputError(SpecInferError):
    """A field has a value it may not have; the message names both."""

    def __init__(self, field: str, value: object, why: str) -> None:
        super().__init__(f"{field} = {_shorten(value)}: {why}")
        self.field = field


class MalformedTreeError(InvalidInputError):
    """A token tree from outside breaks an invariant of `TokenTree`."""


class SettingError(InvalidInputError):
    """A service or command was started with a bad setting."""


class NotFoundError(SpecInferError):
    """The named thing does not exist."""


class AlreadyExistsError(SpecInferError):
    """The named thing exists already."""


class IncompatibleError(SpecInferError):
    """Two parts that must agree do not, for example on the tokenizer."""


class ExhaustedError(SpecInferError):
    """No room at present; `retry_after_s` is a hint when to try again."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(SpecInferError):
    """A service that is needed cannot be reached."""


class ServiceChangedError(UnavailableError):
    """Another process answers at a service's address than the one that was described."""


class FencedError(SpecInferError):
    """A lease was lost: somebody else holds it, under a higher number."""


class UnauthenticatedError(SpecInferError):
    """A call without a key, or with one that is not known."""


class DeniedError(SpecInferError):
    """The caller's key does not allow this."""


def _shorten(value: object, limit: int = 120) -> str:
    text = repr(value[:limit] if isinstance(value, str) else value)  # a text from outside may be of megabytes
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
