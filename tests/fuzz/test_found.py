"""Regression tests of the fuzzer's findings; those in verdicts are in tests/unit/gateway/test_verdicts.py."""

from random import Random
from typing import Any

import pytest

from specinfer.request.statuses import EntryStatus
from specinfer.v1 import common_pb2, verifier_pb2
from tests.fuzz.gateway_core import GatewayCore, untouched
from tests.fuzz.services import Services
from tests.fuzz.table_target import TableTarget
from tests.fuzz.traffic import expectation, new_request
from tests.fuzz.transport import InlineContext

ERROR: Any = int(EntryStatus.ERROR)
"""Status ERROR as a number, which protobuf's enum shares."""


async def test_a_service_cannot_blame_speculators_that_it_does_not_have() -> None:
    """Speculator 2 belongs to the other service, and 96 to none."""
    target = TableTarget()
    services = Services(target)
    services.reseed(Random(1))

    def blaming(reply: Any) -> Any:
        for result in reply.entries:
            for place in (2, 96, 2**32 - 1):
                result.drafts.add(speculator=place, status=ERROR)
        return reply

    core = GatewayCore(services, (0,), blaming, untouched, adaptive=False)
    await core.open()
    expected = expectation(core.submit(new_request("r", Random(3))), target)
    while expected.state.finish is None:
        await core.step()
        expected.check()
    (service,) = core.pool.services
    await core.close()
    assert set(service.faults.drafts) <= set(service.members)
    assert not service.refusals


async def test_a_reported_pass_time_is_limited_by_the_time_of_its_answer() -> None:
    """A pass of 2^63 microseconds made the planner divide by zero."""
    services = Services(TableTarget())

    def boasting(reply: Any) -> Any:
        reply.compute_us = 2**63
        return reply

    core = GatewayCore(services, (0,), untouched, boasting, adaptive=True)
    await core.open()
    services.reseed(Random(1))
    for number in range(8):
        core.submit(new_request(f"r{number}", Random(number)))
    while core.scheduler.running or core.scheduler.waiting:
        await core.step()
    await core.close()


def entry(name: str, **fields: Any) -> verifier_pb2.VerifyEntry:
    plain = {"token_ids": [5], "parents": [-1], "scores": [1.0]}
    right: dict[str, Any] = {"delta_token_ids": [3, 5], "tree": plain}
    return verifier_pb2.VerifyEntry(request_id=name, **(right | fields))


@pytest.mark.parametrize(
    "bad",
    [
        [entry("x", return_top_k=2**32 - 1)],
        [entry("x"), entry("x")],
        [entry("x"), entry("x", base_len=2)],
        [entry("x"), entry("x", delta_token_ids=[])],
        [entry("x"), entry("x", sampling=common_pb2.SamplingParams(temperature=-1.0))],
    ],
    ids=["top-k", "twice", "twice, resync", "twice, refused", "twice, malformed"],
)
async def test_an_entry_cannot_end_the_stream(bad: list[verifier_pb2.VerifyEntry]) -> None:
    """The other entry is served, and the cache is valid afterwards."""
    target = TableTarget()
    services = Services(target)

    async def requests() -> Any:
        yield verifier_pb2.VerifyRequest(step_id=1, entries=[*bad, entry("good")])
        yield verifier_pb2.VerifyRequest(
            step_id=2, entries=[entry("good", base_len=2, delta_token_ids=[7, 5])]
        )

    context: Any = InlineContext()
    first, second = [reply async for reply in services.verifier.Verify(requests(), context)]
    assert first.entries[-1].bonus_token_id == target.logits[target.row([3, 5])].argmax()
    assert second.entries[0].status == int(EntryStatus.OK)
    assert [verdict.request_id for verdict in first.entries] == [e.request_id for e in [*bad, entry("good")]]
    await services.release(["x", "good"])
    services.check_empty()
