"""Directory of speculators: describes and numbers them, and retries unavailable services.

A speculator's number is permanent: one that comes back under its name at its service's address gets its old
number, another one gets a new number. So statistics by number never mix two speculators.
"""

import asyncio
import logging
from collections.abc import Sequence

from specinfer.errors import IncompatibleError, UnavailableError
from specinfer.remote.drafts import describe_speculators, speculator_keys
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.service import SpeculatorService
from specinfer.v1 import speculator_pb2

log = logging.getLogger(__name__)
_MAX_SPECULATORS = 64
"""Maximum speculators of a service: all share a step's tree budget."""
_MAX_TOP_K = 32
"""Maximum predictions per node, for messages of at most a megabyte."""
_MAX_NAMES = 256
"""Maximum names of an address over time: numbers and metrics stay."""
_LONGEST_NAME = 128
"""Characters; names are labels of metrics."""


class SpeculatorDirectory:
    """The speculators of all services that were ever reached."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._policy = policy
        self.names: list[str] = []
        """Names by number; the list itself stays the same."""
        self.places: list[str] = []
        """Service of each one, as the operator wrote it."""
        self._numbers: dict[tuple[str, str, int], int] = {}
        """Numbers by service, name, and place among equal names. Replicas share them."""
        self._present: dict[str, dict[str, SpeculatorService]] = {}
        """Replicas that were reached by service, by address."""

    async def describe(self, service: SpeculatorService) -> None:
        """Describe a service; from then on it takes part.

        Raises:
            UnavailableError: if it does not answer.
            IncompatibleError: if its speculators do not fit the target.
        """
        assert service.stub is not None, "residents are described by the verifier"
        self.enrol(service, await describe_speculators(service.address, service.stub))

    def enrol(self, service: SpeculatorService, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        """Let a service take part from now on, by its description.

        Raises:
            IncompatibleError: if its speculators do not fit the target.
        """
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
        """Describe absent services again and again.

        A service that was lost several times in a row is left alone for longer, and so is one that does not
        fit: it may be replaced.
        """
        unfit, pause = "", 0.0 if at_once else self._policy.retry_after(service.losses)
        while service.description is None:
            await asyncio.sleep(pause)
            pause = self._policy.retry_after(service.losses)
            try:
                await self.describe(service)
            except UnavailableError:
                continue  # still away; the pool counts what it misses
            except IncompatibleError as error:
                if str(error) != unfit:
                    log.error("%s; it stays out", error)
                unfit, pause = str(error), self._policy.longest_retry_s

    def _check(self, service: SpeculatorService, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        theirs, ours = description.tokenizer_fingerprint, self._policy.tokenizer_fingerprint
        if theirs and theirs != ours:
            raise IncompatibleError(
                f"the speculators at {service.address} have tokenizer {theirs}, the target has {ours}"
            )
        self._check_names(service, [speculator.name for speculator in description.speculators])
        self._check_features(service.address, description)
        max_k = min(_MAX_TOP_K, self._policy.vocab_size)
        if description.target_top_k > max_k:
            raise IncompatibleError(
                f"the speculators at {service.address} read {description.target_top_k} predictions of the "
                f"target per node: at most {max_k} may be"
            )
        for speculator in description.speculators:
            if (
                speculator.draws
                and self._policy.trust_draws
                and speculator.vocab_size > self._policy.vocab_size
            ):
                # its draws of the tokens that the target lacks would be dropped, which selects by token
                raise IncompatibleError(
                    f"speculator {speculator.name} at {service.address} draws from {speculator.vocab_size} tokens, "
                    f"the target has {self._policy.vocab_size}"
                )

    def _check_names(self, service: SpeculatorService, names: Sequence[str]) -> None:
        if len(names) > _MAX_SPECULATORS:
            raise IncompatibleError(
                f"{service.address} has {len(names)} speculators: at most {_MAX_SPECULATORS} may be"
            )
        for name in names:
            if not 0 < len(name) <= _LONGEST_NAME:
                what = f"has a name of {len(name)} characters: 1 to {_LONGEST_NAME} may be"
                raise IncompatibleError(f"a speculator at {service.address} {what}")
        known = {key for key in self._numbers if key[0] == service.service}
        if len(known | set(speculator_keys(service.service, names))) > _MAX_NAMES:
            raise IncompatibleError(
                f"{service.service} has had {len(known)} speculators: at most {_MAX_NAMES} may be"
            )

    def _check_features(self, address: str, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        wanted, kept = list(description.feature_layers), self._policy.feature_layers
        if wanted and (not kept or wanted != sorted(set(wanted)) or wanted[-1] > kept):
            raise IncompatibleError(
                f"the speculators at {address} read hidden states after layers {wanted}, "
                f"the verifier tells those after up to {kept}"
            )
        if wanted and description.feature_size != self._policy.hidden_size:
            raise IncompatibleError(
                f"the speculators at {address} read hidden states of {description.feature_size} numbers, "
                f"the verifier's have {self._policy.hidden_size}"
            )

    def _compare(
        self, service: SpeculatorService, description: speculator_pb2.DescribeSpeculatorReply
    ) -> None:
        """Compare the methods of a replica and the others."""
        replicas = self._present.setdefault(service.service, {})
        for address, other in replicas.items():
            if address != service.address and other.description is not None:
                theirs, its = _methods(other.description), _methods(description)
                if theirs != its:
                    raise IncompatibleError(
                        f"the replica at {service.address} of {service.service} has speculators {its}, "
                        f"the one at {address} has {theirs}"
                    )
        replicas[service.address] = service

    def _enrol(self, service: SpeculatorService, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        """Number a service's speculators; note which of them may draw."""
        names = [speculator.name for speculator in description.speculators]
        service.members = self._members(service.service, names)
        service.reads_references = description.reads_references
        draws = [s for s, it in zip(service.members, description.speculators, strict=True) if it.draws]
        service.drawing = frozenset(draws if self._policy.trust_draws else ())
        service.distrusted = frozenset(draws) - service.drawing
        for speculator in sorted(service.distrusted):
            log.warning(
                "speculator %s at %s draws, which is not trusted: it is asked for greedy requests only",
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
    """Return names, drafters and draws of speculators, and their inputs.

    These are the layers of hidden states, the number of the target's predictions, and whether they use
    references.
    """
    speculators = [
        (speculator.name, speculator.drafter, speculator.draws) for speculator in description.speculators
    ]
    reads = list(description.feature_layers), description.target_top_k, description.reads_references
    return speculators, *reads
