from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProposalKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROPOSAL_KIND_UNSPECIFIED: _ClassVar[ProposalKind]
    PROPOSAL_KIND_POINT: _ClassVar[ProposalKind]
    PROPOSAL_KIND_WITH_REPLACEMENT: _ClassVar[ProposalKind]
    PROPOSAL_KIND_WITHOUT_REPLACEMENT: _ClassVar[ProposalKind]
PROPOSAL_KIND_UNSPECIFIED: ProposalKind
PROPOSAL_KIND_POINT: ProposalKind
PROPOSAL_KIND_WITH_REPLACEMENT: ProposalKind
PROPOSAL_KIND_WITHOUT_REPLACEMENT: ProposalKind

class Proposal(_message.Message):
    __slots__ = ("parent", "speculator", "kind", "children", "q_token_ids", "q_probabilities")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    SPECULATOR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    Q_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    Q_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    parent: int
    speculator: int
    kind: ProposalKind
    children: _containers.RepeatedScalarFieldContainer[int]
    q_token_ids: _containers.RepeatedScalarFieldContainer[int]
    q_probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, parent: _Optional[int] = ..., speculator: _Optional[int] = ..., kind: _Optional[_Union[ProposalKind, str]] = ..., children: _Optional[_Iterable[int]] = ..., q_token_ids: _Optional[_Iterable[int]] = ..., q_probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenTree(_message.Message):
    __slots__ = ("token_ids", "parents", "proposals", "scores", "order")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    scores: _containers.RepeatedScalarFieldContainer[float]
    order: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., scores: _Optional[_Iterable[float]] = ..., order: _Optional[_Iterable[int]] = ...) -> None: ...
