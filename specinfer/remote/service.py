"""A speculator service's replica: its description, connection and answers.

A replica runs one or more speculators, which the pool numbers; the pool owns the connections.
"""

import math
from dataclasses import dataclass

from specinfer.engine.draft_group import DraftGroup, DraftInputs, DraftQuery, DraftRecord
from specinfer.planning.step_report import DraftTime
from specinfer.remote.description import consent_of
from specinfer.remote.draft_codec import encode_entry
from specinfer.remote.drafts import DraftStream
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc


@dataclass(kw_only=True)
class SpeculatorRecord(DraftRecord):
    """Speculators that described themselves by a message."""

    service: str
    """The service's name in the setting, common to all replicas."""
    description: speculator_pb2.DescribeSpeculatorReply | None = None
    """Latest description; None while the replica is unavailable."""
    reads_references: bool = False
    """True if any speculator uses references, by the latest description."""
    learning: common_pb2.LearningState | None = None
    """Latest state of learning in a reply; None before the first."""
    answered: int = 0
    """Messages answered in time."""
    missed: int = 0
    """Messages whose answer was late or lost."""

    def name_of(self, speculator: int) -> str:
        described = self.description.speculators if self.description else ()
        names = dict(zip(self.members, (member.name for member in described), strict=False))
        return names.get(speculator, f"number {speculator}")

    def replaced(self) -> None:
        """Reset what another process at the address does not have."""
        self.learning = None


@dataclass(kw_only=True)
class SpeculatorService(SpeculatorRecord, DraftGroup):
    """A replica of a service, its connection and statistics."""

    stub: speculator_pb2_grpc.SpeculatorStub
    stream: DraftStream
    losses: int = 0
    """Number of consecutive failed calls since the last answer."""
    busy: bool = False
    last_seconds: float = 0.0
    """Seconds from the latest message to its answer."""

    @property
    def available(self) -> bool:
        return self.description is not None

    @property
    def max_nodes(self) -> int:
        return self.description.max_nodes if self.description else 0

    @property
    def longest_context(self) -> float:
        return (self.description.max_context_len if self.description else 0) or math.inf

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return tuple(self.description.feature_layers) if self.description else ()

    @property
    def target_top_k(self) -> int:
        return self.description.target_top_k if self.description else 0

    def encode(self, asked: DraftQuery, inputs: DraftInputs) -> speculator_pb2.DraftEntry:
        """Encode a request's entry, without references."""
        entry = self.entry(asked, inputs)
        message = encode_entry(entry, chain=asked.entry.limits.width == 1)
        learns = entry.base_len == 0 and self.description is not None and self.description.learns
        if learns and (consent := consent_of(asked.entry.state.request)) is not None:
            message.learning.CopyFrom(consent)
        return message

    def draft_time(self, reply: speculator_pb2.DraftReply, read: int) -> DraftTime:
        """Return the latest answer's times; `read` as in `DraftTime`."""
        reported = zip(self.members, reply.speculator_us, strict=False)
        # reported seconds are limited by the measured seconds of the answer
        own_s = {s: min(us / 1e6, self.last_seconds) for s, us in reported if us}
        wire_s = max(0.0, self.last_seconds - sum(own_s.values()))
        return DraftTime(frozenset(self.members), own_s, wire_s, read)

    def replaced(self) -> None:
        """Reset the records after another process has started at the address.

        Its caches are empty, and refusals of the previous process do not apply.
        """
        super().replaced()
        self.cached_len.clear()
        self.features_len.clear()
        self.latest.clear()
        self.refusals.clear()
