"""Describe and number speculators; retry unavailable services.

A speculator's number is permanent: a speculator that returns with the same name at the same service gets its
old number, any other gets a new number. So statistics by number never mix two speculators.
"""

import asyncio
import logging
from collections.abc import Sequence

from specinfer.errors import IncompatibleError, UnavailableError
from specinfer.remote.drafts import describe_speculators, speculator_keys
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.service import SpeculatorRecord, SpeculatorService
from specinfer.v1 import speculator_pb2

log = logging.getLogger(__name__)
_MAX_SPECULATORS = 64
"""Maximum speculators of a service, as all share a step's tree budget."""
_MAX_TOP_K = 32
"""Maximum predicted tokens per node, to keep messages below a megabyte."""
_MAX_NAMES = 256
"""Maximum names of a service over time, as numbers are never removed."""
_LONGEST_NAME = 128
"""Maximum characters of a name, as names are labels of metrics."""


class SpeculatorDirectory:
    """The speculators of all services that ever answered."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._policy = policy
        self.names: list[str] = []
        """Speculator names by number; the list is extended, never replaced."""
        self.places: list[str] = []
        """Service of each speculator by number, as written in the setting."""
        self._numbers: dict[tuple[str, str, int], int] = {}
        """Numbers by (service, name, index among equal names), common to replicas."""
        self._present: dict[str, dict[str, SpeculatorRecord]] = {}
        """Replicas that ever answered, by service, then by address."""

    async def describe(self, service: SpeculatorService) -> None:
        """Describe a service, and add its speculators to the pool."""
        self.enrol(service, await describe_speculators(service.address, service.stub))

    def enrol(self, service: SpeculatorRecord, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        """Add a service's speculators to the pool, given its description."""
        self._check(service, description)
        self._compare(service, description)
        self._enrol(service, description)
        service.replaced()
        service.description = description
        for speculator in description.speculators:
            log.info(
                "speculator %s (%s) at %s is ready", speculator.name, speculator.drafter, service.address
            )

    async def keep_describing(self, service: SpeculatorService, at_once: bool = False) -> None:
        """Describe an unavailable service repeatedly until an answer arrives.

        The pause grows with consecutive failures. A service that does not fit the target is retried at the
        longest pause, as the operator may replace the service.
        """
        unfit, pause = "", 0.0 if at_once else self._policy.retry_after(service.losses)
        while service.description is None:
            await asyncio.sleep(pause)
            pause = self._policy.retry_after(service.losses)
            try:
                await self.describe(service)
            except UnavailableError:
                continue  # the pool counts the missed steps
            except IncompatibleError as error:
                if str(error) != unfit:
                    log.error("%s; the service is not used", error)
                unfit, pause = str(error), self._policy.longest_retry_s

    def _check(self, service: SpeculatorRecord, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        theirs, ours = description.tokenizer_fingerprint, self._policy.tokenizer_fingerprint
        if theirs and theirs != ours:
            raise IncompatibleError(
                f"the speculators at {service.address} have tokenizer {theirs}, but the target has {ours}"
            )
        self._check_names(service, [speculator.name for speculator in description.speculators])
        self._check_features(service.address, description)
        max_k = min(_MAX_TOP_K, self._policy.vocab_size)
        if description.target_top_k > max_k:
            raise IncompatibleError(
                f"the speculators at {service.address} read {description.target_top_k} predictions of the "
                f"target per node: at most {max_k} are allowed"
            )
        for speculator in description.speculators:
            if (
                speculator.draws
                and self._policy.trust_draws
                and speculator.vocab_size > self._policy.vocab_size
            ):
                # draws of tokens that the target lacks would be dropped: a selection by token, which biases
                raise IncompatibleError(
                    f"speculator {speculator.name} at {service.address} draws from {speculator.vocab_size} tokens, "
                    f"the target has {self._policy.vocab_size}"
                )

    def _check_names(self, service: SpeculatorRecord, names: Sequence[str]) -> None:
        if len(names) > _MAX_SPECULATORS:
            raise IncompatibleError(
                f"{service.address} has {len(names)} speculators: at most {_MAX_SPECULATORS} are allowed"
            )
        for name in names:
            if not 0 < len(name) <= _LONGEST_NAME:
                what = f"has a name of {len(name)} characters: 1 to {_LONGEST_NAME} are allowed"
                raise IncompatibleError(f"a speculator at {service.address} {what}")
        known = {key for key in self._numbers if key[0] == service.service}
        if len(known | set(speculator_keys(service.service, names))) > _MAX_NAMES:
            raise IncompatibleError(
                f"{service.service} has had {len(known)} speculators: at most {_MAX_NAMES} are allowed"
            )

    def _check_features(self, address: str, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        wanted, kept = list(description.feature_layers), self._policy.feature_layers
        if wanted and (not kept or wanted != sorted(set(wanted)) or wanted[-1] > kept):
            raise IncompatibleError(
                f"the speculators at {address} read hidden states after layers {wanted}, "
                f"but the verifier returns those of ascending layers 1 to {kept}"
            )
        if wanted and description.feature_size != self._policy.hidden_size:
            raise IncompatibleError(
                f"the speculators at {address} read hidden states of {description.feature_size} numbers, "
                f"but the verifier's have {self._policy.hidden_size}"
            )

    def _compare(
        self, service: SpeculatorRecord, description: speculator_pb2.DescribeSpeculatorReply
    ) -> None:
        """Check that a service's replicas have the same speculators."""
        replicas = self._present.setdefault(service.service, {})
        for address, other in replicas.items():
            if address != service.address and other.description is not None:
                theirs, its = _methods(other.description), _methods(description)
                if theirs != its:
                    raise IncompatibleError(
                        f"the replica at {service.address} of {service.service} has speculators {its}, "
                        f"but the replica at {address} has {theirs}"
                    )
        replicas[service.address] = service

    def _enrol(self, service: SpeculatorRecord, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        """Number a service's speculators; store which speculators may draw."""
        names = [speculator.name for speculator in description.speculators]
        service.members = self._members(service.service, names)
        service.reads_references = description.reads_references
        draws = [s for s, it in zip(service.members, description.speculators, strict=True) if it.draws]
        service.drawing = frozenset(draws if self._policy.trust_draws else ())
        service.distrusted = frozenset(draws) - service.drawing
        for speculator in sorted(service.distrusted):
            log.warning(
                "speculator %s at %s draws, but draws are not trusted: it drafts for greedy requests only",
                *(self.names[speculator], service.address),
            )

    def _members(self, service: str, names: Sequence[str]) -> tuple[int, ...]:
        keys = speculator_keys(service, names)
        for key in keys:
            if key not in self._numbers:
                self._numbers[key] = len(self.names)
                self.names.append(key[1])
                self.places.append(service)
        return tuple(self._numbers[key] for key in keys)


def _methods(
    description: speculator_pb2.DescribeSpeculatorReply,
) -> tuple[list[tuple[str, str, bool]], list[int], int, bool]:
    """Return the parts of a description in which replicas must agree.

    These are the (name, drafter, draws) of each speculator, and the service's feature layers, predictions
    per node and use of references.
    """
    speculators = [
        (speculator.name, speculator.drafter, speculator.draws) for speculator in description.speculators
    ]
    reads = list(description.feature_layers), description.target_top_k, description.reads_references
    return speculators, *reads
