from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReplayRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("number", "token_ids", "prompt_len", "caller", "expires_seconds")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_SECONDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    caller: int
    expires_seconds: int
    def __init__(self, number: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., caller: _Optional[int] = ..., expires_seconds: _Optional[int] = ...) -> None: ...

class CheckpointPart(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: str
    data: bytes
    def __init__(self, file: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("taken", "why", "version", "tokens_per_step", "tokens_per_step_before", "episodes")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_STEP_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    why: str
    version: int
    tokens_per_step: float
    tokens_per_step_before: float
    episodes: int
    def __init__(self, taken: bool = ..., why: _Optional[str] = ..., version: _Optional[int] = ..., tokens_per_step: _Optional[float] = ..., tokens_per_step_before: _Optional[float] = ..., episodes: _Optional[int] = ...) -> None: ...
