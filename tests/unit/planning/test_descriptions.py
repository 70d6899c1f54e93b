"""Descriptions of services are checked before they are used."""

from typing import Any

import pytest

from gateway.session.verifier import VerifierClient
from specinfer.engine.draft_group import DraftInputs, DraftQuery
from specinfer.errors import IncompatibleError
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.remote.description import scope_of
from specinfer.remote.directory import SpeculatorDirectory
from specinfer.remote.service import SpeculatorService
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.target_outputs import TargetOutputs
from specinfer.tree import TreeLimits
from specinfer.v1 import speculator_pb2, verifier_pb2
from tests.fuzz.services import Services
from tests.fuzz.table_target import TableTarget
from tests.fuzz.transport import InlineChannel
from tests.integration.services.test_speculator_pool import POLICY


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("max_requests", 0),
        ("max_nodes", 0),
        ("max_nodes", 2**32 - 1),
        ("max_step_tokens", 1),
        ("kv_capacity_tokens", 0),
        ("kv_block_tokens", 0),
    ],
)
async def test_limits_of_a_verifier_that_make_no_sense_are_named(field: str, value: int) -> None:
    def described(reply: Any) -> Any:
        setattr(reply, field, value)
        return reply

    channel: Any = InlineChannel(Services(TableTarget()).verifier, described=described)
    with pytest.raises(IncompatibleError, match=f"{field} = {value}:"):
        await VerifierClient(channel).describe()


@pytest.mark.parametrize(
    "tokens", [[], [0, 64], list(range(1, 2000))], ids=["none", "of no token", "too many"]
)
async def test_costs_of_passes_that_make_no_sense_are_refused(tokens: list[int]) -> None:
    def described(reply: Any) -> Any:
        del reply.pass_costs[:]
        reply.pass_costs.extend(verifier_pb2.PassCost(tokens=n, microseconds=5) for n in tokens)
        return reply

    channel: Any = InlineChannel(Services(TableTarget()).verifier, described=described)
    with pytest.raises(IncompatibleError, match="pass_costs"):
        await VerifierClient(channel).describe()


def test_a_verifier_of_one_request_has_a_budget() -> None:
    assert derive_budget(PassCurve([(1, 0.001)]), 1, 0, 2).per_request == 0


def description(*names: str) -> speculator_pb2.DescribeSpeculatorReply:
    return speculator_pb2.DescribeSpeculatorReply(
        speculators=[speculator_pb2.SpeculatorDescription(name=name) for name in names]
    )


def service_at(address: str) -> SpeculatorService:
    missing: Any = None  # nothing is sent
    return SpeculatorService(address=address, service=address, stub=missing, stream=missing)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([f"s{i}" for i in range(65)], "65 speculators: at most 64"),
        (["good", ""], "name of 0 characters"),
        (["x" * 129], "name of 129 characters"),
    ],
    ids=["many", "nameless", "long"],
)
def test_names_and_number_of_speculators_are_bounded(names: list[str], reason: str) -> None:
    with pytest.raises(IncompatibleError, match=reason):
        SpeculatorDirectory(POLICY)._check(service_at("x"), description(*names))


def test_a_service_with_more_and_more_new_names_is_refused() -> None:
    """Numbers of speculators are never freed, and neither are the metrics of each name."""
    directory = SpeculatorDirectory(POLICY)
    service = service_at("x")
    for number in range(256):
        described = description(f"s{number}")
        directory._check(service, described)
        directory._enrol(service, described)
    directory._check(service, description("s7"))
    directory._check(service_at("y"), description("s256"))
    with pytest.raises(IncompatibleError, match="x has had 256 speculators"):
        directory._check(service, description("s256"))


def test_services_get_the_scope_of_a_request_that_starts_over() -> None:
    """Services get it only if prompts are shared by caller; the scope does not contain the caller's name."""
    request = GenerationRequest("r", (5, 6), 8, GREEDY, caller="alice")
    entry = StepEntry(RequestState.new(request, 0.0, 0, False), 0, (5, 6), True, TreeLimits(4, 4), 4)
    speculators = service_at("a")
    speculators.members = (0,)
    query = DraftQuery(entry, frozenset({0}))

    def scope(scoped: bool) -> str:
        inputs = DraftInputs(TargetOutputs(0), 0, lambda request: scope_of(request, scoped))
        return speculators.encode(query, inputs).cache_scope

    assert scope(False) == ""
    assert scope(True) not in ("", "alice")
    speculators.cached_len["r"] = 1
    assert scope(True) == ""


def test_a_salt_separates_caches_whoever_calls() -> None:
    def scope(by_caller: bool, **fields: str) -> str:
        return scope_of(GenerationRequest("r", (5,), 8, GREEDY, **fields), by_caller)  # type: ignore[arg-type]

    assert scope(False) == scope(False, caller="alice") == ""
    assert scope(False, cache_salt="a") == scope(False, cache_salt="a", caller="alice")
    separate = [
        scope(True, caller=caller, cache_salt=salt) for caller in ("alice", "bob") for salt in ("", "a", "b")
    ]
    assert len(set(separate)) == len(separate)
