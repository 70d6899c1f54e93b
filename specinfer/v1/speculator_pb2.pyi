from specinfer.v1 import common_pb2 as _common_pb2
from specinfer.v1 import tree_pb2 as _tree_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TreeShape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_SHAPE_UNSPECIFIED: _ClassVar[TreeShape]
    TREE_SHAPE_TREE: _ClassVar[TreeShape]
    TREE_SHAPE_SEQUENCE: _ClassVar[TreeShape]
TREE_SHAPE_UNSPECIFIED: TreeShape
TREE_SHAPE_TREE: TreeShape
TREE_SHAPE_SEQUENCE: TreeShape

class DraftRequest(_message.Message):
    __slots__ = ("step_id", "entries", "client", "traceparent")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    entries: _containers.RepeatedCompositeFieldContainer[DraftEntry]
    client: str
    traceparent: str
    def __init__(self, step_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[DraftEntry, _Mapping]]] = ..., client: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class DraftEntry(_message.Message):
    __slots__ = ("request_id", "base_len", "delta_token_ids", "node_budget", "max_depth", "shape", "sampling", "target_features", "target_top_k", "speculators", "min_path_probability", "draw_seed", "features_start", "references", "learning", "tokens_per_second", "cache_scope")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    DELTA_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TARGET_FEATURES_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOP_K_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    MIN_PATH_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    DRAW_SEED_FIELD_NUMBER: _ClassVar[int]
    FEATURES_START_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CACHE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    base_len: int
    delta_token_ids: _containers.RepeatedScalarFieldContainer[int]
    node_budget: int
    max_depth: int
    shape: TreeShape
    sampling: _common_pb2.SamplingParams
    target_features: bytes
    target_top_k: TargetTopK
    speculators: _containers.RepeatedScalarFieldContainer[int]
    min_path_probability: float
    draw_seed: int
    features_start: int
    references: _containers.RepeatedCompositeFieldContainer[Reference]
    learning: LearningConsent
    tokens_per_second: float
    cache_scope: str
    def __init__(self, request_id: _Optional[str] = ..., base_len: _Optional[int] = ..., delta_token_ids: _Optional[_Iterable[int]] = ..., node_budget: _Optional[int] = ..., max_depth: _Optional[int] = ..., shape: _Optional[_Union[TreeShape, str]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., target_features: _Optional[bytes] = ..., target_top_k: _Optional[_Union[TargetTopK, _Mapping]] = ..., speculators: _Optional[_Iterable[int]] = ..., min_path_probability: _Optional[float] = ..., draw_seed: _Optional[int] = ..., features_start: _Optional[int] = ..., references: _Optional[_Iterable[_Union[Reference, _Mapping]]] = ..., learning: _Optional[_Union[LearningConsent, _Mapping]] = ..., tokens_per_second: _Optional[float] = ..., cache_scope: _Optional[str] = ...) -> None: ...

class LearningConsent(_message.Message):
    __slots__ = ("caller", "prompt_len")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    caller: int
    prompt_len: int
    def __init__(self, caller: _Optional[int] = ..., prompt_len: _Optional[int] = ...) -> None: ...

class Reference(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TargetTopK(_message.Message):
    __slots__ = ("token_ids", "top_k_token_ids", "parents")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_k_token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., top_k_token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ...) -> None: ...

class DraftReply(_message.Message):
    __slots__ = ("step_id", "entries", "compute_us", "speculator_us", "instance_id", "learning")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    SPECULATOR_US_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNING_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    entries: _containers.RepeatedCompositeFieldContainer[DraftResult]
    compute_us: int
    speculator_us: _containers.RepeatedScalarFieldContainer[int]
    instance_id: str
    learning: _common_pb2.LearningState
    def __init__(self, step_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[DraftResult, _Mapping]]] = ..., compute_us: _Optional[int] = ..., speculator_us: _Optional[_Iterable[int]] = ..., instance_id: _Optional[str] = ..., learning: _Optional[_Union[_common_pb2.LearningState, _Mapping]] = ...) -> None: ...

class DraftResult(_message.Message):
    __slots__ = ("request_id", "status", "message", "drafts", "cached_len")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_LEN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: _common_pb2.EntryStatus
    message: str
    drafts: _containers.RepeatedCompositeFieldContainer[Draft]
    cached_len: int
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.EntryStatus, str]] = ..., message: _Optional[str] = ..., drafts: _Optional[_Iterable[_Union[Draft, _Mapping]]] = ..., cached_len: _Optional[int] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("speculator", "status", "message", "tree")
    SPECULATOR_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    speculator: int
    status: _common_pb2.EntryStatus
    message: str
    tree: _tree_pb2.TokenTree
    def __init__(self, speculator: _Optional[int] = ..., status: _Optional[_Union[_common_pb2.EntryStatus, str]] = ..., message: _Optional[str] = ..., tree: _Optional[_Union[_tree_pb2.TokenTree, _Mapping]] = ...) -> None: ...

class DescribeSpeculatorRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeSpeculatorReply(_message.Message):
    __slots__ = ("speculators", "tokenizer_fingerprint", "max_context_len", "max_requests", "max_nodes", "feature_layers", "target_top_k", "instance_id", "feature_size", "reads_references", "learns")
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOP_K_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SIZE_FIELD_NUMBER: _ClassVar[int]
    READS_REFERENCES_FIELD_NUMBER: _ClassVar[int]
    LEARNS_FIELD_NUMBER: _ClassVar[int]
    speculators: _containers.RepeatedCompositeFieldContainer[SpeculatorDescription]
    tokenizer_fingerprint: str
    max_context_len: int
    max_requests: int
    max_nodes: int
    feature_layers: _containers.RepeatedScalarFieldContainer[int]
    target_top_k: int
    instance_id: str
    feature_size: int
    reads_references: bool
    learns: bool
    def __init__(self, speculators: _Optional[_Iterable[_Union[SpeculatorDescription, _Mapping]]] = ..., tokenizer_fingerprint: _Optional[str] = ..., max_context_len: _Optional[int] = ..., max_requests: _Optional[int] = ..., max_nodes: _Optional[int] = ..., feature_layers: _Optional[_Iterable[int]] = ..., target_top_k: _Optional[int] = ..., instance_id: _Optional[str] = ..., feature_size: _Optional[int] = ..., reads_references: bool = ..., learns: bool = ...) -> None: ...

class SpeculatorDescription(_message.Message):
    __slots__ = ("name", "drafter", "model", "vocab_size", "draws")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    drafter: str
    model: str
    vocab_size: int
    draws: bool
    def __init__(self, name: _Optional[str] = ..., drafter: _Optional[str] = ..., model: _Optional[str] = ..., vocab_size: _Optional[int] = ..., draws: bool = ...) -> None: ...
