from specinfer.v1 import common_pb2 as _common_pb2
from specinfer.v1 import speculator_pb2 as _speculator_pb2
from specinfer.v1 import tree_pb2 as _tree_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("step_id", "entries", "fence", "traceparent", "feature_layers", "grant")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    entries: _containers.RepeatedCompositeFieldContainer[VerifyEntry]
    fence: int
    traceparent: str
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    grant: Grant
    def __init__(self, step_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[VerifyEntry, _Mapping]]] = ..., fence: _Optional[int] = ..., traceparent: _Optional[str] = ..., feature_layers: _Optional[_Iterable[int]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("steps", "microseconds", "speculators", "step_nodes", "node_threshold")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    STEP_NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    steps: int
    microseconds: int
    speculators: _containers.RepeatedScalarFieldContainer[int]
    step_nodes: int
    node_threshold: float
    def __init__(self, steps: _Optional[int] = ..., microseconds: _Optional[int] = ..., speculators: _Optional[_Iterable[int]] = ..., step_nodes: _Optional[int] = ..., node_threshold: _Optional[float] = ...) -> None: ...

class VerifyEntry(_message.Message):
    __slots__ = ("request_id", "base_len", "delta_token_ids", "tree", "sampling", "logprobs", "features_from", "return_top_k", "prompt_len", "constraint", "top_logprobs", "tree_plan", "references", "max_new_tokens", "stop_token_ids", "cache_scope", "read_limit")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    DELTA_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FROM_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOP_K_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TREE_PLAN_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    READ_LIMIT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    base_len: int
    delta_token_ids: _containers.RepeatedScalarFieldContainer[int]
    tree: _tree_pb2.TokenTree
    sampling: _common_pb2.SamplingParams
    logprobs: bool
    features_from: int
    return_top_k: int
    prompt_len: int
    constraint: _common_pb2.Constraint
    top_logprobs: int
    tree_plan: TreePlan
    references: _containers.RepeatedCompositeFieldContainer[_speculator_pb2.Reference]
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cache_scope: str
    read_limit: int
    def __init__(self, request_id: _Optional[str] = ..., base_len: _Optional[int] = ..., delta_token_ids: _Optional[_Iterable[int]] = ..., tree: _Optional[_Union[_tree_pb2.TokenTree, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., logprobs: bool = ..., features_from: _Optional[int] = ..., return_top_k: _Optional[int] = ..., prompt_len: _Optional[int] = ..., constraint: _Optional[_Union[_common_pb2.Constraint, _Mapping]] = ..., top_logprobs: _Optional[int] = ..., tree_plan: _Optional[_Union[TreePlan, _Mapping]] = ..., references: _Optional[_Iterable[_Union[_speculator_pb2.Reference, _Mapping]]] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., cache_scope: _Optional[str] = ..., read_limit: _Optional[int] = ...) -> None: ...

class TreePlan(_message.Message):
    __slots__ = ("node_budget", "max_depth", "max_positions", "shape", "min_path_probability", "forced", "drawn_for", "tokens_per_second")
    NODE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    MIN_PATH_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    DRAWN_FOR_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    node_budget: int
    max_depth: int
    max_positions: int
    shape: _speculator_pb2.TreeShape
    min_path_probability: float
    forced: int
    drawn_for: bool
    tokens_per_second: float
    def __init__(self, node_budget: _Optional[int] = ..., max_depth: _Optional[int] = ..., max_positions: _Optional[int] = ..., shape: _Optional[_Union[_speculator_pb2.TreeShape, str]] = ..., min_path_probability: _Optional[float] = ..., forced: _Optional[int] = ..., drawn_for: bool = ..., tokens_per_second: _Optional[float] = ...) -> None: ...

class VerifyReply(_message.Message):
    __slots__ = ("step_id", "entries", "compute_us", "fenced", "instance_id", "model_fingerprint", "drafts", "more")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    entries: _containers.RepeatedCompositeFieldContainer[Verdict]
    compute_us: int
    fenced: bool
    instance_id: str
    model_fingerprint: str
    drafts: ResidentDrafts
    more: _containers.RepeatedCompositeFieldContainer[GrantedStep]
    def __init__(self, step_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., compute_us: _Optional[int] = ..., fenced: bool = ..., instance_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., drafts: _Optional[_Union[ResidentDrafts, _Mapping]] = ..., more: _Optional[_Iterable[_Union[GrantedStep, _Mapping]]] = ...) -> None: ...

class GrantedStep(_message.Message):
    __slots__ = ("entries", "compute_us", "drafts")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Verdict]
    compute_us: int
    drafts: ResidentDrafts
    def __init__(self, entries: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., compute_us: _Optional[int] = ..., drafts: _Optional[_Union[ResidentDrafts, _Mapping]] = ...) -> None: ...

class ResidentDrafts(_message.Message):
    __slots__ = ("microseconds", "read_tokens", "speculators")
    MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    READ_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    microseconds: int
    read_tokens: int
    speculators: _containers.RepeatedCompositeFieldContainer[ResidentDraft]
    def __init__(self, microseconds: _Optional[int] = ..., read_tokens: _Optional[int] = ..., speculators: _Optional[_Iterable[_Union[ResidentDraft, _Mapping]]] = ...) -> None: ...

class ResidentDraft(_message.Message):
    __slots__ = ("microseconds", "nodes", "failed", "malformed")
    MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_FIELD_NUMBER: _ClassVar[int]
    microseconds: int
    nodes: int
    failed: int
    malformed: int
    def __init__(self, microseconds: _Optional[int] = ..., nodes: _Optional[int] = ..., failed: _Optional[int] = ..., malformed: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("request_id", "status", "message", "accepted_nodes", "bonus_token_id", "logprobs", "cached_len", "features", "top_k_token_ids", "features_start", "finished", "top_logprobs", "tree", "cached_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NODES_FIELD_NUMBER: _ClassVar[int]
    BONUS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_LEN_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_START_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: _common_pb2.EntryStatus
    message: str
    accepted_nodes: _containers.RepeatedScalarFieldContainer[int]
    bonus_token_id: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    cached_len: int
    features: bytes
    top_k_token_ids: _containers.RepeatedScalarFieldContainer[int]
    features_start: int
    finished: bool
    top_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopLogprobs]
    tree: _tree_pb2.TokenTree
    cached_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.EntryStatus, str]] = ..., message: _Optional[str] = ..., accepted_nodes: _Optional[_Iterable[int]] = ..., bonus_token_id: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., cached_len: _Optional[int] = ..., features: _Optional[bytes] = ..., top_k_token_ids: _Optional[_Iterable[int]] = ..., features_start: _Optional[int] = ..., finished: bool = ..., top_logprobs: _Optional[_Iterable[_Union[_common_pb2.TopLogprobs, _Mapping]]] = ..., tree: _Optional[_Union[_tree_pb2.TokenTree, _Mapping]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class DescribeVerifierRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeVerifierReply(_message.Message):
    __slots__ = ("model", "vocab_size", "tokenizer_fingerprint", "max_context_len", "max_requests", "max_nodes", "max_step_tokens", "kv_capacity_tokens", "eos_token_ids", "acceptance", "dtype", "kv_block_tokens", "kv_window_tokens", "pass_costs", "executor", "device", "weights", "instance_id", "model_fingerprint", "text_fingerprint", "hidden_size", "feature_layers", "resident", "context_nanoseconds", "default_sampling")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_WINDOW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PASS_COSTS_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_NANOSECONDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    model: str
    vocab_size: int
    tokenizer_fingerprint: str
    max_context_len: int
    max_requests: int
    max_nodes: int
    max_step_tokens: int
    kv_capacity_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    acceptance: str
    dtype: str
    kv_block_tokens: int
    kv_window_tokens: int
    pass_costs: _containers.RepeatedCompositeFieldContainer[PassCost]
    executor: str
    device: str
    weights: str
    instance_id: str
    model_fingerprint: str
    text_fingerprint: str
    hidden_size: int
    feature_layers: int
    resident: _speculator_pb2.DescribeSpeculatorReply
    context_nanoseconds: float
    default_sampling: _common_pb2.SamplingParams
    def __init__(self, model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., tokenizer_fingerprint: _Optional[str] = ..., max_context_len: _Optional[int] = ..., max_requests: _Optional[int] = ..., max_nodes: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., acceptance: _Optional[str] = ..., dtype: _Optional[str] = ..., kv_block_tokens: _Optional[int] = ..., kv_window_tokens: _Optional[int] = ..., pass_costs: _Optional[_Iterable[_Union[PassCost, _Mapping]]] = ..., executor: _Optional[str] = ..., device: _Optional[str] = ..., weights: _Optional[str] = ..., instance_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., text_fingerprint: _Optional[str] = ..., hidden_size: _Optional[int] = ..., feature_layers: _Optional[int] = ..., resident: _Optional[_Union[_speculator_pb2.DescribeSpeculatorReply, _Mapping]] = ..., context_nanoseconds: _Optional[float] = ..., default_sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ...) -> None: ...

class PassCost(_message.Message):
    __slots__ = ("tokens", "microseconds")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    microseconds: int
    def __init__(self, tokens: _Optional[int] = ..., microseconds: _Optional[int] = ...) -> None: ...
