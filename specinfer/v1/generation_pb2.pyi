from specinfer.v1 import common_pb2 as _common_pb2
from specinfer.v1 import tree_pb2 as _tree_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Speculation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_UNSPECIFIED: _ClassVar[Speculation]
    SPECULATION_TREE: _ClassVar[Speculation]
    SPECULATION_SEQUENCE: _ClassVar[Speculation]
    SPECULATION_OFF: _ClassVar[Speculation]
    SPECULATION_ALWAYS: _ClassVar[Speculation]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_STOP_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
    FINISH_REASON_DEADLINE: _ClassVar[FinishReason]
    FINISH_REASON_CONSTRAINT: _ClassVar[FinishReason]

class ChatEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHAT_END_UNSPECIFIED: _ClassVar[ChatEnd]
    CHAT_END_CLOSED: _ClassVar[ChatEnd]
    CHAT_END_CONTINUED: _ClassVar[ChatEnd]
SPECULATION_UNSPECIFIED: Speculation
SPECULATION_TREE: Speculation
SPECULATION_SEQUENCE: Speculation
SPECULATION_OFF: Speculation
SPECULATION_ALWAYS: Speculation
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_ERROR: FinishReason
FINISH_REASON_DEADLINE: FinishReason
FINISH_REASON_CONSTRAINT: FinishReason
CHAT_END_UNSPECIFIED: ChatEnd
CHAT_END_CLOSED: ChatEnd
CHAT_END_CONTINUED: ChatEnd

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "tool_calls", "tool_call_id", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ChatMessages(_message.Message):
    __slots__ = ("messages", "tools", "end", "variables")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools: _containers.RepeatedScalarFieldContainer[str]
    end: ChatEnd
    variables: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools: _Optional[_Iterable[str]] = ..., end: _Optional[_Union[ChatEnd, str]] = ..., variables: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "chat", "no_special_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    NO_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatMessages
    no_special_tokens: bool
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., no_special_tokens: bool = ...) -> None: ...

class TokenizeReply(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeReply(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Infill(_message.Message):
    __slots__ = ("prefix", "suffix", "files", "begun")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    suffix: str
    files: _containers.RepeatedCompositeFieldContainer[InfillFile]
    begun: str
    def __init__(self, prefix: _Optional[str] = ..., suffix: _Optional[str] = ..., files: _Optional[_Iterable[_Union[InfillFile, _Mapping]]] = ..., begun: _Optional[str] = ...) -> None: ...

class InfillFile(_message.Message):
    __slots__ = ("name", "text")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "chat", "tokens", "infill", "max_new_tokens", "sampling", "stop_strings", "stop_token_ids", "ignore_eos", "priority", "speculation", "logprobs", "deadline_seconds", "constraint", "top_logprobs", "references", "no_training", "cache_salt", "cut_to_context")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    INFILL_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    NO_TRAINING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CUT_TO_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    chat: ChatMessages
    tokens: TokenIds
    infill: Infill
    max_new_tokens: int
    sampling: _common_pb2.SamplingParams
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    priority: int
    speculation: Speculation
    logprobs: bool
    deadline_seconds: float
    constraint: _common_pb2.Constraint
    top_logprobs: int
    references: _containers.RepeatedScalarFieldContainer[str]
    no_training: bool
    cache_salt: str
    cut_to_context: bool
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatMessages, _Mapping]] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., infill: _Optional[_Union[Infill, _Mapping]] = ..., max_new_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., stop_strings: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., priority: _Optional[int] = ..., speculation: _Optional[_Union[Speculation, str]] = ..., logprobs: bool = ..., deadline_seconds: _Optional[float] = ..., constraint: _Optional[_Union[_common_pb2.Constraint, _Mapping]] = ..., top_logprobs: _Optional[int] = ..., references: _Optional[_Iterable[str]] = ..., no_training: bool = ..., cache_salt: _Optional[str] = ..., cut_to_context: bool = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("request_id", "from_token")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    from_token: int
    def __init__(self, request_id: _Optional[str] = ..., from_token: _Optional[int] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ("request_id", "token_ids", "text", "logprobs", "summary", "position", "token_bytes", "top_logprobs", "prompt_tokens", "begins_in_reasoning")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEGINS_IN_REASONING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    summary: Summary
    position: int
    token_bytes: _containers.RepeatedScalarFieldContainer[bytes]
    top_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopLogprobs]
    prompt_tokens: int
    begins_in_reasoning: bool
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[float]] = ..., summary: _Optional[_Union[Summary, _Mapping]] = ..., position: _Optional[int] = ..., token_bytes: _Optional[_Iterable[bytes]] = ..., top_logprobs: _Optional[_Iterable[_Union[_common_pb2.TopLogprobs, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., begins_in_reasoning: bool = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("finish_reason", "prompt_tokens", "new_tokens", "stats", "ttft_seconds", "total_seconds", "queue_seconds", "seed", "cached_tokens", "stop_string")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    TTFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    prompt_tokens: int
    new_tokens: int
    stats: SpeculationStats
    ttft_seconds: float
    total_seconds: float
    queue_seconds: float
    seed: int
    cached_tokens: int
    stop_string: str
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., prompt_tokens: _Optional[int] = ..., new_tokens: _Optional[int] = ..., stats: _Optional[_Union[SpeculationStats, _Mapping]] = ..., ttft_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., seed: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., stop_string: _Optional[str] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("steps", "drafted", "accepted", "acceptance_histogram", "speculators", "lossy")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    steps: int
    drafted: int
    accepted: int
    acceptance_histogram: _containers.RepeatedScalarFieldContainer[int]
    speculators: _containers.RepeatedCompositeFieldContainer[SpeculatorStats]
    lossy: bool
    def __init__(self, steps: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., acceptance_histogram: _Optional[_Iterable[int]] = ..., speculators: _Optional[_Iterable[_Union[SpeculatorStats, _Mapping]]] = ..., lossy: bool = ...) -> None: ...

class SpeculatorStats(_message.Message):
    __slots__ = ("name", "drafted", "accepted", "wins")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WINS_FIELD_NUMBER: _ClassVar[int]
    name: str
    drafted: int
    accepted: int
    wins: int
    def __init__(self, name: _Optional[str] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., wins: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("model", "max_context_len", "waiting", "running", "verifier_ready", "speculators", "steps", "new_tokens", "lossy", "dtype", "executor", "device", "weights", "planner", "gateway_id", "gateways", "redis_ready", "draining", "verifiers", "phases", "finished", "trees", "drafted", "accepted", "gateway_states", "chat_form", "default_sampling", "last_minute", "caller")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_READY_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAYS_FIELD_NUMBER: _ClassVar[int]
    REDIS_READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_STATES_FIELD_NUMBER: _ClassVar[int]
    CHAT_FORM_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LAST_MINUTE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    model: str
    max_context_len: int
    waiting: int
    running: int
    verifier_ready: bool
    speculators: _containers.RepeatedCompositeFieldContainer[SpeculatorState]
    steps: int
    new_tokens: int
    lossy: bool
    dtype: str
    executor: str
    device: str
    weights: str
    planner: PlannerState
    gateway_id: str
    gateways: int
    redis_ready: bool
    draining: bool
    verifiers: _containers.RepeatedCompositeFieldContainer[VerifierState]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseState]
    finished: int
    trees: int
    drafted: int
    accepted: int
    gateway_states: _containers.RepeatedCompositeFieldContainer[GatewayState]
    chat_form: ChatForm
    default_sampling: _common_pb2.SamplingParams
    last_minute: RecentState
    caller: str
    def __init__(self, model: _Optional[str] = ..., max_context_len: _Optional[int] = ..., waiting: _Optional[int] = ..., running: _Optional[int] = ..., verifier_ready: bool = ..., speculators: _Optional[_Iterable[_Union[SpeculatorState, _Mapping]]] = ..., steps: _Optional[int] = ..., new_tokens: _Optional[int] = ..., lossy: bool = ..., dtype: _Optional[str] = ..., executor: _Optional[str] = ..., device: _Optional[str] = ..., weights: _Optional[str] = ..., planner: _Optional[_Union[PlannerState, _Mapping]] = ..., gateway_id: _Optional[str] = ..., gateways: _Optional[int] = ..., redis_ready: bool = ..., draining: bool = ..., verifiers: _Optional[_Iterable[_Union[VerifierState, _Mapping]]] = ..., phases: _Optional[_Iterable[_Union[PhaseState, _Mapping]]] = ..., finished: _Optional[int] = ..., trees: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., gateway_states: _Optional[_Iterable[_Union[GatewayState, _Mapping]]] = ..., chat_form: _Optional[_Union[ChatForm, _Mapping]] = ..., default_sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., last_minute: _Optional[_Union[RecentState, _Mapping]] = ..., caller: _Optional[str] = ...) -> None: ...

class RecentState(_message.Message):
    __slots__ = ("seconds", "finished", "new_tokens", "steps", "trees", "drafted", "accepted")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    finished: int
    new_tokens: int
    steps: int
    trees: int
    drafted: int
    accepted: int
    def __init__(self, seconds: _Optional[float] = ..., finished: _Optional[int] = ..., new_tokens: _Optional[int] = ..., steps: _Optional[int] = ..., trees: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ...) -> None: ...

class ChatForm(_message.Message):
    __slots__ = ("calls", "reasoning_begin", "reasoning_end", "mark_tokens", "tools", "infill")
    class MarkTokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_BEGIN_FIELD_NUMBER: _ClassVar[int]
    REASONING_END_FIELD_NUMBER: _ClassVar[int]
    MARK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    INFILL_FIELD_NUMBER: _ClassVar[int]
    calls: str
    reasoning_begin: str
    reasoning_end: str
    mark_tokens: _containers.ScalarMap[str, int]
    tools: bool
    infill: bool
    def __init__(self, calls: _Optional[str] = ..., reasoning_begin: _Optional[str] = ..., reasoning_end: _Optional[str] = ..., mark_tokens: _Optional[_Mapping[str, int]] = ..., tools: bool = ..., infill: bool = ...) -> None: ...

class PhaseState(_message.Message):
    __slots__ = ("name", "seconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    seconds: float
    def __init__(self, name: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class GatewayState(_message.Message):
    __slots__ = ("gateway_id", "verifiers", "room", "draining")
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    VERIFIERS_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    gateway_id: str
    verifiers: int
    room: int
    draining: bool
    def __init__(self, gateway_id: _Optional[str] = ..., verifiers: _Optional[int] = ..., room: _Optional[int] = ..., draining: bool = ...) -> None: ...

class VerifierState(_message.Message):
    __slots__ = ("address", "ready", "gateway_id", "running", "waiting", "kv_capacity_tokens")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    address: str
    ready: bool
    gateway_id: str
    running: int
    waiting: int
    kv_capacity_tokens: int
    def __init__(self, address: _Optional[str] = ..., ready: bool = ..., gateway_id: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ...) -> None: ...

class PlannerState(_message.Message):
    __slots__ = ("speculators", "tree_nodes", "step_nodes", "expected_tokens", "expected_seconds", "plain_tokens_per_second", "reason", "batch")
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    STEP_NODES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    speculators: _containers.RepeatedScalarFieldContainer[str]
    tree_nodes: int
    step_nodes: int
    expected_tokens: float
    expected_seconds: float
    plain_tokens_per_second: float
    reason: str
    batch: int
    def __init__(self, speculators: _Optional[_Iterable[str]] = ..., tree_nodes: _Optional[int] = ..., step_nodes: _Optional[int] = ..., expected_tokens: _Optional[float] = ..., expected_seconds: _Optional[float] = ..., plain_tokens_per_second: _Optional[float] = ..., reason: _Optional[str] = ..., batch: _Optional[int] = ...) -> None: ...

class SpeculatorState(_message.Message):
    __slots__ = ("name", "drafter", "ready", "answered", "missed", "failed", "service", "drafted", "accepted", "wins", "calibration_error", "raw_calibration_error", "auc", "learning", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WINS_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_ERROR_FIELD_NUMBER: _ClassVar[int]
    RAW_CALIBRATION_ERROR_FIELD_NUMBER: _ClassVar[int]
    AUC_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    drafter: str
    ready: bool
    answered: int
    missed: int
    failed: int
    service: str
    drafted: int
    accepted: int
    wins: int
    calibration_error: float
    raw_calibration_error: float
    auc: float
    learning: _common_pb2.LearningState
    model: str
    def __init__(self, name: _Optional[str] = ..., drafter: _Optional[str] = ..., ready: bool = ..., answered: _Optional[int] = ..., missed: _Optional[int] = ..., failed: _Optional[int] = ..., service: _Optional[str] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., wins: _Optional[int] = ..., calibration_error: _Optional[float] = ..., raw_calibration_error: _Optional[float] = ..., auc: _Optional[float] = ..., learning: _Optional[_Union[_common_pb2.LearningState, _Mapping]] = ..., model: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("request_id", "step", "dropped", "finish_reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    step: WatchedStep
    dropped: int
    finish_reason: FinishReason
    def __init__(self, request_id: _Optional[str] = ..., step: _Optional[_Union[WatchedStep, _Mapping]] = ..., dropped: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ...) -> None: ...

class WatchedStep(_message.Message):
    __slots__ = ("position", "nodes", "accepted", "tokens", "bonus", "planner", "batch", "seconds", "phases")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BONUS_FIELD_NUMBER: _ClassVar[int]
    PLANNER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    position: int
    nodes: _containers.RepeatedCompositeFieldContainer[WatchedNode]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedCompositeFieldContainer[WatchedToken]
    bonus: WatchedToken
    planner: PlannerState
    batch: int
    seconds: float
    phases: _containers.RepeatedCompositeFieldContainer[PhaseState]
    def __init__(self, position: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[WatchedNode, _Mapping]]] = ..., accepted: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[_Union[WatchedToken, _Mapping]]] = ..., bonus: _Optional[_Union[WatchedToken, _Mapping]] = ..., planner: _Optional[_Union[PlannerState, _Mapping]] = ..., batch: _Optional[int] = ..., seconds: _Optional[float] = ..., phases: _Optional[_Iterable[_Union[PhaseState, _Mapping]]] = ...) -> None: ...

class WatchedNode(_message.Message):
    __slots__ = ("token_id", "text", "parent", "chance", "proposals", "forced")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    parent: int
    chance: float
    proposals: _containers.RepeatedCompositeFieldContainer[WatchedProposal]
    forced: bool
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., parent: _Optional[int] = ..., chance: _Optional[float] = ..., proposals: _Optional[_Iterable[_Union[WatchedProposal, _Mapping]]] = ..., forced: bool = ...) -> None: ...

class WatchedProposal(_message.Message):
    __slots__ = ("speculator", "kind", "chance")
    SPECULATOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHANCE_FIELD_NUMBER: _ClassVar[int]
    speculator: int
    kind: _tree_pb2.ProposalKind
    chance: float
    def __init__(self, speculator: _Optional[int] = ..., kind: _Optional[_Union[_tree_pb2.ProposalKind, str]] = ..., chance: _Optional[float] = ...) -> None: ...

class WatchedToken(_message.Message):
    __slots__ = ("token_id", "text", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    text: str
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ...) -> None: ...
